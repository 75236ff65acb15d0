"""What became of one run of a sweep, as its folder tells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from immunize.errors import CheckpointError
from immunize.records import RECORD, file_digest, read_record

__all__ = ["DONE", "Outcome", "done_record", "value_of"]

DONE = ("finished", "diverged")
"""Statuses of a record that the same configuration would end with again; an interrupted run is run again."""


@dataclass(frozen=True)
class Outcome:
    """How a run of a sweep ended.

    Attributes:
        status: "finished", "diverged", or "failed".
        value: what the task returned.
        found: it had ended so before this sweep began, and was not run again.
        messages: warnings of the run, and of a failed one the error, a line or a traceback.
    """

    status: str
    value: Any = None
    found: bool = False
    messages: tuple[str, ...] = ()


def done_record(folder: Path, config_hash: str) -> dict[str, Any] | None:
    """The record in a folder, if the run that it tells of needs no repeating; else None.

    Args:
        folder: the output folder of the run.
        config_hash: of the configuration to be run (:func:`immunize.config.config_hash`).
    """
    if not (folder / RECORD).is_file():
        return None
    try:
        record = read_record(folder)
    except CheckpointError:
        return None
    if record["status"] not in DONE or record.get("config_hash") != config_hash:
        return None
    return record if _began_with_what_is_there(record) else None


def _began_with_what_is_there(record: dict[str, Any]) -> bool:
    """Whether the file of θ_0, as far as there is one, is still that of the run: another one may have its name."""
    known = record.get("network", {}).get("checkpoint_sha256")
    if known is None or not (path := Path(record["config"]["model"]["checkpoint"]).expanduser()).is_file():
        return True
    return bool(file_digest(path) == known)


def value_of(record: dict[str, Any]) -> float | None:
    """What a sweeper is told of a run: its RIR (`spectrum`) on `fit`, or on `validation` where that is what it has.

    Returns:
        None where the record has none (a κ that is infinite); NaN for a run that did not finish.
    """
    if record["status"] != "finished":
        return math.nan
    metrics = record["metrics"]
    value = metrics["validation" if "validation" in metrics else "fit"]["spectrum"]["rir"]
    return None if value is None else float(value)
