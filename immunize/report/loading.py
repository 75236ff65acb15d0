"""Records of many runs, read from a folder of runs or from a committed `results.csv.gz`."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from immunize.errors import UserError
from immunize.records import ATTACK_RECORD, RECORD, SWEEP, check_versions, read_file
from immunize.report.naming import PROTOCOLS, data_name
from immunize.report.stored import RESULTS, read_results

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
    return sorted(taken, key=sort_key)


def sort_key(record: dict[str, Any]) -> tuple[str, str, str, int]:
    """By which records are sorted: data, method and seed."""
    return data_name(record, "pretrain"), data_name(record, "harmful"), record["method"], record["seed"]


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


_NEEDED = ("method", "seed", "pretrain", "harmful")
"""By which runs are named and sorted, whether they finished or not."""


def check_run(record: Mapping[str, Any], path: Path) -> None:
    """Tell records of runs from others, such as that of `immunize.pretrain`.

    Raises:
        ValueError: it lacks what every run has.
    """
    if lacking := [name for name in _NEEDED if name not in record]:
        raise ValueError(f"{path} is not a record of immunize.train: it has no {lacking[0]!r}")


@contextmanager
def lacking_is_told(where: str) -> Iterator[None]:
    """Make a message of what a record lacks.

    Args:
        where: the record is: "the record in outputs/demo".

    Raises:
        UserError: within, something was asked of a record that it does not hold.
    """
    try:
        yield
    except KeyError as error:
        raise UserError(f"{where} lacks {error}: it is of another version, or not of a run") from None


METRICS = "metrics.csv"
"""What `logger=csv` leaves in a run's folder."""


def read_sources(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The record of a run and its attack record, None where it was not attacked.

    Raises:
        UserError: no record, or one that cannot be read.
    """
    return read_run(folder), read_attack(folder)


def read_run(folder: Path) -> dict[str, Any]:
    """The record of a run.

    Raises:
        UserError: there is none, or it cannot be read, or it is of something else or another version.
    """
    record = _read(folder / RECORD, "a record", check_run)
    if record is None:
        raise UserError(_no_record(folder))
    return record


def read_attack(folder: Path) -> dict[str, Any] | None:
    """The attack record of a run; None where it was not attacked.

    Raises:
        UserError: as :func:`read_run`.
    """
    return _read(folder / ATTACK_RECORD, "an attack record", _check_attack)


def _check_attack(attack: Mapping[str, Any], path: Path) -> None:
    if "subject" not in attack:
        raise ValueError(f"{path} is not an attack record: it has no 'subject'")


def _read(path: Path, what: str, check: Callable[[Mapping[str, Any], Path], None]) -> dict[str, Any] | None:
    try:
        record = read_file(path, what)
        check(record, path)
        check_versions([record], path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(str(error)) from None
    return record


def check_same_run(record: dict[str, Any], attack: dict[str, Any]) -> None:
    """Refuse an attack record of another run.

    Raises:
        UserError: it is.
    """
    subject = attack["subject"]
    for name, theirs in (("config_hash", "run_config_hash"), ("data_hash", "data_hash")):
        if subject[theirs] != record[name]:
            raise UserError(f"{ATTACK_RECORD} is of another run: its {name} differs; attack this run again")


def _no_record(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} holds no {RECORD}: there is no such folder"
    first = next(folder.rglob(RECORD), None)
    if first is not None or (folder / RESULTS).is_file():
        one = "" if first is None else f"name one of them, such as {first.parent}, or look at all of them with "
        return f"{folder} holds many runs: {one}python -m immunize.report html sweep={folder}"
    if (folder / METRICS).is_file():
        return f"the run in {folder} has no {RECORD} yet: it is written when the run ends"
    return f"{folder} holds no {RECORD}: is it the output folder of a run?"


_OF_THE_WHOLE = ("harmful_sets", "weakest")


def by_harmful_set(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The record of a run as records of a single harmful data set each, called "cars of cars+caltech101".

    Args:
        record: of any run; one with a single harmful data set is returned as it is.
    """
    facts = ((record.get("data") or {}).get("harmful") or {}).get("sets")
    if not facts:
        return [record]
    rest = {key: value for key, value in record.items() if key not in _OF_THE_WHOLE}
    numbers = record.get("harmful_sets") or {}  # none where the run diverged
    return [
        {
            **rest,
            **numbers.get(name, {}),
            "harmful": f"{name} of {record['harmful']}",
            "data": record["data"] | {"harmful": of},
        }
        for name, of in facts.items()
    ]


def infinite(value: float | None) -> float:
    """A number that is never NaN, from a record."""
    return math.inf if value is None else float(value)


def with_infinities(numbers: Mapping[str, Any]) -> dict[str, float]:
    """(i), (ii) and RIR by one estimator, and the condition numbers behind them as far as the record has them."""
    found = {name: infinite(value) for name, value in numbers.items() if name.startswith("kappa_")}
    for side in ("harmful", "pretrain"):
        found[f"ratio_{side}"] = _quotient(numbers[f"ratio_{side}"], 1.0, found.get(f"kappa_{side}_baseline", 1.0))
    found["rir"] = _quotient(numbers["rir"], found["ratio_harmful"], found["ratio_pretrain"])
    return found


def measured(record: Mapping[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Every key of `PROTOCOLS`, part of the data and estimator of a run, with its numbers, null told from infinity."""
    for protocol in PROTOCOLS:
        for part, estimators in record.get(protocol, {}).items():
            for estimator, found in estimators.items():
                yield protocol, part, estimator, {**found, **with_infinities(found)}


def verdict_on(record: Mapping[str, Any], part: str, protocol: str = "metrics") -> dict[str, Any] | None:
    """Definition 3.1 on a part of the data, by a key of `PROTOCOLS`; None where it was not judged."""
    found: dict[str, Any] = record.get(protocol.replace("metrics", "verdicts")) or {}
    return (found or None) if part == "fit" else found.get(part)


def _quotient(value: float | None, above: float, below: float) -> float:
    if value is None and (math.isnan(above) or not math.isfinite(below)):
        return math.nan
    return infinite(value)
