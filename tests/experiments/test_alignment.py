"""`experiments.alignment` and `experiments.closed_form_mnist`: correlations, budgets, counts of steps, and reports."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from scipy.stats import spearmanr

from experiments import reporting
from experiments.alignment import __main__ as alignment
from experiments.alignment import correlating
from experiments.alignment import report as alignment_report
from experiments.closed_form_mnist import pair as closed_form_pair
from experiments.closed_form_mnist import report as closed_form_report
from experiments.closed_form_mnist import worker
from immunize import forecast
from immunize.config import config_dir, register
from immunize.errors import UserError
from immunize.remembering import remembered
from tests import reference as ref
from tests.commands import ROOT
from tests.data.test_mnist import write_mnist

# --- experiments.alignment ----------------------------------------------------------------------------------------


def point(index: int, rir: float, family: str = "mnist", **forecast: float) -> correlating.Point:
    known = {"alignment": -float(index), "rir_star": 1.0 + index, "rir_star_held_out": 5.0} | forecast
    reached = {("ours", "held_out", "ridge"): rir}
    return correlating.Point(family, f"{index}", f"{index // 2}", known, reached)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlating, "RESAMPLES", 200)


def test_spearman_is_scipys_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(60)
    y = x + rng.standard_normal(60)
    rho, low, high = correlating.spearman(list(x), list(y), [str(i) for i in range(60)])
    assert rho == pytest.approx(spearmanr(x, y).statistic)
    assert 0 < low < rho < high < 1


def test_clusters_are_drawn_whole_so_that_copies_are_no_evidence() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal(12), rng.standard_normal(12)
    names = [str(i) for i in range(12)]
    once = correlating.spearman(list(x), list(y), names)
    copies = correlating.spearman([*x] * 10, [*y] * 10, names * 10)
    naive = correlating.spearman([*x] * 10, [*y] * 10, [str(i) for i in range(120)])
    assert copies[2] - copies[1] == pytest.approx(once[2] - once[1], rel=0.2)
    assert naive[2] - naive[1] < 0.6 * (once[2] - once[1])


def test_verdict_asks_for_the_sign_that_the_claim_expects() -> None:
    rising = [point(i, float(i + 1)) for i in range(12)]
    found = {one.predictor: one for one in correlating.correlations(rising)}
    assert (found["alignment"].rho, found["alignment"].verdict) == (-1.0, "for")
    assert (found["rir_star"].rho, found["rir_star"].verdict) == (1.0, "for")
    falling = [point(i, float(20 - i)) for i in range(12)]
    assert {one.verdict for one in correlating.correlations(falling) if one.predictor != "rir_star_held_out"} == {
        "against"
    }
    said = alignment_report.conclusions(correlating.correlations(falling))
    assert any("the other way round for `ours`" in sentence for sentence in said)


def test_few_points_have_no_correlation() -> None:
    assert correlating.correlations([point(i, 2.0 + i) for i in range(2 * correlating.FEWEST - 2)]) == []


def record(
    method: str, pair: list[int], seed: int, rir: float | None, started: str = "2030-01-01", **changes: Any
) -> dict[str, Any]:
    metrics = {part: {name: {"rir": rir} for name in correlating.ESTIMATORS} for part in correlating.PARTS}
    found = {"status": "finished", "harmful": "mnist", "method": method, "seed": seed, "started": started}
    return found | {"metrics": metrics, "config": {"harmful": {"pair": pair}}} | changes


def test_rir_is_the_geometric_mean_over_seeds_that_all_have_it() -> None:
    found = alignment.reached({"ours": [record("ours", [0, 1], 0, 2.0), record("ours", [0, 1], 1, 8.0)]})
    assert found["ours", "fit", "ridge"] == pytest.approx(4.0)
    assert alignment.reached({"ours": [record("ours", [0, 1], 0, 2.0), record("ours", [0, 1], 1, None)]}) == {}


def test_points_come_from_the_latest_finished_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        record("ours", [3, 8], 0, 1.0),
        record("ours", [3, 8], 0, 9.0, started="2030-01-02"),
        record("closed_form", [3, 8], 0, 4.0),
        record("imma", [0, 1], 0, 5.0),
        record("ours", [5, 6], 0, 5.0, status="diverged"),
    ]
    for index, one in enumerate(records):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "record.json").write_text(json.dumps(one))
    asked: list[list[str]] = []

    def known(cache: Path, name: str, overrides: list[str]) -> dict[str, float]:
        asked.append(overrides)
        return {"alignment": 1.0}

    monkeypatch.setattr(alignment, "forecast_of", known)
    (found,) = alignment.mnist_points(tmp_path, tmp_path, ["data_root=/d"])
    assert (found.label, found.cluster) == ("3→8", "38")
    assert found.reached["ours", "held_out", "ridge"] == pytest.approx(9.0)
    assert asked == [["harmful=mnist", "harmful.pair=[3,8]", "data_root=/d"]]
    with pytest.raises(UserError, match="table2"):
        alignment.mnist_points(tmp_path / "empty", tmp_path, [])


def test_numbers_are_those_of_the_forecast_and_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an ordered pair of digits and of its other order, which shares both data sets."""
    compressed = []
    side_of = alignment.side_of.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(alignment, "side_of", remembered(2)(lambda *x: compressed.append(x) or side_of(*x)))
    register()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        for pair in ("[3,8]", "[8,3]"):
            overrides = ["harmful=digits", f"harmful.pair={pair}"]
            known = alignment.forecast_of(tmp_path, pair, overrides)
            cfg = compose("forecast", [*overrides, f"shrinkage={alignment_report.RHO:g}"])
            whole = forecast.run(cfg, tmp_path / f"whole {pair}")
            assert known["alignment"] == pytest.approx(whole["alignment"]["score"], rel=1e-9)
            assert known["rir_star"] == pytest.approx(whole["bound"]["rir_star"], rel=1e-9)
            assert known["rir_star_held_out"] == pytest.approx(whole["metrics"]["held_out"]["ridge"]["rir"], rel=1e-6)
        assert len(compressed) == 2  # two digits, each once
        monkeypatch.setattr(alignment, "side_of", None)
        again = alignment.forecast_of(tmp_path, "[8,3]", [*overrides, "data_root=elsewhere"])
    assert again == known


