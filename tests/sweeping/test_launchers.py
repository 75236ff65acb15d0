"""What the wheel gives to every Hydra program of an environment: cheap to import, and named like nobody else's.

`PoolLauncher` when a process dies: what was handed out has failed, the rest is done by new processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

from hydra_plugins import immunize_sweeps
from immunize.processes import closing_pool
from immunize.sweeping import launching
from immunize.sweeping.job import Outcome
from tests.commands import ROOT, fresh


def test_a_program_of_others_imports_hardly_anything() -> None:
    """Hydra's scan of the plugins, as every program does it: of immunize it finds this file alone."""
    code = (
        "import sys; from hydra.core.plugins import Plugins; Plugins.instance(); "
        "print(*sorted(n for n in sys.modules if n.partition('.')[0] in ('immunize', 'torch', 'lightning', 'numpy')), "
        "'hydra_plugins.immunize_sweeps' in sys.modules)"
    )
    done = fresh("-c", code, cwd=ROOT)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["True"], "")


def test_no_name_is_another_plugins_and_each_hands_over_to_the_class_of_its_own() -> None:
    names = {path.stem for path in (ROOT / "conf" / "hydra" / "launcher").glob("*.yaml")}
    assert names == {"pool", "serial"}
    kinds = [kind for kind in Plugins.instance().discover() if kind.__module__ == immunize_sweeps.__name__]
    assert {kind.__name__ for kind in kinds} == {"GridSweeper", "PoolLauncher", "SerialLauncher"}
    launcher = immunize_sweeps.PoolLauncher(n_jobs=3)
    assert isinstance(launcher, Launcher)
    assert isinstance(launcher._own, launching.PoolLauncher)
    assert launcher._own.n_jobs == 3
    with pytest.raises(TypeError, match="backend"):
        immunize_sweeps.PoolLauncher(n_jobs=3, backend="loky")


PATIENCE = 60.0
LONG, DEADLY = 0, 1


@dataclass(frozen=True)
class Runs:
    """Stands for `Jobs`. Run 0 is still under way when run 1, the deadly one, kills its process.

    Attributes:
        folder: where a run leaves a file when it begins.
    """

    folder: Path

    def enter(self) -> None:
        """Nothing has to be prepared."""

    def run(self, number: int, overrides: tuple[str, ...]) -> Outcome:
        """What a process does."""
        del overrides
        (self.folder / str(number)).touch()
        if number == LONG:
            time.sleep(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while number == DEADLY and not (self.folder / str(LONG)).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        if number == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome("finished", float(number))


def test_a_death_while_the_next_run_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails what was handed out as well."""
    pools: list[Any] = []

    @contextlib.contextmanager
    def pool(*of: Any) -> Iterator[Any]:
        with closing_pool(*of) as made:
            pools.append(made)
            yield made

    def jobs() -> Iterator[int]:
        yield DEADLY
        (tmp_path / str(LONG)).touch()
        while not pools[0]._flags.broken:
            time.sleep(0.01)
        yield from (2, 3)

    monkeypatch.setattr(launching, "closing_pool", pool)
    found = {number: outcome.status for number, outcome in done_by(1, jobs(), tmp_path).items()}
    assert found == {DEADLY: "failed", 2: "finished", 3: "finished"}


def test_a_death_fails_what_was_handed_out_and_nothing_else(tmp_path: Path) -> None:
    found = done_by(2, iter(range(6)), tmp_path)
    # 2 and 3 waited for a process, 4 and 5 were not handed out yet
    failed = {number for number, outcome in found.items() if outcome.status == "failed"}
    assert failed == {0, 1, 2, 3}
    assert {found[4].status, found[5].status} == {"finished"}
    (told,) = {found[number].messages[0] for number in failed}
    assert "\n" not in told  # or the others repeat its end, where "as above" says it
    assert told.endswith("the same command does its runs again")


def done_by(n_jobs: int, numbers: Iterator[int], folder: Path) -> dict[int, Outcome]:
    launcher = launching.PoolLauncher(n_jobs)
    launcher.jobs = Runs(folder)  # type: ignore[assignment]
    jobs = (launching.Job(number, ()) for number in numbers)
    return {job.number: outcome for job, outcome in launcher.outcomes(jobs)}
