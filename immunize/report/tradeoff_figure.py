"""The figure of a trade-off: (i) against (ii) over λ_H/λ_P, the Pareto front, and held-out data beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from immunize.report.conventions import HARDER_BY, NO_HARDER, PARTS
from immunize.report.tradeoff import TradeOff

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["labels", "tradeoff_figure"]

_FIT, _HELD_OUT, _REGION = "#0072B2", "#D55E00", "#009E73"  # Okabe-Ito
PANELS = ("spectrum", "ridge")
_AXES = ("ratio_pretrain", "ratio_harmful")
_MARGIN = 1.6
_TOO_CLOSE = 0.045
"""Share of the axes below which two points have one name."""


def tradeoff_figure(trade: TradeOff) -> Figure:
    """A panel an estimator, log axes, the good corner at the upper left."""
    points = trade.points()
    points = points[np.isfinite(points[list(_AXES)].astype(float)).all(axis=1)]
    figure = Figure(figsize=(11.5, 5.4), layout="constrained")
    for axis, estimator in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        fit, held_out = (points[(points["estimator"] == estimator) & (points["part"] == part)] for part in PARTS)
        _draw(axis, fit, held_out)
        axis.set_title(f"{estimator} condition number", fontsize=10)
    handles = [
        Line2D([], [], color=_FIT, marker="o", linewidth=1.6, label="fit, the Pareto front"),
        Line2D([], [], color=_FIT, marker="o", alpha=0.35, linestyle="none", label="fit, beaten by another weight"),
        Line2D([], [], color=_HELD_OUT, marker="s", markerfacecolor="none", linestyle=":", label="held out"),
        Line2D([], [], color="#888888", marker=".", linestyle="none", markersize=4, label="single runs"),
        Patch(facecolor=_REGION, alpha=0.12, label="(i) ≥ 2 and (ii) ≤ 1"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    title = f"(i) against (ii) as λ_H/λ_P grows, geometric means over {len(trade.runs.seeds)} seeds"
    figure.suptitle(trade.runs.mark(title), fontsize=11)
    return figure


def _draw(axis: Axes, fit: pd.DataFrame, held_out: pd.DataFrame) -> None:
    axis.set(xscale="log", yscale="log", xlabel="(ii)  κ(H_P) against raw data, better to the left")
    axis.set_ylabel("(i)  κ(H_H) against raw data, better upwards")
    for points, colour in ((fit, _FIT), (held_out, _HELD_OUT)):
        runs = _runs(points)
        axis.plot([ii for _, ii in runs], [i for i, _ in runs], ".", color=colour, markersize=3, alpha=0.35)
    front = fit[fit["on_front"] == 1].sort_values("ratio_pretrain", kind="stable")
    axis.plot(*_places(fit[fit["on_front"] == 0]), "o", color=_FIT, alpha=0.35, markersize=6)
    axis.plot(
        *_places(front),
        "o-",
        color=_FIT,
        drawstyle="steps-post",  # between two points of the front nothing better is known than the left one
        linewidth=1.6,
        markersize=7,
        zorder=4,
    )
    axis.plot(*_places(held_out), "s", color=_HELD_OUT, markersize=6, mfc="none")
    joined = held_out.set_index("lambda_ratio").reindex(front["lambda_ratio"]).dropna(subset=list(_AXES)).reset_index()
    for _, other in joined.iterrows():
        of = front[front["lambda_ratio"] == other["lambda_ratio"]].iloc[0]
        axis.plot(*([of[name], other[name]] for name in _AXES), ":", color="#888888", linewidth=1.0)
    _frame(axis, [*_runs(fit), *_runs(held_out)])
    for points in (front, joined):
        _label(axis, points)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _runs(points: pd.DataFrame) -> list[tuple[float, float]]:
    return [run for each in points["each"] for run in each]


def _places(points: pd.DataFrame) -> tuple[list[float], list[float]]:
    across, up = (points[name].tolist() for name in _AXES)
    return across, up


def labels(points: Sequence[tuple[float, float, float]]) -> list[tuple[str, int]]:
    """Names of points, with one name for those that are too close to have each its own.

    Args:
        points: (λ_H/λ_P, x, y) by ascending λ_H/λ_P, x and y as shares of the axes.

    Returns:
        (text, index of the point to put it at); three or more neighbouring weights are written as a range.
    """
    clusters: list[list[int]] = []
    for index, (_, x, y) in enumerate(points):
        for cluster in clusters:
            _, x_first, y_first = points[cluster[0]]
            if math.hypot(x - x_first, y - y_first) < _TOO_CLOSE:
                cluster.append(index)
                break
        else:
            clusters.append([index])
    return [(", ".join(_spans(points, cluster)), cluster[(len(cluster) - 1) // 2]) for cluster in clusters]


def _spans(points: Sequence[tuple[float, float, float]], cluster: Sequence[int]) -> Iterator[str]:
    """The weights of a cluster, three or more neighbours as "first–last"."""
    for _, group in itertools.groupby(enumerate(cluster), key=lambda item: item[1] - item[0]):
        names = [_power(points[index][0]) for _, index in group]
        yield f"{names[0]}–{names[-1]}" if len(names) > 2 else ", ".join(names)


def _label(axis: Axes, points: pd.DataFrame) -> None:
    ordered = points.sort_values("lambda_ratio", kind="stable")
    places = list(zip(*_places(ordered), strict=True))
    to_share = axis.transData + axis.transAxes.inverted()
    at = [to_share.transform(place) for place in places]
    shares = [(float(r), float(x), float(y)) for r, (x, y) in zip(ordered["lambda_ratio"], at, strict=True)]
    for text, index in labels(shares):
        axis.annotate(text, places[index], (7, 5), textcoords="offset points", fontsize=8)


def _frame(axis: Axes, runs: Sequence[tuple[float, float]]) -> None:
    """Limits around every run and the corner of the good region, which is shaded."""
    pretrain = [ii for _, ii in runs if math.isfinite(ii)] + [NO_HARDER]
    harmful = [i for i, _ in runs if math.isfinite(i)] + [HARDER_BY]
    for side, values in ((axis.xaxis, pretrain), (axis.yaxis, harmful)):
        narrow = max(values) < 100 * min(values)  # powers of ten alone would be a tick or two
        side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
        side.set_minor_formatter(NullFormatter())
        if narrow:
            side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left, top = min(pretrain) / _MARGIN, max(harmful) * _MARGIN
    axis.set_xlim(left, max(pretrain) * _MARGIN)
    axis.set_ylim(min(harmful) / _MARGIN, top)
    axis.add_patch(Rectangle((left, HARDER_BY), NO_HARDER - left, top - HARDER_BY, color=_REGION, alpha=0.12, zorder=0))


def _power(ratio: float) -> str:
    if not 0 < ratio < math.inf:
        return f"{ratio:g}".replace("inf", "$\\infty$")
    exponent = math.log10(ratio)
    return f"$10^{{{exponent:.0f}}}$" if abs(exponent - round(exponent)) < 1e-9 else f"{ratio:.2g}"
