"""results.csv.gz: nothing is lost, pandas reads it in a line; cells of tables against plain recomputation."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import math
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import immunize.report
from immunize.config import config_hash
from immunize.records import ATTACK_RECORD, RECORD, RESULTS, SWEEP, plain
from immunize.report.loading import load_records, with_infinities, write_results
from immunize.report.naming import RATIOS
from immunize.report.runs import EXPERIMENT_STATUSES
from immunize.report.table import NOTHING, Table, short, summary_of, summary_text
from immunize.report.tidy import COLUMNS
from tests.report import making
from tests.report.making import EXPERIMENTS, Record, diverged, without_held_out, written


def bare(record: Record) -> Record:
    return {key: value for key, value in record.items() if key not in ("curves", "spectra")}


def by_id(records: list[Record]) -> list[str]:
    return sorted(json.dumps(record, sort_keys=True) for record in records)  # where 1, 1.0 and true are three values


def test_records_come_back_whole_and_again_to_the_same_bytes(base: Record, tmp_path: Path) -> None:
    records = making.table2_records(base, [(0, 1), (1, 0)])
    records[3] = diverged(records[3])
    values: list[Any] = [1, 1.0, True, 0.1 + 0.2, 1e-300, None, "1", "", "null", "NaN", 'a,"b\n', [], {}, [1.0]]
    values += [-0.0, 10**20, 1e22, " 1", "\r", "as long as no cell may be by default " * 4_000]
    for record, value in zip(records, [*values, {"a": {}}], strict=False):
        record["training"]["fit"]["value"] = value
    before = copy.deepcopy(records)
    write_results(records, tmp_path)
    assert records == before
    again = load_records(tmp_path, EXPERIMENT_STATUSES)
    assert by_id(again) == by_id([bare(record) for record in records])
    assert by_id(load_records(tmp_path / RESULTS, EXPERIMENT_STATUSES)) == by_id(again)
    first = (tmp_path / RESULTS).read_bytes()
    write_results(records, tmp_path)
    assert (tmp_path / RESULTS).read_bytes() == first


def test_results_beside_runs_hide_none_that_came_later(base: Record, tmp_path: Path) -> None:
    records = [record | {"config_hash": f"{at}"} for at, record in enumerate(making.table1_records(base)[:3])]
    write_results(load_records(making.written(records[:2], tmp_path)), tmp_path)
    assert by_id(load_records(making.written(records, tmp_path))) == by_id(records)
    shutil.rmtree(tmp_path / "run0000")
    assert by_id(load_records(tmp_path)) == by_id([bare(records[0]), *records[1:]])
    (tmp_path / "run0001" / RECORD).write_text(json.dumps(records[1] | {"status": "interrupted"}))  # it is done again
    assert by_id(load_records(tmp_path)) == by_id([*map(bare, records[:2]), records[2]])
    (tmp_path / SWEEP).write_text(json.dumps({"runs": ["2"]}))
    assert by_id(load_records(tmp_path)) == by_id(records[2:])


def test_the_data_folder_is_not_told_and_the_hash_stays(base: Record, tmp_path: Path) -> None:
    root = "/somewhere/private"
    base["config"] |= {"data_root": root, "harmful": base["config"]["harmful"] | {"root": root}}
    base["command"] = f"python -m immunize.train data_root={root}"
    base["notes"] = [f"at {root}, in\n{root}/x and {root}."]
    base["others"] = [f"{root}_cache", f"{root}.old", f"/mnt{root}"]
    write_results([base], tmp_path)
    found = load_records(tmp_path)[0]
    assert found.pop("others") == base["others"]
    assert root not in json.dumps(found)
    assert found["notes"] == ["at <data_root>, in\n<data_root>/x and <data_root>."]
    assert config_hash(found["config"]) == config_hash(base["config"])
    base["config"]["data_root"] = f"{root}/"
    write_results([base], tmp_path)
    assert "in\n<data_root>x and" in load_records(tmp_path)[0]["notes"][0]


def test_frame_has_every_number_of_the_records(base: Record, tmp_path: Path) -> None:
    records = making.table1_records(base, seeds=[0, 1])
    records[0] = diverged(records[0])
    records[1] = without_held_out(records[1])
    records[2]["metrics"]["fit"]["spectrum"]["kappa_harmful"] = None
    for record in records:
        record["config"]["method"].pop("lambda_well", None)
    write_results(records, tmp_path)
    found = immunize.report.frame(tmp_path)
    assert tuple(found.columns) == COLUMNS
    assert found["lambda_well"].isna().all()
    assert found["lambda_well"].dtype == float
    assert set(found.query("run == @records[0]['config_hash']")["status"]) == {"diverged"}
    places = found.set_index(["run", "kind", "part", "estimator", "quantity"])["value"].sort_index()
    for record in records[1:]:
        of = places[record["config_hash"]]
        assert set(of["pooled"].index.get_level_values("part")) == set(record["metrics"])
        for part, estimators in record["metrics"].items():
            for estimator, numbers in estimators.items():
                at = of["pooled", part, estimator]
                assert at["rir"] == numbers["rir"]
                assert at["facts/kappa_harmful/rank"] == numbers["facts"]["kappa_harmful"]["rank"]
                assert (at["kappa_harmful"] == math.inf) == (numbers["kappa_harmful"] is None)
        steps = record["steps_to_norm_ratio"]["fit"]["harmful"]["immunized"]["0.1"]
        assert of["probe_steps", "fit", "", "harmful/immunized/0.1"] == (math.inf if steps is None else steps)
        assert of["verdict", "fit", "spectrum", "a"] == record["verdicts"]["a"]


def test_frame_of_an_attacked_run_has_both_and_a_row_an_attackers_seed(attacked_run: Path) -> None:
    whole, run, attack, twice = (
        immunize.report.frame([attacked_run / place for place in places])
        for places in (("",), (RECORD,), (ATTACK_RECORD,), ("", RECORD))
    )
    assert len(twice) == len(whole) == len(run) + len(attack)
    assert ("attack" in {*attack["kind"]}, "attack" in {*run["kind"]}) == (True, False)
    scores = attack.query("quantity == 'immunized/score/values'").groupby(["run", "part", "estimator"])
    assert scores.size().eq(2).all()
    committed = immunize.report.frame(EXPERIMENTS / "demo" / RESULTS).query("quantity == 'immunized/score/values'")
    assert set(committed["method"]) == {"ours", "erase"}


def test_damaged_files_are_named(tmp_path: Path) -> None:
    for content, message in (
        (b"{", "cannot be read as results"),
        (gzip.compress(b"a" * 100)[:20], "cannot be read as results"),
        (gzip.compress(b""), "not every row has a cell for every column"),
        (gzip.compress(b"status,seed\nfinished\n"), "not every row has a cell for every column"),
        (gzip.compress(b'status,method\nfinished,"ou'), "cannot be read as results: unexpected end of data"),
        (gzip.compress(b"status\nfinished\n"), "is not a record of immunize.train: it has no 'method'"),
        (gzip.compress(b"status,seed\n,\n"), "is not a record of immunize.train: it has no 'method'"),
    ):
        (tmp_path / RESULTS).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_records(tmp_path)


def test_only_runs_of_the_latest_sweep_count(base: Record, tmp_path: Path) -> None:
    """Runs of other settings that lie beside them are not mixed in; without a list every run counts."""
    theta_0 = {"status": "finished", "schema_version": 1, "config": {"pretrain": {}, "epochs": 3}}  # which is no run
    written([*(base | {"config_hash": digest} for digest in ("new", "old")), theta_0], tmp_path)
    assert [record["config_hash"] for record in load_records(tmp_path)] == ["new", "old"]
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": ["new", "not yet"]}))
    assert [record["config_hash"] for record in load_records(tmp_path)] == ["new"]
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ValueError, match="list of a sweep's runs"):
        load_records(tmp_path)


numbers = st.floats(min_value=1e-6, max_value=1e9)


@given(st.lists(st.lists(numbers, min_size=1, max_size=4), min_size=1, max_size=6))
def test_many_pairs_give_the_mean_over_pairs_of_both(groups: list[list[float]]) -> None:
    """The convention of Table 2: "computed over 3 random seeds and averaged over all digit pairs"; of one, both."""
    found = summary_of(groups)
    assert found.mean == pytest.approx(statistics.fmean(statistics.fmean(of) for of in groups))
    spreads = [statistics.stdev(of) for of in groups if len(of) > 1]
    spread = statistics.fmean(spreads) if spreads else None
    assert found.spread == (spread and pytest.approx(spread, rel=1e-6, abs=1e-6 * max(map(max, groups))))
    values = [value for of in groups for value in of]
    assert found.median == pytest.approx(statistics.median(values))
    assert found.geometric == pytest.approx(math.exp(statistics.fmean(map(math.log, values))))


def test_cell_text() -> None:
    groups: list[list[float | None]]
    for groups, text in (
        ([[2.0, 4.0]], "3 ± 1.41"),
        ([[3.0], [5.0]], "4"),
        ([[25.43] * 3], "25.4 ± 0"),  # whose mean is another number in float64
        ([[25.43, 25.43, 25.44]], "25.4 ± 0.00577"),
        ([[]], NOTHING),
        ([[None, None]], "∞"),
        ([[2.0, 4.0, None]], "3 ± 1.41 (∞ in 1 of 3)"),
        ([[1.0, 1.0, 100.0]], "34 ± 57.2 (median 1, geo. mean 4.64)"),
        ([[-1.0, 1.0, 1.0]], "0.333 ± 1.15 (median 1)"),
    ):
        assert summary_text(groups) == text


def test_short() -> None:
    values = (0.0, 99.95, 12345.6, 1.5e6, 0.00012, math.inf, -math.inf, math.nan, None)
    texts = ["0", "100", "12,346", "1.50e+06", "1.20e-04", "∞", "−∞", NOTHING, NOTHING]
    assert [*map(short, values)] == texts


KAPPAS = {"kappa_harmful": 80.0, "kappa_harmful_baseline": 10.0, "kappa_pretrain": 2.0, "kappa_pretrain_baseline": 4.0}


def test_null_is_infinite_but_for_one_infinity_by_another() -> None:
    for kappas in itertools.product(*((kappa, math.inf) for kappa in KAPPAS.values())):
        with np.errstate(invalid="ignore", divide="ignore"):
            i, ii = np.array(kappas[::2]) / kappas[1::2]
            known = dict(zip((*KAPPAS, *RATIOS), (*kappas, i, ii, i / ii), strict=True))
        found = with_infinities(plain(known) | {"facts": {}})
        assert {*found} == {*known}
        assert {*with_infinities({name: found[name] for name in RATIOS})} == {*RATIOS}
        assert found == pytest.approx(known, nan_ok=True)


def test_a_bar_in_a_cell_is_escaped() -> None:
    assert Table("", ["a"], [["a|b"]]).markdown(heading=False).endswith("| a\\|b |\n")
