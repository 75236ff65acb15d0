"""Reports of experiments and the README's main table: every cell against the records, refusals, missing runs."""

from __future__ import annotations

import copy
import statistics
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from immunize.report import experiments, naming
from immunize.report.__main__ import main
from immunize.report.card import card_of, card_text
from immunize.report.curves import IDENTITY, NORM_RATIOS, csv_of, norm_ratio_bands, norm_ratio_figures, read_bands
from immunize.report.experiments import Request, report_experiment
from immunize.report.heatmaps import heatmap, log_means
from immunize.report.loading import load_records
from immunize.report.provenance import provenance_rows
from immunize.report.published import read_published
from immunize.report.runs import Runs, expected_runs, flat_settings
from immunize.report.table import short, summary_text
from tests.commands import Called
from tests.report import making
from tests.report.making import EXPERIMENTS, Record, reported, row, tables_of, written

PAIRS = [(0, 1), (1, 0), (3, 8), (8, 3)]
PAPERS = ("ill_only", "imma", "ours", "opt_kappa")


@pytest.fixture
def table1(base: Record) -> list[Record]:
    return making.table1_records(base)


# Cells.


def test_table2_averages_over_pairs_as_the_paper() -> None:
    """The committed page, from its records by pandas alone."""
    folder = EXPERIMENTS / "table2"
    runs = pd.read_csv(folder / "results.csv.gz")
    tables = tables_of((folder / "table.md").read_text(encoding="utf-8"))
    for method, of in runs.groupby("method"):
        rir = of.groupby("data_hash")["metrics/fit/released/rir"]
        cell = row(tables, "by `released`", str(method))["RIR ↑ fit, released, n = 270"]
        assert cell.partition(" (")[0] == f"{short(rir.mean().mean())} ± {short(rir.std().mean())}"
        cells = row(tables, "RIR over the 90 pairs on `fit` by `released`", str(method))
        spread = [*rir.mean().quantile([0, 0.25, 0.5, 0.75, 1]).map(short), f"{(rir.min() > 1).sum()}/90"]
        names = ("min", "25 %", "median", "75 %", "max", "pairs with RIR > 1 at every seed")
        assert spread == [cells[f"{name} fit, released, n = 270"] for name in names]
        assert f"({short(rir.mean().min())})" in cells["worst pairs fit, released, n = 270"].split(", ")[0]


def test_a_method_run_again_leaves_the_others(table1: list[Record], tmp_path: Path) -> None:
    _, out = reported("table1", table1, tmp_path)
    before = [one for one in load_records(out) if one["method"] != "ours"]
    again = [record | {"git_commit": "beef"} for record in table1 if record["method"] == "ours"][:2]
    runs = written(again, tmp_path / "again")
    text = report_experiment(Request("table1", runs, out, EXPERIMENTS / "table1/published.csv", keep=True))
    after = load_records(out)
    assert [one for one in after if one["method"] != "ours"] == before
    assert [one["git_commit"] for one in after if one["method"] == "ours"] == ["beef", "beef"]
    assert "mean ± standard deviation (n − 1) over 2 to 5 seeds" in text
    assert "- 32 of 35 runs; missing: `ours`" in text, "no old run is mixed with those of a method that was run again"


def test_what_differs_from_the_paper_is_told(base: Record, tmp_path: Path) -> None:
    for method, rir, ratio, told in (
        ("opt_kappa", 0.9, 0.5, "`opt_kappa` fails here but not in the paper: RIR is 92.6 in Table 1 and 0.9 here"),
        ("opt_kappa", 2.0, 1.5, "RIR is 92.6 in Table 1 and 2 here, (ii) is 0.016 and 1.5"),
        ("ill_only", 3.0, 0.5, "`ill_only` fails in the paper but not here"),
    ):
        records = making.table1_records(base, methods=[method])
        for record in records:
            record["metrics"]["fit"]["released"] |= {"rir": rir, "ratio_pretrain": ratio}
        assert told in reported("table1", records, tmp_path)[0]


# Which runs.


