"""Runs as jobs of a SLURM cluster: hydra/launcher=slurm.

This process submits them through submitit, waits, and cancels what is left when it is interrupted.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hydra.errors import CompactHydraException

from immunize.sweeping.job import Jobs
from immunize.sweeping.launching import Job, SweepLauncher
from immunize.sweeping.outcome import Outcome

__all__ = ["ClusterLauncher"]

CLUSTERS = ("slurm", "local")
POLL = {"slurm": 10.0, "local": 0.5}
"""Seconds between two questions whether a job is over."""


class ClusterLauncher(SweepLauncher):
    """An array of jobs, each of which does several runs one after another.

    Args:
        cluster: "slurm", or "local" for processes of this machine, all at once.
        runs_per_job: so many runs share a job's start and imports.
        folder: where submitit keeps its files and the jobs' logs; all nodes have to see it.
        parameters: of the jobs, by submitit's names.

    Raises:
        CompactHydraException: a setting that is not possible.
    """

    def __init__(self, cluster: str, runs_per_job: int, folder: str, parameters: Mapping[str, Any]) -> None:
        if cluster not in CLUSTERS:
            raise CompactHydraException(f"error: hydra.launcher.cluster is {cluster}; there are {', '.join(CLUSTERS)}")
        if runs_per_job < 1:
            raise CompactHydraException(
                f"error: hydra.launcher.runs_per_job has to be at least 1; it is {runs_per_job}"
            )
        self.cluster, self.runs_per_job, self.folder = cluster, runs_per_job, folder
        self.parameters = {str(key): value for key, value in parameters.items() if value is not None}
        self.threads: int = int(self.parameters.get("cpus_per_task", 1))

    def outcomes(self, jobs: Iterator[Job]) -> Iterable[tuple[Job, Outcome]]:
        """Submit all, and wait for each.

        Raises:
            CompactHydraException: submitit is not installed, there is no SLURM here, or it refused the jobs.
        """
        todo = list(jobs)
        if not todo:
            return
        try:
            import submitit
        except ImportError:
            raise CompactHydraException(
                "error: hydra/launcher=slurm needs submitit: pip install -e '.[slurm]' in the checkout"
            ) from None
        shares = [tuple(todo[start : start + self.runs_per_job]) for start in range(0, len(todo), self.runs_per_job)]
        try:
            executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
            executor.update_parameters(**self.parameters)
            submitted = executor.map_array(functools.partial(_do, self.jobs, self.threads), shares)
        except (RuntimeError, TypeError, ValueError, NameError, OSError) as error:
            raise CompactHydraException(f"error: the jobs cannot be submitted: {error}") from None
        waiting = dict(zip(submitted, shares, strict=True))
        try:
            while waiting:
                for handle in [handle for handle in waiting if handle.done()]:
                    yield from _outcomes(handle, waiting.pop(handle))
                if waiting:
                    time.sleep(POLL[self.cluster])
        finally:
            for handle in waiting:
                handle.cancel(check=False)


def _do(jobs: Jobs, threads: int, share: tuple[Job, ...]) -> list[Outcome]:
    """What a job of the cluster executes."""
    os.environ["OMP_NUM_THREADS"] = str(threads)  # what `threads: null` is, as the sweep's plan has it
    jobs.enter()
    return [jobs.run(job.number, job.overrides) for job in share]


def _outcomes(handle: Any, share: tuple[Job, ...]) -> Iterator[tuple[Job, Outcome]]:
    error = handle.exception()
    if error is None:
        yield from zip(share, handle.result(), strict=True)
        return
    message = f"error: job {handle.job_id} of the cluster did not end as it should; its log is {handle.paths.stderr}"
    for job in share:
        yield job, Outcome("failed", messages=(message,))