def test_synthetic_family_runs_forecasts_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (alignment, alignment_report):
        monkeypatch.setattr(module, "ANGLES", (0, 30, 90))
        monkeypatch.setattr(module, "DATA_SEEDS", (0,))
    for module in (alignment, alignment_report, correlating):
        monkeypatch.setattr(module, "METHODS", ("closed_form",))
    monkeypatch.setattr(correlating, "FEWEST", 3)
    monkeypatch.setattr(alignment, "SYNTHETIC", (*alignment.SYNTHETIC, "method.shrinkage=0.01", "method.budget=1"))
    alignment.run(["families=synthetic", f"out={tmp_path / 'out'}", f"cache={tmp_path / 'cache'}"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("README.md", "results.csv", "correlations.csv", "alignment.png", "alignment.pdf")
    }
    with (tmp_path / "out" / "results.csv").open(encoding="utf-8") as file:
        stars = [float(row["rir_star"]) for row in csv.DictReader(file)]
    assert len(stars) == 3
    assert stars[-1] > 10 * stars[0]  # swapped halves against aligned covariances
    assert "| synthetic | `closed_form` |" in capsys.readouterr().out


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UserError, match="mnist, synthetic"):
        alignment.run(["families=cars"])


# --- experiments.closed_form_mnist --------------------------------------------------------------------------------


def test_defining_budget_is_the_smallest_to_its_precision() -> None:
    for wanted in (1.7, 350.0, 4e7):
        found = closed_form_pair.defining_budget(lambda budget, at=wanted: 2 * math.sqrt(budget / at))
        assert wanted <= found <= wanted * closed_form_pair.PRECISION
    assert closed_form_pair.defining_budget(lambda budget: 3.0) == 1.0
    assert closed_form_pair.defining_budget(lambda budget: 0.5) == closed_form_pair.LARGEST_BUDGET


def row(pretrain: int | None, harmful: int | None, raw: tuple[int | None, int | None] = (10, 20)) -> dict[str, Any]:
    steps = {"pretrain": pretrain, "harmful": harmful}
    return {"x": {"steps": steps}, "steps_raw": dict(zip(("pretrain", "harmful"), raw, strict=True))}


def test_growth_of_steps_and_what_is_not_determined() -> None:
    assert closed_form_report.growth(row(5, 100), "x") == (10.0, False)
    assert closed_form_report.growth(row(5, None), "x") == (closed_form_pair.LIMIT / 5 / 2, True)
    assert closed_form_report.growth(row(None, 100), "x") is None
    assert closed_form_report.growth(row(5, 100, (10, None)), "x") is None
    assert closed_form_report.never_fewer(row(5, 20), "x") is True
    assert closed_form_report.never_fewer(row(5, 19), "x") is False
    assert closed_form_report.never_fewer(row(5, None), "x") is True
    assert closed_form_report.never_fewer(row(5, 99, (10, None)), "x") is False
    assert closed_form_report.never_fewer(row(5, None, (10, None)), "x") is None


