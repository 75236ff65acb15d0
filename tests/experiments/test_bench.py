"""The bench's command, and how it times one."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from experiments.bench import __main__ as bench
from experiments.bench import machine
from immunize import records
from immunize.errors import UserError


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The parts replaced by ones that take no time: who ran is noted."""
    ran: list[str] = []

    def stand_in(name: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(run=lambda out: ran.append(name.rpartition(".")[2]))

    monkeypatch.setattr(bench, "HERE", tmp_path)
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "importlib", types.SimpleNamespace(import_module=stand_in))  # others import as ever
    return ran


def test_interrupted_bench_goes_on(parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = {"start": "abc", "mnist": "abc", "deep": "old"}
    (tmp_path / machine.MACHINE).write_text(json.dumps({part: {"git_commit": c} for part, c in commits.items()}))
    monkeypatch.setattr(records, "_git_commit", lambda: "abc")
    for ran in (["deep", "in_place", "defence", "attack", "busy"], []):
        assert bench.main(["rest"]) == 0
        assert parts == ran
        parts.clear()
    monkeypatch.setattr(records, "_git_commit", lambda: "abc-dirty")
    assert bench.main(["rest"]) == 0
    assert parts == list(bench.PARTS)


@pytest.mark.parametrize(("seconds", "code"), [(0.31, 1), (0.3, 0)])
def test_missed_limit_of_a_part_is_exit_code_1(
    seconds: float, code: int, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"command": "import immunize", "seconds": seconds, "processor_s": 0.1}
    machine.write_csv(tmp_path / "start.csv", [row])
    assert bench.main(["all"]) == code
    assert parts == list(bench.PARTS)
    told = "`import immunize`: start to exit: 0.31 s, 0.1 s of the processor; the limit is 0.3 s"
    assert (told in capsys.readouterr().err) is bool(code)
    assert bench.main(["mnist"]) == 0  # the limits of other parts are not its own
    assert parts[len(bench.PARTS) :] == ["mnist"]
    assert bench.main(["fast"]) == 2


def test_a_command_is_timed_by_clock_and_processor() -> None:
    seconds, processor, peak = machine.timed_command([sys.executable, "-c", "import time; time.sleep(1)"])
    assert seconds >= 1
    assert processor < seconds
    assert peak > 1e6
    with pytest.raises(UserError, match="ended with 1: no data"):
        machine.timed_command([sys.executable, "-c", "raise SystemExit('no data')"])
