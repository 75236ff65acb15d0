"""What lies in the folder of one run: its record, its attack record, and what a run that has not ended leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from immunize.errors import UserError
from immunize.records import ATTACK_RECORD, RECORD
from immunize.report.reading import check_run, check_versions, read_file
from immunize.report.stored import RESULTS

__all__ = ["METRICS", "check_same_run", "read_attack", "read_run", "read_sources"]

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
    path = folder / RECORD
    try:
        record = read_file(path)
        check_run(record, path)
        check_versions([record], path)
    except FileNotFoundError:
        raise UserError(_no_record(folder)) from None
    except ValueError as error:
        raise UserError(str(error)) from None
    return record


def read_attack(folder: Path) -> dict[str, Any] | None:
    """The attack record of a run; None where it was not attacked.

    Raises:
        UserError: as :func:`read_run`.
    """
    path = folder / ATTACK_RECORD
    try:
        attack = read_file(path, "an attack record")
        if "subject" not in attack:
            raise ValueError(f"{path} is not an attack record: it has no 'subject'")
        check_versions([attack], path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(str(error)) from None
    return attack


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
