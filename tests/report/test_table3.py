"""Table 3 and Figure 3 from records: every cell, what is published beside it, refusals, and curves drawn again."""

from __future__ import annotations

import copy
import io
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.image import imread
from rich.console import Console

from immunize.evaluation.deep import PARTS, WHICH, EvaluationSettings, evaluate_deep
from immunize.evaluation.numbers import RATIOS
from immunize.records import plain
from immunize.report import results
from immunize.report.curves import PROBE_ACCURACIES, PROBES, THETA_0, probe_bands, read_bands, write_bands
from immunize.report.experiments import Request, report_experiment
from immunize.report.one_run import show_record
from immunize.report.published import read_published
from immunize.report.results import by_setting
from immunize.report.table import short
from immunize.spectrum import ACCURACY_SLACK
from tests.report.making import Tables, tables_of, with_change, written

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "experiments/table3/published.csv"
METHODS = ("none", "ill_only", "imma", "opt_kappa", "ours")
VIT = "vit_base_patch16_clip_224"
Record = dict[str, Any]
Report = tuple[list[Record], str, Path]


@pytest.fixture(scope="module")
def evaluated(stored_run: Record) -> Record:
    """A real evaluation of random features, as the record of a run has it."""
    torch.manual_seed(0)
    sizes = {"fit": 60, "held_out": 40}
    features = {
        which: {
            part: {role: (torch.randn(n, 6), torch.arange(n) % 3) for role in ("pretrain", "harmful")}
            for part, n in sizes.items()
        }
        for which in WHICH
    }
    steps = {"gd": 300, "sgd": 300, "adam": 300, "least_squares": 1000}
    small = EvaluationSettings(n_groups=3, group_size=15, replicates=5, probe_steps=steps)
    numbers = plain(evaluate_deep(features, {"before": 60.0, "after": 59.5}, seed=0, settings=small))
    data = {role: {"images": {"fit": 60, "held_out": 40}} for role in ("pretrain", "harmful")}
    rest = {key: stored_run[key] for key in stored_run.keys() - {"steps_to_norm_ratio", "separability", "spectra"}}
    return {**rest, **numbers, "pretrain": "imagenet", "data": data}


def record_of(
    evaluated: Record, method: str, seed: int, *, model: str = "resnet18", harmful: str = "cars", name: str = "table3"
) -> Record:
    """A run of a deep network, its numbers varied by method, seed and data."""
    numbers = copy.deepcopy(evaluated)
    random_ = random.Random(f"{method} {seed} {model} {harmful}")
    for kind in ("metrics", "metrics_groups"):
        for part in PARTS:
            for of in numbers[kind][part].values():
                for key in RATIOS:
                    of[key] *= random_.lognormvariate(0, 0.2)
                of["interval"]["rir"] = [of["rir"] / 2, of["rir"] * 2]
        verdicts = numbers[kind.replace("metrics", "verdicts")]
        for part, verdict in (("fit", verdicts), ("held_out", verdicts["held_out"])):
            verdict.update({letter: random_.random() < 0.6 for letter in "abc"})
            verdict.update({key: numbers[kind][part]["spectrum"][key] for key in ("ratio_harmful", "ratio_pretrain")})
    numbers["pretrain_accuracy"]["after"] = 60 - random_.random()
    for optimizer, roles in numbers["probe_accuracy"].items():
        for role, of in roles.items():
            of["immunized"] = {step: random_.uniform(0, 50) for step in of["immunized"]}
            curve = numbers["curves"]["probe"][optimizer][role]["immunized"]
            curve["accuracy"] = [random_.uniform(0, 50) for _ in curve["steps"]]
    config = {"experiment": {"name": name, "reduced": False}, "model": {"name": model}}
    config["method"] = {"_target_": f"immunize.objective.{method}", "name": method}
    return {
        **numbers,
        **{"method": method, "model": model, "harmful": harmful, "seed": seed},
        "config": {**numbers["config"], **config, "seed": seed},
        "config_hash": f"{random_.getrandbits(64):016x}",
        "data_hash": f"hash of {harmful}",
        "network": {"architecture": VIT if model == "vit" else model},
    }


def all_records(evaluated: Record) -> list[Record]:
    """Two networks, two D_H, five methods, three seeds."""
    return [
        record_of(evaluated, method, seed, model=model, harmful=harmful)
        for model, harmful in (("resnet18", "cars"), ("resnet18", "caltech101"), ("vit", "cars"))
        for method in METHODS
        for seed in range(3)
    ]


@pytest.fixture
def records(evaluated: Record) -> list[Record]:
    return all_records(evaluated)


