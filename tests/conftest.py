"""Fixtures that every room's tests share."""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing
import os
import re
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from immunize import records
from immunize.importing import start_quickly
from tests.commands import Called, Done

settings.register_profile("same", deadline=None, derandomize=True, database=None)  # a search draws the same every time
settings.load_profile("same")
start_quickly()  # as the commands do, before any test imports Lightning
# A run searches for what earlier ones of its process have left, for a memory of its own: a tenth of a second.
records._runs = itertools.repeat(0)  # type: ignore[assignment]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """In a process of pytest-xdist pytest-cov begins to count twice; the first count is nobody's, and never paused."""
    first = getattr(session.config.pluginmanager.get_plugin("_cov"), "cov_controller", None)
    if first is not None and hasattr(session.config, "workerinput"):
        first.cov.stop()


def pytest_collection_finish() -> None:
    """What imports have left is not searched when garbage is collected."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """What was set aside is freed at the end, or libraries tell of leaks."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """With `--cov=immunize.<room>` branches are counted in that room's quick tests: others are slowed down by it."""
    rooms = [name.rpartition(".")[2] for name in item.config.getoption("cov_source", None) or []]
    of_rooms = any(item.path.is_relative_to(Path(__file__).parent / room) for room in rooms)
    if not rooms or (of_rooms and item.get_closest_marker("slow") is None):
        return (yield)
    counting = item.config.pluginmanager.get_plugin("_cov").cov_controller
    counting.pause()
    try:
        return (yield)
    finally:
        counting.resume()


@pytest.fixture(autouse=True)
def hydra_forgets() -> None:
    """A command that another test called in this process has left its settings with Hydra."""
    if (hydra := sys.modules.get("hydra.core.hydra_config")) is not None:
        hydra.HydraConfig.instance().cfg = None


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    """Calls a command's `main` in this process, as the console script does: `called(train.main, "seed=1")`."""

    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def call(main: Callable[[], object], *arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["immunize-command", *arguments])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: Called) -> Callable[..., str]:
    """The message of a command that has to fail before anything is computed, in an empty folder without real data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IMMUNIZE_DATA", raising=False)

    def call(main: Callable[[], object], *arguments: str) -> str:
        done = called(main, "hydra.run.dir=run", *arguments)
        assert (done.code, done.out) == (1, ""), done
        assert done.err.strip()
        assert not re.search("Traceback|Error executing job|: step ", done.err)  # nor a line of progress
        return done.err

    return call


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure is an empty file, for a test that does not look at it."""
    from matplotlib.figure import Figure

    from tests.composing import empty_figure

    monkeypatch.setattr(Figure, "savefig", empty_figure)


@pytest.fixture
def forked_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a pool are forks of this one, for a test of what they do: new ones import for seconds."""
    import loky

    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(loky, "ProcessPoolExecutor", functools.partial(loky.ProcessPoolExecutor, context=fork))


@pytest.fixture
def data_root() -> Path:
    """The folder with the real data packs; skips the test where there is none."""
    folder = os.environ.get("IMMUNIZE_DATA")
    if not folder:
        pytest.skip("needs real data: set the environment variable IMMUNIZE_DATA to the folder that holds it")
    return Path(folder)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run, with its figure and the log of its training: to look at, or to copy."""
    from tests.composing import FINISHED, run_tiny

    folder = tmp_path_factory.mktemp("finished") / "run"
    run_tiny(folder, *FINISHED)
    return folder


@pytest.fixture(scope="session")
def attacked_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, attacked: to look at, or to copy."""
    from tests.attacking import attack_tiny

    folder = Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("attacked") / "run"))
    attack_tiny(folder)
    return folder


@pytest.fixture(scope="session")
def finished_network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run with a deep net, of five steps: to look at, or to copy."""
    from tests.composing import run_tiny_deep

    folder = tmp_path_factory.mktemp("network") / "run"
    run_tiny_deep(folder, "objective.max_steps=5")
    return folder
