"""Figure 3: accuracy of a linear probe against its steps, D_H left and D_P right; of many runs, and of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from immunize.report.curves import style_of
from immunize.report.deep.probe_curves import THETA_0, ProbeBand
from immunize.report.figures import TASKS, save_figure
from immunize.report.naming import in_order

__all__ = ["probe_figure", "probe_figures"]

HOW = {
    "gd": "gradient descent, step 1/L",
    "least_squares": "gradient descent on the squared loss, step 1/L",
    "sgd": "SGD, batches of 256",
    "adam": "Adam, full batch",
}
_THETA_0_STYLE = ("#000000", (0, (1, 2.5)))
_BAND = 0.12
_ROLES = ("harmful", "pretrain")


def probe_figures(bands: Sequence[ProbeBand], out: Path) -> list[str]:
    """One figure a network, pair of data sets and optimizer; returns the files' names without suffix."""
    keys = dict.fromkeys((b.model, b.data, b.optimizer) for b in bands)
    names = []
    for model, data, optimizer in keys:
        shown = [b for b in bands if (b.model, b.data, b.optimizer) == (model, data, optimizer)]
        name = re.sub(r"[^A-Za-z0-9_]+", "_", f"probe_{model}_{data}_{optimizer}")
        save_figure(probe_figure(shown), out / name)
        names.append(name)
    return names


def probe_figure(bands: Sequence[ProbeBand]) -> Figure:
    """Accuracy against steps, the mean of the runs over their range.

    Args:
        bands: of one network, pair of data sets and optimizer.
    """
    first = bands[0]
    order = [*in_order({b.extractor for b in bands} - {THETA_0}), THETA_0]
    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, role in zip(axes, _ROLES, strict=True):
        shown = {b.extractor: b for b in bands if b.data_set == role}
        for extractor in reversed([one for one in order if one in shown]):  # ours on top
            band = shown[extractor]
            colour, style = _THETA_0_STYLE if extractor == THETA_0 else style_of(extractor)
            axis.fill_between(band.steps, band.low, band.high, color=colour, alpha=_BAND, linewidth=0)
            label = f"{'θ_0' if extractor == THETA_0 else extractor}, {band.runs} run{'s' if band.runs > 1 else ''}"
            width = 2.4 if extractor == "ours" else 1.5
            axis.plot(band.steps, band.mean, color=colour, linestyle=style, linewidth=width, label=label)
        _set_up(axis, role, first.optimizer, first.batches_per_epoch)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=4)
    mark = "REDUCED: " if first.reduced else ""
    figure.suptitle(
        f"{mark}{first.model}, {first.data}: probe by {HOW.get(first.optimizer, first.optimizer)}", fontsize=11
    )
    return figure


def _set_up(axis: Axes, role: str, optimizer: str, batches_per_epoch: int) -> None:
    axis.set(xscale="log", title=TASKS[role], xlabel=f"steps {optimizer}".strip(), ylabel="held-out accuracy, %")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    if batches_per_epoch > 1:
        top = axis.secondary_xaxis("top", functions=(_times(1 / batches_per_epoch), _times(batches_per_epoch)))
        top.set_xlabel("passes over the data")


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda values: np.asarray(values) * factor
