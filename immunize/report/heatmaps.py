"""Figure 2: log(RIR) of every ordered pair of digits, one panel a method, blue where RIR ≥ 1 and red otherwise."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from immunize.report.curves import Array
from immunize.report.published import Publications
from immunize.report.runs import Runs
from immunize.report.templates import filled_in

_PAD = 0.1  # inches, so that titles keep clear of the ticks above them
_PALE = 0.08
"""Share of the colour map that is left out on either side of its middle, so that no cell is of neither colour."""
_DARK = 0.62
"""Share of the scale from which a cell is too dark for black print."""
WIDEST = 40
"""Characters of a setting's name in a line of a figure: names of several settings, or of files, are longer."""
_LEAST = 3
"""Pairs below which a rank correlation says nothing."""


_SIDES = np.concatenate([np.linspace(0, 0.5 - _PALE, 128), np.linspace(0.5 + _PALE, 1, 128)])
_MAP = ListedColormap(colormaps["RdBu"](_SIDES), name="red and blue")  # 0 itself, RIR = 1, is the first of the blues
"""RdBu without its white: safe for colour-blind readers, and in grey the sign of the printed value tells."""


def heatmap(panels: Mapping[str, Mapping[str, float]], title: str, *, sides: tuple[str, str]) -> Figure:
    """One heat map a panel, all on one scale that is symmetric about 0.

    Args:
        panels: name to the value of each pair, "3→8"; NaN is a pair without a finished run.
        title: of the figure; has to name estimator and part.
        sides: what the rows and the columns are.
    """
    names = [_ordered({pair.split("→")[side] for found in panels.values() for pair in found}) for side in (0, 1)]
    finite = [abs(value) for found in panels.values() for value in found.values() if math.isfinite(value)]
    limit = max([1.0, *finite])
    scale = Normalize(-limit, limit)
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(
        figsize=(4.2 * columns + 1.0, 4.3 * rows + 0.5), layout=ConstrainedLayoutEngine(h_pad=_PAD, w_pad=_PAD)
    )
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for index, (axis, (name, found)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        values = np.array([[found.get(f"{row}→{column}", math.nan) for column in names[1]] for row in names[0]])
        _draw(axis, values, names, scale)
        axis.set_title(textwrap.fill(name, WIDEST), fontsize=11, parse_math=False)
        if index >= len(panels) - columns:
            axis.set_xlabel(sides[1])
        if index % columns == 0:
            axis.set_ylabel(sides[0])
    bar = figure.colorbar(ScalarMappable(scale, _MAP), ax=list(axes.flat), shrink=0.8, aspect=30, pad=0.01)
    bar.set_label("log(RIR), natural")
    figure.suptitle(title, fontsize=12, parse_math=False)
    return figure


def _ordered(names: set[str]) -> list[str]:
    return sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))


def _draw(axis: Axes, values: Array, names: Sequence[Sequence[str]], scale: Normalize) -> None:
    axis.imshow(np.clip(values, scale.vmin, scale.vmax), cmap=_MAP, norm=scale)
    for row, column in np.ndindex(values.shape):
        value = float(values[row, column])
        if math.isnan(value):
            if names[0][row] != names[1][column]:  # no pair of digits, but perhaps one of data sets of one name
                axis.text(column, row, "n/a", ha="center", va="center", fontsize=6, color="#555555")
            continue
        ink = "white" if abs(2 * float(scale(value)) - 1) > _DARK else "black"
        axis.text(column, row, _cell(value), ha="center", va="center", fontsize=7.5, color=ink)
    axis.set_xticks(range(len(names[1])), names[1], parse_math=False)
    axis.set_yticks(range(len(names[0])), names[0], parse_math=False)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _cell(value: float) -> str:
    """Two decimals as in the paper while there is room; a minus where RIR < 1, also on what rounds to zero."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return (f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}").replace("-", "−")


def log_means(runs: Runs, method: str, part: str, estimator: str) -> dict[str, float]:
    """Natural logarithm of the mean RIR over seeds, by pair; infinite where the RIR of a run is.

    That the paper's Fig. 2 shows the logarithm of the mean follows from its own numbers: the mean of exp(cell) over
    the 90 cells is the mean RIR of its Table 2, for all four methods.
    """
    means = runs.pair_means(method, part, estimator)
    return {pair: math.log(mean) if mean > 0 else -math.inf for pair, mean in means.items()}


def success_table(runs: Runs, wheres: Sequence[tuple[str, str]], published: Publications) -> str:
    """Pairs with a mean RIR over seeds of at least 1, by method; notes on the paper's cells where there are any.

    Args:
        runs: on pairs of digits.
        wheres: (part, estimator) of the columns.
        published: with `failed_pairs` and `log_rir` rows.
    """
    return filled_in(
        "fig2.md",
        runs=runs,
        wheres=wheres,
        cells=lambda method, where: log_means(runs, method, *where).values(),
        against_paper={method: _against_paper(runs, method, published) for method in runs.methods},
        mean_exp=lambda cells: float(np.mean(np.exp(cells))),
        published=published,
    )


def _against_paper(runs: Runs, method: str, published: Publications) -> dict[str, Any]:
    """The paper's cells of a method and how many of them its text calls failures; rank correlations of ours with them.

    Ours are by `released` on `fit`, also with D_P and D_H of the paper's exchanged.
    """
    cells = {p.pair: p.value for p in published if p.method == method and p.quantity == "log_rir"}
    ours = log_means(runs, method, "fit", "released")
    common = sorted(pair for pair in cells.keys() & ours.keys() if math.isfinite(ours[pair]))
    swapped = ["→".join(reversed(pair.split("→"))) for pair in common]
    return {
        "cells": list(cells.values()),
        "failed": published.find(method, "failed_pairs"),
        "correlations": [
            _rank_correlation([ours[pair] for pair in common], [cells[pair] for pair in of])
            for of in (common, swapped)
            if len(common) >= _LEAST and all(pair in cells for pair in of)
        ],
    }


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's; NaN where all are tied."""
    from scipy.stats import spearmanr  # a second of import time, for this one report

    return math.nan if 1 in (len(set(one)), len(set(other))) else float(spearmanr(one, other).statistic)