def test_runs_without_numbers_are_told_and_the_others_counted(table1: list[Record], tmp_path: Path) -> None:
    """Missing, diverged, and without held-out rows where the cross-fit diverged; also all runs of a method."""
    diverging = {("imma", 1), ("imma", 2), *(("none", seed) for seed in range(5))}
    lost = {("ill_only", 0), ("ill_only", 1), *(("opt_kappa", seed) for seed in range(5))}
    kept = [r for r in table1 if (r["method"], r["seed"]) != ("ours", 4)]
    kept = [making.diverged(r) if (r["method"], r["seed"]) in diverging else r for r in kept]
    kept = [making.without_held_out(r) if (r["method"], r["seed"]) in lost else r for r in kept]
    text, out = reported("table1", kept, tmp_path)
    assert "34 of 35 runs; missing: `ours` synthetic→synthetic seed 4; diverged: 2 of `imma`, 5 of `none`;" in text
    assert "no held-out numbers, as the cross-fit diverged: 5 of `opt_kappa`, 2 of `ill_only`." in text
    assert len(pd.read_csv(out / "results.csv.gz")) == 34
    tables, bands = tables_of(text), norm_ratio_bands([Runs.of(kept, "table1")])
    for method, runs, counts in (
        ("imma", "3 + 2 diverged", {"fit": 3, "held_out": 3}),
        ("none", "0 + 5 diverged", {"fit": 0, "held_out": 0}),
        ("ill_only", "5 (3 held out)", {"fit": 5, "held_out": 3}),
        ("opt_kappa", "5 (0 held out)", {"fit": 5, "held_out": 0}),
    ):
        ratios, verdicts, steps = (
            row(tables, title, method) for title in ("by `spectrum`", "Definition 3.1", "norm ratio 0.1")
        )
        assert ratios["runs"] == runs
        for part, count in counts.items():
            of = [r["metrics"][part] for r in kept if r["method"] == method and part in r.get("metrics", {})]
            cell = summary_text([[numbers["spectrum"]["rir"] for numbers in of]])
            assert ratios[f"RIR ↑ {part}, spectrum, n = 0 to 5"] == cell
            assert {text.partition("/")[2] for name, text in verdicts.items() if part in name} == {str(count or "")}
            assert {"–" in text for name, text in steps.items() if part in name} == {count == 0}
            assert {*bands.query("extractor == @method and part == @part")["runs"]} == {count} - {0}


def test_one_seed_has_no_spread_and_what_is_not_written_leaves_no_file(base: Record, tmp_path: Path) -> None:
    written(making.table1_records(base, seeds=[0]), tmp_path)
    before = sorted(tmp_path.rglob("*"))
    text, curves = (report_experiment(Request(name, tmp_path, None, Path("none.csv"))) for name in ("table1", "fig1"))
    assert not any("±" in cell for cell in row(tables_of(text), "by `spectrum`, one run", "ours").values())
    assert "There is no published column: the file of published numbers is missing." in text
    assert "in the paper" not in text
    assert "32 curves" in curves
    assert sorted(tmp_path.rglob("*")) == before


def test_what_older_records_lack_is_told_in_the_head_of_a_page_and_a_card(table1: list[Record]) -> None:
    for record in table1:
        record["git_commit"] = None  # as of a wheel
    assert "git commit: `unknown`" in card_text(card_of(table1[0], None), None)
    for record in table1[1:]:
        del record["git_commit"]
    for record in table1:
        del record["held_out_protocol"]
    head = dict(provenance_rows(Runs.of(table1, "table1")))
    assert (head["commit"], head["held out"]) == ("unknown", "None")


def test_a_setting_that_is_null_is_one_that_was_not_there_yet() -> None:
    old, null, other = (
        {"config": {"objective": {"epochs": 2, **of}}} for of in ({}, {"lr_decay": None}, {"lr_decay": 0.5})
    )
    assert flat_settings(old) == flat_settings(null)
    assert flat_settings(old) != flat_settings(other)


def test_runs_that_do_not_belong_together_are_refused(table1: list[Record]) -> None:
    first, *others = table1
    for changes, message in (
        ({"config__experiment__reduced": True}, "full and reduced runs of table1 are in one folder"),
        ({"config__objective__learning_rate": 123.0}, "runs of method none differ in objective.learning_rate"),
        ({"config__experiment__name": "table2"}, "needs runs of table1; there are also runs of table2"),
        ({"seed": 1}, "the run none, synthetic→synthetic, seed 1 is there twice"),
        ({"data_hash": "other"}, "runs on synthetic→synthetic were made on different data"),
    ):
        with pytest.raises(ValueError, match=message):
            Runs.of([making.with_change(copy.deepcopy(first), **changes), *others], "table1")


