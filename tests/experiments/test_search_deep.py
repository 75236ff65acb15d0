"""The search for Table 3's learning rates and budgets: what is chosen, and what is written of it."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments import search_deep
from immunize.errors import UserError
from immunize.sweeping.plan import jobs_of
from tests.report.making import written

RATE = "objective.learning_rate"


def record(
    method: str, value: float, rir: float | None, after: float = 50.0, harmful: str = "cars", **changed: Any
) -> dict[str, Any]:
    budget = method == "closed_form"
    found: dict[str, Any] = {
        "status": "diverged" if rir is None else "finished",
        "model": "resnet18",
        "method": method,
        "harmful": harmful,
        "seed": 0,
        "git_commit": "c0ffee",
        "started": "2030-01-01T00:00:00Z",
        "seconds": 90.0,
        "training": {"fit": {"steps": 89 if rir is None else 240}},
        "hardware": {"processor": "P", "cores": 2, "memory_gib": 4},
        "config": {
            "objective": {
                "learning_rate": 0.1 if budget else value,
                "validation_fraction": 0.2,
                "balance_every": 0,
            },
            "method": {"name": method}
            | ({"budget": value} if budget else {})
            | ({"precondition": "features"} if method == "imma" else {}),
            "trainer": {"gradient_clip_val": 3} if method == "imma" else {},
        },
    }
    if rir is not None:
        numbers = {"rir": rir, "ratio_harmful": 7.0, "ratio_pretrain": 7.0 / rir}
        found["metrics_groups"] = {"validation": {"spectrum": numbers}, "fit": {"spectrum": {"rir": 1e9}}}
        found["pretrain_accuracy"] = {"before": 50.0, "after": after}
        found["probe_accuracy"] = {"gd": {"harmful": {"immunized": {"300": 5.0}, "theta_0": {"300": 20.0}}}}
    return found | changed


def chosen(*records: dict[str, Any], limit: float = 1.0) -> list[float]:
    best = search_deep.chosen(search_deep.trials_of(records), limit)
    return [float(row["method.budget"] if row["method"] == "closed_form" else row[RATE]) for _, row in best.iterrows()]


def test_largest_rir_among_those_that_spare_the_accuracy() -> None:
    trials = record("ours", 0.002, 10.0), record("ours", 0.005, 40.0, 49.0), record("ours", 0.01, 90.0, 48.9)
    assert chosen(*trials) == [0.005]
    assert chosen(*trials, limit=2.0) == [0.01]


def test_without_one_that_spares_it_the_largest_rir() -> None:
    assert chosen(record("ill_only", 0.002, 2.0, 10.0), record("ill_only", 0.005, 3.0, 5.0)) == [0.005]


def test_a_divergence_is_the_worst() -> None:
    assert chosen(record("imma", 0.1, None), record("imma", 0.01, 0.2, 5.0)) == [0.01]
    assert chosen(record("imma", 0.1, None), record("imma", 0.01, None)) == [0.01]


def test_seeds_of_a_configuration_count_together() -> None:
    steady = record("ours", 0.1, 20.0, 49.5), record("ours", 0.1, 20.0, 49.1, seed=1)
    lucky = record("ours", 0.2, 90.0, 49.9), record("ours", 0.2, 3.0, 48.7, seed=1)
    trials = search_deep.trials_of([lucky[1], *steady, lucky[0]])
    assert trials["seeds"].tolist() == ["0 1", "0 1"]
    assert trials["rir_validation"].tolist() == pytest.approx([20.0, 270**0.5])
    assert (50 - trials["pretrain_accuracy_after"]).tolist() == pytest.approx([0.7, 0.7])
    assert chosen(*lucky, *steady) == [0.1]
    assert chosen(*lucky, record("ours", 0.1, 20.0, 49.5), record("ours", 0.1, None, seed=1)) == [0.2]


def test_each_harmful_data_set_has_its_own_choice_and_the_closed_form_its_budget() -> None:
    records = [
        record(method, value, value**power, harmful=harmful)
        for harmful, power in (("cars", 1), ("caltech101", -1))
        for method, values in (("ours", (0.1, 0.2)), ("closed_form", (10.0, 100.0)))
        for value in values
    ]
    assert chosen(*records) == [10.0, 0.1, 100.0, 0.2]


def test_incomplete_search_chooses_nothing() -> None:
    with pytest.raises(UserError, match="not complete"):
        chosen(record("ours", 0.1, 1.0), record("ours", 0.2, 1.0), record("imma", 0.1, 1.0))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    found = [
        record("ours", 0.002, 10.0, 50.5),
        record("ours", 0.005, 40.0, 49.5, seconds=150.0),
        record("imma", 0.1, None),
        record("imma", 0.2, None),
        record("ours", 0.01, 1e9),
    ]
    return written(found, tmp_path / "runs", own=4)


def test_a_method_searched_again_alone_leaves_the_others(runs: Path, tmp_path: Path) -> None:
    given = ["experiment=search_table3_small", f"runs={runs}", f"out={tmp_path / 'out'}"]
    search_deep.run(given)
    before = (tmp_path / "out/README.md").read_text()
    assert "| η in {0.1, 0.2} | none |" in before, "nothing is chosen where all diverged"
    search_deep.run([*given, "keep=true"])
    assert (tmp_path / "out/README.md").read_text() == before, "all of it was searched again"
    again = [record("ours", value, rir, git_commit="beef", started="2030-02-01") for value, rir in ((1, 3.0), (2, 5.0))]
    written(again, runs, own=2)
    search_deep.run([*given, "keep=true"])
    after = (tmp_path / "out/README.md").read_text()
    kept, new = ([line for line in text.splitlines() if "| `imma` |" in line] for text in (before, after))
    assert kept == new
    assert "| `ours` | 240 | 0 | η in {1, 2} | 2 | 5 |" in after
    assert "| commit | beef, c0ffee |" in after
    assert "| date | 2030-01-01 to 2030-02-01 |" in after
    assert "| runs | 4, 2 configurations a method on each network and D_H, 6 minutes summed |" in after


@pytest.mark.parametrize("name", sorted(search_deep.LIMITS.keys() - {"search_table3"}))  # which nobody has run yet
def test_the_committed_page_is_what_its_results_make(name: str) -> None:
    folder = Path("experiments") / name
    nothing = search_deep.trials_of([record("ours", 0.1, 1.0)]).iloc[:0]
    trials = search_deep.with_earlier(nothing, folder / "results.csv")
    best = search_deep.chosen(trials, search_deep.LIMITS[name])
    assert search_deep.readme_of(name, trials, best) == (folder / "README.md").read_text(encoding="utf-8")


def test_nothing_to_keep(runs: Path, tmp_path: Path) -> None:
    given = ["experiment=search_table3_small", f"runs={runs}", f"out={tmp_path / 'out'}"]
    with pytest.raises(UserError, match="to keep anything of"):
        search_deep.run([*given, "keep=true"])
    with pytest.raises(UserError, match="true, false"):
        search_deep.run([*given, "keep=maybe"])


def test_arguments_are_needed_and_known() -> None:
    with pytest.raises(UserError, match="needed"):
        search_deep.run(["experiment=search_table3_small", "runs=runs"])
    with pytest.raises(UserError, match="search_table3_digits"):
        search_deep.run(["experiment=search_mnist", "runs=runs", "out=out"])


@pytest.mark.parametrize("name", ["search_table3_small", "search_table3_digits"])
def test_the_table_runs_with_what_its_search_chose(name: str) -> None:
    with (Path("experiments") / name / "results.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["chosen"] == "true"]
    axes = {axis: rows[0][axis] for axis in ("model", "harmful")}  # one that the table does not vary has one value
    found = {(row["model"], row["harmful"], row["method"]): float(row[PLACE[row["method"]]]) for row in rows}
    preset = OmegaConf.load(f"conf/experiment/{name.removeprefix('search_')}.yaml")
    sweep = OmegaConf.to_container(preset.hydra.sweeper)
    assert isinstance(sweep, dict)
    jobs = [dict(line.split("=", 1) for line in job) for job in jobs_of(sweep["params"], sweep["grids"], [])]
    table = {
        (*(job.get(axis, only) for axis, only in axes.items()), job["method"]): float(job[PLACE[job["method"]]])
        for job in jobs
        if job["method"] != "none"
    }
    assert table == found


PLACE = defaultdict(lambda: "objective.learning_rate", closed_form="method.budget")
