"""The figure of a trade-off: (i) against (ii) over λ_H/λ_P, the Pareto front, and held-out data beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from immunize.report.conventions import HARDER_BY, NO_HARDER, PARTS
from immunize.report.figures import save_figure
from immunize.report.tradeoff.points import Point, TradeOff

__all__ = ["labels", "tradeoff_figure"]

_FIT, _HELD_OUT, _REGION = "#0072B2", "#D55E00", "#009E73"  # Okabe-Ito
PANELS = ("spectrum", "ridge")
_MARGIN = 1.6
_TOO_CLOSE = 0.045
"""Share of the axes below which two points have one name."""


def tradeoff_figure(trade: TradeOff, stem: Path) -> None:
    """A panel an estimator, log axes, the good corner at the upper left.

    Args:
        trade: the sweep.
        stem: path of the files without suffix; a PNG and a PDF are written.
    """
    figure = Figure(figsize=(11.5, 5.4), layout="constrained")
    for axis, estimator in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        fit, held_out = (_finite(trade.points(part, estimator)) for part in PARTS)
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
    save_figure(figure, stem)


def _finite(points: Sequence[Point]) -> list[Point]:
    return [p for p in points if math.isfinite(p.harmful) and math.isfinite(p.pretrain)]


def _draw(axis: Axes, fit: Sequence[Point], held_out: Sequence[Point]) -> None:
    axis.set(xscale="log", yscale="log", xlabel="(ii)  κ(H_P) against raw data, better to the left")
    axis.set_ylabel("(i)  κ(H_H) against raw data, better upwards")
    for points, colour in ((fit, _FIT), (held_out, _HELD_OUT)):
        runs = [run for p in points for run in p.seeds]
        axis.plot([ii for _, ii in runs], [i for i, _ in runs], ".", color=colour, markersize=3, alpha=0.35)
    front = sorted((p for p in fit if p.efficient), key=lambda p: p.pretrain)
    others = [p for p in fit if not p.efficient]
    axis.plot([p.pretrain for p in others], [p.harmful for p in others], "o", color=_FIT, alpha=0.35, markersize=6)
    axis.plot(
        [p.pretrain for p in front],
        [p.harmful for p in front],
        "o-",
        color=_FIT,
        drawstyle="steps-post",  # between two points of the front nothing better is known than the left one
        linewidth=1.6,
        markersize=7,
        zorder=4,
    )
    axis.plot(
        [p.pretrain for p in held_out], [p.harmful for p in held_out], "s", color=_HELD_OUT, markersize=6, mfc="none"
    )
    there = {p.ratio: p for p in held_out}
    joined = [there[p.ratio] for p in front if p.ratio in there]
    for p, other in zip([p for p in front if p.ratio in there], joined, strict=True):
        axis.plot([p.pretrain, other.pretrain], [p.harmful, other.harmful], ":", color="#888888", linewidth=1.0)
    _frame(axis, [*fit, *held_out])
    for points in (front, joined):
        _label(axis, points)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


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


def _label(axis: Axes, points: Sequence[Point]) -> None:
    ordered = sorted(points, key=lambda p: p.ratio)
    to_share = axis.transData + axis.transAxes.inverted()
    places = [to_share.transform((p.pretrain, p.harmful)) for p in ordered]
    shares = [(p.ratio, float(x), float(y)) for p, (x, y) in zip(ordered, places, strict=True)]
    for text, index in labels(shares):
        place = (ordered[index].pretrain, ordered[index].harmful)
        axis.annotate(text, place, (7, 5), textcoords="offset points", fontsize=8)


def _frame(axis: Axes, points: Sequence[Point]) -> None:
    """Limits around every point and the corner of the good region, which is shaded."""
    pretrain = [ii for p in points for _, ii in p.seeds if math.isfinite(ii)] + [NO_HARDER]
    harmful = [i for p in points for i, _ in p.seeds if math.isfinite(i)] + [HARDER_BY]
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
