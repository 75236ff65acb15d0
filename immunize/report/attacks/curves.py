"""What the attackers have in their hands after so many steps, the best test score so far, on harmful tasks.

A row a kind of data, a column a tier. Lines are medians over runs, tasks and attackers' seeds, bands go from the worst
to the best of them.

Imports no other room and no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from immunize.report.attacks.collecting import Curve
from immunize.report.attacks.runs import THETA_0, Attacks, Group
from immunize.report.curves import style_of
from immunize.report.figures import save_figure
from immunize.report.naming import in_order

__all__ = ["curves_figure", "has_curves", "scores_at"]

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


def curves_figure(attacks: Attacks, stem: Path) -> None:
    """Draw it.

    Args:
        attacks: with curves.
        stem: path of the files without suffix; a PNG and a PDF are written.
    """
    columns = max(len(group.tiers) for group in attacks.groups)
    size = (2.9 * columns + 1.6, 2.7 * len(attacks.groups) + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(attacks.groups), columns, squeeze=False, sharey="row")
    for row, group in zip(axes, attacks.groups, strict=True):
        for axis, tier in zip(row, group.tiers, strict=False):
            _draw(axis, group, tier)
            axis.set_title(tier, fontsize=10)
        row[0].set_ylabel(f"{group.name}\nbest score so far", fontsize=9)
        for axis in row[len(group.tiers) :]:
            axis.set_axis_off()
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    names = [THETA_0, *in_order(method for group in attacks.groups for method in group.methods)]
    shown = [name for name in names if name in handles]
    figure.legend([handles[name] for name in shown], shown, loc="outside right upper", frameon=False, fontsize=9)
    figure.suptitle(attacks.mark("What attackers of the harmful task have after so many steps"), fontsize=12)
    save_figure(figure, stem)


def _draw(axis: Axes, group: Group, tier: str) -> None:
    found = {method: group.curves(method, tier) for method in (THETA_0, *group.methods)}
    paid = {step for curves in found.values() for curve in curves for step in curve["paid"]}
    end = max(10.0, *paid)  # a decade at least
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
