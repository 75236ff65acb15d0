"""The page of many runs: counts, means and spreads, the front, heat maps, settings by name, folders in any state."""

from __future__ import annotations

import copy
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from immunize.errors import UserError
from immunize.records import SWEEP
from immunize.report.cells import short, summary_text
from immunize.report.html import write_sweep_page
from immunize.report.html.scales import LINEAR, LOG, STEPS, Axis, scale_of, tick_text
from immunize.report.html.settings import settings_of
from immunize.report.html.sweep_page import sweep_page
from immunize.report.stored import write_results
from immunize.report.summary import summary_table
from tests.report.making import (
    METHODS,
    diverged,
    record_of,
    table1_records,
    table2_records,
    without_held_out,
    written,
)
from tests.report.pages import Page, check

Record = dict[str, Any]
IN_ORDER = ["ours", "closed_form", "opt_kappa", "imma", "ill_only", "well_only", "none"]
PAIRS = [(0, 1), (1, 0), (0, 7), (7, 1)]


def page_of(records: list[Record], missing: int = 0) -> Page:
    return check(sweep_page(records, "a sweep", missing))


def numbers(records: list[Record], method: str, name: str, part: str = "fit", est: str = "spectrum") -> list[float]:
    return [r["metrics"][part][est][name] for r in records if r["method"] == method and r["status"] == "finished"]


@pytest.fixture
def table1(base: Record) -> list[Record]:
    return table1_records(base, seeds=range(3))


@pytest.fixture
def table2(base: Record) -> list[Record]:
    return table2_records(base, PAIRS, seeds=range(2), methods=("ours", "none"))


def test_means_and_spreads_of_every_setting_and_view(table1: list[Record]) -> None:
    page = page_of(table1)
    for part, where in (("fit", "fit"), ("held_out", "held out")):
        for estimator in ("spectrum", "released", "ridge"):
            table = page.table(f"Mean ± standard deviation: {where}, {estimator}")
            assert [row[0] for row in table.rows] == IN_ORDER
            for row, values in zip(table.rows, table.values, strict=True):
                found = numbers(table1, row[0], "rir", part, estimator)
                assert row[4].replace("(", " (") == summary_text([found])
                assert float(values[4] or "") == pytest.approx(statistics.mean(found), rel=1e-12)
                assert row[5] == short(statistics.geometric_mean(found))


def test_verdicts_are_counted_first(table1: list[Record]) -> None:
    page = page_of(table1)
    assert page.of("section")[0]["id"] == "verdicts"
    table = page.table("In how many finished runs")
    for row in table.rows:
        of = [r["verdicts"] for r in table1 if r["method"] == row[0]]
        held = [v["held_out"] for v in of]
        for cells, verdicts in ((row[2:6], of), (row[6:10], held)):
            counts = [sum(v[name] for v in verdicts) for name in "abc"]
            counts.append(sum(all(v[name] for name in "abc") for v in verdicts))
            assert cells == [f"{count}/3" for count in counts]


def test_front_is_that_of_the_geometric_means(table1: list[Record]) -> None:
    page = page_of(table1)
    points = {
        method: tuple(
            statistics.geometric_mean(numbers(table1, method, name)) for name in ("ratio_harmful", "ratio_pretrain")
        )
        for method in METHODS
    }
    expected = {
        method: not any(o[0] >= p[0] and o[1] <= p[1] and o != p for o in points.values())
        for method, p in points.items()
    }
    table = next(t for t in page.tables if t.caption == "Geometric means")
    assert {row[0]: row[3] == "yes" for row in table.rows} == expected
    assert {row[0]: row[1] for row in table.rows} == {method: short(p[0]) for method, p in points.items()}
    assert len(page.classes("ringed")) >= sum(expected.values())


def test_networks_have_fronts_of_their_own(base: Record) -> None:
    records = []
    for model, factor in (("small", 1.0), ("large", 1e6)):
        record = copy.deepcopy(base) | {"model": model, "config_hash": model}
        record["config"]["model"]["name"] = model
        record["metrics"]["fit"]["spectrum"]["ratio_harmful"] *= factor
        records.append(record)
    table = next(t for t in page_of(records).tables if t.caption == "Geometric means")
    assert {row[0]: row[3] for row in table.rows} == {"large: ours": "yes", "small: ours": "yes"}


