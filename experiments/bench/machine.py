"""What a measurement needs to be worth anything: the machine, how busy it was, and the files that results go to."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["HERE", "MACHINE", "ROOT", "note_machine", "warn_if_busy", "write_csv"]

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


def note_machine(out: Path, part: str, load: float | None) -> None:
    """Put date, load, versions and hardware of one part of the bench into `machine.json`, beside the other parts'.

    Args:
        out: the folder of results.
        part: one of the parts.
        load: load average before the part began.
    """
    from immunize.records import provenance

    path = out / MACHINE
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    facts = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "load_average_before": load, **provenance()}
    kept[part] = facts | {"command": f"python -m experiments.bench {part}"}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
