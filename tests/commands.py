"""Commands as a user calls them, each in a process of its own, without the seconds that importing torch takes.

The imports are done once, in a server that every command is a fork of (`multiprocessing`'s). What a fresh interpreter
alone can show, such as what `--help` imports and how long it takes, is shown with `subprocess`.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from immunize import processes

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("IMMUNIZE_DATA", "HYDRA_FULL_ERROR")} | {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
}
"""That of a command unless told otherwise: what it writes to a pipe, and no real data."""

# What `[project.scripts]` makes: import main from the module, call it.
CONSOLE = "import sys; sys.argv[0] = 'immunize-train'; from immunize.train import main; sys.exit(main())"
# A shell that starts CI in the background has SIGINT ignored, and children inherit that.
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); " + CONSOLE

SHORTER = {
    "immunize.train": ["objective.epochs=20", "probe_steps=100", "figure=false"],
    "immunize.pretrain": ["epochs=1"],
    "immunize.attack": ["seeds=[0]", "attack.budget.steps=20"],
}
DEEPER = [
    *("objective.epochs=1", "deep.replicates=2", "deep.pretrain_probe_steps=2"),
    "deep.probe_steps={gd:3,least_squares:null,sgd:null,adam:null}",
]
"""What makes a command of the documentation quick, and one that trains a network."""

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.conftest", "immunize.pipeline.assemble", "timm", "matplotlib.figure"])


class Done(NamedTuple):
    """A command that has ended: its exit code and what it wrote."""

    code: int
    out: str
    err: str


Called = Callable[..., Done]
"""A command's `main` and its arguments, called in this process: the fixture `called`."""


class Command:
    """`python -m module arguments`, or of a script; begun when it is made."""

    def __init__(self, module: str, *arguments: str, cwd: Path, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        self.line = [module, *arguments]
        self._written = tempfile.TemporaryDirectory()
        arguments_of_fork = (self.line, cwd, dict(environment), Path(self._written.name))
        self._process = _SERVER.Process(target=_enter, args=arguments_of_fork)
        with mock.patch.dict(os.environ, ENVIRONMENT):  # the first one starts the server
            self._process.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def terminate(self) -> None:
        """Tell it to end, by SIGTERM."""
        self._process.terminate()

    def wait(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Its exit code and what it wrote; a command that takes longer is killed.

        Raises:
            subprocess.TimeoutExpired: it took longer.
        """
        self._process.join(timeout)
        late = self._process.exitcode is None
        if late:
            self._process.kill()
            self._process.join()
        out, err = ((Path(self._written.name) / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        self._written.cleanup()
        if late:
            raise subprocess.TimeoutExpired(self.line, timeout, out, err)
        return subprocess.CompletedProcess(self.line, self._process.exitcode or 0, out, err)


def run(
    module: str, *arguments: str, cwd: Path, environment: Mapping[str, str] = ENVIRONMENT, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """What `python -m module arguments` returns in the folder `cwd`."""
    return Command(module, *arguments, cwd=cwd, environment=environment).wait(timeout)


def _enter(line: list[str], cwd: Path, environment: dict[str, str], written: Path) -> None:
    for number, path in enumerate((Path(os.devnull), written / "stdout", written / "stderr")):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    os.chdir(cwd)
    sys.path.insert(0, str(cwd))
    multiprocessing.set_start_method("fork", force=True)  # as where nothing was set; else it would be the server's
    processes.subprocess = SimpleNamespace(Popen=_fork)  # type: ignore[assignment, attr-defined]
    _run(line, environment)


def _run(line: list[str], environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = line
    if line[0].endswith(".py"):
        runpy.run_path(line[0], run_name="__main__")
    else:
        runpy.run_module(line[0], run_name="__main__", alter_sys=True)


def _fork(command: list[str], *, env: dict[str, str], **settings: Any) -> subprocess.Popen[bytes]:
    """`subprocess.Popen` of `python -m module` in a fork of this process, for a command that starts several."""

    def instead_of_it() -> None:
        os.closerange(3, 1024)  # `Popen` waits until what it has opened for the new process is closed
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        child = multiprocessing.Process(target=_run, args=(command[2:], env))
        os._exit(child._bootstrap())  # type: ignore[attr-defined]

    return subprocess.Popen(command, env=env, preexec_fn=instead_of_it, **settings)  # noqa: PLW1509 - one thread


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


def begun(*arguments: str, cwd: Path, group: bool = False) -> subprocess.Popen[str]:
    """A Python of its own that is under way, in a process group of its own if asked for."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=cwd, env=ENVIRONMENT, text=True, start_new_session=group, **pipes)


def ended(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str] = ENVIRONMENT, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """A program that has ended, and what it wrote."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(command, cwd=cwd, env=environment, timeout=timeout, check=False, **pipes)


def fresh(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """A Python of its own that has ended; in a folder, and with what else `ended` takes."""
    return ended([sys.executable, *arguments], **settings)


def loaded_by(module: str, *arguments: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], set[str], float]:
    """Run an entry point; also the heavy packages it imported, and the seconds of processor time it took."""
    done, seconds = timed(lambda: fresh("-c", PROBE.format(heavy=HEAVY, module=module), *arguments, cwd=cwd))
    words = done.stderr.rpartition("loaded:")[2].split()
    return done, set(words), seconds
