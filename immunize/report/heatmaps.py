"""Figure 2: log(RIR) of every ordered pair of digits, one panel a method, blue where RIR ≥ 1 and red otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from immunize.report.figures import save_figure
from immunize.report.pairs import log_means
from immunize.report.runs import Runs

__all__ = ["DIGITS", "heatmap_figure", "log_rir"]

DIGITS = 10
_PAD = 0.1  # inches, so that titles keep clear of the ticks above them
_PALE = 0.08
"""Share of the colour map that is left out on either side of its middle, so that no cell is of neither colour."""
_DARK = 0.62
"""Share of the scale from which a cell is too dark for black print."""


def _red_and_blue() -> ListedColormap:
    """RdBu without its white: safe for colour-blind readers, and in grey the sign of the printed value tells."""
    sides = np.concatenate([np.linspace(0, 0.5 - _PALE, 128), np.linspace(0.5 + _PALE, 1, 128)])
    return ListedColormap(colormaps["RdBu"](sides), name="red and blue")


_MAP = _red_and_blue()  # 0 itself, RIR = 1, is the first of the blues

Array = npt.NDArray[np.float64]


def log_rir(runs: Runs, method: str, part: str, estimator: str) -> Array:
    """The cells of a method's heat map, see :func:`immunize.report.pairs.log_means`.

    Returns:
        (10, 10), rows D_P's digit, columns D_H's; NaN on the diagonal and for pairs without a finished run.

    Raises:
        ValueError: pairs that are not two digits.
    """
    values = np.full((DIGITS, DIGITS), np.nan)
    for pair, value in log_means(runs, method, part, estimator).items():
        values[_digits(pair)] = value
    return values


def heatmap_figure(panels: Sequence[tuple[str, Array]], title: str, stem: Path) -> None:
    """One heat map a panel, all on one scale that is symmetric about 0.

    Args:
        panels: name and (10, 10) values of each.
        title: of the figure; has to name estimator and part.
        stem: path of the files without suffix; a PNG and a PDF are written.
    """
    finite = np.concatenate([values[np.isfinite(values)] for _, values in panels])
    limit = max(1.0, float(np.abs(finite).max())) if len(finite) else 1.0
    scale = Normalize(-limit, limit)
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(
        figsize=(4.2 * columns + 1.0, 4.3 * rows + 0.5), layout=ConstrainedLayoutEngine(h_pad=_PAD, w_pad=_PAD)
    )
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for index, (axis, (name, values)) in enumerate(zip(axes.flat, panels, strict=False)):
        _draw(axis, values, scale)
        axis.set_title(name, fontsize=11)
        if index >= len(panels) - columns:
            axis.set_xlabel("harmful digit, $D_H$")
        if index % columns == 0:
            axis.set_ylabel("pre-training digit, $D_P$")
    bar = figure.colorbar(ScalarMappable(scale, _MAP), ax=list(axes.flat), shrink=0.8, aspect=30, pad=0.01)
    bar.set_label("log(RIR), natural")
    figure.suptitle(title, fontsize=12)
    save_figure(figure, stem)


def _draw(axis: Axes, values: Array, scale: Normalize) -> None:
    axis.imshow(np.clip(values, scale.vmin, scale.vmax), cmap=_MAP, norm=scale)
    for row, column in np.ndindex(values.shape):
        value = float(values[row, column])
        if row == column:
            continue
        if math.isnan(value):
            axis.text(column, row, "n/a", ha="center", va="center", fontsize=6, color="#555555")
            continue
        ink = "white" if abs(2 * float(scale(value)) - 1) > _DARK else "black"
        axis.text(column, row, _cell(value), ha="center", va="center", fontsize=7.5, color=ink)
    ticks = range(DIGITS)
    axis.set_xticks(ticks)
    axis.set_yticks(ticks)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _cell(value: float) -> str:
    """Two decimals as in the paper while there is room; a minus where RIR < 1, also on what rounds to zero."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return (f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}").replace("-", "−")


def _digits(pair: str) -> tuple[int, int]:
    sides = pair.split("→")
    if len(sides) != 2 or not all(side.isdecimal() and int(side) < DIGITS for side in sides):
        raise ValueError(f"a heat map needs pairs of digits; the runs hold {pair}")
    return int(sides[0]), int(sides[1])
