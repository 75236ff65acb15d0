"""The Optuna study: real runs, what it searches, how it goes on where it stopped, and its Pareto set."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.sweep_lambda.study import PARETO, run_study
from immunize.errors import UserError
from immunize.records import RECORD, read_record
from immunize.report.tradeoff import on_front
from tests.tampering import csv_rows

TINY = ["harmful=synthetic", "harmful.n_features=6", "harmful.n_samples=40", "objective.epochs=5", "probe_steps=50"]
TRIALS = 4
Twice = tuple[Path, dict[str, dict[str, Any]]]


def arguments(out: Path, *more: str) -> list[str]:
    return [f"out={out}", *TINY, *more]


def records_of(out: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: read_record(path.parent) for path in sorted(out.glob(f"*/{RECORD}"))}


def opened(out: Path) -> Any:
    import optuna

    return optuna.load_study(study_name="tradeoff", storage=f"sqlite:///{out / 'study.db'}")


@pytest.fixture(scope="module")
def stopped_and_continued(tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """Four trials in two calls, and the records after the first call."""
    out = tmp_path_factory.mktemp("study")
    run_study(arguments(out, f"n_trials={TRIALS - 1}"))
    before = records_of(out)
    run_study(arguments(out, f"n_trials={TRIALS}"))
    return out, before


def test_trials_are_real_runs_and_the_same_command_again_goes_on(stopped_and_continued: Twice) -> None:
    out, before = stopped_and_continued
    records = records_of(out)
    assert (len(before), len(records), len(opened(out).trials)) == (TRIALS - 1, TRIALS, TRIALS)
    assert {name: records[name] for name in before} == before
    assert len({record["config"]["objective"]["lambda_ill"] for record in records.values()}) == TRIALS
    for folder, record in records.items():
        assert record["config_hash"] == folder
        assert 1e4 <= record["config"]["objective"]["lambda_ill"] <= 1e16
        assert record["training"]["fit"]["steps"] == 5
        assert set(record["metrics"]) == {"fit", "validation"}
        looked_at = json.dumps([record[key] for key in ("metrics", "curves", "verdicts")])
        assert "held_out" not in looked_at  # what is reported


def test_front_is_that_of_the_records(stopped_and_continued: Twice) -> None:
    out, _ = stopped_and_continued
    numbers = {name: record["metrics"]["validation"]["ridge"] for name, record in records_of(out).items()}
    front = on_front([(one["ratio_harmful"], one["ratio_pretrain"]) for one in numbers.values()])
    best = {name for name, there in zip(numbers, front, strict=True) if there}
    rows = csv_rows(out / PARETO)
    assert {row["folder"] for row in rows} == best
    for row in rows:
        assert (row["part"], row["estimator"]) == ("validation", "ridge")
        for name in ("ratio_harmful", "ratio_pretrain", "rir"):
            assert float(row[name]) == pytest.approx(numbers[row["folder"]][name], rel=1e-12)
        # the run again, with held-out rows
        command = ["python", "-m", "immunize.train", *TINY, f"objective.lambda_ill={row['objective.lambda_ill']}"]
        assert shlex.split(row["command"]) == command
    assert [float(row["ratio_pretrain"]) for row in rows] == sorted(float(row["ratio_pretrain"]) for row in rows)


def test_trial_of_a_killed_process_is_repeated_and_its_record_found(tmp_path: Path) -> None:
    run_study(arguments(tmp_path, "n_trials=1"))
    first = opened(tmp_path).trials[0].params
    for n_trials, params in ((2, {"objective.lambda_ill": 1e5}), (3, first)):  # before it had a record, and after
        before = records_of(tmp_path)
        left = opened(tmp_path)
        left.enqueue_trial(params)
        left.ask().suggest_float("objective.lambda_ill", 1e4, 1e16, log=True)
        run_study(arguments(tmp_path, f"n_trials={n_trials}"))
        states = [trial.state.name for trial in opened(tmp_path).trials]
        assert states == ["COMPLETE", *["FAIL", "COMPLETE"] * (n_trials - 1)]
        assert opened(tmp_path).trials[-1].params == params
        weights = [record["config"]["objective"]["lambda_ill"] for record in records_of(tmp_path).values()]
        assert sorted(weights) == sorted({first["objective.lambda_ill"], 1e5})
        assert records_of(tmp_path).items() >= before.items()


def test_ctrl_c_leaves_the_trial_for_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("immunize.train.run", lambda *_, **__: {"status": "interrupted"})
    with pytest.raises(KeyboardInterrupt):
        run_study(arguments(tmp_path, "n_trials=1"))
    monkeypatch.undo()
    left = opened(tmp_path).trials[0]
    assert left.state.name == "RUNNING"
    run_study(arguments(tmp_path, "n_trials=1"))
    assert opened(tmp_path).trials[1].params == left.params


def test_diverged_trial_counts_and_is_not_on_the_front(tmp_path: Path) -> None:
    run_study(arguments(tmp_path, "n_trials=2", "objective.learning_rate=1e200"))
    assert [record["status"] for record in records_of(tmp_path).values()] == ["diverged"] * 2
    assert [trial.state.name for trial in opened(tmp_path).trials] == ["FAIL"] * 2
    assert csv_rows(tmp_path / PARETO) == []
    run_study(arguments(tmp_path, "n_trials=2", "objective.learning_rate=1e200"))
    assert len(opened(tmp_path).trials) == 2


def test_whatever_is_written_as_a_sweep_is_searched(tmp_path: Path) -> None:
    space = ["objective.learning_rate=choice(0.01,0.02)", "objective.epochs=int(interval(3,4))", "method=ill_only,ours"]
    run_study(arguments(tmp_path, "n_trials=3", *space, "estimator=ridge", "selection=null"))
    for record in records_of(tmp_path).values():
        assert record["config"]["objective"]["learning_rate"] in (0.01, 0.02)
        assert record["training"]["fit"]["steps"] in (3, 4)
        assert record["method"] in ("ill_only", "ours")
        assert record["config"]["objective"]["lambda_ill"] == 1e8  # the row's, since the space is another
    assert {(row["part"], row["estimator"]) for row in csv_rows(tmp_path / PARETO)} == {("fit", "ridge")}
    searched = {"objective.learning_rate", "objective.epochs", "method"}
    assert all(set(trial.params) == searched for trial in opened(tmp_path).trials)


# What is refused.


def test_study_of_other_settings_is_not_mixed_in(stopped_and_continued: Twice) -> None:
    with pytest.raises(UserError, match=r"was begun with .*objective\.epochs=5.*another folder"):
        run_study(arguments(stopped_and_continued[0], "n_trials=5", "objective.learning_rate=0.5"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("n_trials=0", "n_trials has to be at least 1"),
        ("estimator=kappa", "estimator has to be one of spectrum, released, ridge"),
        ("objective.lambda_ill=interval(9,1)", "the interval is empty"),
        ("objective.lambda_ill=tag(log,interval(0,1))", "has to begin above 0"),
        ("objective.epochs=0", r"objective\.epochs has to be at least 1"),
    ],
)
def test_bad_setting_is_a_user_error(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run_study([f"out={tmp_path}", *(one for one in TINY if one.partition("=")[0] not in override), override])
    assert records_of(tmp_path) == {}


def test_missing_optuna_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs Optuna, which is not installed: pip install -e '\.\[optuna\]'"):
        run_study(arguments(tmp_path))
