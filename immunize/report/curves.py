"""Figures 1 and 3 of many runs: mean and range of a probe's norm ratio or accuracy, for every method."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from immunize.report.naming import PARTS, in_order, part_words, run_title
from immunize.report.runs import Runs, measured_on
from immunize.report.writing import save_as

if TYPE_CHECKING:
    import pandas as pd


CURVES, PROBES = "curves.csv", "probes.csv"
IDENTITY, THETA_0 = "identity", "theta_0"
_SAID = {THETA_0: "θ_0"}
"""What a legend calls a curve, where records have another word for it."""
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
    "contract": ("#AA4499", (0, (5, 1, 1, 1))),
    "simulated": ("#999933", (0, (8, 2))),
    "none": ("#7F7F7F", (0, (2, 2))),
    IDENTITY: ("#000000", (0, (1, 2.5))),
}
_OTHERS = (
    *(("#8C6D31", "-"), ("#332288", (0, (8, 2))), ("#117733", (0, (2, 1, 1, 1))), ("#882255", (0, (1, 2)))),
    *(("#DDCC77", (0, (4, 1))), ("#CC3311", (0, (2, 1)))),
)
_FAINT_BAND, _PROBE_BAND = 0.07, 0.12
"""Opacity of a band among many, and of a probe's."""

HOW = {
    "gd": "gradient descent, step 1/L",
    "least_squares": "gradient descent on the squared loss, step 1/L",
    "sgd": "SGD, batches of 256",
    "adam": "Adam, full batch",
}


def style_of(method: str, among: Sequence[str] = ()) -> tuple[str, Any]:
    """Colour and line of a method.

    Args:
        method: one of the package, or with a name of its own; of these up to six take turns, more share a colour scale.
        among: all that are drawn together: turns go by their order, and not by the name, which may give two the same.
    """
    if method == THETA_0:
        return STYLES[IDENTITY]
    others = [name for name in among if name not in STYLES]
    turn = others.index(method) if method in others else zlib.crc32(method.encode())
    if method in others and len(others) > len(_OTHERS):
        return to_hex(colormaps["turbo"](turn / (len(others) - 1))), "-"
    return STYLES.get(method) or _OTHERS[turn % len(_OTHERS)]


def norm_ratio_figures(bands: pd.DataFrame) -> dict[str, Figure]:
    """Fig. 1: a figure a part, norm ratio against probe steps, by the names of their files."""
    figures = {}
    for part in PARTS:
        title = f"norm ratio of a linear probe, {part}: mean and range of the runs"
        figures[f"norm_ratio_{part}"] = _panels(bands[bands["part"] == part], IDENTITY, _FAINT_BAND, title)
        _as_norm_ratios(figures[f"norm_ratio_{part}"].axes)
    return figures


def probe_figures(bands: pd.DataFrame) -> dict[str, Figure]:
    """Fig. 3: one figure a network, pair of data sets and optimizer, by the names of their files."""
    return {
        re.sub(r"[^A-Za-z0-9_]+", "_", "_".join(("probe", *map(str, place)))): probe_figure(shown)
        for place, shown in bands.groupby(["model", "data", "optimizer"], sort=False)
    }


def probe_figure(bands: pd.DataFrame) -> Figure:
    """Accuracy of a linear probe against its steps, D_H left and D_P right, the mean of the runs over their range.

    Args:
        bands: from :func:`immunize.report.curves.probe_bands`, of one network, pair of data sets and optimizer.
    """
    first = bands.iloc[0]
    how = HOW.get(first["optimizer"], first["optimizer"])
    title = f"{first['model']}, {first['data']}: probe by {how}"
    figure = _panels(bands, THETA_0, _PROBE_BAND, title, roles=("harmful", "pretrain"))
    for axis in figure.axes:
        axis.set(xscale="log", xlabel=f"steps {first['optimizer']}".strip(), ylabel="held-out accuracy, %")
        axis.set_ylim(bottom=0)
        if (batches := int(first["batches_per_epoch"])) > 1:
            top = axis.secondary_xaxis(
                "top", functions=(partial(np.multiply, 1 / batches), partial(np.multiply, batches))
            )
            top.set_xlabel("passes over the data")
    return figure


def _panels(
    bands: pd.DataFrame, before: str, opacity: float, title: str, roles: Sequence[str] = ("pretrain", "harmful")
) -> Figure:
    """A panel a task: the methods, ours on top, over what the probe makes of the features before any of them."""
    figure, axes = panels((9.5, 4.6), 1, 2)
    order = [*in_order(set(bands["extractor"]) - {before}), before]
    for axis, role in zip(axes.flat, roles, strict=True):
        for extractor in reversed(order):
            _draw(axis, bands[(bands["data_set"] == role) & (bands["extractor"] == extractor)], opacity)
        axis.set_title(TASKS[role])
        frameless(axis, alpha=0.3)
    handles = {str(line.get_label()): line for axis in figure.axes for line in axis.lines}
    labels = [label for one in order for label in handles if label.split(",")[0] == _SAID.get(one, one)]
    figure.legend([handles[label] for label in labels], labels, loc="outside lower center", ncols=4)
    figure.suptitle(f"{'REDUCED: ' if bands['reduced'].any() else ''}{title}", fontsize=11, parse_math=False)
    return figure


