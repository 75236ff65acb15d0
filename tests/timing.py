"""How long a child process takes, told so that it does not hang on what else the machine does."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable

__all__ = ["timed"]


def timed(
    command: Callable[[], subprocess.CompletedProcess[str]],
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command; also its processor time in seconds, user and system, of all its threads.

    No other child of this process may end meanwhile.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = command()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
