"""The launchers of a sweep: skip what is done, hand out the rest, count, and end as the user expects.

One run after another (hydra/launcher=serial), or side by side on the cores of this machine (hydra/launcher=pool). The
processes are those of joblib's pool (loky), which live as long as the sweep does: importing torch and Lightning costs
more than a short run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from immunize.config import NOT_HASHED
from immunize.files import held, read_object
from immunize.processes import closing_pool, started_outside
from immunize.records import SWEEP, write_record
from immunize.sweeping.job import Jobs, Outcome, done_record, job_return, value_of, words
from immunize.sweeping.plan import BY_HASH, Place, Plan
from immunize.threads import cores

EVERY = 30.0
"""Seconds between two states of the line in a log."""


@dataclass(frozen=True)
class Job:
    """A run to be done.

    Attributes:
        number: of the run in the sweep.
        overrides: that make it.
    """

    number: int
    overrides: tuple[str, ...]


class SerialLauncher(Launcher):
    """Runs the jobs of a sweep one after another; a subclass may say where else (:meth:`outcomes`). Takes no settings.

    Attributes:
        threads: that the processes which do the runs have; None where they are done in this one.
    """

    threads: int | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's way to say what is to be launched."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Do every job that is not done, and show how far it is.

        Args:
            job_overrides: a list of overrides a job.
            initial_job_idx: number of the first.

        Returns:
            One return a job, in their order; those of failed ones hold the error.

        Raises:
            CompactHydraException: another sweep is running in the folder, or this is one of several processes.
            HydraException: a run cannot be composed.
        """
        if started_outside():
            raise CompactHydraException(
                "error: srun or torchrun has started this sweep in several processes, each of which would do all of "
                "it; start it once: every run starts its own processes (trainer=ddp)"
            )
        jobs = [Job(initial_job_idx + index, tuple(lines)) for index, lines in enumerate(job_overrides)]
        self.jobs = Jobs(self.hydra_context, self.task_function, self.config, Singleton.get_state())
        self.jobs.prepare()
        places = self._places(jobs)
        folder = Path(str(self.config.hydra.sweep.dir))
        folder.mkdir(parents=True, exist_ok=True)
        words = f"error: another sweep is running in {folder}; wait for its end, or choose another: hydra.sweep.dir=..."
        with held(folder, CompactHydraException(words)):
            return self._launch(jobs, places)

    def _launch(self, jobs: Sequence[Job], places: Mapping[Job, Place]) -> Sequence[JobReturn]:
        from tqdm import tqdm  # not for a run alone, which imports this room too

        experiment = self.config.get("experiment")
        self.name = experiment.name if experiment is not None and experiment.name is not None else "sweep"
        every = 0.1 if sys.stderr.isatty() else EVERY
        shown = {"desc": self.name, "unit": "run", "file": sys.stderr, "mininterval": every, "dynamic_ncols": True}
        self.progress = tqdm(total=len(jobs), **shown)
        self.counts: Counter[str] = Counter()
        self.ended: dict[Job, Outcome] = {}
        self.twins: dict[Job, Job] = {}
        self.errors: set[str] = set()
        self._tell_its_own([digest for _, digest, _ in places.values()], goes_on=0 not in (job.number for job in jobs))
        try:
            for job, outcome in self.outcomes(self._undone(jobs, places)):
                self._end(job, outcome)
            for job, first in self.twins.items():
                self._end(job, replace(self.ended[first], found=True, messages=self.ended[first].messages[:1]))
        except KeyboardInterrupt:
            self._note(f"interrupted; {self._how_to_continue()}")
            raise
        finally:
            self.progress.close()
        return [job_return(job.overrides, self.ended[job]) for job in jobs]

    def outcomes(self, jobs: Iterator[Job]) -> Iterable[tuple[Job, Outcome]]:
        """Do the jobs, in any order, and yield what became of each as soon as it is known.

        Args:
            jobs: taken from when there is room for another; looking for the next one may take a moment, since
                those that are done are passed over.
        """
        for job in jobs:
            yield job, self.jobs.run(job.number, job.overrides)

    def _places(self, jobs: Sequence[Job]) -> dict[Job, Place]:
        """Of each job where runs are found again by their hash; a run of each kind is composed for that."""
        plan = Plan(self.hydra_context, self.config, self.threads)
        found = ((job, plan.place(job.overrides)) for job in jobs)
        return {job: place for job, place in found if place is not None}

    def _undone(self, jobs: Sequence[Job], places: Mapping[Job, Place]) -> Iterator[Job]:
        """The jobs that have to be done; the others are counted."""
        first_with: dict[str, Job] = {}
        for job in jobs:
            folder, digest, again = places.get(job, (Path(), "", True))
            if not again:
                if digest in first_with:  # two names for the same run
                    self.twins[job] = first_with[digest]
                    continue
                first_with[digest] = job
                if (record := done_record(folder, digest)) is not None:
                    self._end(job, Outcome(record["status"], value_of(record), found=True))
                    continue
            yield job

    def _tell_its_own(self, hashes: Sequence[str], *, goes_on: bool) -> None:
        """Write `sweep.json` before the first run, for a sweep whose runs are found again by their hash.

        A part of a preset (`experiment=table2 method=ours`) adds its runs to those that the file lists already, and so
        does a sweeper that launches its runs in batches.
        """
        folder = Path(str(self.config.hydra.sweep.dir))
        if not hashes:
            (folder / SWEEP).unlink(missing_ok=True)  # it lists the runs of another sweep
            return
        before = ((read_object(folder / SWEEP) or {}).get("runs") or []) if goes_on or self._is_part() else []
        experiment = OmegaConf.to_container(self.config.experiment)
        write_record(folder, {"experiment": experiment, "runs": list(dict.fromkeys([*before, *hashes]))}, SWEEP)

    def _is_part(self) -> bool:
        """Whether the command line names a preset and more, beside what changes no number."""
        if self.config.experiment.name is None:
            return False
        given = self.config.hydra.overrides
        keys = [str(line).lstrip("+~").partition("=")[0] for line in (*given.task, *given.hydra)]
        named = {key.partition(".")[0] for key in keys if not key.startswith("hydra.")}
        return bool(named - set(NOT_HASHED)) or any(key.startswith("hydra.sweeper.") for key in keys)

    def _how_to_continue(self) -> str:
        if self.config.get("resume"):
            return "the same command continues here"
        folder = self.config.hydra.sweep.dir
        lasting = f"resume=true hydra.sweep.dir=outputs/mine 'hydra.sweep.subdir={BY_HASH}'"
        return f"what is finished lies in {folder}; a sweep that can be continued is one with {lasting}"

    def _end(self, job: Job, outcome: Outcome) -> None:
        self.ended[job] = outcome
        self.counts["found"] += outcome.found
        self.counts[outcome.status] += outcome.status != "finished"
        facts = ", ".join(f"{count} {what}" for what, count in self.counts.items() if count)
        self.progress.set_postfix_str(facts, refresh=False)
        self.progress.update()
        if outcome.status == "failed" and not outcome.found:
            error = outcome.messages[0]
            *before, last = error.splitlines()
            shown = f"\n{error}" if error not in self.errors else f" ({last if before else 'as above'})"
            self.errors.add(error)
            self._note(f"failed: {words(job.overrides)}{shown}")
        elif outcome.messages and not outcome.found:
            more = f" (and {len(outcome.messages) - 1} more)" if len(outcome.messages) > 1 else ""
            self._note(f"{words(job.overrides)}: {outcome.messages[0]}{more}")

    def _note(self, text: str) -> None:
        """Print a line above that of the progress."""
        self.progress.write(f"{self.name}: {text}", file=sys.stderr)


