"""The figure of the scaling study: time and memory of a step over D, B and N, with the fitted exponents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Of the Okabe-Ito palette: distinct in print and for colour-blind readers; markers tell them apart in grey.
_STYLES = {16: ("#56B4E9", "o"), 64: ("#0072B2", "s"), 256: ("#009E73", "^"), None: ("#D55E00", "D")}
_QUANTITIES = {"step_ms": "time of a step, ms", "memory_mib": "memory of a step, MiB"}
_PANELS = {"D": ("d", "features $D$"), "B": ("batch", "batch size $B$"), "N": ("n", "rows $N$ of each data set")}


def scaling_figure(rows: Sequence[dict[str, Any]], fitted: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw every fitted series, by the largest number of threads solid, by one thread dashed.

    Args:
        rows: of scaling.csv.
        fitted: rows of exponents.csv.
        path: without suffix; a PNG and a PDF are written.
    """
    figure = Figure(figsize=(12.5, 7.2), layout="constrained")
    panels = figure.subplots(2, 3, sharey="row")
    threads = max(row["threads"] for row in rows)
    for axis_row, (quantity, label) in zip(panels, _QUANTITIES.items(), strict=True):
        for axis, (symbol, (variable, name)) in zip(axis_row, _PANELS.items(), strict=True):
            axis.set(xscale="log", yscale="log", xlabel=name)
            for fit in fitted:
                if fit["quantity"] == quantity and fit["variable"] == symbol:
                    _draw(axis, rows, fit, variable, threads)
            if symbol == "D":
                _guide(axis, rows)
            ticks = sorted({row[variable] for row in rows if row[variable]})
            axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axis.minorticks_off()
            axis.grid(alpha=0.25, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            if symbol == "B":
                axis.set_xlim(right=ticks[-1] ** 1.35)  # room for the names of the lines
            elif axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False, fontsize=7.5)
        axis_row[0].set_ylabel(label)
    lines = f"{threads} threads (solid) and 1 thread (dashed)" if threads > 1 else "1 thread"
    title = f"One step of Algorithm 1, float64, {lines}; beside each name the fitted exponent of the horizontal axis"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path.with_suffix(".png"), dpi=150)
    figure.savefig(path.with_suffix(".pdf"))


def _draw(axis: Axes, rows: Sequence[dict[str, Any]], fit: dict[str, Any], variable: str, threads: int) -> None:
    sizes = [int(size) for size in str(fit[fit["variable"]]).split()]
    fixed = {"D": "d", "N": "n", "B": "batch"}
    wanted = {fixed[key]: fit[key] for key in fixed if key != fit["variable"]}
    wanted |= {"mode": fit["mode"], "threads": fit["threads"]}
    points = {row[variable]: row for row in rows if all(row[key] == value for key, value in wanted.items())}
    colour, marker = _STYLES[wanted["batch"]] if "batch" in wanted else ("#0072B2", "s")
    name = f"D = {wanted['d']:,}" if "batch" not in wanted else _mode_name(wanted["batch"])
    solid = fit["threads"] == threads
    heights = [points[size][fit["quantity"]] for size in sizes]
    label = f"{name}: {fit['exponent']:.2f}"
    axis.plot(
        sizes,
        heights,
        "-" if solid else "--",
        color=colour,
        marker=marker,
        markersize=4,
        linewidth=1.4 if solid else 1.0,
        alpha=1.0 if solid else 0.7,
        label=label if solid else None,
    )
    if solid and "batch" not in wanted:
        axis.annotate(label, (sizes[-1], heights[-1]), (6, -3), textcoords="offset points", fontsize=7.5)


def _mode_name(batch: int | None) -> str:
    return "full batch" if batch is None else f"mini-batch, B = {batch}"


def _guide(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """A line of slope 2 through the lower right, the growth that is promised not to be passed."""
    sizes = np.array(sorted({row["d"] for row in rows}), dtype=np.float64)
    low, high = axis.get_ylim()
    top = high / (high / low) ** 0.05
    axis.plot(sizes, top * (sizes / sizes[-1]) ** 2, ":", color="#555555", linewidth=1.2, label="$D^2$")