def _as_norm_ratios(axes: Sequence[Axes]) -> None:
    """Axes of Eq. (16) against steps: step 0 has no place on a log axis, the linear stretch below 1 gives it one."""
    for axis in axes:
        axis.set(xlabel="gradient-descent steps, exact line search", xscale="symlog", yscale="log")
        axis.set_xlim(left=0)
        axis.set_ylim(_FLOOR, 1.5)
    axes[1].tick_params(labelleft=False)
    axes[0].set_ylabel(r"norm ratio $\|w_t-w^*\|^2 / \|w_0-w^*\|^2$")


def _draw(axis: Axes, band: pd.DataFrame, opacity: float) -> None:
    if band.empty:
        return
    extractor, runs = str(band["extractor"].iloc[0]), int(band["runs"].iloc[0])
    colour, style = style_of(extractor)
    steps = band["step"].to_numpy(dtype=np.float64)
    # below the axis a band's edge would be clipped to nothing on the log scale
    low = np.maximum(band["low"].to_numpy(), SMALLEST)
    axis.fill_between(steps, low, band["high"].to_numpy(), color=colour, alpha=opacity, linewidth=0)
    label = f"{_SAID.get(extractor, extractor)}, {runs} run{'s' if runs > 1 else ''}"
    width = 2.4 if extractor == "ours" else 1.5
    axis.plot(steps, band["mean"].to_numpy(), color=colour, linestyle=style, linewidth=width, label=label)


SMALLEST = 1e-300
_POINT = ("step", "mean", "low", "high")
NORM_RATIOS = ("reduced", "part", "data_set", "extractor", "runs", *_POINT)
_OF_A_CURVE = ("data_set", "extractor", "runs", "batches_per_epoch")
PROBE_ACCURACIES = ("reduced", "model", "data", "optimizer", *_OF_A_CURVE, *_POINT)
"""Columns: whether the runs are those of a shortened experiment, what tells a curve apart, how many runs are in it,
steps in a pass over the data, and a point: accuracies in percent."""

Array = npt.NDArray[np.float64]
Draw = Callable[["pd.DataFrame"], dict[str, Figure]]
_Curve = Mapping[str, Any]


def norm_ratio_bands(settings: Sequence[Runs]) -> pd.DataFrame:
    """One curve a part, data set, and method; the identity's once a seed, whatever the method.

    Args:
        settings: the runs of linear extractors.

    Raises:
        ValueError: no finished run, or records without curves, as those of a `results.csv.gz`.
    """
    (runs,) = settings
    _check(runs)
    found = []
    for part in PARTS:
        once = {record["seed"]: record for record in reversed(measured_on(runs.finished, part))}
        for role, extractor, which, records in _each(runs, IDENTITY, once.values(), part):
            curves = [record["curves"]["norm_ratio"][part][role].get(which) for record in records]
            if drawn := [curve for curve in curves if curve is not None]:
                # the curve of a probe that converged to the last bit is shorter: it stays where it ended
                steps = max((curve["steps"] for curve in drawn), key=lambda of: of[-1])
                values = np.stack([_on_steps(curve, np.array(steps, dtype=np.float64)) for curve in drawn])
                found.append(_band((runs.reduced, part, role, extractor, len(drawn)), steps, values))
    return _table(found, NORM_RATIOS)


def probe_bands(settings: Sequence[Runs]) -> pd.DataFrame:
    """One band a network and pair, optimizer, data set, and method; θ_0's once a seed, whatever the method.

    Raises:
        ValueError: no finished run of one, records without curves, as those of a `results.csv.gz`, or curves of one
            band at different steps.
    """
    found = []
    for runs in settings:
        _check(runs)
        for optimizer in dict.fromkeys(name for record in runs.finished for name in record["curves"]["probe"]):
            for role, extractor, which, records in _each(runs, THETA_0, runs.once_a_seed):
                curves = [record["curves"]["probe"][optimizer][role][which] for record in records]
                if any(curve["steps"] != curves[0]["steps"] for curve in curves):
                    told = f"the probes by {optimizer} took different steps"
                    raise ValueError(f"{runs.model}, {runs.title}: {told}; report them apart")
                if curves:
                    place = (runs.reduced, runs.model, runs.title, optimizer, role, extractor, len(curves))
                    values = np.array([curve["accuracy"] for curve in curves], dtype=np.float64)
                    found.append(_band((*place, curves[0]["batches_per_epoch"]), curves[0]["steps"], values))
    return _table(found, PROBE_ACCURACIES)


