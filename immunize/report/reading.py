"""Record files: read, and refused with the reason where they are damaged, of another version, or of something else.

The rest of the room may rely on what was checked here. What a record lacks further down shows when it is used, and
:func:`lacking_is_told` makes one sentence of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from immunize.errors import UserError
from immunize.records import SCHEMA_VERSION

__all__ = ["check_run", "check_versions", "lacking_is_told", "read_file"]

_NEEDED = ("method", "seed", "pretrain", "harmful")
"""By which runs are named and sorted, whether they finished or not."""


def read_file(path: Path, what: str = "a record") -> dict[str, Any]:
    """The record in a file.

    Args:
        path: of the file.
        what: it should be, for messages.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it was cut off or damaged, or is no record.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path} is not there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as {what}: {error}") from None
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read as {what}: {error}. It was cut off or damaged: give the command that made it "
            "again, or move it away"
        ) from None
    if not isinstance(record, dict) or not isinstance(record.get("status"), str):
        raise ValueError(f"{path} is not {what}: it has no status")
    return record


def check_run(record: Mapping[str, Any], path: Path) -> None:
    """Tell records of runs from others, such as that of `immunize.pretrain`.

    Raises:
        ValueError: it lacks what every run has.
    """
    if lacking := [name for name in _NEEDED if name not in record]:
        raise ValueError(f"{path} is not a record of immunize.train: it has no {lacking[0]!r}")


def check_versions(records: Sequence[Mapping[str, Any]], where: Path) -> None:
    """Refuse records that mean something else by the same words.

    Raises:
        ValueError: records of more than one schema version, or of one that is not this package's.
    """
    counts = Counter(str(record.get("schema_version")) for record in records)
    if len(counts) > 1:
        told = " and ".join(f"{version} ({count:,})" for version, count in sorted(counts.items()))
        raise ValueError(
            f"{where} mixes records of schema versions {told}: do the runs of the older one again, or move them away"
        )
    if (found := next(iter(counts), str(SCHEMA_VERSION))) != str(SCHEMA_VERSION):
        raise ValueError(
            f"{where} has schema version {found}, this version of immunize reads {SCHEMA_VERSION}: do the run again "
            "with overwrite=true, or use the version that made it"
        )


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
