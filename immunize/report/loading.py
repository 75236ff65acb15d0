"""Records of many runs: from a folder of runs, or in one file that pandas reads in a line.

    pandas.read_csv("results.csv.gz")

A row a run, a column a leaf of its record, called by its path: `metrics/fit/spectrum/rir`. Nothing is lost but curves
and spectra, which are left out. A cell that is empty is a key that the record does not have; else it is the JSON of the
value, a text as it is where nothing else could be meant by it. Imports no other room and no torch.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import math
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from immunize.errors import UserError
from immunize.files import whole
from immunize.records import (
    ATTACK_RECORD,
    CHECKPOINT,
    RECORD,
    RESULTS,
    SWEEP,
    check_versions,
    file_digest,
    leaves,
    nested,
    read_file,
    read_immunized,
)
from immunize.report.naming import PROTOCOLS, data_facts, data_name

SEPARATOR = "/"
_LEFT_OUT = ("curves", "spectra")
_DATA_ROOT = "<data_root>"
Record = dict[str, Any]
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
    return _taken(folder, _every(folder), statuses)


def load_finished(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The records of finished runs, and which runs have none, in words: "left out: 1 diverged"; empty where all have.

    Args:
        folder: as :func:`load_records` takes it, whose errors it raises.
    """
    every = [record for record in _every(folder) if "subject" not in record]
    counts = Counter(record["status"] for record in every if record["status"] not in FINISHED)
    counts["without a record"] = count_missing(folder, every)
    return _taken(folder, every, FINISHED), f"left out: {_told(counts)}" if counts.total() else ""


def count_missing(folder: Path, records: Sequence[dict[str, Any]]) -> int:
    """How many runs of a sweep have no record among these; 0 where it has left no list of its runs."""
    return len((_own_runs(folder) or set()) - {record.get("config_hash") for record in records})


def _taken(folder: Path, records: list[dict[str, Any]], statuses: Container[str]) -> list[dict[str, Any]]:
    taken = [one for record in records if record["status"] in statuses for one in by_harmful_set(record)]
    if not taken:
        raise FileNotFoundError(_nothing(folder, records))
    check_versions(records, folder)  # of unfinished runs too: what made them made the others
    return sorted(taken, key=sort_key)


def _every(folder: Path) -> list[dict[str, Any]]:
    """Of any status: runs below a folder, then others that were collected there; results of attacks where none is."""
    collected = folder if folder.name.endswith(RESULTS) else folder / RESULTS
    found = [(collected, record) for record in read_results(collected)] if collected.is_file() else []
    if folder != collected:
        own = _own_runs(folder)
        runs = [(path, read_file(path)) for path in sorted(folder.rglob(RECORD))]
        runs = [(path, run) for path, run in runs if not _of_pretraining(run)]
        known = {run.get("config_hash") for _, run in runs if run["status"] != "interrupted"}
        runs += [(path, run) for path, run in found if "subject" not in run and run.get("config_hash") not in known]
        found = [(path, run) for path, run in runs if own is None or run.get("config_hash") in own] or found
    for path, record in found:
        _check(record, path, *_RUN)
    return [record for _, record in found]


def _of_pretraining(record: Mapping[str, Any]) -> bool:
    """Whether it is of `immunize.pretrain`, whose θ_0 may lie beside the runs that began with it."""
    config = record.get("config") or {}
    return "pretrain" in config and "method" not in config


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in counts.items() if count)


def sort_key(record: dict[str, Any]) -> tuple[str, str, str, int]:
    """By which records are sorted: data, method and seed."""
    return data_name(record, "pretrain"), data_name(record, "harmful"), record["method"], record["seed"]


def _nothing(folder: Path, records: Sequence[dict[str, Any]]) -> str:
    told = f"{folder} holds no finished record"
    if not folder.is_dir():
        return f"{told}: it is no folder"
    if not records:
        return f"{told}: a run writes its own when it ends"
    counts = Counter(record["status"] for record in records)
    told += f" ({_told(counts)})"
    if counts.keys() == {"diverged"}:
        return told
    return f"{told}: the command of the runs, given again, continues them, that of a single one with resume=true"


