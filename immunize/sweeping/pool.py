"""Runs side by side on the cores of this machine: hydra/launcher=pool.

The processes are those of joblib's pool (loky), which live as long as the sweep does: importing torch and Lightning
costs more than a short run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from hydra.errors import CompactHydraException

from immunize.processes import end_with_parent
from immunize.sweeping.job import Jobs
from immunize.sweeping.launching import Job, SweepLauncher
from immunize.sweeping.outcome import Outcome
from immunize.threads import cores

__all__ = ["PoolLauncher", "threads_a_worker"]

THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""Variables that cap the threads of a process which has not imported torch or numpy yet."""

TIMES = 3
"""A run is given up when a process has died so often while it was under way."""

QUEUED = 1
"""Runs a worker that wait for it, so that it never waits for the next one."""

LARGEST_GROWTH = 4 * 1024**3
"""Bytes by which a process may grow before it is replaced by a new one."""

_jobs: Jobs | None = None


def threads_a_worker(available: int, n_jobs: int) -> int:
    """Threads for each of `n_jobs` processes, so that together they have no more than there are cores."""
    return max(1, available // n_jobs)


class PoolLauncher(SweepLauncher):
    """A pool of processes.

    Args:
        n_jobs: how many; -1 is one a core.

    Raises:
        CompactHydraException: for another number below 1.
    """

    def __init__(self, n_jobs: int) -> None:
        if n_jobs == 0 or n_jobs < -1:
            raise CompactHydraException(
                f"error: hydra.launcher.n_jobs has to be at least 1, or -1 for one a core; it is {n_jobs}"
            )
        self.n_jobs = cores() if n_jobs == -1 else n_jobs
        self.threads: int = threads_a_worker(cores(), self.n_jobs)

    def outcomes(self, jobs: Iterator[Job]) -> Iterable[tuple[Job, Outcome]]:
        """Side by side. What was handed out when a process died (killed, out of memory) is begun again.

        A death ends the pool, and nobody knows which of the runs under way it came from: each of them is begun again
        alone, so that the next death is that of its own run, and none is given up for its neighbour's. Runs that only
        waited for a process lose nothing.
        """
        pool = _Pool(self.jobs, self.n_jobs, self.threads)
        deaths: Counter[Job] = Counter()
        suspects: list[Job] = []  # the first is under way, nothing else is
        again: list[Job] = []
        try:
            while True:
                if suspects and not pool.running:
                    pool.begin(suspects[0])
                while not suspects and pool.has_room():
                    job = again.pop(0) if again else next(jobs, None)
                    if job is None:
                        break
                    pool.begin(job)
                if not pool.running:
                    return
                for job, outcome in pool.over():
                    if job in suspects:
                        suspects.remove(job)
                    yield job, outcome
                if pool.died is None:
                    continue
                under_way, waiting = pool.left()
                deaths.update(under_way)
                suspects += [job for job in under_way if job not in suspects]
                again = waiting + again
                if deaths[suspects[0]] == TIMES:
                    message = f"error: its process died {TIMES} times: {pool.died}"
                    yield suspects.pop(0), Outcome("failed", messages=(message,))
                pool.end()
                self.progress.note(f"{self.progress.name}: a worker process died; its runs are begun again")
        finally:
            pool.end()


class _Pool:
    """Processes that start with the first run, and anew with the first after `end`."""

    def __init__(self, jobs: Jobs, n_jobs: int, threads: int) -> None:
        self.jobs, self.n_jobs, self.threads = jobs, n_jobs, threads
        self.running: dict[Future[Outcome], Job] = {}
        self.died: BaseException | None = None
        self._executor: Any = None

    def has_room(self) -> bool:
        """Whether a run that is begun now waits for little or nothing."""
        return len(self.running) < self.n_jobs * (1 + QUEUED)

    def begin(self, job: Job) -> None:
        """Hand a run to the processes."""
        if self._executor is not None:
            self.running[self._executor.submit(_run, job)] = job
            return
        from loky import ProcessPoolExecutor

        self._executor = ProcessPoolExecutor(
            self.n_jobs,
            initializer=_enter,
            initargs=(self.jobs, os.getpid()),
            env=dict.fromkeys(THREADS, str(self.threads)),
        )
        with _sigint_ignored():  # inherited by the processes, which start here
            self.running[self._executor.submit(_run, job)] = job

    def over(self) -> list[tuple[Job, Outcome]]:
        """Wait until a run is over, and return all that are; none after a process has died, see `died`."""
        done, _ = wait(self.running, return_when=FIRST_COMPLETED)
        found = []
        for future in done:
            if (error := future.exception()) is None:
                found.append((self.running.pop(future), future.result()))
            else:
                self.died = error
        return found

    def left(self) -> tuple[list[Job], list[Job]]:
        """Runs that are not over: those that may be under way, and those that wait.

        Processes take runs in the order in which they were handed out, so that at most the first `n_jobs` have begun.
        """
        jobs = list(self.running.values())
        return jobs[: self.n_jobs], jobs[self.n_jobs :]

    def end(self) -> None:
        """Kill the processes, whatever they do."""
        self.running.clear()
        self.died = None
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)
            self._executor = None


@contextlib.contextmanager
def _sigint_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _enter(jobs: Jobs, parent: int) -> None:
    global _jobs  # noqa: PLW0603  what a worker process knows
    from loky import process_executor

    # Rows that several runs need are kept from run to run, which loky takes for a leak worth a new process.
    process_executor._MAX_MEMORY_LEAK_SIZE = LARGEST_GROWTH
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
    jobs.enter()
    _jobs = jobs


def _run(job: Job) -> Outcome:
    assert _jobs is not None
    try:
        return _jobs.run(job.number, job.overrides)
    finally:
        sys.stdout.flush()
