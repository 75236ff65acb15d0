"""`make bench`: what it measures is what it says, and the command runs the parts that it was asked for."""

from __future__ import annotations

import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from experiments.bench import __main__ as bench
from experiments.bench import busy, in_place, machine, mnist, table
from experiments.bench.machine import read, timed_command
from immunize import records
from immunize.errors import UserError

HERE = Path(bench.__file__).parent


# The committed results.


def test_committed_mnist_runs_keep_the_limits() -> None:
    rows = read(HERE / "mnist.csv")
    assert [row["run"] for row in rows] == list(mnist.CASES)
    assert [row["limit_s"] for row in rows] == [limit for limit, _ in mnist.CASES.values()]
    (released,) = read(HERE / "released_code.csv")
    for row in rows:
        assert row["seconds"] < released["seconds"]
        assert row["rir_fit_spectrum"] > released["rir_fit_spectrum"]
    for row in rows[1:]:
        assert row["rir_fit_released"] >= released["rir_fit_released"]


# MNIST.


@pytest.mark.slow
def test_run_is_measured_from_start_to_exit_of_a_process() -> None:
    tiny = ["harmful=synthetic", "harmful.n_features=6", "harmful.n_samples=40", "probe_steps=100"]
    row = mnist.measure([*tiny, "objective.epochs=7"])
    assert row["steps"] == 7
    assert row["seconds"] > row["training_s"] + row["evaluation_s"] >= 0
    assert 0.1 < row["peak_gb"] < 4
    assert row["peak_gb"] == pytest.approx(row["peak_mib"] * 2**20 / 1e9, abs=0.01)
    assert all(row[f"rir_{part}_{name}"] > 0 for part in mnist.PARTS for name in mnist.ESTIMATORS)


def test_measuring_is_measured_against_training(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"steps": 3, "training_s": 8.0, "evaluation_s": 2.0, "work_s": 12.0, "peak_gb": 1.0, "threads": 1}
    monkeypatch.setattr(in_place, "measure_run", lambda words: made)
    row = in_place.measure("resnet_small", "censor", ())
    assert row == {"network": "resnet_small", "method": "censor", **made, "ratio": 0.25}


# The command.


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The parts replaced by ones that take no time; their outcomes can be set, and who ran is noted."""
    outcome: dict[str, Any] = dict.fromkeys(bench.PARTS) | {"ran": []}

    def stand_in(name: str) -> types.SimpleNamespace:
        part = name.rpartition(".")[2]

        def run(out: Path) -> None:
            outcome["ran"].append(part)
            if outcome[part] is not None:
                raise outcome[part]

        return types.SimpleNamespace(run=run)

    monkeypatch.setattr(bench, "HERE", tmp_path)
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench.importlib, "import_module", stand_in)
    return outcome


@pytest.mark.parametrize("part", bench.PARTS)
def test_one_part_alone_leaves_what_is_known_of_the_others(part: str, parts: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text('{"other": 1}')
    assert bench.main([part]) == 0
    assert parts["ran"] == [part]
    assert json.loads((tmp_path / "machine.json").read_text()).keys() == {"other", part}


def test_interrupted_bench_goes_on(parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = {"start": "abc", "mnist": "abc", "deep": "old"}
    (tmp_path / machine.MACHINE).write_text(json.dumps({part: {"git_commit": c} for part, c in commits.items()}))
    monkeypatch.setattr(records, "_git_commit", lambda: "abc")
    assert bench.main(["rest"]) == 0
    assert parts["ran"] == ["deep", "in_place", "defence", "attack", "busy"]
    parts["ran"].clear()
    assert bench.main(["rest"]) == 0
    assert parts["ran"] == []
    monkeypatch.setattr(records, "_git_commit", lambda: "abc-dirty")
    assert bench.main(["rest"]) == 0
    assert parts["ran"] == list(bench.PARTS)


def test_table_measures_nothing(parts: dict[str, Any], tmp_path: Path) -> None:
    assert bench.main(["table"]) == 0
    assert parts["ran"] == []
    assert (tmp_path / table.README).read_text().count(f"| {table.NOT_YET} |") == len(table.lines(tmp_path, tmp_path))


@pytest.mark.parametrize(("seconds", "code"), [(0.31, 1), (0.3, 0)])
def test_missed_limit_of_a_part_is_exit_code_1(
    seconds: float, code: int, parts: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"command": "import immunize", "seconds": seconds, "processor_s": 0.1}
    machine.write_csv(tmp_path / "start.csv", [row])
    assert bench.main(["all"]) == code
    assert parts["ran"] == list(bench.PARTS)
    told = "`import immunize`: start to exit: 0.31 s, 0.1 s of the processor; the limit is 0.3 s"
    assert (told in capsys.readouterr().err) is bool(code)
    assert bench.main(["mnist"]) == 0  # the limits of other parts are not its own


def test_user_error_is_one_message(parts: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    parts["mnist"] = UserError("no data")
    assert bench.main(["mnist"]) == 1
    assert "error: no data" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["fast"], ["start", "mnist"]])
def test_unknown_part_is_refused(
    arguments: list[str], parts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(arguments) == 2
    assert "usage: python -m experiments.bench [start|mnist|" in capsys.readouterr().err
    assert parts["ran"] == []


@pytest.mark.parametrize(("load", "warned"), [(0.1, False), (1.7, True)])
def test_busy_machine_is_warned_of(
    load: float, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, load, load))
    assert machine.warn_if_busy() == load
    assert ("warning: the load average is" in capsys.readouterr().err) is warned


# Commands as a whole, alone and beside busy processes.


def test_a_command_is_timed_by_clock_and_processor() -> None:
    seconds, processor, peak = timed_command([sys.executable, "-c", "import time; time.sleep(1)"])
    assert seconds >= 1
    assert processor < seconds
    assert peak > 1e6
    with pytest.raises(UserError, match="ended with 1: no data"):
        timed_command([sys.executable, "-c", "raise SystemExit('no data')"])


def test_the_cores_are_busy_within_and_free_after() -> None:
    with busy.loaded("loops", 2):
        time.sleep(1)
    spent = os.times()
    assert spent.children_user > 0.1  # of the loops, which have ended
    time.sleep(0.3)
    assert os.times().children_user == spent.children_user


def test_a_command_is_measured_alone_and_beside_a_load() -> None:
    row = busy.measure("nothing", ["this"], ["loops"])
    assert row.keys() == {"command", "idle_s", "loops_s", "loops_ratio"}
    assert row["loops_ratio"] == pytest.approx(row["loops_s"] / row["idle_s"], abs=0.01)
