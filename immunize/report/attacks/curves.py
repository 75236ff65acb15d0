"""What the attackers have in their hands after so many steps, the best test score so far, on harmful tasks.

A row a kind of data, a column a tier. Lines are medians over runs, tasks and attackers' seeds, bands go from the worst
to the best of them.

Imports no other room and no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from immunize.report.attacks.collecting import Curve
from immunize.report.attacks.runs import THETA_0, Attacks, Group
from immunize.report.curves import style_of

__all__ = ["by_tier", "curves_figure", "has_curves", "scores_at"]

Array = npt.NDArray[np.float64]

_BAND = 0.1
"""Opacity."""


def has_curves(attacks: Attacks) -> bool:
    """Whether every record has them; those of older versions do not."""
    return all("best_so_far" in record for record in attacks.records)


def scores_at(curve: Curve, steps: Sequence[float]) -> Array:
    """The best score so far after so many steps; NaN before the attacker has anything.

    Args:
        curve: "paid" ascending, "test" what it bought.
        steps: (T,).
    """
    place = np.searchsorted(np.asarray(curve["paid"]), np.asarray(steps), side="right") - 1
    scores = np.asarray([*curve["test"], math.nan])
    return np.where(place < 0, math.nan, scores[place])


def curves_figure(attacks: Attacks) -> Figure:
    """Draw it, from attacks that have curves."""
    figure, axes = by_tier(attacks, _draw, "best score so far", wide=(2.9, 1.6), high=(2.7, 0.7), sharey="row")
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    names = [THETA_0, *attacks.methods]
    shown = [name for name in names if name in handles]
    figure.legend([handles[name] for name in shown], shown, loc="outside right upper", frameon=False, fontsize=9)
    figure.suptitle(attacks.mark("What attackers of the harmful task have after so many steps"), fontsize=12)
    return figure


def by_tier(
    attacks: Attacks,
    draw: Callable[[Axes, Group, str], None],
    label: str,
    *,
    wide: tuple[float, float],
    high: tuple[float, float],
    **shared: Any,
) -> tuple[Figure, Any]:
    """A figure with a row a kind of data and a column a tier.

    Args:
        attacks: with at least one kind of data.
        draw: draws one tier of one kind of data.
        label: of the vertical axes.
        wide: inches a column, and beside them.
        high: inches a row, and above them.
        shared: which axes have the same range, as matplotlib's `subplots` takes it.

    Returns:
        the figure and its axes, an array.
    """
    columns = max(len(group.tiers) for group in attacks.groups)
    size = (wide[0] * columns + wide[1], high[0] * len(attacks.groups) + high[1])
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(attacks.groups), columns, squeeze=False, **shared)
    for row, group in zip(axes, attacks.groups, strict=True):
        for axis, tier in zip(row, group.tiers, strict=False):
            draw(axis, group, tier)
            axis.set_title(tier, fontsize=10)
        row[0].set_ylabel(f"{group.titled()}\n{label}", fontsize=9)
        for axis in row[len(group.tiers) :]:
            axis.set_axis_off()
    return figure, axes


def _draw(axis: Axes, group: Group, tier: str) -> None:
    found = {method: group.curves(method, tier) for method in (THETA_0, *group.methods)}
    paid = {step for curves in found.values() for curve in curves for step in curve["paid"]}
    end = max([10.0, *paid])  # a decade at least
    steps = sorted(paid | {end})  # what was reached is kept, also where one step is all there was
    for method, curves in found.items():
        if not curves:
            continue
        scores = np.stack([scores_at(curve, steps) for curve in curves])
        there = ~np.isnan(scores).any(axis=0)
        x, y = np.asarray(steps)[there], scores[:, there]
        colour, line = ("#000000", "-") if method == THETA_0 else style_of(method)
        axis.plot(
            x, np.median(y, axis=0), color=colour, linestyle=line, linewidth=1.6, label=method, drawstyle="steps-post"
        )
        axis.fill_between(x, y.min(axis=0), y.max(axis=0), color=colour, alpha=_BAND, linewidth=0, step="post")
    axis.set(xscale="log", xlabel="steps", xlim=(0.9, 1.1 * end))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
