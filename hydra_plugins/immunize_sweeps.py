"""Where Hydra finds the sweeper and the launchers of immunize: it takes plugins from this namespace alone.

Loaded by every Hydra application of the environment, so nothing heavy is imported.
"""

from __future__ import annotations

from immunize import sweeping

__all__ = ["GridSweeper", "JoblibLauncher", "SerialLauncher", "SlurmLauncher"]


class GridSweeper(sweeping.GridSweeper):
    """hydra/sweeper=grid."""


class SerialLauncher(sweeping.SerialLauncher):
    """hydra/launcher=serial."""


class JoblibLauncher(sweeping.PoolLauncher):
    """hydra/launcher=joblib."""


class SlurmLauncher(sweeping.ClusterLauncher):
    """hydra/launcher=slurm."""
