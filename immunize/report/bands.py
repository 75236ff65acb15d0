"""Curves over several runs as a table: mean, smallest and largest at each step, for every method and what it began as.

They are a CSV beside the figure, from which it can be drawn again (:mod:`immunize.report.curves`). No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from immunize.files import write_text
from immunize.report.conventions import PARTS
from immunize.report.figures import TASKS
from immunize.report.runs import NetworkSetting, Runs, measured_on

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CURVES",
    "IDENTITY",
    "NORM_RATIOS",
    "PROBES",
    "PROBE_ACCURACIES",
    "THETA_0",
    "norm_ratio_bands",
    "probe_bands",
    "read_bands",
    "write_bands",
]

CURVES, PROBES = "curves.csv", "probes.csv"
IDENTITY, THETA_0 = "identity", "theta_0"
SMALLEST = 1e-300
_POINT = ("step", "mean", "low", "high")
NORM_RATIOS = ("reduced", "part", "data_set", "extractor", "runs", *_POINT)
PROBE_ACCURACIES = (
    "reduced",
    "model",
    "data",
    "optimizer",
    "data_set",
    "extractor",
    "runs",
    "batches_per_epoch",
    *_POINT,
)
"""Columns: whether the runs are those of a shortened experiment, what tells a curve apart, how many runs are in it,
steps in a pass over the data, and a point: accuracies in percent."""

Array = npt.NDArray[np.float64]
_Curve = Mapping[str, Any]


def norm_ratio_bands(runs: Runs) -> pd.DataFrame:
    """One curve a part, data set, and method; the identity's once a seed, whatever the method.

    Raises:
        ValueError: records without curves, as those of a `results.csv.gz`.
    """
    _check(runs)
    found = []
    for part in PARTS:
        for role in TASKS:
            once = {record["seed"]: record for record in reversed(measured_on(runs.finished, part))}
            sources: dict[str, Iterable[_Curve]] = {m: runs.of_method(m, part) for m in runs.methods}
            for extractor, records in {**sources, IDENTITY: once.values()}.items():
                which = IDENTITY if extractor == IDENTITY else "immunized"
                curves = [record["curves"]["norm_ratio"][part][role].get(which) for record in records]
                if drawn := [curve for curve in curves if curve is not None]:
                    # the curve of a probe that converged to the last bit is shorter: it stays where it ended
                    steps = max((curve["steps"] for curve in drawn), key=lambda of: of[-1])
                    values = np.stack([_on_steps(curve, np.array(steps, dtype=np.float64)) for curve in drawn])
                    found.append(_band((runs.reduced, part, role, extractor, len(drawn)), steps, values))
    return _table(found, NORM_RATIOS)


def probe_bands(settings: Sequence[NetworkSetting]) -> pd.DataFrame:
    """One band a setting, optimizer, data set, and method; θ_0's once a seed, whatever the method.

    Raises:
        ValueError: a setting without a finished run, records without curves, as those of a `results.csv.gz`, or curves
            of one band at different steps.
    """
    found = []
    for one in settings:
        _check(one.runs)
        once = {record["seed"]: record for record in one.runs.finished}
        sources = {method: one.runs.of_method(method) for method in one.runs.methods} | {THETA_0: [*once.values()]}
        for optimizer in dict.fromkeys(name for record in one.runs.finished for name in record["curves"]["probe"]):
            for role in TASKS:
                for extractor, records in sources.items():
                    which = THETA_0 if extractor == THETA_0 else "immunized"
                    curves = [record["curves"]["probe"][optimizer][role][which] for record in records]
                    if any(curve["steps"] != curves[0]["steps"] for curve in curves):
                        told = f"the probes by {optimizer} took different steps"
                        raise ValueError(f"{one.model}, {one.title}: {told}; report them apart")
                    if curves:
                        place = (one.runs.reduced, one.model, one.title, optimizer, role, extractor, len(curves))
                        values = np.array([curve["accuracy"] for curve in curves], dtype=np.float64)
                        found.append(_band((*place, curves[0]["batches_per_epoch"]), curves[0]["steps"], values))
    return _table(found, PROBE_ACCURACIES)


def write_bands(bands: pd.DataFrame, path: Path) -> None:
    """The numbers of a figure, a line a point."""
    told = bands.assign(reduced=bands["reduced"].map(lambda reduced: str(reduced).lower()))
    write_text(path, told.to_csv(index=False, lineterminator="\n"))


def read_bands(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """What :func:`write_bands` wrote.

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
