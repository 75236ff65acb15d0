"""What defences leave to attackers and what they cost honest users: best scores by tier, and the plane of retentions.

Imports no other room and no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from immunize.report.attacks.curves import by_tier
from immunize.report.attacks.intervals import interval_of
from immunize.report.attacks.runs import CONTROL, KINDS, THETA_0, Attacks, Group
from immunize.report.attacks.tables import KIND_WORDS
from immunize.report.curves import style_of
from immunize.report.figures import save_figure

__all__ = ["best_figure", "plane_figure"]

_WIDTH = 0.8
"""Of a tier's place, shared by the methods."""
_MARKERS = {"pretrain": "o", "benign": "s"}
_LIMITS = (-0.15, 1.25)


def best_figure(attacks: Attacks, stem: Path) -> None:
    """Best score by tier from θ_0 and through every method, a row a kind of data, a column a kind of tasks.

    Bars are means over runs, tasks and attackers' seeds, lines go from the least to the largest; dotted is chance.

    Args:
        attacks: whose records have retentions.
        stem: path of the files without suffix; a PNG and a PDF are written.
    """
    kinds = [kind for kind in KINDS if any(kind in group.kinds for group in attacks.groups)]
    size = (4.6 * len(kinds) + 0.4, 2.9 * len(attacks.groups) + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(attacks.groups), len(kinds), squeeze=False)
    for row, group in zip(axes, attacks.groups, strict=True):
        for axis, kind in zip(row, kinds, strict=True):
            if kind in group.kinds:
                _bars(axis, group, kind)
                axis.set_title(group.titled(f"{KIND_WORDS[kind]} task"), fontsize=10, loc="left")
            else:
                axis.set_axis_off()
        row[0].set_ylabel("best score of the tier", fontsize=9)
    _legend(figure, [THETA_0, *attacks.methods])
    figure.suptitle(attacks.mark("What the best attacker of each tier reaches, and the best honest user"), fontsize=12)
    save_figure(figure, stem)


def plane_figure(attacks: Attacks, stem: Path) -> None:
    """Retention of honest tasks against that of the harmful one, a row a kind of data, a column a tier.

    A defence belongs to the upper left corner. Lines are 95 % intervals.

    Args:
        attacks: whose records have retentions.
        stem: as in :func:`best_figure`.
    """
    figure, axes = by_tier(
        attacks, _points, "honest retention", wide=(2.7, 0.4), high=(2.7, 0.8), sharex=True, sharey=True
    )
    for axis in axes[-1]:
        axis.set_xlabel("harmful retention", fontsize=9)
    shapes = [f"{'circle' if kind == 'pretrain' else 'square'}: {KIND_WORDS[kind]} task" for kind in _MARKERS]
    _legend(figure, [*attacks.methods, CONTROL])
    figure.suptitle(attacks.mark(f"What is left of what θ$_0$ teaches ({', '.join(shapes)})"), fontsize=12)
    save_figure(figure, stem)


def _colour(method: str) -> str:
    return {THETA_0: "#000000", CONTROL: "#BBBBBB"}.get(method) or style_of(method)[0]


def _legend(figure: Figure, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=_colour(name), label=name.replace("θ_0", "θ$_0$")) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9)


def _bars(axis: Axes, group: Group, kind: str) -> None:
    methods, tiers = [THETA_0, *group.methods], group.tiers
    width = _WIDTH / len(methods)
    for place, method in enumerate(methods):
        for index, tier in enumerate(tiers):
            tried = group.tried(method, kind, tier)
            scores = [] if tried is None else [v for of in tried.score.values() for v in of if v is not None]
            if scores:
                x = index + (place - (len(methods) - 1) / 2) * width
                axis.bar(x, mean(scores), 0.9 * width, color=_colour(method))
                axis.vlines(x, min(scores), max(scores), color="#444444", linewidth=1)
    if chances := group.chances(kind):
        axis.axhline(mean(chances), color="#444444", linewidth=0.8, linestyle=":")
    axis.set(xticks=range(len(tiers)), xticklabels=tiers, xlim=(-0.6, len(tiers) - 0.4))
    axis.set_ylim(bottom=0)
    axis.grid(axis="y", alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _points(axis: Axes, group: Group, tier: str) -> None:
    for method in [CONTROL, *group.methods]:
        harmful = group.tried(method, "harmful", tier)
        x = None if harmful is None else interval_of(harmful.retention)
        for kind, marker in _MARKERS.items():
            honest = group.tried(method, kind, tier)
            y = None if honest is None else interval_of(honest.retention)
            if x is None or y is None:
                continue
            axis.plot([x.low, x.high], [y.mean] * 2, color=_colour(method), linewidth=1)
            axis.plot([x.mean] * 2, [y.low, y.high], color=_colour(method), linewidth=1)
            axis.plot(*np.clip((x.mean, y.mean), *_LIMITS), marker, color=_colour(method), markersize=6)
    axis.axhline(1, color="#888888", linewidth=0.6, linestyle=":")
    axis.axvline(1, color="#888888", linewidth=0.6, linestyle=":")
    axis.set(xlim=_LIMITS, ylim=_LIMITS, aspect="equal")
    axis.grid(alpha=0.2, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
