"""What an attack costs by tier and method to 90 % of θ_0's score, a row of panels a kind of data, a column a resource.

Imports no other room and no torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from immunize.report.attacks.runs import THETA_0, Attacks, Group
from immunize.report.attacks.tables import KIND_WORDS, middle
from immunize.report.curves import style_of
from immunize.report.figures import save_figure

__all__ = ["cost_figure"]

_COLUMNS = ("steps", "samples", "seconds", "flops")
_MARKERS = ("s", "^", "D", "v", "P", "X", "*")
_WIDTH = 0.7
"""Of a tier's place, shared by the methods."""
_ABOVE = 4.0
"""Times the largest number is where "never" stands."""


def cost_figure(attacks: Attacks, stem: Path) -> None:
    """Median cost and its range over the runs; hollow markers on the dotted line are attackers who never get there.

    Args:
        attacks: with harmful tasks.
        stem: path of the files without suffix; a PNG and a PDF are written.
    """
    panels = [(group, kind) for group in attacks.groups for kind in group.kinds]
    figure = Figure(figsize=(20, 3.1 * len(panels) + 0.7), layout="constrained")
    axes = figure.subplots(len(panels), len(_COLUMNS), squeeze=False)
    methods = attacks.methods
    markers = {THETA_0: "o", **dict(zip(methods, itertools.cycle(_MARKERS), strict=False))}
    for row, (group, kind) in zip(axes, panels, strict=True):
        for axis, resource in zip(row, _COLUMNS, strict=True):
            _draw(axis, group, kind, resource, markers)
            name = "FLOPs" if resource == "flops" else resource
            axis.set_ylabel(f"{name} to 90 % of θ$_0$'s score", fontsize=9)
        row[0].set_title(group.titled(f"{KIND_WORDS[kind]} task"), fontsize=10, loc="left")
    handles = {
        label: handle for axis in axes[:, 0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        [handles[one] for one in markers], list(markers), loc="outside right upper", frameon=False, fontsize=9
    )
    figure.suptitle(attacks.mark("What the attacker pays, by tier"), fontsize=12)
    save_figure(figure, stem)


def _draw(axis: Axes, group: Group, kind: str, resource: str, markers: Mapping[str, str]) -> None:
    methods, tiers = [THETA_0, *group.methods], group.tiers
    values = {
        (method, tier): [math.inf if v is None else float(v) for v in tried.paid[resource]]
        for method in methods
        for tier in tiers
        if (tried := group.tried(method, kind, tier)) is not None
    }
    finite = [v for of in values.values() for v in of if math.isfinite(v)]
    never = _ABOVE * max(finite, default=1.0)
    places = np.linspace(-_WIDTH / 2, _WIDTH / 2, len(methods))
    for method, place in zip(methods, places, strict=True):
        x, y, low, high = [], [], [], []
        for index, tier in enumerate(tiers):
            if of := values.get((method, tier)):
                x.append(index + place)
                y.append(middle(of))
                low.append(min(of))
                high.append(min(max(of), never))
        colour = "#000000" if method == THETA_0 else style_of(method)[0]
        axis.vlines(x, np.minimum(low, never), high, color=colour, alpha=0.35, linewidth=2.5)
        for inside in (True, False):
            chosen = [(a, min(b, never)) for a, b in zip(x, y, strict=True) if math.isfinite(b) == inside]
            axis.plot(
                [a for a, _ in chosen],
                [b for _, b in chosen],
                markers[method],
                color=colour,
                markerfacecolor=colour if inside else "none",
                markersize=5.5,
                label=method if inside else None,
            )
    axis.axhline(never, color="#888888", linewidth=0.8, linestyle=":")
    axis.annotate("never", (1.0, never), xycoords=("axes fraction", "data"), fontsize=8, ha="right", va="bottom")
    axis.set(yscale="log", xticks=range(len(tiers)), xticklabels=tiers, xlim=(-0.5, len(tiers) - 0.5))
    axis.set_ylim(top=never * _ABOVE)
    for edge in range(1, len(tiers)):
        axis.axvline(edge - 0.5, color="#dddddd", linewidth=0.8)
    axis.grid(axis="y", alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