def side(seed: int, decades: float) -> closed_form_pair.Side:
    scale = torch.logspace(0, -decades, 6, dtype=torch.float64)
    turned = ref.orthogonal(6, seed=seed)
    fit, held_out = (ref.gaussian(n, 6, seed=seed + n) * scale @ turned + 0.3 for n in (200, 80))
    return closed_form_pair.Side(fit, held_out)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(closed_form_pair, "PIXELS", 6)
    for module in (closed_form_pair, closed_form_report):
        monkeypatch.setattr(module, "LIMIT", 1000)
    spent = {"cpu_seconds": 3.0, "alone_seconds": 5.0, "alone_cpu_seconds": 1.0}
    return {"pair": [0, 1], **closed_form_pair.measure_pair(side(1, 1.0), side(2, 1.2)), **spent}


def test_a_pair_is_measured_against_the_theory(small: dict[str, Any]) -> None:
    p, h = side(1, 1.0), side(2, 1.2)
    defining = small["defining"]
    assert defining["a"]
    assert defining["c"]
    assert defining["ratio_harmful_fit"] >= 2
    # at B = 1, with ρ counted, RIR on fit is RIR*
    shrunk = [s.gram + closed_form_pair.RHO * s.gram.trace() / 6 * torch.eye(6, dtype=torch.float64) for s in (p, h)]
    mu = torch.linalg.eigvals(torch.linalg.solve(shrunk[0], shrunk[1])).real
    kappas = [torch.linalg.cond(k) for k in shrunk]
    assert small["rir_star"] == pytest.approx(float(mu.max() / mu.min() * kappas[0] / kappas[1]), rel=1e-6)
    assert small["validated"]["budget"] in closed_form_pair.BUDGETS


def test_report_counts_and_names_pairs_that_miss(small: dict[str, Any]) -> None:
    missing = json.loads(json.dumps(small)) | {"pair": [3, 8], "rir_star": 12.5}
    missing["defining"]["a"] = False
    text = closed_form_report.readme_of([small, missing], None)
    assert "| (a) on `fit`, `spectrum`: (i) ≥ 2 | every pair |" in text
    assert "(a), (b) and (c) with `defining`" in text
    assert f"3→8 (12.5 / {small['rir_star_held_out']:.3g})" in text
    assert "1.00 s of CPU time a pair on one thread (5.00 s by the clock), 2 s for the 2 pairs" in text
    assert "at most 180 s, which holds" in text
    slow = closed_form_report.readme_of([small | {"alone_cpu_seconds": 4.1}], None)
    assert "at most 180 s, which is **missed**" in slow  # 90 · 4.1 s on two cores
    line = closed_form_report.flat(small)
    assert line["pretrain_digit"] == 0
    assert line["auto_steps_harmful_held_out"] == small["auto"]["steps"]["harmful"]


def test_the_closed_form_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"perf_counter": iter([10.0, 13.0]), "process_time": iter([1.0, 1.5])}
    for name, ticks in clocks.items():
        monkeypatch.setattr(worker.time, name, lambda ticks=ticks: next(ticks))
    x = ref.gaussian(60, 6, seed=3)
    assert worker.time_alone(x, x.flip(1), 2.0) == {"alone_seconds": 3.0, "alone_cpu_seconds": 0.5}


def test_pairs_of_other_settings_are_computed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0_1.json").write_text(json.dumps({"settings": worker.SETTINGS}))
    assert worker.stored(tmp_path, (0, 1)) is not None
    assert worker.stored(tmp_path, (1, 0)) is None
    monkeypatch.setattr(worker, "SETTINGS", [*worker.SETTINGS, 1])
    assert worker.stored(tmp_path, (0, 1)) is None


@pytest.mark.slow
def test_processes_that_are_spawned_find_their_work(tmp_path: Path) -> None:
    """From the command line, where the module with `main` has the name `__main__`."""
    write_mnist(tmp_path)
    command = [sys.executable, "-m", "experiments.closed_form_mnist", "pairs=01", "workers=1", "data_root=."]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "done: 0→1" in done.stderr
    out = tmp_path / "experiments" / "closed_form_mnist"
    assert (out / "README.md").read_text(encoding="utf-8") == done.stdout
    with (out / "results.csv").open(encoding="utf-8") as file:
        assert [(row["pretrain_digit"], row["harmful_digit"]) for row in csv.DictReader(file)] == [("0", "1")]


def test_pairs_are_parsed() -> None:
    assert reporting.digit_pairs("01,83") == [(0, 1), (8, 3)]
    assert len(reporting.digit_pairs("")) == 90
    for wrong in ("0", "00", "0,1", "ab"):
        with pytest.raises(UserError, match="pairs=01,38"):
            reporting.digit_pairs(wrong)
