"""A sweep over one grid or over several, one after another: hydra/sweeper=grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.errors import CompactHydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from immunize.sweeping.plan import Plan, jobs_of

__all__ = ["GridSweeper"]


class GridSweeper(Sweeper):
    """Hydra's basic sweeper, but for several grids, and sweeps of thousands of runs.

    Args:
        params: setting to values, "0,1,2", of every grid.
        grids: what each grid has beside them; null is a single grid.
        max_batch_size: runs that are handed to the launcher at once; null is all of them.
    """

    def __init__(
        self,
        params: Mapping[str, Any] | None = None,
        grids: Sequence[Mapping[str, Any]] | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        self.params, self.grids, self.max_batch_size = params or {}, grids or [], max_batch_size

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's way to say what is swept."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Do every run, and print the folder of the sweep.

        Args:
            arguments: overrides of the command line.

        Returns:
            Hydra's returns of the runs, batch by batch.

        Raises:
            CompactHydraException: runs failed; the others were done nevertheless.
        """
        assert self.hydra_context is not None
        assert self.config is not None
        assert self.launcher is not None
        jobs = jobs_of(self.params, self.grids, arguments)
        if not jobs:
            raise CompactHydraException("error: no grid of this sweep has such runs; see hydra.sweeper.grids")
        Plan(self.hydra_context, self.config).check(jobs)
        size = self.max_batch_size or len(jobs)
        returns = [self.launcher.launch(jobs[start : start + size], start) for start in range(0, len(jobs), size)]
        failed = sum(done.status is JobStatus.FAILED for batch in returns for done in batch)
        print(Path(str(self.config.hydra.sweep.dir)).absolute(), flush=True)
        if failed:
            raise CompactHydraException(f"error: {failed} of {len(jobs)} runs failed, as told above")
        return returns
