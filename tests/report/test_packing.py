"""results.jsonl and common.json: small, and nothing is lost."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from immunize.config import config_hash
from immunize.records import merged
from immunize.report.loading import load_records
from immunize.report.packing import COMMON, RESULTS, pack, unpack, write_results
from immunize.report.runs import EXPERIMENT_STATUSES
from tests.report.making import METHODS, Record, diverged, table1_records, table2_records

PAIRS = [(p, h) for p in range(10) for h in range(10) if p != h]


def bare(record: Record) -> Record:
    return {key: value for key, value in record.items() if key not in ("curves", "spectra")}


def by_id(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (r["data_hash"], r["method"], r["seed"]))


def test_records_come_back_whole(base: Record, tmp_path: Path) -> None:
    records = table2_records(base, PAIRS[:4])
    records[3], records[40] = diverged(records[3]), diverged(records[40])
    records[5]["training"]["fit"]["note"] = {}
    records[6]["metrics"]["fit"]["spectrum"]["rir"] = None
    records[8]["verdicts"]["ratio_harmful"] = 17.0  # another number than that of its estimator
    records[7]["versions"] = records[7]["versions"] | {"torch": "another"}
    write_results(records, tmp_path)
    assert by_id(load_records(tmp_path, EXPERIMENT_STATUSES)) == by_id([bare(record) for record in records])


def test_numbers_are_not_rounded_and_types_are_kept(base: Record) -> None:
    values = [1, 1.0, True, 0.1 + 0.2, 1e-300, None, "1", [], {}, [1.0], {"a": {}}]
    records = []
    for index, value in enumerate(values):
        record = copy.deepcopy(base)
        record["seed"], record["training"]["fit"]["value"] = index, value
        records.append(record)
    lines, common = pack(records)
    again = [unpack(json.loads(json.dumps(line)), json.loads(json.dumps(common))) for line in lines]
    texts = [json.dumps(record["training"]["fit"]["value"]) for record in again]
    assert texts == [json.dumps(value) for value in values]


def test_packing_leaves_the_records_alone(base: Record) -> None:
    records = table1_records(base)
    before = copy.deepcopy(records)
    pack(records)
    assert records == before


def test_a_single_record_needs_nothing_common(base: Record, tmp_path: Path) -> None:
    write_results([base], tmp_path)
    assert load_records(tmp_path) == [bare(base)]


def test_lines_without_common_json_are_read_as_they_are(base: Record, tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text(json.dumps(bare(base)) + "\n", encoding="utf-8")
    assert load_records(tmp_path) == [bare(base)]


def test_all_of_table_2_is_small(base: Record, tmp_path: Path) -> None:
    records = table2_records(base, PAIRS)
    assert len(records) == 1890
    write_results(records, tmp_path)
    assert (tmp_path / RESULTS).stat().st_size < 6e6
    assert (tmp_path / COMMON).stat().st_size < 2e6


def test_the_data_folder_is_not_told_and_the_hash_stays(base: Record, tmp_path: Path) -> None:
    root = "/somewhere/private"
    base["config"] |= {"data_root": root, "harmful": base["config"]["harmful"] | {"root": root}}
    base["command"] = f"python -m immunize.train data_root={root}"
    write_results([base], tmp_path)
    assert root not in (tmp_path / RESULTS).read_text(encoding="utf-8")
    assert config_hash(load_records(tmp_path)[0]["config"]) == config_hash(base["config"])


def test_merged_shares_nothing() -> None:
    one: dict[str, Any] = {"a": {"b": [1]}}
    over: dict[str, Any] = {"a": {"c": [2]}}
    result = merged(one, over)
    assert result == {"a": {"b": [1], "c": [2]}}
    result["a"]["b"].append(3)
    result["a"]["c"].append(3)
    assert (one, over) == ({"a": {"b": [1]}}, {"a": {"c": [2]}})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (RESULTS, "{", "cannot be read as a record"),
        (RESULTS, "[]", "is not a record"),
        (RESULTS, '{"status": "finished"}', "has a line without 'method'"),
        (COMMON, "{", "cannot be read as what records share"),
        (COMMON, '["x"]', "does not hold what records share"),
    ],
)
def test_damaged_files_are_named(name: str, content: str, message: str, base: Record, tmp_path: Path) -> None:
    write_results(table1_records(base, seeds=[0, 1]), tmp_path)
    (tmp_path / name).write_text(content + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_records(tmp_path)


def test_interrupted_runs_are_no_results(base: Record, tmp_path: Path) -> None:
    records = table1_records(base, seeds=[0, 1])
    records[0]["status"] = "interrupted"
    write_results(records, tmp_path)
    assert len(load_records(tmp_path, EXPERIMENT_STATUSES)) == 2 * len(METHODS) - 1


def test_only_runs_of_the_latest_sweep_count(tmp_path: Path) -> None:
    """Runs of other settings that lie beside them are not mixed in; without a list every run counts."""
    for digest in ("new", "old"):
        (tmp_path / digest).mkdir()
        found = {"status": "finished", "schema_version": 1, "config_hash": digest, "method": "ours", "seed": 0}
        found |= {"pretrain": "digits", "harmful": "digits", "data": {}}
        (tmp_path / digest / "record.json").write_text(json.dumps(found))
    assert [record["config_hash"] for record in load_records(tmp_path)] == ["new", "old"]
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": ["new", "not yet"]}))
    assert [record["config_hash"] for record in load_records(tmp_path)] == ["new"]
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ValueError, match="list of a sweep's runs"):
        load_records(tmp_path)
