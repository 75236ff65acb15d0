"""Figure 1 for many runs: the probe's norm ratio on D_P and D_H, every method and the identity, mean and range.

The data of the figure are a CSV beside it (:mod:`~immunize.report.bands`), from which it can be drawn again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from immunize.report.conventions import PARTS
from immunize.report.figures import STEPS_LABEL, TASKS, save_figure
from immunize.report.naming import in_order
from immunize.report.runs import Runs, measured_on

__all__ = [
    "CURVES",
    "IDENTITY",
    "STYLES",
    "BandCurve",
    "curves_by_method_figure",
    "curves_figure",
    "curves_of",
    "style_of",
]

CURVES = "curves.csv"
IDENTITY = "identity"
_FLOOR, _SMALLEST = 1e-4, 1e-300

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
    "none": ("#7F7F7F", (0, (2, 2))),
    IDENTITY: ("#000000", (0, (1, 2.5))),
}
_OTHERS = (("#8C6D31", "-"), ("#332288", (0, (8, 2))), ("#117733", (0, (2, 1, 1, 1))), ("#882255", (0, (1, 2))))
_FAINT_BAND, _CLEAR_BAND = 0.07, 0.25
"""Opacity of a band among many, and of one on its own."""

Array = npt.NDArray[np.float64]


def style_of(method: str) -> tuple[str, Any]:
    """Colour and line of a method; of those from outside the package four take turns by their names."""
    return STYLES.get(method) or _OTHERS[zlib.crc32(method.encode()) % len(_OTHERS)]


@dataclass(frozen=True)
class BandCurve:
    """A norm-ratio curve over several runs.

    Attributes:
        reduced: the runs are those of a shortened experiment.
        part: "fit" or "held_out".
        data_set: "pretrain" or "harmful".
        extractor: a method, or "identity".
        runs: how many curves are in it.
        steps: (T,) ascending.
        mean: (T,) over runs.
        low: (T,) smallest of the runs.
        high: (T,) largest of the runs.
    """

    reduced: bool
    part: str
    data_set: str
    extractor: str
    runs: int
    steps: Array
    mean: Array
    low: Array
    high: Array


def curves_of(runs: Runs) -> list[BandCurve]:
    """One curve a part, data set, and method; the identity's once a seed, whatever the method.

    Raises:
        ValueError: records without curves, as those of a `results.csv.gz`.
    """
    runs.check_finished()
    if not all("curves" in record for record in runs.finished):
        raise ValueError("the records hold no curves; give the folder of the runs themselves")
    result = []
    for part in PARTS:
        for role in TASKS:
            once = {record["seed"]: record for record in reversed(measured_on(runs.finished, part))}
            sources: dict[str, Iterable[dict[str, Any]]] = {m: runs.of_method(m, part) for m in runs.methods}
            for extractor, records in {**sources, IDENTITY: once.values()}.items():
                which = "identity" if extractor == IDENTITY else "immunized"
                found = [record["curves"]["norm_ratio"][part][role].get(which) for record in records]
                if drawn := [curve for curve in found if curve is not None]:
                    result.append(_band((runs.reduced, part, role, extractor), drawn))
    return result


def curves_figure(curves: Sequence[BandCurve], part: str, stem: Path) -> None:
    """Fig. 1: norm ratio against probe steps, D_P left and D_H right, the mean of the runs over their range.

    Args:
        curves: of both parts.
        part: "fit" or "held_out".
        stem: path of the files without suffix; a PNG and a PDF are written.
    """
    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    order = [*in_order({c.extractor for c in curves} - {IDENTITY}), IDENTITY]
    for axis, (role, name) in zip(axes, TASKS.items(), strict=True):
        shown = {c.extractor: c for c in curves if (c.part, c.data_set) == (part, role)}
        for extractor in reversed([one for one in order if one in shown]):  # ours on top
            _draw(axis, shown[extractor], band=_FAINT_BAND)
        _set_up(axis)
        axis.set(title=name, xlabel=STEPS_LABEL)
    axes[0].set_ylabel(r"norm ratio $\|w_t-w^*\|^2 / \|w_0-w^*\|^2$")
    handles = {line.get_label(): line for axis in axes for line in axis.lines}
    labels = [label for one in order for label in handles if str(label).split(",")[0] == one]
    figure.legend([handles[label] for label in labels], list(map(str, labels)), loc="outside lower center", ncols=4)
    figure.suptitle(_title(curves, part), fontsize=11)
    save_figure(figure, stem)


def curves_by_method_figure(curves: Sequence[BandCurve], part: str, stem: Path) -> None:
    """The same, one column a method beside the identity, so that the ranges over the runs can be told apart.

    Args:
        curves: of both parts.
        part: "fit" or "held_out".
        stem: path of the files without suffix; a PNG and a PDF are written.
    """
    methods = in_order({c.extractor for c in curves} - {IDENTITY})
    figure = Figure(figsize=(1.9 * len(methods) + 0.6, 4.6), layout="constrained")
    axes = figure.subplots(2, len(methods), sharex=True, sharey=True, squeeze=False)
    for row, role in zip(axes, TASKS, strict=True):
        shown = {c.extractor: c for c in curves if (c.part, c.data_set) == (part, role)}
        for axis, method in zip(row, methods, strict=True):
            for extractor in (IDENTITY, method):
                if extractor in shown:
                    _draw(axis, shown[extractor], band=_CLEAR_BAND)
            _set_up(axis)
            axis.set_xticks([0, 10, 1000])
        row[0].set_ylabel({"pretrain": "$D_P$", "harmful": "$D_H$"}[role] + ", norm ratio")
    for axis, method in zip(axes[0], methods, strict=True):
        axis.set_title(method, fontsize=10)
    figure.supxlabel(STEPS_LABEL, fontsize=10)
    figure.suptitle(_title(curves, part) + "; dotted: the identity", fontsize=11)
    save_figure(figure, stem)


def _title(curves: Sequence[BandCurve], part: str) -> str:
    mark = "REDUCED: " if any(c.reduced for c in curves) else ""
    return f"{mark}norm ratio of a linear probe, {part}: mean and range of the runs"


def _set_up(axis: Axes) -> None:
    # step 0 has no place on a log axis, the linear stretch below 1 gives it one
    axis.set(xscale="symlog", yscale="log")
    axis.set_xlim(left=0)
    axis.set_ylim(_FLOOR, 1.5)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _draw(axis: Axes, curve: BandCurve, band: float) -> None:
    colour, style = style_of(curve.extractor)
    width = 2.4 if curve.extractor == "ours" else 1.5
    # below the axis a band's edge would be clipped to nothing on the log scale
    low = np.maximum(curve.low, _SMALLEST)
    axis.fill_between(curve.steps, low, curve.high, color=colour, alpha=band, linewidth=0)
    axis.plot(curve.steps, curve.mean, color=colour, linestyle=style, linewidth=width, label=_label(curve))


def _label(curve: BandCurve) -> str:
    return f"{curve.extractor}, {curve.runs} run{'s' if curve.runs > 1 else ''}"


def _band(which: tuple[bool, str, str, str], curves: Sequence[dict[str, Any]]) -> BandCurve:
    # the curve of a probe that converged to the last bit is shorter: it stays where it ended
    steps = np.array(max((curve["steps"] for curve in curves), key=lambda s: s[-1]), dtype=np.float64)
    ratios = np.stack([_on_steps(curve, steps) for curve in curves])
    return BandCurve(*which, len(curves), steps, ratios.mean(axis=0), ratios.min(axis=0), ratios.max(axis=0))


def _on_steps(curve: dict[str, Any], steps: Array) -> Array:
    """The norm ratio at these steps, where they are not its own by interpolation of log ratio against log(1 + step)."""
    if curve["steps"] == steps.tolist():
        return np.array(curve["ratio"], dtype=np.float64)
    ratio = np.log(np.maximum(np.array(curve["ratio"], dtype=np.float64), _SMALLEST))
    return np.exp(np.interp(np.log1p(steps), np.log1p(np.array(curve["steps"], dtype=np.float64)), ratio))