LINES: dict[str, tuple[str, Sequence[str], Callable[[Sequence[Runs]], pd.DataFrame], Draw]] = {
    "fig1": (CURVES, NORM_RATIOS, norm_ratio_bands, norm_ratio_figures),
    "fig3": (PROBES, PROBE_ACCURACIES, probe_bands, probe_figures),
}
"""The file with the numbers of a figure's lines, its columns, what gathers and what draws them."""


def csv_of(bands: pd.DataFrame) -> str:
    """The numbers of a figure, a line a point."""
    told = bands.assign(reduced=bands["reduced"].map(lambda reduced: str(reduced).lower()))
    return str(told.to_csv(index=False, lineterminator="\n"))


def read_bands(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """What :func:`csv_of` told.

    Args:
        path: of the CSV.
        columns: `NORM_RATIOS` or `PROBE_ACCURACIES`.

    Raises:
        ValueError: other columns, or a value that is not a number.
    """
    import pandas as pd

    bands = pd.read_csv(path, converters=dict.fromkeys(("mean", "low", "high"), float))
    if tuple(bands.columns) != tuple(columns):
        raise ValueError(f"{path} needs the columns {', '.join(columns)}")
    return bands


def _check(runs: Runs) -> None:
    runs.check_finished()
    if not all("curves" in record for record in runs.finished):
        raise ValueError("the records hold no curves; give the folder of the runs themselves")


def _each(runs: Runs, before: str, once: Iterable[_Curve], part: str = "fit") -> Iterator[tuple[Any, ...]]:
    """Task, method or what was there before any, what a record calls its curve, and the records: a band each."""
    for role in TASKS:
        for extractor, records in {**{m: runs.of_method(m, part) for m in runs.methods}, before: once}.items():
            yield role, extractor, before if extractor == before else "immunized", records


def _band(place: tuple[Any, ...], steps: Sequence[int], values: Array) -> list[tuple[Any, ...]]:
    points = zip(map(int, steps), values.mean(axis=0), values.min(axis=0), values.max(axis=0), strict=True)
    return [(*place, *point) for point in points]


def _table(found: Sequence[list[tuple[Any, ...]]], columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([point for band in found for point in band], columns=list(columns))


def _on_steps(curve: _Curve, steps: Array) -> Array:
    """The norm ratio at these steps, where they are not its own by interpolation of log ratio against log(1 + step)."""
    if curve["steps"] == steps.tolist():
        return np.array(curve["ratio"], dtype=np.float64)
    ratio = np.log(np.maximum(np.array(curve["ratio"], dtype=np.float64), SMALLEST))
    return np.exp(np.interp(np.log1p(steps), np.log1p(np.array(curve["steps"], dtype=np.float64)), ratio))


# Blue and orange of the Okabe-Ito palette: distinct in print and for colour-blind readers.
_COLOURS = {"immunized": "#0072B2", "identity": "#E69F00"}
TASKS = {"pretrain": "pre-training task $D_P$", "harmful": "harmful task $D_H$"}


def norm_ratio_figure(record: dict[str, Any], path: Path) -> None:
    """Write :func:`draw_norm_ratio` as a PNG."""
    save_as(draw_norm_ratio(record), path, dpi=150)


def draw_norm_ratio(record: dict[str, Any]) -> Figure:
    """Fig. 1 of the paper for one run: norm ratio against probe steps, D_P and D_H, θ and the identity.

    Args:
        record: with `curves.norm_ratio.<part>.<data set>.<extractor>` = {"steps": [...], "ratio": [...]}.
    """
    figure = Figure(figsize=(9, 3.6))  # margins by hand: to find them takes as long as to draw
    axes = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.08, right=0.99, bottom=0.21, top=0.83, wspace=0.04)
    curves = record["curves"]["norm_ratio"]
    for axis, (name, title) in zip(axes, TASKS.items(), strict=True):
        for part, style in (("fit", "-"), ("held_out", "--"), ("validation", "--")):
            for which, curve in curves.get(part, {}).get(name, {}).items():
                if curve is not None:
                    label = f"{which}, {part_words(part)}"
                    axis.plot(curve["steps"], curve["ratio"], style, color=_COLOURS[which], label=label)
        axis.set_title(title)
        axis.grid(alpha=0.3)
    _as_norm_ratios(axes)
    drawn = [axis for axis in axes if axis.lines]  # a task with nothing to learn has no curve
    if drawn:
        figure.legend(*drawn[-1].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(run_title(record), parse_math=False)
    return figure


def panels(size: tuple[float, float], rows: int, columns: int, **shared: Any) -> tuple[Figure, npt.NDArray[Any]]:
    """A figure of so many inches, and its axes by row and column."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def frameless(axis: Axes, /, **grid: Any) -> None:
    """A grid, and no frame but the two axes."""
    axis.grid(**grid)
    axis.spines[["top", "right"]].set_visible(False)
