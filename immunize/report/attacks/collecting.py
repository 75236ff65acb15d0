"""Attack records of runs, read from a folder of attacks or from a committed `results.csv.gz`.

A record of `immunize.attack` says of what run it is; here that is laid out as in a run's own record, so that names,
writing and reading are those of all other experiments. The numbers of θ_0 stand beside the immunized model's in every
tier, so that θ_0's own column of the record is not kept; of the curves those of the harmful tasks against steps are.

Imports no other room and no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from immunize.records import ATTACK_RECORD, whole_config
from immunize.report.loading import load_records
from immunize.report.naming import pair_label
from immunize.report.reading import check_versions, read_file
from immunize.report.stored import RESULTS

__all__ = ["Curve", "Record", "Run", "collected", "load_attacks", "run_of", "with_earlier"]

Record = dict[str, Any]
Curve = dict[str, list[float]]
"""Two columns, "paid" and "test"."""
Run = tuple[str, str, str, int]
"""Data sets and model, pair, method and seed."""

_SAID = ("method", "model", "pretrain", "harmful", "data", "data_hash")
_KEPT = (
    *("schema_version", "kind", "status", "started", "seconds", "peak_memory_mib", "config_hash", "git_commit"),
    *("versions", "hardware", "tasks", "verdicts", "control"),
)
_EXTRACTORS = ("immunized", "random_orthogonal")
_SETTINGS = (
    *("attack", "tiers", "tasks", "seeds", "validation_fraction", "test_fraction", "benign_digits", "images"),
    "threads",
)
"""What of the configuration is kept, as far as it is there: what changes numbers, and no place on a disk."""


def load_attacks(folder: Path) -> list[Record]:
    """Every `attack_record.json` below a folder, or the lines of its `results.csv.gz`, by data, model, method, seed.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file is not the attack record of a run, or records are of different schema versions, or of an
            unknown one.
    """
    if (folder / RESULTS).is_file():
        return sorted(load_records(folder), key=run_of)
    records = [_read(path) for path in sorted(folder.rglob(ATTACK_RECORD))]
    if not records:
        raise FileNotFoundError(f"{folder} holds no {ATTACK_RECORD}: attack its runs first, python -m immunize.attack")
    check_versions(records, folder)
    return sorted(records, key=run_of)


def with_earlier(records: Sequence[Record], earlier: Sequence[Record]) -> list[Record]:
    """Records, and of the earlier ones those of other runs.

    Raises:
        ValueError: earlier ones are of a version that counted costs otherwise.
    """
    if not all("best_so_far" in record for record in earlier):
        raise ValueError("what is to be kept was counted by an older version: attack those runs again")
    there = {run_of(record) for record in records}
    return sorted([*records, *(record for record in earlier if run_of(record) not in there)], key=run_of)


def collected(record: Record) -> Record:
    """The part of an attack record that the report is made of, laid out as a run's record; no path of a machine.

    Raises:
        KeyError: it lacks something that every attack record has.
    """
    subject = record["subject"]
    if subject["method"] is None:
        raise KeyError("subject.method")
    results = {task: {name: of[name] for name in _EXTRACTORS} for task, of in record["results"].items()}
    best_so_far = {
        task: {name: _by_steps(of[name]) for name in ("theta_0", "immunized")}
        for task, of in record["best_so_far"].items()
        if record["tasks"][task]["kind"] == "harmful"
    }
    return {
        **{name: record[name] for name in _KEPT},
        **{name: subject[name] for name in _SAID},
        **({"attack_versions": record["attack_versions"]} if "attack_versions" in record else {}),
        "seed": subject["run_seed"],
        "subject": {name: value for name, value in subject.items() if name not in (*_SAID, "run_seed")},
        "config": {name: value for name, value in whole_config(record).items() if name in _SETTINGS},
        "results": results,
        "best_so_far": best_so_far,
        "by_attack": {
            task: {name: {attack: _alone(found) for attack, found in attacks.items()} for name, attacks in of.items()}
            for task, of in record["attacks"].items()
        },
    }


def _alone(found: Record) -> Record:
    return {"tier": found["tier"], "score": (found.get("score") or {}).get("values", [])}  # skipped: none


def _by_steps(tiers: Record) -> dict[str, list[Curve]]:
    return {tier: [curves["steps"] for curves in seeds] for tier, seeds in tiers.items()}


def _read(path: Path) -> Record:
    try:
        return collected(read_file(path, "an attack record"))
    except KeyError as error:
        raise ValueError(f"{path} is not the attack record of a run: it has no {error}") from None


def run_of(record: Record) -> Run:
    """Which run a record, as :func:`collected` lays it out, is of."""
    return _group_name(record), pair_label(record), record["method"], record["seed"]


def _group_name(record: Record) -> str:
    sets = list(dict.fromkeys((record["pretrain"], record["harmful"])))
    name = " against ".join(sets)
    return name if record["model"] == "linear" else f"{name}, {record['model']}"
