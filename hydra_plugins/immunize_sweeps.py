"""Where Hydra finds the sweeper and the launchers of immunize: it takes plugins from this namespace alone.

Every Hydra application of the environment imports this file, so it imports nothing but what Hydra has loaded by then,
and :mod:`immunize.sweeping` only where a program asks for one of them. No name here, and none in `conf/hydra/launcher`,
is that of another plugin: Hydra would take the settings of both for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper


class _Later:
    """Stands for the class of the same name in :mod:`immunize.sweeping`, and takes its settings."""

    def __init__(self, **settings: Any) -> None:
        from immunize import sweeping

        self._own = getattr(sweeping, type(self).__name__)(**settings)

    def setup(self, **parts: Any) -> None:
        """Hydra's way to say what it is for."""
        self._own.setup(**parts)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Of a launcher: see :class:`immunize.sweeping.SerialLauncher`."""
        returns: Sequence[JobReturn] = self._own.launch(job_overrides, initial_job_idx)
        return returns

    def sweep(self, arguments: list[str]) -> Any:
        """Of a sweeper: see :class:`immunize.sweeping.GridSweeper`."""
        return self._own.sweep(arguments)


class GridSweeper(_Later, Sweeper):
    """hydra/sweeper=grid."""


class SerialLauncher(_Later, Launcher):
    """hydra/launcher=serial."""


class PoolLauncher(_Later, Launcher):
    """hydra/launcher=pool."""
