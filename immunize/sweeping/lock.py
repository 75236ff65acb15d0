"""One sweep at a time in a folder: two would do the same runs and overwrite each other's records."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hydra.errors import CompactHydraException

try:
    import fcntl
except ImportError:  # no POSIX: sweeps are not kept apart there
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK", "sole_sweep"]

LOCK = ".sweep.lock"
"""Name of the file that a running sweep holds, and that says which process it is. The system frees it when the process
ends, however it ends."""


@contextlib.contextmanager
def sole_sweep(folder: Path) -> Iterator[None]:
    """Hold the folder for this sweep.

    Args:
        folder: of the sweep; it exists.

    Raises:
        CompactHydraException: another sweep is running in it.
    """
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "of another machine"
                raise CompactHydraException(
                    f"error: another sweep ({holder}) is running in {folder}; wait for its end, or choose another "
                    f"folder with hydra.sweep.dir=..."
                ) from None
            except OSError:  # a file system without locks
                pass
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield
