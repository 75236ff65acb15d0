"""scaling.md from the results of the bench, by scaling.md.jinja: no number is typed.

Every bench writes it anew at its end, and so does `python -m experiments.bench table`, which measures nothing.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.bench.deep_parts import FILE_SIZE
from experiments.bench.machine import HERE, MACHINE, read
from experiments.bench.scaling import fit_exponent

__all__ = ["PAGE", "SIZES", "page", "series_over"]

PAGE = "experiments/bench/scaling.md"
Row = dict[str, Any]
SIZES = ("network", "n", "d", "batch", "processes")
"""What a measurement may vary over."""


def page(results: Path) -> str:
    """The text of scaling.md.

    Args:
        results: the folder with deep_*.csv and machine.json.

    Raises:
        FileNotFoundError: a part of the bench was not run.
    """
    found = {name: read(results / f"deep_{name}.csv") for name in ("scaling", "step", "cache", "pooled")}
    if missing := [name for name, rows in found.items() if not rows]:
        raise FileNotFoundError(f"{results} has no deep_{missing[0]}.csv")
    rows = found["scaling"]
    networks = [row for row in rows if (row["what"], row["variable"]) == ("step", "network")]
    for row in networks:
        row["gflop"] = row["gflop_trunk"] + row["gflop_tail"]
        row["speed"] = 2 * row["batch"] * row["gflop"] / row["seconds"]
    templates = Environment(
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    templates.filters["paragraph"] = _paragraph
    return templates.get_template("scaling.md.jinja").render(
        machine=json.loads((results / MACHINE).read_text(encoding="utf-8"))["deep_scaling"],
        rows=rows,
        steps=found["step"],
        caches=found["cache"],
        pooled=found["pooled"][0],
        networks=networks,
        over=partial(series_over, rows),
        exponent=lambda of: fit_exponent([row["size"] for row in of], [row["seconds"] for row in of]),
        file_size=" × ".join(map(str, FILE_SIZE)),
    )


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


def _paragraph(text: str) -> str:
    """A paragraph of lines that are not too long."""
    return textwrap.fill(text.strip(), 120, break_long_words=False, break_on_hyphens=False) + "\n"
