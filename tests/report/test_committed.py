"""Committed tables and pages are what the records beside them make, to the byte."""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest

from experiments import summary
from immunize.report import loading
from immunize.report.experiments import Request, report_experiment
from immunize.report.html.sweep import settings_of
from immunize.report.summary import groups_of, write_summary
from tests.report.making import EXPERIMENTS

SUMMARIES = ("lr_decay", "defence_choice")
ATTACKS = [
    name
    for path in sorted(EXPERIMENTS.glob("*/results.csv.gz"))
    if (name := path.parent.name).startswith(("attacks_", "defence_", "t4_", "rotations_")) and name not in SUMMARIES
]
OF_RUNS = {
    **{name: (name, name) for name in ("table1", "table2", "sweep_lambda")},
    **{name: ("table3", name) for name in ("table3_digits", "table3_digits_intel", "table3_small")},
    **{name: ("table_attacks", name) for name in ATTACKS},
    "fig2": ("fig2", "table2"),
}
"""Folder to the experiment, and the folder that has its records."""


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Records that two pages are made of: those of Table 2 take seconds to read."""
    with mock.patch.object(loading, "read_results", functools.cache(loading.read_results)):
        yield


@pytest.mark.parametrize("name", OF_RUNS)
def test_the_committed_page_is_what_its_records_make(name: str, tmp_path: Path) -> None:
    experiment, records = OF_RUNS[name]
    published = EXPERIMENTS / experiment / "published.csv"
    report_experiment(Request(experiment, EXPERIMENTS / records, tmp_path / name, published))
    for path in (tmp_path / name).iterdir():
        if path.suffix not in (".png", ".pdf"):
            assert path.read_bytes() == (EXPERIMENTS / name / path.name).read_bytes(), path.name


def test_the_main_tables_are_what_the_records_make() -> None:
    assert summary.text() == summary.PATH.read_text(encoding="utf-8")


def test_of_fine_tuning_the_mean_share_that_comes_back_and_the_median_step_are_told() -> None:
    folder = EXPERIMENTS / "t4_small_deep"
    runs = pd.read_csv(folder / "results.csv.gz").query("method == 'censor_deep'")
    curves = [json.loads(of)[0] for of in runs["by_attack/harmful/immunized/last_block/horizon"]]
    cell = f"{statistics.fmean(one['end'] for one in curves):.3g}, never"
    assert statistics.median(math.inf if (half := one["steps"][0]) is None else half for one in curves) == math.inf
    table = summary.horizon_table("", {"last": ("last_block", [folder]), "LoRA": ("lora", ["t4_lora_deep"])})
    assert next(row for row in table.rows if row[0] == "`censor_deep`")[1] == cell
    assert next(row for row in table.rows if row[0] == "`censor`")[1:] == ["1.02, 19 (1 run)", "–"]


def test_seeds_stand_together_where_each_has_its_own_theta_0_and_a_copy_is_no_second_run() -> None:
    records = loading.load_records(EXPERIMENTS / "table3_digits")
    groups = groups_of(records)
    assert len(groups) == len({(record["model"], record["method"]) for record in records})
    assert all([record["seed"] for record in group] == [0, 1, 2] for group in groups)
    for again in (records[3], records[3] | {"started": "later", "seconds": 0.0}):
        with pytest.raises(ValueError, match="is there twice"):
            groups_of([*records, again])
        assert len(groups_of([*records, again | {"status": "interrupted"}])) == len(groups)


def test_two_theta_0_of_one_seed_stand_apart() -> None:
    record = loading.load_records(EXPERIMENTS / "table3_digits")[0]
    start = record["network"]["theta_0_sha256"]
    other = record | {"network": record["network"] | {"theta_0_sha256": "0" * 64}}
    assert len(groups_of([record, other])) == 2
    assert settings_of([record, other]).keys() == {f"{record['method']}, θ_0={of}" for of in ("0" * 8, start[:8])}
    assert len(groups_of([record, other | {"seed": record["seed"] + 1}])) == 1


@pytest.mark.parametrize("folder", SUMMARIES)
def test_a_committed_summary_is_what_its_records_make(folder: str, tmp_path: Path) -> None:
    write_summary(loading.load_records(EXPERIMENTS / folder), tmp_path)
    for name in ("table.md", "results.csv.gz"):
        assert (tmp_path / name).read_bytes() == (EXPERIMENTS / folder / name).read_bytes()