def test_unknown_experiment_lists_the_known() -> None:
    with pytest.raises(ValueError, match="unknown experiment 'table9'; there are table1, table2"):
        report_experiment(Request("table9", Path(), None, Path()))


def test_reduced_runs_are_marked_and_kept_apart(table1: list[Record], tmp_path: Path) -> None:
    for record in table1:
        record["config"]["experiment"]["reduced"] = True
    assert len(expected_runs("table1", table1) or ()) == 2 * len(making.METHODS), "seeds its own, methods the preset's"
    text, out = reported("table1", table1, tmp_path)
    assert all(title.startswith("REDUCED ") for title in tables_of(text))
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert readme.startswith("# REDUCED Table 1")
    assert "make table1 FAST=1" in readme
    assert "experiment=table1_fast" in readme
    committed = tmp_path / "committed"
    committed.mkdir()
    with pytest.raises(ValueError, match="reduced runs are not written into"):
        report_experiment(Request("table1", tmp_path / "runs", committed, committed / "published.csv"))
    assert not list(committed.iterdir())


def test_without_a_preset_every_combination_that_occurs_is_expected(base: Record) -> None:
    records = making.table2_records(base, PAIRS)[1:]
    assert expected_runs("no_such_preset", records) is None
    assert list(Runs.of(records, "table2").missing) == [("0→1", "none", 0)]


# Figures 1 and 2.


def test_fig1_curves_are_means_over_the_seeds(table1: list[Record], tmp_path: Path) -> None:
    bands = norm_ratio_bands([Runs.of(table1, "table1")])
    for (part, role, extractor), band in bands.groupby(["part", "data_set", "extractor"]):
        which = "identity" if extractor == IDENTITY else "immunized"
        of = [r for r in table1 if r["method"] == ("ours" if extractor == IDENTITY else extractor)]
        found = [r["curves"]["norm_ratio"][part][role][which] for r in of]
        ratios = np.array([one["ratio"] for one in found])
        assert set(band["runs"]) == {5}
        assert band["step"].tolist() == found[0]["steps"]
        for name, expected in (("mean", ratios.mean(0)), ("low", ratios.min(0)), ("high", ratios.max(0))):
            np.testing.assert_allclose(band[name], expected, rtol=1e-12)
    assert bands.groupby(["part", "data_set", "extractor"]).ngroups == 2 * 2 * (len(making.METHODS) + 1)
    (tmp_path / "curves.csv").write_text(csv_of(bands))
    again = read_bands(tmp_path / "curves.csv", NORM_RATIOS)
    pd.testing.assert_frame_equal(again, bands)
    assert norm_ratio_figures(again).keys() == {"norm_ratio_fit", "norm_ratio_held_out"}


def test_a_curve_that_ends_early_stays_where_it_ended(base: Record) -> None:
    records = making.table1_records(base, seeds=[0, 1], methods=["ours"])
    place = records[0]["curves"]["norm_ratio"]["fit"]["pretrain"]
    place["immunized"] = {"steps": [0, 1, 2], "ratio": [1.0, 0.25, 0.0]}
    full = records[1]["curves"]["norm_ratio"]["fit"]["pretrain"]["immunized"]
    bands = norm_ratio_bands([Runs.of(records, "table1")])
    found = bands.query("part == 'fit' and data_set == 'pretrain' and extractor == 'ours'")
    assert found["step"].iloc[-1] == full["steps"][-1]
    assert found["low"].iloc[1] == pytest.approx(min(0.25, full["ratio"][1]))
    assert found["mean"].iloc[-1] == pytest.approx(full["ratio"][-1] / 2)


def test_fig1_needs_the_curves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hold no curves"):
        report_experiment(Request("fig1", EXPERIMENTS / "table1", tmp_path / "fig1", Path("none.csv")))


def test_fig2_cells_are_logarithms_of_the_mean_over_seeds(base: Record) -> None:
    table2 = making.table2_records(base, PAIRS)
    values = log_means(Runs.of(table2, "table2"), "ours", "held_out", "ridge")
    assert len(values) == len(PAIRS)
    for (p, h), value in ((tuple(map(int, pair.split("→"))), value) for pair, value in values.items()):
        of = [r for r in table2 if (r["method"], r["data_hash"]) == ("ours", f"hash of {(p, h)}")]
        assert value == pytest.approx(np.log(statistics.fmean(r["metrics"]["held_out"]["ridge"]["rir"] for r in of)))


