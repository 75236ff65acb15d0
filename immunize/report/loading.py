"""Records of many runs, read from a folder of runs or from a committed `results.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from immunize.report.naming import data_name
from immunize.report.packing import COMMON, RESULTS, unpack
from immunize.report.several import by_harmful_set

__all__ = ["SWEEP", "load_records", "own_runs"]

FINISHED = ("finished",)
SWEEP = "sweep.json"


def load_records(folder: Path, statuses: Container[str] = FINISHED) -> list[dict[str, Any]]:
    """Every record below a folder (`record.json`), or in its `results.jsonl`, sorted by data, method and seed.

    Of a run against several harmful data sets there is one a set.

    Args:
        folder: a multirun folder, or one with a `results.jsonl` (and the `common.json` written with it). Where a sweep
            has left its `sweep.json`, only the runs of that sweep count, not those of other settings beside them.
        statuses: which to take; records of interrupted runs are not results.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file is not a record, or the records are of different schema versions.
    """
    collected = folder / RESULTS
    if collected.is_file():
        common = _common(folder / COMMON)
        records = [_whole(line, common, collected) for line in collected.read_text(encoding="utf-8").splitlines()]
    else:
        records = [_parsed(path.read_text(encoding="utf-8"), path) for path in sorted(folder.rglob("record.json"))]
        if (own := own_runs(folder / SWEEP)) is not None:
            records = [record for record in records if record.get("config_hash") in own]
    taken = [one for record in records if record["status"] in statuses for one in by_harmful_set(record)]
    if not taken:
        raise FileNotFoundError(f"{folder} holds no finished record")
    if len(versions := {record.get("schema_version") for record in taken}) > 1:
        raise ValueError(f"{folder} mixes records of schema versions {sorted(map(str, versions))}")
    return sorted(taken, key=lambda r: (data_name(r, "pretrain"), data_name(r, "harmful"), r["method"], r["seed"]))


def own_runs(path: Path) -> set[str] | None:
    """Config hashes of the runs of a sweep, from its `sweep.json`; None where it has left none.

    Raises:
        ValueError: the file is not such a list.
    """
    if not path.is_file():
        return None
    try:
        return set(json.loads(path.read_text(encoding="utf-8"))["runs"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as the list of a sweep's runs: {error!r}") from None


def _common(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        common = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as what records share: {error}") from None
    if not isinstance(common, dict) or not all(isinstance(layer, dict) for layer in common.values()):
        raise ValueError(f"{path} does not hold what records share")
    return common


def _whole(text: str, common: dict[str, Any], path: Path) -> dict[str, Any]:
    line = _parsed(text, path)
    if not common:
        return line
    try:
        return unpack(line, common)
    except KeyError as error:
        raise ValueError(f"{path} has a line without {error}") from None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a record: {error}") from None
    if not isinstance(record, dict) or "status" not in record:
        raise ValueError(f"{path} is not a record of immunize.train")
    return record
