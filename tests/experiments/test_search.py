"""The searches' outcome: from records to the hyper-parameters that Tables 1, 2 and 3 take."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments import search, search_deep
from experiments.reporting import digit_pairs
from immunize.errors import UserError
from immunize.sweeping.plan import jobs_of
from tests.composing import compose_config
from tests.report.making import written
from tests.tampering import csv_rows

ROOT = Path(__file__).parents[2]
METHODS = {"closed_form", "ill_only", "imma", "none", "opt_kappa", "ours", "well_only"}
"""Of Tables 1 and 2, what `experiment=table1` sweeps over."""


MADE = {"git_commit": "c0ffee", "started": "2030-01-01T00:00:00Z"}
MADE |= {"hardware": {"processor": "P", "cores": 2, "memory_gib": 4}}
"""Where and when."""


def record(method: str, seed: int, rir: float | None, ratio_pretrain: float = 0.5, **settings: float) -> dict[str, Any]:
    """Of a reduced search. RIR is None where κ is infinite, NaN where the run diverged."""
    own = {name: settings.pop(name) for name in ("inner_learning_rate",) if name in settings}
    objective = {"learning_rate": 0.015, "lambda_ill": 1e12, "validation_fraction": 0.2} | settings
    experiment = {"name": "search_housing", "reduced": True}
    config = {"experiment": experiment, "objective": objective, "method": own, "harmful": {}}
    found = MADE | {"method": method, "seed": seed, "harmful": "housing", "seconds": 1.5, "config": config}
    if rir is not None and math.isnan(rir):
        return found | {"status": "diverged"}
    validation = {name: {"rir": rir, "ratio_pretrain": ratio_pretrain} for name in search.DECIDES}
    validation |= {name: {"rir": 1.0} for name in search.BESIDE}
    fit = {name: {"rir": 1e9} for name in search.LOGS}
    return found | {"status": "finished", "metrics": {"fit": fit, "validation": validation}}


NAN, HARDER, EASIER = math.nan, {"ratio_pretrain": 1.5}, {"ratio_pretrain": 1e-3}


@pytest.mark.parametrize(
    ("trials", "best"),  # of each λ_H the RIR of every seed, and what (ii) is if not 0.5
    [
        # mean log 2.3; 1.15, although the mean RIR is 5,000; a divergence is the worst
        ([(1e11, [10.0, 10.0], {}), (1e12, [1e4, 0.001], {}), (1e13, [1e9, NAN], {})], 1e11),
        # where every one has failed the fewest failures win
        ([(1e11, [NAN, NAN], {}), (1e12, [None, 1.0], {}), (1e13, [NAN, 2.0], {})], 1e13),
        # no RIR makes up for a harder pretraining task, but for a still harder one
        ([(1e11, [2.0], {}), (1e13, [1e6], HARDER)], 1e11),
        ([(1e11, [2.0], {"ratio_pretrain": 3.0}), (1e13, [1e6], HARDER)], 1e13),
        # (a) comes first: (i) is RIR·(ii), which is 1 of an easier D_P, 1.9 of RIR 3.8 and 2.1 of 4.2
        ([(1e11, [1e3], EASIER), (1e12, [3.8], {}), (1e13, [4.2], {}), (1e14, [1e6], HARDER)], 1e13),
        ([(1e11, [1e3], EASIER), (1e12, [3.8], {}), (1e14, [1e6], HARDER)], 1e11),  # of none with (a) the largest RIR
    ],
)
def test_what_immunizes_comes_first_then_what_spares_d_p(trials: list[Any], best: float) -> None:
    """Then the largest mean log RIR."""
    records = [
        record("ours", seed, rir, lambda_ill=weight, **of)
        for weight, rirs, of in trials
        for seed, rir in enumerate(rirs)
    ]
    assert search.best_of(search.trials_of(records))["objective.lambda_ill"].tolist() == [best]


def test_search_that_is_not_complete_chooses_nothing(tmp_path: Path) -> None:
    *most, last = [record("ours", seed, 2.0, lambda_ill=value) for value in (1e11, 1e12) for seed in (0, 1)]
    with pytest.raises(SystemExit, match="not complete"):
        search.trials_of(most)
    with pytest.raises(SystemExit, match="no record"):
        search.own_records(tmp_path)
    for records in (most, [*most, last | {"status": "interrupted"}]):
        written(records, tmp_path, own=4)
        with pytest.raises(SystemExit, match="not complete: 3 of 4 runs are over"):
            search.own_records(tmp_path)


@pytest.fixture
def outcome(tmp_path: Path) -> Path:
    """What `main` writes for a reduced search over two methods, one of whose records belongs to an earlier sweep."""
    records = [record("ours", 0, rir, lambda_ill=value) for value, rir in ((1e11, 2.0), (1e12, 5.0))]
    records += [record("imma", 0, rir, inner_learning_rate=value) for value, rir in ((0.001, 3.0), (0.1, 1.0))]
    records += [record("ours", 0, 1e9, lambda_ill=1e13)]
    written(records, tmp_path / "runs", own=4)
    search.run(["experiment=search_housing", f"runs={tmp_path / 'runs'}", f"out={tmp_path / 'out'}"])
    return tmp_path / "out"


def test_a_reduced_search_tells_of_every_configuration_and_its_rows_set_what_was_searched(outcome: Path) -> None:
    lines, readme = ((outcome / name).read_text() for name in ("results.csv", "README.md"))
    assert len(lines.splitlines()) == 1 + 4  # the record of an earlier sweep does not count
    assert [line.split(",")[0] for line in lines.splitlines() if line.endswith(",yes")] == ["ours", "imma"]
    assert "| `ours` | λ_H in {1.0e+11, 1.0e+12} | λ_H = 1.0e+12 | 1.61 | yes | yes | 0 of 2 | λ_H |" in readme
    assert "reduced" in readme.splitlines()[0]
    (outcome / "objective").mkdir()
    (outcome / "tuned").rename(outcome / "objective" / "other")
    for method, name, value in (("ours", "objective.lambda_ill", 1e12), ("imma", "method.inner_learning_rate", 0.001)):
        row = (f"objective=other/linear_housing/{method}", f"hydra.searchpath=[file://{outcome}]")
        plain, chosen = (compose_config("harmful=housing", f"method={method}", *words) for words in ((), row))
        OmegaConf.update(plain, name, value)
        assert chosen == plain


def test_a_method_searched_again_alone_leaves_the_others(outcome: Path, tmp_path: Path) -> None:
    given = ["experiment=search_housing", f"out={outcome}", "keep=true"]
    before = (outcome / "README.md").read_text(), (outcome / "results.csv").read_text()
    search.run([*given, f"runs={tmp_path / 'runs'}"])
    assert ((outcome / "README.md").read_text(), (outcome / "results.csv").read_text()) == before, "all was searched"
    again = [
        record("imma", 0, rir, inner_learning_rate=value) | {"git_commit": "beef"}
        for value, rir in ((1.0, 2.0), (2.0, 7.0))
    ]
    (outcome / "tuned" / "linear_housing" / "ours.yaml").unlink()
    search.run([*given, f"runs={written(again, tmp_path / 'again', own=2)}"])
    assert (outcome / "results.csv").read_text().splitlines()[:3] == before[1].splitlines()[:3]
    readme = (outcome / "README.md").read_text()
    assert next(line for line in before[0].splitlines() if "| `ours` |" in line) in readme.splitlines()
    assert "| `imma` | inner η in {1, 2} | inner η = 2 | 1.95 |" in readme
    assert "| commit | beef, c0ffee |" in readme
    chosen = [path.name for path in (outcome / "tuned" / "linear_housing").iterdir()]
    assert chosen == ["imma.yaml"], "a kept method's row of hyper-parameters is not written again"
    with pytest.raises(UserError, match="keep=true: there is no"):
        search.run(["experiment=search_housing", f"runs={tmp_path / 'runs'}", f"out={tmp_path / 'no'}", "keep=true"])


@pytest.mark.parametrize("value", [1e-5, 1.25e-5, 0.0003, 0.015, 0.15, 0.1234567, 1.0, 1e11, 1.05e12, 1e21])
def test_numbers_are_numbers_in_yaml(value: float) -> None:
    assert OmegaConf.create(f"x: {search._number(value)}").x == value


@pytest.mark.parametrize(("data", "experiment"), [("housing", "table1"), ("mnist", "table2")])
def test_the_tables_sweep_over_the_methods_that_have_rows_and_take_them(data: str, experiment: str) -> None:
    swept = OmegaConf.load(ROOT / "conf" / "experiment" / f"{experiment}.yaml").hydra.sweeper.params.method
    assert {name.strip() for name in swept.split(",")} == METHODS
    rows = {path.stem for path in (ROOT / "conf" / "objective" / "tuned" / f"linear_{data}").glob("*.yaml")}
    assert METHODS <= rows <= {path.stem for path in (ROOT / "conf" / "method").glob("*.yaml")}
    for method in ("ours", "imma"):
        cfg = compose_config(f"experiment={experiment}", f"method={method}")
        row = compose_config(f"harmful={data}", f"method={method}", f"objective=tuned/linear_{data}/{method}")
        assert (cfg.objective, cfg.method) == (row.objective, row.method)


def test_pairs_are_parsed() -> None:
    assert digit_pairs("01,83") == [(0, 1), (8, 3)]
    assert len(digit_pairs("")) == 90
    for wrong in ("0", "00", "0,1", "ab"):
        with pytest.raises(UserError, match="pairs=01,38"):
            digit_pairs(wrong)


# The search for Table 3's learning rates and budgets.


RATE = "objective.learning_rate"


def of_network(  # noqa: PLR0917
    method: str, value: float, rir: float | None, after: float = 50.0, seed: int = 0, harmful: str = "cars"
) -> dict[str, Any]:
    objective = {"learning_rate": value, "validation_fraction": 0.2, "balance_every": 0}
    own = {"budget": value} if method == "closed_form" else {}
    found: dict[str, Any] = MADE | {
        **{"model": "resnet18", "method": method, "harmful": harmful, "seed": seed, "seconds": 90.0},
        "training": {"fit": {"steps": 89 if rir is None else 240}},
        "network": {"theta_0_sha256": f"{seed}" * 64},
        "config": {"objective": objective, "method": {"name": method, **own}, "trainer": {}},
    }
    if rir is None:
        return found | {"status": "diverged"}
    numbers = {"rir": rir, "ratio_harmful": 7.0, "ratio_pretrain": 7.0 / rir}
    return found | {
        "status": "finished",
        "metrics_groups": {"validation": {"spectrum": numbers}, "fit": {"spectrum": {"rir": 1e9}}},
        "pretrain_accuracy": {"before": 50.0, "after": after},
        "probe_accuracy": {"gd": {"harmful": {"immunized": {"300": 5.0}, "theta_0": {"300": 20.0}}}},
    }


def chosen(*records: dict[str, Any]) -> list[float]:
    best = search_deep.chosen(search_deep.trials_of(records), 1.0)
    return [float(row["method.budget"] if row["method"] == "closed_form" else row[RATE]) for _, row in best.iterrows()]


@pytest.mark.parametrize(
    ("trials", "best"),  # the learning rate, RIR, D_P's accuracy after; and the seed
    [
        ([(0.002, 10.0, 50.0), (0.005, 40.0, 49.0), (0.01, 90.0, 48.9)], 0.005),
        ([(0.002, 2.0, 10.0), (0.005, 3.0, 5.0)], 0.005),  # none spares it
        ([(0.1, None, 50.0), (0.01, 0.2, 5.0)], 0.01),  # a divergence is the worst
        # seeds count together: geometric means of RIR, 20 and 16, and changes of 0.7 each
        ([(0.1, 20.0, 49.5), (0.1, 20.0, 49.1, 1), (0.2, 90.0, 49.9), (0.2, 3.0, 48.7, 1)], 0.1),
        ([(0.1, 20.0, 49.5), (0.1, None, 50.0, 1), (0.2, 90.0, 49.9), (0.2, 3.0, 48.7, 1)], 0.2),
    ],
)
def test_largest_rir_among_those_that_spare_the_accuracy(trials: list[tuple[Any, ...]], best: float) -> None:
    assert chosen(*(of_network("ours", *trial) for trial in trials)) == [best]


def test_each_harmful_data_set_has_its_own_choice_and_the_closed_form_its_budget() -> None:
    records = [
        of_network(method, value, value**power, harmful=harmful)
        for harmful, power in (("cars", 1), ("caltech101", -1))
        for method, values in (("ours", (0.1, 0.2)), ("closed_form", (10.0, 100.0)))
        for value in values
    ]
    assert chosen(*records) == [10.0, 0.1, 100.0, 0.2]
    with pytest.raises(UserError, match="not complete"):
        chosen(*records[:-1])


def test_a_network_s_method_searched_again_alone_leaves_the_others(tmp_path: Path) -> None:
    given = ["experiment=search_table3_small", f"out={tmp_path / 'out'}"]
    first = [of_network("ours", 0.002, 10.0), of_network("ours", 0.005, 40.0)]
    first += [of_network("imma", 0.1, None), of_network("imma", 0.2, None)]
    search_deep.run([*given, f"runs={written(first, tmp_path / 'runs', own=4)}"])
    before = csv_rows(tmp_path / "out" / "results.csv")
    assert [row[RATE] for row in before if row["chosen"] == "true"] == ["0.005"]  # none where all diverged
    again = [of_network("ours", 1.0, 3.0), of_network("ours", 2.0, 5.0)]
    search_deep.run([*given, f"runs={written(again, tmp_path / 'again', own=2)}", "keep=true"])
    after = csv_rows(tmp_path / "out" / "results.csv")
    kept, new = ([row for row in rows if row["method"] == "imma"] for rows in (before, after))
    assert kept == new
    assert [row[RATE] for row in after if row["method"] == "ours"] == ["1", "2"]
    assert "| `ours` | 240 | 0 | η in {1, 2} | 2 | 5 |" in (tmp_path / "out/README.md").read_text()
    results = tmp_path / "out" / "results.csv"
    silent = results.read_text().replace("00000000", "")
    for theta_0, there in (("1" * 64, results.read_text()), ("0" * 64, silent)):  # of another θ_0; which do not say
        results.write_text(there)
        runs = written([one | {"network": {"theta_0_sha256": theta_0}} for one in again], tmp_path / "again", own=2)
        with pytest.raises(UserError, match="not known to be of the θ_0 of resnet18, seed 0"):
            search_deep.run([*given, f"runs={runs}", "keep=true"])
        assert results.read_text() == there


@pytest.mark.parametrize("name", sorted(search_deep.LIMITS.keys() - {"search_table3"}))  # which nobody has run yet
def test_the_committed_page_is_what_its_results_make(name: str) -> None:
    folder = Path("experiments") / name
    nothing = search_deep.trials_of([of_network("ours", 0.1, 1.0)]).iloc[:0]
    trials = search_deep.with_earlier(nothing, folder / "results.csv")
    best = search_deep.chosen(trials, search_deep.LIMITS[name])
    assert search_deep.readme_of(name, trials, best) == (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["search_table3_small", "search_table3_digits"])
def test_the_table_runs_with_what_its_search_chose(name: str) -> None:
    rows = [row for row in csv_rows(Path("experiments") / name / "results.csv") if row["chosen"] == "true"]
    axes = {axis: rows[0][axis] for axis in ("model", "harmful")}  # one that the table does not vary has one value
    found = {(row["model"], row["harmful"], row["method"]): float(row[PLACE[row["method"]]]) for row in rows}
    preset = OmegaConf.load(f"conf/experiment/{name.removeprefix('search_')}.yaml")
    sweep = OmegaConf.to_container(preset.hydra.sweeper)
    jobs = [dict(line.split("=", 1) for line in job) for job in jobs_of(sweep["params"], sweep["grids"], [])]
    table = {
        (*(job.get(axis, only) for axis, only in axes.items()), job["method"]): float(job[PLACE[job["method"]]])
        for job in jobs
        if job["method"] != "none"
    }
    assert table == found


PLACE = defaultdict(lambda: "objective.learning_rate", closed_form="method.budget")
