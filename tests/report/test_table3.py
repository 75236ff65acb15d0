"""Table 3 and Figure 3 from records: every cell, what is published beside it, refusals, and curves drawn again."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from immunize.evaluation import deep, numbers
from immunize.records import read_record
from immunize.report import naming, results
from immunize.report.curves import THETA_0, probe_bands
from immunize.report.experiments import Request, report_experiment
from immunize.report.loading import load_records
from immunize.report.table import short
from immunize.spectrum.condition import ACCURACY_SLACK, HARDER_BY
from tests.report.making import EXPERIMENTS, Record, reported, row, shown, tables_of, with_change

DIGITS = EXPERIMENTS / "table3_digits"


@pytest.fixture
def records() -> list[Record]:
    """Two networks, six methods, three seeds, each with its own θ_0."""
    return load_records(DIGITS)


@pytest.fixture
def curves(finished_network: Path) -> list[Record]:
    """Runs of one network with curves of probes: two methods, three seeds."""
    base, draw = read_record(finished_network), random.Random(0)
    base["config"]["experiment"]["name"] = "table3_digits"
    found = []
    for method, seed in ((method, seed) for method in ("ours", "none") for seed in range(3)):
        record = copy.deepcopy(base) | {"method": method, "seed": seed, "network": None}
        record["config"]["seed"] = seed
        for role in record["curves"]["probe"]["gd"].values():
            role["immunized"]["accuracy"] = [draw.uniform(0, 50) for _ in role["immunized"]["steps"]]
        found.append(record)
    return found


# Cells.


def test_cells_are_those_of_the_records() -> None:
    """The committed page, from its records by pandas alone."""
    tables = tables_of((DIGITS / "table.md").read_text(encoding="utf-8"))
    runs = pd.read_csv(DIGITS / "results.csv.gz")
    for (model, method), of in runs.groupby(["model", "method"]):

        def cell(path: str, of: pd.DataFrame = of) -> str:
            return f"{short(of[path].mean())} ± {short(of[path].std())}"

        for kind, heading in (("metrics_groups", "20 × 100 groups"), ("metrics", "pooled")):
            for estimator in ("spectrum", "ridge"):
                cells = row(tables, f"RIR_θ0, {heading}, by `{estimator}`", method, model)
                for part in naming.PARTS:
                    for column, key in zip(("(i) ↑", "(ii) ↓", "RIR ↑"), naming.RATIOS, strict=True):
                        shown = cells[f"{column} {part}, {estimator}"].partition(" (")[0]
                        assert shown == cell(f"{kind}/{part}/{estimator}/{key}")
                ends = np.array([json.loads(text) for text in of[f"{kind}/held_out/{estimator}/interval/rir"]])
                low, high = np.exp(np.log(ends).mean(0))
                assert cells["95 % of RIR held_out"] == f"{short(low)} to {short(high)}"
                assert cells["θ_0 D_P accuracy, %"] == cell("pretrain_accuracy/before")
                assert cells["after ↑ D_P accuracy, %"] == cell("pretrain_accuracy/after")
                assert cells["runs"] == "3"


def test_what_is_told_of_thresholds_and_parts_is_what_is_applied() -> None:
    assert (naming.HARDER_BY, results.MOST_POINTS) == (HARDER_BY, ACCURACY_SLACK)
    assert (naming.PARTS, naming.RATIOS) == (deep.PARTS, numbers.RATIOS)


def test_unbounded_intervals_and_settings_without_any_run_are_told(records: list[Record], tmp_path: Path) -> None:
    kept = [record for record in records if record["model"] == "vit_small"]
    ours = next(record for record in kept if record["method"] == "ours")
    ours["metrics"]["held_out"]["spectrum"]["interval"]["rir"] = [0.0, None]
    text, _ = reported("table3", kept, tmp_path)
    assert row(tables_of(text), "pooled, by `spectrum`", "ours")["95 % of RIR held_out"] == "unbounded"
    assert "There are runs of 1 of 2 pairs of network and D_H." in text


# Which runs.


def test_records_that_do_not_belong_together_are_refused(records: list[Record]) -> None:
    first, *others = records
    for changed, message in (
        (with_change(copy.deepcopy(first), network__theta_0_sha256="b"), "with seed 0 began with different θ_0"),
        (with_change(copy.deepcopy(first), config__experiment__name="table3"), "table3_digits; report each from"),
        ({key: of for key, of in first.items() if key != "metrics_groups"}, "there is a run of 'resnet_small'"),
    ):
        with pytest.raises(ValueError, match=message):
            results.by_setting([changed, *others])


# Figure 3.


def test_bands_are_means(curves: list[Record]) -> None:
    bands = probe_bands(results.by_setting(curves))
    groups = bands.groupby(["optimizer", "data_set", "extractor"], sort=False)
    assert groups.ngroups == 2 * 3
    for (optimizer, role, extractor), band in groups:
        which, method = (THETA_0, "none") if extractor == THETA_0 else ("immunized", extractor)
        of = [r["curves"]["probe"][optimizer][role][which] for r in curves if r["method"] == method]
        accuracy = np.array([curve["accuracy"] for curve in of])
        assert set(band["runs"]) == {3}
        assert set(band["batches_per_epoch"]) == {1}
        assert np.abs(band["mean"] - accuracy.mean(0)).max() < 1e-12  # ranges are asserted of Figure 1


@pytest.mark.usefixtures("drawn")
def test_the_figure_is_drawn_and_drawn_again(curves: list[Record], tmp_path: Path) -> None:
    for record in curves:
        record["curves"]["probe"]["sgd"] = record["curves"]["probe"]["gd"]
    _, out = reported("fig3", curves, tmp_path)
    names = {f"probe_{curves[0]['model']}_digits_against_digits_{o}" for o in ("gd", "sgd")}
    assert {p.stem for p in out.glob("*.png")} == {p.stem for p in out.glob("*.pdf")} == names
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert all(f"]({name}.png)" in readme for name in names)
    again = tmp_path / "again"
    report_experiment(Request("fig3", out, again, again / "published.csv"))
    for name in names:
        assert imread(out / f"{name}.png").std() > 0.01
        for kind in ("png", "pdf"):
            assert (again / f"{name}.{kind}").read_bytes() == (out / f"{name}.{kind}").read_bytes()


def test_probes_of_different_lengths_are_not_averaged(curves: list[Record]) -> None:
    curve = curves[1]["curves"]["probe"]["gd"]["harmful"]["immunized"]
    curve["steps"], curve["accuracy"] = curve["steps"][:-1], curve["accuracy"][:-1]
    with pytest.raises(ValueError, match="probes by gd took different steps"):
        probe_bands(results.by_setting(curves))


# One run.


def test_one_run_is_shown(records: list[Record]) -> None:
    record = records[0]
    text = shown(record)
    assert short(record["metrics_groups"]["held_out"]["spectrum"]["rir"]) in text
    assert f"{record['pretrain_accuracy']['before']:.2f} % → " in text
    assert f"300: {record['probe_accuracy']['gd']['harmful']['theta_0']['300']:.1f} → " in text
    assert text.count("(a)") == text.count("Definition 3.1 on ") == 4
    assert "accuracy of a linear probe" in text
    assert "accuracy of a linear probe" not in shown(record | {"probe_accuracy": {}})
