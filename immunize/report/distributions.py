"""How RIR is distributed over pairs of data sets, one box a method, from records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from immunize.report.cells import summary_of
from immunize.report.figures import save_figure
from immunize.report.published import Published, find
from immunize.report.runs import Runs

__all__ = ["distribution_figure"]

_BOX, _POINT, _PAPER = "#56B4E9", "#333333", "#D55E00"  # Okabe-Ito


def distribution_figure(
    runs: Runs, wheres: Sequence[tuple[str, str]], published: Sequence[Published], title: str, stem: Path
) -> None:
    """Box and points of the pairs' mean RIR over seeds, a panel a part and estimator, log axis.

    The box goes from quartile to quartile with the median in it, the whiskers to the smallest and the largest pair.

    Args:
        runs: with more than one pair.
        wheres: (part, estimator) of the panels.
        published: the paper's mean RIR is marked where the estimator is its own.
        title: of the figure.
        stem: path of the files without suffix; a PNG and a PDF are written.
    """
    figure = Figure(figsize=(4.1 * len(wheres), 4.4), layout="constrained")
    axes = figure.subplots(1, len(wheres), squeeze=False)[0]
    methods = runs.methods
    for axis, (part, estimator) in zip(axes, wheres, strict=True):
        for place, method in enumerate(methods):
            by_pair = runs.numbers(method, part, estimator, "rir")
            means = [s.mean for v in by_pair.values() if (s := summary_of([v])) is not None]
            _draw(axis, place, means)
            if (estimator, part) == ("released", "fit") and (theirs := find(published, method, "rir")) is not None:
                axis.plot(place, theirs.value, "D", color=_PAPER, markersize=6, markeredgecolor="black", zorder=4)
        axis.axhline(1, color="black", linewidth=0.8, linestyle="--", zorder=0)
        axis.set(yscale="log", title=f"`{estimator}` on `{part}`".replace("`", ""), xlim=(-0.6, len(methods) - 0.4))
        axis.set_xticks(range(len(methods)), methods, rotation=40, ha="right", rotation_mode="anchor")
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("RIR of a pair, mean over seeds")
    handles = [Line2D([], [], color="black", linewidth=0.8, linestyle="--", label="RIR = 1")]
    if any(p.quantity == "rir" for p in published) and ("fit", "released") in wheres:
        paper = Line2D([], [], color=_PAPER, marker="D", linestyle="none", markeredgecolor="black")
        paper.set_label("mean in the paper")
        handles.append(paper)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(title, fontsize=12)
    save_figure(figure, stem)


def _draw(axis: Axes, place: int, means: Sequence[float]) -> None:
    if not means:
        return
    axis.boxplot(
        [list(means)],
        positions=[place],
        widths=0.62,
        whis=(0, 100),
        patch_artist=True,
        boxprops={"facecolor": _BOX, "alpha": 0.45, "linewidth": 0.8},
        medianprops={"color": "black", "linewidth": 1.6},
        whiskerprops={"linewidth": 0.8},
        capprops={"linewidth": 0.8},
        manage_ticks=False,
    )
    # spread sideways by rank, so that pairs of equal RIR do not cover each other
    aside = 0.2 * np.sin(2.4 * np.arange(len(means)))
    axis.plot(place + aside, np.sort(means), ".", color=_POINT, markersize=2.6, alpha=0.55, zorder=3)
