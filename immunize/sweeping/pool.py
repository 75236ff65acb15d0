"""Runs side by side on the cores of this machine: hydra/launcher=pool.

The processes are those of joblib's pool (loky), which live as long as the sweep does: importing torch and Lightning
costs more than a short run.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from hydra.errors import CompactHydraException

from immunize.processes import new_pool
from immunize.sweeping.job import Jobs
from immunize.sweeping.launching import Job, SweepLauncher
from immunize.sweeping.outcome import Outcome
from immunize.threads import cores

__all__ = ["PoolLauncher", "threads_a_worker"]

QUEUED = 1
"""Runs a worker that wait for it, so that it never waits for the next one."""

_jobs: Jobs | None = None


def threads_a_worker(available: int, n_jobs: int) -> int:
    """Threads for each of `n_jobs` processes, so that together they have no more than there are cores."""
    return max(1, available // n_jobs)


class PoolLauncher(SweepLauncher):
    """A pool of processes.

    Args:
        n_jobs: processes; -1 is one a core.

    Raises:
        CompactHydraException: that is no number of processes.
    """

    def __init__(self, n_jobs: int) -> None:
        if n_jobs == 0 or n_jobs < -1:
            raise CompactHydraException(
                f"error: hydra.launcher.n_jobs has to be at least 1, or -1 for one a core; it is {n_jobs}"
            )
        self.n_jobs = cores() if n_jobs == -1 else n_jobs
        self.threads: int = threads_a_worker(cores(), self.n_jobs)

    def outcomes(self, jobs: Iterator[Job]) -> Iterable[tuple[Job, Outcome]]:
        """Side by side. A process that dies (killed, out of memory) ends the pool: what was handed out has failed."""
        pool: Any = None
        running: dict[Future[Outcome], Job] = {}
        try:
            while True:
                while len(running) < self.n_jobs * (1 + QUEUED) and (job := next(jobs, None)) is not None:
                    pool = pool or new_pool(self.n_jobs, self.threads, _enter, self.jobs)
                    with _sigint_ignored():  # inherited by the processes, which the first run starts
                        running[pool.submit(_run, job)] = job
                if not running:
                    return
                done = wait(running, return_when=FIRST_COMPLETED).done
                died = next((error for future in done if (error := future.exception()) is not None), None)
                for future in list(running if died else done):
                    job = running.pop(future)
                    if future.done() and future.exception() is None:
                        yield job, future.result()
                    else:
                        message = f"error: a process of the pool died ({died}); the same command does its runs again"
                        yield job, Outcome("failed", messages=(message,))
                if died:
                    pool.shutdown(wait=True, kill_workers=True)
                    pool = None
        finally:
            if pool is not None:
                pool.shutdown(wait=True, kill_workers=True)


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


def _enter(jobs: Jobs) -> None:
    global _jobs  # noqa: PLW0603  what a worker process knows
    jobs.enter()
    _jobs = jobs


def _run(job: Job) -> Outcome:
    assert _jobs is not None
    try:
        return _jobs.run(job.number, job.overrides)
    finally:
        sys.stdout.flush()