def _own_runs(folder: Path) -> set[str] | None:
    """Config hashes of the runs of a sweep, from its `sweep.json`; None where it has left none."""
    path = folder / SWEEP
    if not path.is_file():
        return None
    try:
        return set(json.loads(path.read_text(encoding="utf-8"))["runs"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as the list of a sweep's runs: {error!r}") from None


_RUN = "a record of immunize.train", ("method", "seed", "pretrain", "harmful")
"""What a record of a run is called, and by what runs are named and sorted, whether they finished or not."""


def _check(record: Mapping[str, Any], path: Path, kind: str, needed: Sequence[str]) -> None:
    """Tell records of a kind from others, such as that of `immunize.pretrain`."""
    if lacking := [name for name in needed if name not in record]:
        raise ValueError(f"{path} is not {kind}: it has no {lacking[0]!r}")


@contextmanager
def lacking_is_told(where: str) -> Iterator[None]:
    """Make a message of what a record lacks, or of why records cannot be read or do not go together.

    Args:
        where: the record is: "the record in outputs/demo".

    Raises:
        UserError: within, something was asked of a record that it does not hold, or holds otherwise, or another error
            came up that says what is wrong.
    """
    try:
        yield
    except (FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from error
    except KeyError as error:
        raise UserError(f"{where} lacks {error}: it is of another version, or not of a run") from error
    except (AttributeError, TypeError) as error:  # null, or a text, where a dictionary belongs
        raise UserError(
            f"{where} holds what no run writes ({error}): it was changed, or is of another version"
        ) from error


def read_sources(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The record of a run and its attack record, None where it was not attacked.

    Raises:
        UserError: no record, one that cannot be read, or an attack record of another run.
    """
    record = read_immunized(folder)
    return record, read_attack(folder, record)


def read_attack(folder: Path, record: dict[str, Any]) -> dict[str, Any] | None:
    """The attack record of the run that a record is of; None where it was not attacked.

    Raises:
        UserError: it cannot be read, or is of something else, another version or another run.
    """
    path = folder / ATTACK_RECORD
    if not path.exists():
        return None
    try:
        attack = read_file(path, "an attack record")
        _check(attack, path, "an attack record", ("subject",))
        check_versions([attack], path)
    except ValueError as error:
        raise UserError(str(error)) from None
    for name, theirs in (("config_hash", "run_config_hash"), ("data_hash", "data_hash")):
        if attack["subject"][theirs] != record[name]:
            raise UserError(f"{ATTACK_RECORD} is of another run: its {name} differs; attack this run again")
    return attack


def check_same_checkpoint(folder: Path, attack: dict[str, Any]) -> None:
    """Refuse an attack record of other weights than lie in the run's folder.

    Raises:
        UserError: it is.
    """
    checkpoint, attacked = folder / CHECKPOINT, attack["subject"].get("checkpoint_sha256")
    if attacked is not None and checkpoint.is_file() and file_digest(checkpoint) != attacked:
        raise UserError(f"{folder / ATTACK_RECORD} is of another {CHECKPOINT} than lies there: attack this run again")


_OF_THE_WHOLE = ("harmful_sets", "weakest")


def by_harmful_set(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The record of a run as records of a single harmful data set each, called "cars of cars+caltech101".

    Args:
        record: of any run; one with a single harmful data set is returned as it is.
    """
    facts = data_facts(record, "harmful").get("sets")
    if not facts:
        return [record]
    rest = {key: value for key, value in record.items() if key not in _OF_THE_WHOLE}
    numbers = record.get("harmful_sets") or {}  # none where the run diverged
    data, together = record["data"], record["harmful"]
    return [
        rest | numbers.get(name, {}) | {"harmful": f"{name} of {together}", "data": data | {"harmful": of}}
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


def judged(record: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Where Definition 3.1 was judged: key of `PROTOCOLS`, part of the data, verdict, and the numbers it is of."""
    for protocol, part, estimator, numbers in measured(record):
        verdict = verdict_on(record, part, protocol)
        if verdict is not None and verdict["estimator"] == estimator:
            yield protocol, part, verdict, numbers


def _quotient(value: float | None, above: float, below: float) -> float:
    if value is None and (math.isnan(above) or not math.isfinite(below) or above == below == 0):
        return math.nan
    return infinite(value)


def write_results(records: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write `results.csv.gz` into `out`; :func:`read_results` gives the records back.

    The folder of the data sets, which says something about a machine and nothing about a number, becomes "<data_root>".
    Equal records give equal bytes.

    Args:
        records: whose keys hold no "/".
        out: a folder, made if it is not there.
    """
    rows = [{SEPARATOR.join(keys): _text(value) for keys, value in leaves(_kept(record))} for record in records]
    text = io.StringIO()
    table = csv.DictWriter(text, dict.fromkeys(path for row in rows for path in row), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    with whole(out / RESULTS) as partial, partial.open("wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
        packed.write(text.getvalue().encode())


def read_results(path: Path) -> list[Record]:
    """The records in a file of :func:`write_results`.

    Raises:
        ValueError: it was cut off or damaged, or is no such file.
    """
    try:
        text = gzip.decompress(path.read_bytes()).decode()
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))
        head, *rows = list(csv.reader(io.StringIO(text, newline=""), strict=True)) or [[]]
        if not head or any(len(row) != len(head) for row in rows):
            raise ValueError("not every row has a cell for every column")
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as results: {error}. It was cut off or damaged") from None
    paths, value = [name.split(SEPARATOR) for name in head], functools.cache(_value)
    return [nested((at, value(cell)) for at, cell in zip(paths, row, strict=True) if cell) for row in rows]


def _kept(record: Mapping[str, Any]) -> Record:
    kept = {key: value for key, value in record.items() if key not in _LEFT_OUT}
    root = kept.get("config", {}).get("data_root")
    if isinstance(root, str) and len(root) > 1 and "/" in root:
        # neither the end of another path nor the beginning of another name
        folder = re.compile(rf"(?<![\w.-]){re.escape(root)}" + ("" if root.endswith("/") else r"(?![\w-]|\.\w)"))
        kept = _without(folder, kept)
    return kept


def _without(folder: re.Pattern[str], value: Any) -> Any:
    if isinstance(value, str):
        return folder.sub(_DATA_ROOT, value)
    if isinstance(value, Mapping):
        return {key: _without(folder, of) for key, of in value.items()}
    return [_without(folder, of) for of in value] if isinstance(value, list | tuple) else value


def _text(value: Any) -> str:
    """JSON; a text as it is where it would be read as itself: a carriage return would end the line."""
    if isinstance(value, str) and value and "\r" not in value and _value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell
