"""Records of many runs, read from a folder of runs or from a committed `results.csv.gz`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from immunize.records import RECORD, SWEEP
from immunize.report.naming import data_name
from immunize.report.reading import check_run, check_versions, read_file
from immunize.report.several import by_harmful_set
from immunize.report.stored import RESULTS, read_results

__all__ = ["load_records", "own_runs"]

FINISHED = ("finished",)


def load_records(folder: Path, statuses: Container[str] = FINISHED) -> list[dict[str, Any]]:
    """Every record below a folder (`record.json`), or in its `results.csv.gz`, sorted by data, method and seed.

    Of a run against several harmful data sets there is one a set.

    Args:
        folder: a multirun folder, or one with a `results.csv.gz`, or that file. Where a sweep has left its
            `sweep.json`, only the runs of that sweep count, not those of other settings beside them.
        statuses: which to take; records of interrupted runs are not results.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file is not a record of a run, or records are of different schema versions, or of an unknown one.
    """
    collected = folder if folder.name.endswith(RESULTS) else folder / RESULTS
    if collected.is_file():
        records = read_results(collected)
        for record in records:
            check_run(record, collected)
    else:
        records = _own_records(folder)
    taken = [one for record in records if record["status"] in statuses for one in by_harmful_set(record)]
    if not taken:
        raise FileNotFoundError(_nothing(folder, records))
    check_versions(records, folder)  # of unfinished runs too: what made them made the others
    return sorted(taken, key=lambda r: (data_name(r, "pretrain"), data_name(r, "harmful"), r["method"], r["seed"]))


def _own_records(folder: Path) -> list[dict[str, Any]]:
    found = {path: read_file(path) for path in sorted(folder.rglob(RECORD))}
    if (own := own_runs(folder / SWEEP)) is not None:
        found = {path: record for path, record in found.items() if record.get("config_hash") in own}
    for path, record in found.items():
        check_run(record, path)
    return list(found.values())


def _nothing(folder: Path, records: Sequence[dict[str, Any]]) -> str:
    if not folder.is_dir():
        return f"{folder} holds no finished record: it is no folder"
    if not records:
        return f"{folder} holds no finished record: a run writes its own when it ends"
    counts = Counter(record["status"] for record in records)
    told = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    return f"{folder} holds no finished record ({told}): the command of the runs, given again, continues them"


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