@pytest.fixture(scope="module")
def whole(evaluated: Record, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """All of them, what is printed, and the folder written: to look at."""
    records = all_records(evaluated)
    return records, *reported(records, tmp_path_factory.mktemp("whole"))


def reported(
    records: list[Record], folder: Path, name: str = "table3", published: Path = PUBLISHED
) -> tuple[str, Path]:
    """What is printed, and the folder written."""
    runs, out = written(records, folder / "runs"), folder / "out"
    return report_experiment(Request(name, runs, out, published)), out


def row(tables: Tables, heading: str, method: str, model: str = "resnet18", harmful: str = "cars") -> dict[str, str]:
    rows = next(rows for title, rows in tables.items() if heading in title)
    name = method if method == "θ_0" else f"`{method}`"
    (one,) = [
        r for r in rows if (r["method"], r["network"], r["data"]) == (name, f"`{model}`", f"imagenet against {harmful}")
    ]
    return one


def of_runs(records: list[Record], method: str, model: str = "resnet18", harmful: str = "cars") -> list[Record]:
    return [r for r in records if (r["method"], r["model"], r["harmful"]) == (method, model, harmful)]


def cell(values: list[float]) -> str:
    return f"{short(statistics.fmean(values))} ± {short(statistics.stdev(values))}"


# Cells.


@pytest.mark.parametrize(("model", "harmful"), [("resnet18", "cars"), ("resnet18", "caltech101"), ("vit", "cars")])
def test_cells_are_those_of_the_records(model: str, harmful: str, whole: Report) -> None:
    records, text, _ = whole
    tables = tables_of(text)
    for method in METHODS:
        runs = of_runs(records, method, model, harmful)
        for kind, heading in (("metrics_groups", "20 × 100 groups"), ("metrics", "pooled")):
            for estimator in ("spectrum", "ridge"):
                cells = row(tables, f"RIR_θ0, {heading}, by `{estimator}`", method, model, harmful)
                for part in PARTS:
                    for column, key in (("(i) ↑", "ratio_harmful"), ("(ii) ↓", "ratio_pretrain"), ("RIR ↑", "rir")):
                        values = [run[kind][part][estimator][key] for run in runs]
                        assert cells[f"{column} {part}, {estimator}"] == cell(values)
                middle = statistics.geometric_mean([run[kind]["held_out"][estimator]["rir"] for run in runs])
                assert cells["95 % of RIR held_out"] == f"{short(middle / 2)} to {short(middle * 2)}"
                assert cells["θ_0 D_P accuracy, %"] == "60 ± 0"
                assert cells["after ↑ D_P accuracy, %"] == cell([run["pretrain_accuracy"]["after"] for run in runs])
                assert cells["runs"] == "3"


def test_the_thresholds_that_are_told_are_those_applied() -> None:
    assert results.MOST_POINTS == ACCURACY_SLACK


def test_an_interval_without_ends_is_unbounded(records: list[Record], tmp_path: Path) -> None:
    of_runs(records, "ours")[1]["metrics"]["held_out"]["spectrum"]["interval"]["rir"] = [0.0, None]
    cells = row(tables_of(reported(records, tmp_path)[0]), "pooled, by `spectrum`", "ours")
    assert cells["95 % of RIR held_out"] == "unbounded"


# Published numbers.


def test_the_published_numbers_are_those_of_the_paper() -> None:
    found = {(*p.pair.split("→"), p.method, p.quantity): (p.value, p.std) for p in read_published(PUBLISHED)}
    assert found["resnet18", "cars", "ours", "rir"] == (3.467, 0.358)
    assert found["resnet18", "cars", "ours", "pretrain_accuracy"] == (62.36, 0.173)
    assert found[VIT, "cars", "opt_kappa", "ratio_pretrain"] == (0.171, 0.033)
    assert found[VIT, "country211", "ill_only", "ratio_harmful"] == (69.291, 1.198)
    assert found[VIT, "country211", "ours", "rir"] == (41.341, 0.967)
    assert found["resnet18", "cars", "lock_llm", "rir"] == (43.92, None)
    assert found["resnet18", "country211", "theta_0", "pretrain_accuracy"] == (68.24, None)
    methods = {"theta_0": 4, "ill_only": 4, "imma": 4, "opt_kappa": 4, "ours": 4}
    assert len(found) == 2 * 2 * sum(methods.values()) + 2
    # (i)/(ii) and RIR agree where both are means over seeds of runs that vary little
    for (architecture, harmful, method, quantity), (value, _) in found.items():
        if quantity == "rir" and architecture == "resnet18" and method != "lock_llm":
            harder, easier = (found[architecture, harmful, method, name][0] for name in RATIOS[:2])
            assert abs(harder / easier / value - 1) < 0.06


# Which runs.


def test_every_seed_may_have_its_own_theta_0(records: list[Record], tmp_path: Path) -> None:
    for record in records:
        record["config"]["model"]["checkpoint"] = f"theta_0_{record['seed']}.safetensors"
        record["network"] = {**(record.get("network") or {}), "theta_0_sha256": f"{record['seed']}"}
    reported(records, tmp_path, "table3")
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": {"theta_0_sha256": "b"}}, "with seed 0 began with different θ_0"),
        ({"config__model__checkpoint": "elsewhere.safetensors"}, "with seed 0 began with different θ_0"),
        ({"config__experiment__name": "table3_small"}, "these are of table3, table3_small; report each from a folder"),
        ({"metrics_groups": None}, "Table 3 is of deep networks; there is a run of 'resnet18'"),
    ],
)
def test_records_that_do_not_belong_together_are_refused(
    changes: Record, message: str, records: list[Record], tmp_path: Path
) -> None:
    for record in records:
        record["network"] = {"theta_0_sha256": "a"} if "network" in changes else None
    with_change(records[0], **changes)
    if "metrics_groups" in changes:
        del records[0]["metrics_groups"]
    for name in ("table3", "fig3"):
        with pytest.raises(ValueError, match=message):
            reported(records, tmp_path / name, name)
        assert not (tmp_path / name / "out").exists()


