"""`sweeping.pool` when a process dies: what is begun again, and that no run is given up for its neighbour's fault."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from immunize.sweeping.launching import Job
from immunize.sweeping.outcome import Outcome
from immunize.sweeping.pool import TIMES, PoolLauncher

PATIENCE = 60.0
LONG, DEADLY = 0, 1


@dataclass(frozen=True)
class Runs:
    """Stands for `Jobs`. The first time, run 0 is still under way when run 1, the deadly one, kills its process.

    Attributes:
        folder: where a run leaves a file each time it begins.
        deaths: of run 1, before it succeeds.
    """

    folder: Path
    deaths: int

    def enter(self) -> None:
        """Nothing has to be prepared."""

    def run(self, number: int, overrides: tuple[str, ...]) -> Outcome:
        """What a process does."""
        del overrides
        times = self.begun(number) + 1
        (self.folder / f"{number}_{times}").touch()
        if number == LONG and times == 1:
            time.sleep(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while number == DEADLY and not self.begun(LONG) and time.monotonic() < deadline:
            time.sleep(0.01)
        if number == DEADLY and times <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome("finished", float(number))

    def begun(self, number: int) -> int:
        """How often a run began."""
        return len(list(self.folder.glob(f"{number}_*")))


@pytest.mark.parametrize(("deaths", "status"), [(1, "finished"), (TIMES + 5, "failed")])
def test_a_death_is_charged_to_its_own_run(tmp_path: Path, deaths: int, status: str) -> None:
    runs = Runs(tmp_path, deaths)
    launcher = PoolLauncher(n_jobs=2)
    notes: list[str] = []
    launcher.jobs = runs  # type: ignore[assignment]
    launcher.progress = SimpleNamespace(name="sweep", note=notes.append)  # type: ignore[assignment]
    jobs = [Job(number, ()) for number in range(6)]
    found = {job.number: outcome for job, outcome in launcher.outcomes(iter(jobs))}
    assert {number: outcome.status for number, outcome in found.items()} == {
        number: status if number == DEADLY else "finished" for number in range(6)
    }
    # run 0 was beside it once; 2 and 3 waited for a process, 4 and 5 were not handed out yet
    wanted = dict.fromkeys(range(2, 6), 1) | {LONG: 2, DEADLY: min(deaths + 1, TIMES)}
    assert {number: runs.begun(number) for number in range(6)} == wanted
    assert len(notes) == min(deaths, TIMES)
    if status == "failed":
        assert f"its process died {TIMES} times" in found[DEADLY].messages[0]
