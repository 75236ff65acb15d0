"""Figure 2: log(RIR) of every ordered pair of digits, one panel a method, blue where RIR ≥ 1 and red otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

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
        axis.set_title(name, fontsize=11)
        if index >= len(panels) - columns:
            axis.set_xlabel(sides[1])
        if index % columns == 0:
            axis.set_ylabel(sides[0])
    bar = figure.colorbar(ScalarMappable(scale, _MAP), ax=list(axes.flat), shrink=0.8, aspect=30, pad=0.01)
    bar.set_label("log(RIR), natural")
    figure.suptitle(title, fontsize=12)
    return figure


def _ordered(names: set[str]) -> list[str]:
    return sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))


def _draw(axis: Axes, values: Array, names: Sequence[Sequence[str]], scale: Normalize) -> None:
    axis.imshow(np.clip(values, scale.vmin, scale.vmax), cmap=_MAP, norm=scale)
    for row, column in np.ndindex(values.shape):
        value = float(values[row, column])
        if names[0][row] == names[1][column]:
            continue
        if math.isnan(value):
            axis.text(column, row, "n/a", ha="center", va="center", fontsize=6, color="#555555")
            continue
        ink = "white" if abs(2 * float(scale(value)) - 1) > _DARK else "black"
        axis.text(column, row, _cell(value), ha="center", va="center", fontsize=7.5, color=ink)
    axis.set_xticks(range(len(names[1])), names[1])
    axis.set_yticks(range(len(names[0])), names[0])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _cell(value: float) -> str:
    """Two decimals as in the paper while there is room; a minus where RIR < 1, also on what rounds to zero."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return (f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}").replace("-", "−")