def test_heat_map_has_every_pair_and_its_sign(table2: list[Record]) -> None:
    page = page_of(table2)
    for method in ("ours", "none"):
        table = page.table(f"log(RIR), fit, spectrum: {method}")
        assert table.heads[1:] == ["0", "1", "7"]
        for p, h in PAIRS:
            of = [r for r in table2 if r["method"] == method and r["data_hash"] == f"hash of {(p, h)}"]
            value = math.log(np.mean([r["metrics"]["fit"]["spectrum"]["rir"] for r in of]))
            row = next(row for row in table.rows if row[0] == str(p))
            assert row[1 + [0, 1, 7].index(h)] == f"{value:.1f}".replace("-", "−")
    coloured = [a["class"] or "" for a in page.of("td") if "title" in a]
    assert len(coloured) == len(PAIRS) * 2 * 6
    below = sum(
        math.log(np.mean([r["metrics"][part][est]["rir"] for r in table2 if (r["method"], r["data_hash"]) == key])) < 0
        for part in ("fit", "held_out")
        for est in ("spectrum", "released", "ridge")
        for key in {(r["method"], r["data_hash"]) for r in table2}
    )
    assert sum(kind.startswith("n") for kind in coloured) == below


def test_every_pair_has_a_row(table2: list[Record]) -> None:
    page = page_of(table2)
    table = page.table("Mean ± standard deviation over the seeds")
    assert len(table.rows) == len(PAIRS) * 2
    assert {row[2] for row in table.rows} == {"2"}


def test_pairs_without_numbers_are_told_from_those_with(table2: list[Record]) -> None:
    lost = [r for r in table2 if r["method"] == "ours"][:3]  # both seeds of one pair, one of another
    records = [diverged(r) if r in lost else r for r in table2]
    page = page_of(records)
    rows = {(row[0], row[1]): row[2:] for row in page.table("Mean ± standard deviation over the seeds").rows}
    counts = [cells[0] for (setting, _), cells in rows.items() if setting == "ours"]
    assert sorted(counts) == sorted(["0 + 2 diverged", "1 + 1 diverged", *["2"] * (len(PAIRS) - 2)])
    assert all(set(cells[1:]) == {"–"} for cells in rows.values() if cells[0].startswith("0 "))
    captions = [table.caption for table in page.tables if table.caption.startswith("Mean ± standard deviation: ")]
    means = next(row for row in page.table(captions[0]).rows if row[0] == "ours")
    assert means[1:3] == [f"{len(PAIRS) - 1}", f"{2 * len(PAIRS) - 3} + 3 diverged"]


def test_one_pair_needs_no_map(table1: list[Record]) -> None:
    page = page_of(table1)
    assert "No heat map: it needs 3 pairs" in page.text
    assert "Every pair" not in page.text


def test_settings_on_different_pairs_are_not_compared_silently(table2: list[Record]) -> None:
    assert "not run on the same pairs" not in page_of(table2).text
    fewer = [r for r in table2 if r["method"] == "ours" or r["data_hash"] == f"hash of {PAIRS[0]}"]
    assert "not run on the same pairs" in page_of(fewer).text


def test_settings_are_named_by_what_differs_and_ordered_by_it(base: Record) -> None:
    records = []
    for weight in (1e16, 3.0, 1e5):
        for seed in (0, 1):
            record = record_of(base, "ours", seed, name="sweep")
            record["config"]["objective"]["lambda_ill"] = weight
            record["config"]["method"]["lambda_ill"] = weight  # a method repeats what its row has
            records.append(record)
    settings = settings_of(records)
    assert [s.name for s in settings] == ["ours, lambda_ill=3", "ours, lambda_ill=100000", "ours, lambda_ill=1e+16"]
    assert all(len(s.runs) == 2 for s in settings)
    assert [row[0] for row in page_of(records).table("In how many").rows] == [s.name for s in settings]
    told = [line.split(" | ")[1] for line in summary_table(records).splitlines()[2:]]
    assert sorted(told) == sorted(s.name for s in settings)


def test_diverged_interrupted_and_missing_runs_are_counted(table1: list[Record], tmp_path: Path) -> None:
    table1[0] = diverged(table1[0])
    table1[1] = diverged(table1[1]) | {"status": "interrupted"}
    folder = written(table1, tmp_path / "sweep")
    (folder / "run9999").mkdir()  # killed before it had a record
    own = [r["config_hash"] for r in table1[:-1]] + ["not there yet"]
    (folder / SWEEP).write_text(json.dumps({"runs": own}))
    page = check(write_sweep_page(folder, tmp_path / "out").read_text())
    assert "21 runs: 18 finished, 1 diverged, 1 interrupted, 1 without a record yet" in page.text
    first = table1[0]["method"]
    row = next(row for row in page.table("In how many").rows if row[0] == first)
    assert row[1] == "1 + 1 diverged + 1 interrupted"
    assert row[2].endswith("/1")