QUEUED = 1
"""Runs a worker that wait for it, so that it never waits for the next one."""

_jobs: Jobs | None = None


def threads_a_worker(available: int, n_jobs: int) -> int:
    """Threads for each of `n_jobs` processes, so that together they have no more than there are cores."""
    return max(1, available // n_jobs)


class PoolLauncher(SerialLauncher):
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
        running: dict[Future[Outcome], Job] = {}
        job = next(jobs, None)
        while job is not None:  # it needs a pool, or another one where one has died
            with closing_pool(self.n_jobs, self.threads, _enter, self.jobs) as pool:
                died: BaseException | None = None
                while died is None and (job is not None or running):
                    done: set[Future[Outcome]] = set()
                    try:
                        while job is not None and len(running) < self.n_jobs * (1 + QUEUED):
                            running[pool.submit(_run, job)] = job
                            job = next(jobs, None)
                        done = wait(running, return_when=FIRST_COMPLETED).done
                        died = next((error for future in done if (error := future.exception()) is not None), None)
                    except BrokenExecutor as error:  # it died while the next run was looked for
                        died = error
                    for future in list(done if died is None else running):
                        ran = running.pop(future)
                        if future.done() and future.exception() is None:
                            yield ran, future.result()
                        else:
                            why = str(died).partition("\n")[0]  # loky says more of itself
                            told = f"error: a process of the pool died ({why}); the same command does its runs again"
                            yield ran, Outcome("failed", messages=(told,))


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
