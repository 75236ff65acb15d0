"""The table and the figure of one run, from its record alone."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from rich.console import Console

from immunize.data import Part, Splits
from immunize.data.synthetic import Synthetic
from immunize.records import read_record
from immunize.report import result_rows, show_record
from immunize.report.curves import norm_ratio_figure
from immunize.report.table import short
from immunize.spectrum import ESTIMATORS
from tests.composing import run_tiny

PARTS = ("fit", "held_out")


@pytest.fixture
def record(base: dict[str, Any]) -> dict[str, Any]:
    return base


def nothing_to_learn(record: dict[str, Any]) -> dict[str, Any]:
    """As a run has it whose pre-training targets are all zero."""
    for part in PARTS:
        record["curves"]["norm_ratio"][part]["pretrain"] = {"immunized": None, "identity": None}
        record["steps_to_norm_ratio"][part]["pretrain"] = {"immunized": {}, "identity": {}}
    return record


def shown(record: dict[str, Any]) -> str:
    out = io.StringIO()
    show_record(record, Console(file=out))
    return out.getvalue()


def test_rows_are_the_metrics(record: dict[str, Any]) -> None:
    columns, rows = result_rows(record)
    assert len(rows) == 6
    assert [row[:2] for row in rows] == [[part, estimator] for part in PARTS for estimator in ESTIMATORS]
    keys = {
        "(i) harmful ↑": "ratio_harmful",
        "(ii) pretrain ↓": "ratio_pretrain",
        "RIR ↑": "rir",
        "κ(H_H), identity": "kappa_harmful_baseline",
        "κ(H_H), θ": "kappa_harmful",
        "κ(H_P), identity": "kappa_pretrain_baseline",
        "κ(H_P), θ": "kappa_pretrain",
    }
    assert columns == ["part", "estimator", *keys]
    for row in rows:
        numbers = record["metrics"][row[0]][row[1]]
        assert row[2:] == [numbers[key] for key in keys.values()]


def test_table_shows_numbers_verdicts_and_steps(record: dict[str, Any]) -> None:
    text = shown(record)
    assert "ours: synthetic against synthetic, seed 0" in text
    for part in PARTS:
        for estimator in ESTIMATORS:
            numbers = record["metrics"][part][estimator]
            for name in ("rir", "ratio_harmful", "ratio_pretrain"):
                assert short(numbers[name]) in text
            kappas = f"{short(numbers['kappa_harmful_baseline'])} → {short(numbers['kappa_harmful'])}"
            assert kappas in text
        steps = record["steps_to_norm_ratio"][part]["harmful"]
        assert f"{steps['identity']['0.1']:,} → {steps['immunized']['0.1']:,}" in text
    assert text.count("Definition 3.1 on ") == 2
    assert max(len(line) for line in text.splitlines()) <= 110


@pytest.mark.parametrize("verdict", "abc")
@pytest.mark.parametrize("passed", [True, False])
def test_each_verdict_is_its_own_word(verdict: str, passed: bool, record: dict[str, Any]) -> None:
    for v in (record["verdicts"], record["verdicts"]["held_out"]):
        v.update(a=not passed, b=not passed, c=not passed)
        v[verdict] = passed
    for line in shown(record).splitlines():
        if line.strip().startswith("("):
            said = "yes" if " yes " in line else "no"
            assert (said == "yes") is (passed if line.strip()[1] == verdict else not passed), line


def test_infinite_numbers_and_unreached_thresholds(record: dict[str, Any]) -> None:
    record["metrics"]["fit"]["spectrum"] |= {"rir": None, "ratio_harmful": None}  # infinite, as records store it
    record["metrics"]["held_out"]["ridge"] |= {"rir": None, "ratio_harmful": None, "ratio_pretrain": None}  # RIR: ∞/∞
    record["steps_to_norm_ratio"]["fit"]["harmful"]["immunized"]["0.1"] = None
    record["steps_to_norm_ratio"]["fit"]["harmful"]["identity"]["0.1"] = 12345
    text = shown(record)
    assert "12,345 → > 2,000" in text
    assert "(i) = ∞" in text
    found = (re.search(rf"({'|'.join(ESTIMATORS)})  .*", line) for line in text.splitlines())
    rows = [match[0].split() for match in found if match]
    ratio = short(record["metrics"]["fit"]["spectrum"]["ratio_pretrain"])
    assert rows[0][:4] == ["spectrum", "∞", ratio, "∞"]
    assert rows[-1][:4] == ["ridge", "∞", "∞", "–"]
    assert result_rows(record)[1][0][4] is None


def test_nothing_to_learn_is_said(record: dict[str, Any]) -> None:
    text = shown(nothing_to_learn(record))
    assert text.count("nothing to learn → nothing to learn") == 2


@pytest.mark.parametrize("status", ["diverged", "interrupted"])
def test_run_without_numbers_says_so(status: str, record: dict[str, Any]) -> None:
    del record["metrics"]
    record["status"] = status
    assert shown(record) == f"ours: synthetic against synthetic, seed 0: {status}, not evaluated\n"


@pytest.mark.usefixtures("drawn")
def test_figure_shows_the_curves(record: dict[str, Any], tmp_path: Path) -> None:
    for name, change in (("a.png", 1.0), ("b.png", 0.5)):
        curve = record["curves"]["norm_ratio"]["held_out"]["harmful"]["immunized"]
        curve["ratio"] = [value * change for value in curve["ratio"]]
        norm_ratio_figure(record, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.usefixtures("drawn")
def test_figure_without_curves(both: bool, record: dict[str, Any], tmp_path: Path) -> None:
    nothing_to_learn(record)
    if both:
        for part in PARTS:
            record["curves"]["norm_ratio"][part]["harmful"] = {"immunized": None, "identity": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        norm_ratio_figure(record, tmp_path / "figure.png")
    assert imread(tmp_path / "figure.png").shape[:2] == (540, 1350)


@pytest.mark.usefixtures("drawn")
def test_run_with_nothing_to_learn_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Synthetic.load

    def idle(self: Synthetic) -> Splits:
        splits = load(self)
        if self.role == "harmful":
            return splits
        assert splits.held_out is not None
        return Splits(*(Part(part.x, part.y * 0) for part in (splits.fit, splits.held_out)))

    monkeypatch.setattr(Synthetic, "load", idle)
    record = run_tiny(tmp_path, "figure=true")
    assert record["status"] == "finished"
    stored = read_record(tmp_path)
    assert stored["curves"]["norm_ratio"]["fit"]["pretrain"] == {"immunized": None, "identity": None}
    assert stored["steps_to_norm_ratio"]["fit"]["pretrain"] == {"immunized": {}, "identity": {}}
    assert imread(tmp_path / "norm_ratio.png").shape[:2] == (540, 1350)
    assert "nothing to learn" in shown(stored)
