"""A Python of its own: what it imports, and how long it takes whatever else the machine does."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.commands import ENVIRONMENT

HEAVY = (
    *("torch", "lightning", "sklearn", "pandas", "matplotlib", "scipy", "timm", "torchvision", "wandb", "tensorboard"),
    *("scipy.signal", "sympy"),
)
PROBE = """
import atexit, sys
atexit.register(lambda: print("loaded:", *(name for name in {heavy!r} if name in sys.modules), file=sys.stderr))
sys.argv[0] = {module!r}
from {module} import main
main()
"""


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


def fresh(*arguments: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """A Python of its own."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def loaded_by(module: str, *arguments: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], set[str], float]:
    """Run an entry point; also the heavy packages it imported, and the seconds of processor time it took."""
    done, seconds = timed(lambda: fresh("-c", PROBE.format(heavy=HEAVY, module=module), *arguments, cwd=cwd))
    words = done.stderr.rpartition("loaded:")[2].split()
    return done, set(words), seconds
