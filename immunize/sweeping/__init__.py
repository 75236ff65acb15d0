"""Many runs: which there are, which of them are done, where they run, and how far they are.

Hydra finds its launchers and sweeper in `hydra_plugins/immunize_sweeps.py`, the only place it looks for them.
"""

from immunize.sweeping.job import done_record, value_of
from immunize.sweeping.launching import PoolLauncher, SerialLauncher
from immunize.sweeping.plan import GridSweeper

__all__ = [
    "GridSweeper",
    "PoolLauncher",
    "SerialLauncher",
    "done_record",
    "value_of",
]
