"""Rows of the bench's results, read back, and what a page is written of them with: paragraphs and tables."""

from __future__ import annotations

import csv
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["SIZES", "Row", "operations", "paragraph", "read", "series_over", "table"]

Row = dict[str, Any]

SIZES = ("network", "n", "d", "batch", "processes")
"""What a measurement may vary over."""


def read(path: Path) -> list[Row]:
    """The rows of a CSV file, numbers as numbers and nothing as None."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def series_over(rows: Sequence[Row], what: str, variable: str) -> list[Row]:
    """Rows over one variable, ascending; with those of other series in which everything else is the same.

    Where two series have measured the same size, its own row counts.
    """
    own = [row for row in rows if (row["what"], row["variable"]) == (what, variable)]
    fixed = {key: own[0][key] for key in SIZES if key != variable}
    if variable in SIZES and own[0][variable] is not None:
        others = [row for row in rows if row["what"] == what and all(row[key] == fixed[key] for key in fixed)]
        own = list({row[variable]: row | {"size": row[variable]} for row in (*others, *own)}.values())
    return sorted(own, key=lambda row: float(row["size"]))


def operations(row: Row) -> float:
    """GFLOP an image: frozen part forward, trained part forward and backward."""
    return float(row["gflop_trunk"] + row["gflop_tail"])


def paragraph(*parts: str) -> str:
    """A paragraph of lines that are not too long."""
    return textwrap.fill(" ".join(parts), 120, break_long_words=False, break_on_hyphens=False)


def table(header: Sequence[str], body: Sequence[Sequence[Any]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        f"|{' --- |' * len(header)}",
        *(f"| {' | '.join(map(str, row))} |" for row in body),
    ]