def test_runs_whose_cross_fit_diverged_are_counted_on_fit(table1: list[Record]) -> None:
    first = table1[0]["method"]
    table1[0] = without_held_out(table1[0])
    page = page_of(table1)
    row = next(row for row in page.table("In how many").rows if row[0] == first)
    assert row[1] == "3 (2 held out)"
    assert {cell.partition("/")[2] for cell in row[2:]} == {"3", "2"}
    assert "Can the condition numbers be trusted?" in page.text


def test_sweep_of_which_nothing_finished(table1: list[Record]) -> None:
    page = page_of([diverged(record) for record in table1])
    assert "Nothing was evaluated" in page.text
    assert [a["id"] for a in page.of("section")] == ["verdicts", "provenance"]


def test_page_from_committed_results(table1: list[Record], tmp_path: Path) -> None:
    write_results(table1, tmp_path)
    page = check(write_sweep_page(tmp_path, tmp_path).read_text())
    fresh = page_of(table1)
    assert page.table("Mean ± standard deviation: fit, spectrum").rows == (
        fresh.table("Mean ± standard deviation: fit, spectrum").rows
    )


def test_infinite_ratios_are_in_the_table_only(table1: list[Record]) -> None:
    for record in table1:
        if record["method"] == "imma":
            record["metrics"]["fit"]["spectrum"].update(ratio_harmful=None, rir=None)
    page = page_of(table1)
    table = next(t for t in page.tables if t.caption == "Geometric means")
    row, values = next((r, v) for r, v in zip(table.rows, table.values, strict=True) if r[0] == "imma")
    assert (row[1], values[1]) == ("∞", "Infinity")
    assert next(r for r in page.table("Mean ± standard deviation: fit, spectrum").rows if r[0] == "imma")[4] == "∞"


def test_choosing_on_validation_has_no_held_out_part(base: Record) -> None:
    record = base
    for kind in ("metrics", "verdicts", "spectra"):
        record[kind]["validation"] = record[kind].pop("held_out")
    text = page_of([record]).text
    assert "held out, spectrum" not in text
    assert "validation, spectrum" in text


def test_nothing_in_a_record_becomes_markup(table1: list[Record]) -> None:
    evil = "<script>alert(1)</script>"
    for record in table1:
        record["command"] += evil
        record["config"]["experiment"]["name"] += evil
        record["versions"]["torch"] += evil
        record["hardware"]["processor"] += evil
        record["method"] += evil
    page = page_of(table1)
    assert len(page.of("script")) == 1
    assert page.text.count(evil) > 20


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder, _: folder.mkdir(), "holds no finished record"),
        (lambda folder, _: None, "is no folder"),
        (lambda folder, r: written([*r, r[0] | {"schema_version": 0}], folder), "mixes records of schema versions"),
        (lambda folder, r: (written(r, folder) / SWEEP).write_text("{"), "cannot be read as the list of a sweep's"),
        (lambda folder, r: (written(r, folder) / "run0000/record.json").write_text("{"), "cannot be read as a record"),
        (lambda folder, r: written([{k: v for k, v in r[0].items() if k != "config"}], folder), "lacks 'config'"),
    ],
)
def test_bad_folders_are_refused(prepare: Any, message: str, table1: list[Record], tmp_path: Path) -> None:
    prepare(tmp_path / "sweep", table1)
    with pytest.raises(UserError, match=message):
        write_sweep_page(tmp_path / "sweep", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [LINEAR, LOG, STEPS])
@pytest.mark.parametrize(("low", "high"), [(1, 20_000), (3, 4), (2e-9, 7e12), (0.5, 0.5001), (1, 1)])
def test_ticks_lie_on_the_axis_and_numbers_keep_their_order(kind: str, low: float, high: float) -> None:
    scale = scale_of(Axis("a", kind), [low, high])
    shares = [scale.share(value) for value in np.linspace(low, high, 9)]
    assert shares == sorted(shares)
    ticks = scale.ticks()
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 12
    for tick in ticks:
        share = scale.share(tick)
        assert share is not None
        assert -1e-9 <= share <= 1 + 1e-9
    assert len({tick_text(tick) for tick in ticks}) == len(ticks)


def test_scales_know_what_has_no_place() -> None:
    assert scale_of(Axis("a", LOG), [1, 10]).share(0) is None
    assert scale_of(Axis("a", LOG), [0, -1, 1, 10]).share(1) is not None
    assert scale_of(Axis("a"), [math.nan, 1, 2]).share(math.nan) is None
    steps = scale_of(Axis("a", STEPS), [0, 1, 100])
    assert [steps.share(0), steps.share(100)] == [0, 1]
    assert 0 < (steps.share(1) or 0) < 0.5
    assert [tick_text(v) for v in (0, 0.1, 1000, 1e6, 2e-5)] == ["0", "0.1", "1,000", "10⁶", "2·10⁻⁵"]