# The paper's numbers.


def test_a_map_has_the_number_of_a_pair_of_data_sets_of_one_name() -> None:
    panels = {"ours": {"digits→digits": 1.0, "digits→cars": 0.5, "cars→digits": 0.2}}
    cells = heatmap(panels, "log(RIR)", sides=("D_P", "D_H")).axes[0].texts
    assert sorted(cell.get_text() for cell in cells) == ["0.20", "0.50", "1.00"]


def test_published_cells_of_fig2_give_the_means_of_table_2() -> None:
    """Which shows the transcription right, the logarithm natural, and the cells to be of the mean over seeds."""
    cells, means = (read_published(EXPERIMENTS / name / "published.csv") for name in ("fig2", "table2"))
    for method in PAPERS:
        values = [p.value for p in cells if (p.method, p.quantity) == (method, "log_rir")]
        assert len(values) == 90
        (mean,) = [p.value for p in means if (p.method, p.quantity) == (method, "rir")]
        assert statistics.fmean(np.exp(values)) == pytest.approx(mean, rel=1e-3)


def test_the_published_numbers_are_those_of_the_paper() -> None:
    vit = "vit_base_patch16_clip_224"
    published = read_published(EXPERIMENTS / "table3/published.csv")
    found = {(*p.pair.split("→"), p.method, p.quantity): (p.value, p.std) for p in published}
    assert found["resnet18", "cars", "ours", "rir"] == (3.467, 0.358)
    assert found["resnet18", "cars", "ours", "pretrain_accuracy"] == (62.36, 0.173)
    assert found[vit, "cars", "opt_kappa", "ratio_pretrain"] == (0.171, 0.033)
    assert found[vit, "country211", "ill_only", "ratio_harmful"] == (69.291, 1.198)
    assert found[vit, "country211", "ours", "rir"] == (41.341, 0.967)
    assert found["resnet18", "cars", "lock_llm", "rir"] == (43.92, None)
    assert found["resnet18", "country211", "theta_0", "pretrain_accuracy"] == (68.24, None)
    assert len(found) == 2 * 2 * 4 * len(("theta_0", *PAPERS)) + 2
    # (i)/(ii) and RIR agree where both are means over seeds of runs that vary little
    for (architecture, harmful, method, quantity), (value, _) in found.items():
        if quantity == "rir" and architecture == "resnet18" and method != "lock_llm":
            harder, easier = (found[architecture, harmful, method, name][0] for name in naming.RATIOS[:2])
            assert abs(harder / easier / value - 1) < 0.06


def test_a_broken_file_of_published_numbers_is_refused(tmp_path: Path) -> None:
    head = (EXPERIMENTS / "table3/published.csv").read_text(encoding="utf-8").splitlines()[0]
    for text, message in (
        ("source,value\n", "needs the columns source, method"),
        (f"{head}\nTable 3,resnet18,cars,ours,Ours,rir,many,\n", "line 2: could not convert"),
        (f"{head}\nTable 3,resnet18,cars,ours,Ours,rri,1,\n", "unknown quantity 'rri'"),
    ):
        (tmp_path / "published.csv").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_published(tmp_path / "published.csv")


# The command.


def test_the_command_writes_the_report(
    table1: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: Called
) -> None:
    written(table1[::2], tmp_path / "outputs/table1")
    monkeypatch.chdir(tmp_path)
    done = called(main, "experiment=table1", "runs=outputs/table1", "out=experiments/table1")
    assert done.out == "experiments/table1/README.md\n"
    done = called(main, "experiment=table1", "runs=experiments/table1", "published=none.csv")
    table = (tmp_path / "experiments/table1/table.md").read_text()
    assert done.out.splitlines()[0] == table.splitlines()[0]
    assert {path.name for path in tmp_path.iterdir()} == {"outputs", "experiments"}
    lines = called(main, "runs=experiments/table1").out.splitlines()
    assert max(map(len, lines)) <= 100, "many runs of any kind fit a screen"
    assert all(any(line.startswith(f" {method} ") for line in lines) for method in making.METHODS)
    assert sum("held out" in line for line in lines) == len(making.METHODS)


def test_help_names_every_experiment(called: Called) -> None:
    shown = called(main, "--help").out
    assert all(f"experiment={name} " in shown for name in experiments.EXPERIMENTS)
