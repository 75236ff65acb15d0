"""Figures 1 and 3 of many runs: mean and range of a probe's norm ratio or accuracy, for every method."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from immunize.report.bands import IDENTITY, SMALLEST, THETA_0
from immunize.report.figures import STEPS_LABEL, TASKS, save_figure
from immunize.report.naming import in_order

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["STYLES", "curves_figure", "probe_figure", "probe_figures", "style_of"]

_FLOOR = 1e-4

# Okabe-Ito, dark to light along the order of the tables as far as it goes; line styles tell them apart in grey.
STYLES: dict[str, tuple[str, Any]] = {
    "ours": ("#0072B2", "-"),
    "closed_form": ("#D55E00", (0, (6, 1.5))),
    "opt_kappa": ("#009E73", (0, (4, 1.5, 1, 1.5))),
    "imma": ("#CC79A7", (0, (1, 1))),
    "ill_only": ("#E69F00", (0, (3, 1))),
    "well_only": ("#56B4E9", (0, (6, 1, 1, 1, 1, 1))),
    "erase": ("#661100", (0, (9, 1.5, 2, 1.5))),
    "censor": ("#44AA99", (0, (3, 1, 3, 1, 1, 1))),
    "simulated": ("#999933", (0, (8, 2))),
    "none": ("#7F7F7F", (0, (2, 2))),
    IDENTITY: ("#000000", (0, (1, 2.5))),
}
_OTHERS = (("#8C6D31", "-"), ("#332288", (0, (8, 2))), ("#117733", (0, (2, 1, 1, 1))), ("#882255", (0, (1, 2))))
_FAINT_BAND, _PROBE_BAND = 0.07, 0.12
"""Opacity of a band among many, and of a probe's."""

HOW = {
    "gd": "gradient descent, step 1/L",
    "least_squares": "gradient descent on the squared loss, step 1/L",
    "sgd": "SGD, batches of 256",
    "adam": "Adam, full batch",
}


def style_of(method: str) -> tuple[str, Any]:
    """Colour and line of a method; of those from outside the package four take turns by their names."""
    if method == THETA_0:
        return STYLES[IDENTITY]
    return STYLES.get(method) or _OTHERS[zlib.crc32(method.encode()) % len(_OTHERS)]


def curves_figure(bands: pd.DataFrame, part: str) -> Figure:
    """Fig. 1: norm ratio against probe steps, D_P left and D_H right, the mean of the runs over their range.

    Args:
        bands: from :func:`immunize.report.bands.norm_ratio_bands`.
        part: "fit" or "held_out".
    """
    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    order = [*in_order(set(bands["extractor"]) - {IDENTITY}), IDENTITY]
    shown = bands[bands["part"] == part]
    for axis, (role, name) in zip(axes, TASKS.items(), strict=True):
        for extractor in reversed(order):  # ours on top
            _draw(axis, shown[(shown["data_set"] == role) & (shown["extractor"] == extractor)], _FAINT_BAND)
        _set_up(axis)
        axis.set(title=name, xlabel=STEPS_LABEL)
    axes[0].set_ylabel(r"norm ratio $\|w_t-w^*\|^2 / \|w_0-w^*\|^2$")
    handles = {line.get_label(): line for axis in axes for line in axis.lines}
    labels = [label for one in order for label in handles if str(label).split(",")[0] == one]
    figure.legend([handles[label] for label in labels], list(map(str, labels)), loc="outside lower center", ncols=4)
    figure.suptitle(_title(bands, part), fontsize=11)
    return figure


def probe_figures(bands: pd.DataFrame, out: Path) -> list[str]:
    """Fig. 3: one figure a network, pair of data sets and optimizer; returns the files' names without suffix."""
    names = []
    for place, shown in bands.groupby(["model", "data", "optimizer"], sort=False):
        names.append(re.sub(r"[^A-Za-z0-9_]+", "_", "_".join(("probe", *map(str, place)))))
        save_figure(probe_figure(shown), out / names[-1])
    return names


def probe_figure(bands: pd.DataFrame) -> Figure:
    """Accuracy of a linear probe against its steps, D_H left and D_P right, the mean of the runs over their range.

    Args:
        bands: from :func:`immunize.report.bands.probe_bands`, of one network, pair of data sets and optimizer.
    """
    first = bands.iloc[0]
    order = [*in_order(set(bands["extractor"]) - {THETA_0}), THETA_0]
    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, role in zip(axes, ("harmful", "pretrain"), strict=True):
        for extractor in reversed(order):  # ours on top
            shown = bands[(bands["data_set"] == role) & (bands["extractor"] == extractor)]
            _draw(axis, shown, _PROBE_BAND, "θ_0" if extractor == THETA_0 else extractor)
        name = f"steps {first['optimizer']}".strip()
        axis.set(xscale="log", title=TASKS[role], xlabel=name, ylabel="held-out accuracy, %")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if (batches := int(first["batches_per_epoch"])) > 1:
            top = axis.secondary_xaxis("top", functions=(_times(1 / batches), _times(batches)))
            top.set_xlabel("passes over the data")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=4)
    mark = "REDUCED: " if first["reduced"] else ""
    how = HOW.get(first["optimizer"], first["optimizer"])
    figure.suptitle(f"{mark}{first['model']}, {first['data']}: probe by {how}", fontsize=11)
    return figure


def _title(bands: pd.DataFrame, part: str) -> str:
    mark = "REDUCED: " if bands["reduced"].any() else ""
    return f"{mark}norm ratio of a linear probe, {part}: mean and range of the runs"


def _set_up(axis: Axes) -> None:
    # step 0 has no place on a log axis, the linear stretch below 1 gives it one
    axis.set(xscale="symlog", yscale="log")
    axis.set_xlim(left=0)
    axis.set_ylim(_FLOOR, 1.5)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _draw(axis: Axes, band: pd.DataFrame, opacity: float, name: str | None = None) -> None:
    if band.empty:
        return
    extractor, runs = str(band["extractor"].iloc[0]), int(band["runs"].iloc[0])
    colour, style = style_of(extractor)
    steps = band["step"].to_numpy(dtype=np.float64)
    # below the axis a band's edge would be clipped to nothing on the log scale
    low = np.maximum(band["low"].to_numpy(), SMALLEST) if name is None else band["low"].to_numpy()
    axis.fill_between(steps, low, band["high"].to_numpy(), color=colour, alpha=opacity, linewidth=0)
    label = f"{name or extractor}, {runs} run{'s' if runs > 1 else ''}"
    width = 2.4 if extractor == "ours" else 1.5
    axis.plot(steps, band["mean"].to_numpy(), color=colour, linestyle=style, linewidth=width, label=label)


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda values: np.asarray(values) * factor
