"""What a measurement needs to be worth anything: the machine, how busy it was, and the files that results go to."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from immunize.errors import UserError
from immunize.files import read_object

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MACHINE = "machine.json"

BUSY = 0.25
"""Load average above which a warning is given: other processes then take a noticeable share of a small machine."""


def warn_if_busy() -> float | None:
    """Warn on stderr where other processes compete for the cores.

    Returns:
        the load average of the last minute, processes; None where the system does not tell.
    """
    try:
        load = os.getloadavg()[0]
    except OSError:
        return None
    if load > BUSY:
        print(
            f"warning: the load average is {load:.2f} on {os.cpu_count()} cores before anything was measured; "
            f"times will be too long, repeat at a quiet moment",
            file=sys.stderr,
        )
    return round(load, 2)


def timed_command(command: Sequence[str]) -> tuple[float, float, int]:
    """Run a command in a process of its own, without its output.

    Returns:
        seconds from start to exit by the clock, and of the processor, user and system; bytes of the largest resident
        set.

    Raises:
        UserError: it failed; the last line of what it said is in the message.
    """
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            said.seek(0)
            last = b" ".join(said.read().splitlines()[-1:]).decode(errors="replace")
            raise UserError(f"{' '.join(command[1:])} ended with {process.returncode}: {last}")
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return round(seconds, 2), round(usage.ru_utime + usage.ru_stime, 2), peak


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows that all have the same keys.

    Args:
        path: of the file; its folder is made.
        rows: at least one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file, numbers as numbers and nothing as None; none where there is no such file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    try:
        return json.loads(text or "null")
    except ValueError:
        return math.nan if text == "nan" else text


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table with the columns of the first one."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        values = (row.get(column) for column in rows[0])
        table.add_row(*("" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in values))
    Console(width=170).print(table)


def note_machine(out: Path, part: str, load: float | None) -> None:
    """Put date, load, versions and hardware of one part of the bench into `machine.json`, beside the other parts'.

    Args:
        out: the folder of results.
        part: one of the parts.
        load: load average before the part began.
    """
    from immunize.records import provenance

    path = out / MACHINE
    kept = read_object(path) or {}
    facts = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "load_average_before": load, **provenance()}
    kept[part] = facts | {"command": f"python -m experiments.bench {part}"}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
