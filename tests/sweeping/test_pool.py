"""`PoolLauncher` when a process dies: what was handed out has failed, the rest is done by new processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from immunize.sweeping.job import Outcome
from immunize.sweeping.launching import Job, PoolLauncher

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


def test_a_death_fails_what_was_handed_out_and_nothing_else(tmp_path: Path) -> None:
    launcher = PoolLauncher(n_jobs=2)
    launcher.jobs = Runs(tmp_path)  # type: ignore[assignment]
    jobs = [Job(number, ()) for number in range(6)]
    found = {job.number: outcome for job, outcome in launcher.outcomes(iter(jobs))}
    # 2 and 3 waited for a process, 4 and 5 were not handed out yet
    handed_out = range(4)
    assert {number: outcome.status for number, outcome in found.items()} == {
        number: "failed" if number in handed_out else "finished" for number in range(6)
    }
    assert all("the same command does its runs again" in found[number].messages[0] for number in handed_out)