# Figure 3.


def test_bands_are_means_and_ranges_and_read_as_they_were_written(records: list[Record], tmp_path: Path) -> None:
    bands = probe_bands(by_setting(records))
    groups = bands.groupby(["model", "data", "optimizer", "data_set", "extractor"], sort=False)
    assert groups.ngroups == 3 * 4 * 2 * (len(METHODS) + 1)
    for (model, data, optimizer, role, extractor), band in groups:
        runs = [r for r in records if (r["model"], f"imagenet against {r['harmful']}") == (model, data)]
        which, method = (THETA_0, "none") if extractor == THETA_0 else ("immunized", extractor)
        curves = [r["curves"]["probe"][optimizer][role][which] for r in runs if r["method"] == method]
        accuracy = np.array([curve["accuracy"] for curve in curves])
        assert set(band["runs"]) == {3}
        assert set(band["batches_per_epoch"]) == {1}  # sgd too: 60 rows are less than a batch
        assert np.abs(band["mean"] - accuracy.mean(0)).max() < 1e-12
        assert (band["low"] == accuracy.min(0)).all()
        assert (band["high"] == accuracy.max(0)).all()
    write_bands(bands, tmp_path / PROBES)
    pd.testing.assert_frame_equal(read_bands(tmp_path / PROBES, PROBE_ACCURACIES), bands)


@pytest.mark.usefixtures("drawn")
def test_the_figure_is_drawn_and_drawn_again(evaluated: Record, tmp_path: Path) -> None:
    records = [record_of(evaluated, method, seed) for method in ("ours", "none") for seed in range(2)]
    for record in records:
        probes = record["curves"]["probe"]
        record["curves"]["probe"] = {name: probes[name] for name in ("gd", "sgd")}
    _, out = reported(records, tmp_path, "fig3")
    names = {f"probe_resnet18_imagenet_against_cars_{o}" for o in ("gd", "sgd")}
    assert {p.stem for p in out.glob("*.png")} == {p.stem for p in out.glob("*.pdf")} == names
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert all(f"]({name}.png)" in readme for name in names)
    again = tmp_path / "again"
    report_experiment(Request("fig3", out, again, again / "published.csv"))
    for name in names:
        one, other = imread(out / f"{name}.png"), imread(again / f"{name}.png")
        assert one.std() > 0.01
        assert np.array_equal(one, other)


def test_probes_of_different_lengths_are_not_averaged(evaluated: Record) -> None:
    records = [record_of(evaluated, "ours", seed) for seed in range(2)]
    curve = records[1]["curves"]["probe"]["gd"]["harmful"]["immunized"]
    curve["steps"], curve["accuracy"] = curve["steps"][:-1], curve["accuracy"][:-1]
    with pytest.raises(ValueError, match="probes by gd took different steps"):
        probe_bands(by_setting(records))


# One run.


def test_one_run_is_shown(evaluated: Record) -> None:
    record = record_of(evaluated, "ours", 0)
    text = io.StringIO()
    show_record(record, Console(file=text, width=160, highlight=False))
    shown = text.getvalue()
    assert short(record["metrics_groups"]["held_out"]["spectrum"]["rir"]) in shown
    assert "60.00 % → " in shown
    assert f"300: {record['probe_accuracy']['gd']['harmful']['theta_0']['300']:.1f} → " in shown
    assert shown.count("(a)") == shown.count("Definition 3.1 on ") == 4


def test_settings_without_any_run_are_told(records: list[Record], tmp_path: Path) -> None:
    kept = [r for r in records if r["model"] == "vit"]
    swept_over = [("resnet18", "cars"), ("resnet18", "country211"), ("vit", "cars"), ("vit", "country211")]
    assert f"There are runs of 1 of {len(swept_over)} pairs of network and D_H." in reported(kept, tmp_path)[0]
