"""Figure 3 in numbers: a probe's accuracy against its steps, mean and range over the runs of every method and of θ_0.

They are a CSV beside the figure (:mod:`~immunize.report.bands`), from which it can be drawn again. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from immunize.report.deep.settings import DeepSetting
from immunize.report.figures import TASKS

__all__ = ["PROBES", "THETA_0", "ProbeBand", "probe_bands"]

PROBES = "probes.csv"
THETA_0 = "theta_0"

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ProbeBand:
    """Accuracy of a probe over several runs.

    Attributes:
        reduced: the runs are those of a shortened experiment.
        model: the network.
        data: the two data sets.
        optimizer: of the probe.
        data_set: "pretrain" or "harmful".
        extractor: a method, or "theta_0".
        runs: how many curves are in it.
        batches_per_epoch: steps in a pass over the data.
        steps: (T,) ascending.
        mean: (T,) over runs, percent.
        low: (T,) smallest of the runs.
        high: (T,) largest of the runs.
    """

    reduced: bool
    model: str
    data: str
    optimizer: str
    data_set: str
    extractor: str
    runs: int
    batches_per_epoch: int
    steps: Array
    mean: Array
    low: Array
    high: Array


def probe_bands(settings: Sequence[DeepSetting]) -> list[ProbeBand]:
    """One band a setting, optimizer, data set, and method; θ_0's once a seed, whatever the method.

    Raises:
        ValueError: a setting without a finished run, records without curves, as those of a `results.csv.gz`, or curves
            of one band at different steps.
    """
    found = []
    for one in settings:
        one.runs.check_finished()
        if not all("curves" in record for record in one.runs.finished):
            raise ValueError("the records hold no curves; give the folder of the runs themselves")
        once = {record["seed"]: record for record in one.runs.finished}
        sources = {method: one.runs.of_method(method) for method in one.runs.methods} | {THETA_0: [*once.values()]}
        optimizers = dict.fromkeys(name for record in one.runs.finished for name in record["curves"]["probe"])
        for optimizer in optimizers:
            for role in TASKS:
                for extractor, records in sources.items():
                    which = THETA_0 if extractor == THETA_0 else "immunized"
                    if curves := [record["curves"]["probe"][optimizer][role][which] for record in records]:
                        found.append(_band(one, optimizer, role, extractor, curves))
    return found


def _band(one: DeepSetting, optimizer: str, role: str, extractor: str, curves: Sequence[dict[str, Any]]) -> ProbeBand:
    first = curves[0]
    if any(curve["steps"] != first["steps"] for curve in curves):
        raise ValueError(f"{one.model}, {one.title}: the probes by {optimizer} took different steps; report them apart")
    accuracy = np.array([curve["accuracy"] for curve in curves], dtype=np.float64)
    return ProbeBand(
        *(one.runs.reduced, one.model, one.title, optimizer, role, extractor),
        runs=len(curves),
        batches_per_epoch=first["batches_per_epoch"],
        steps=np.array(first["steps"], dtype=np.float64),
        mean=accuracy.mean(axis=0),
        low=accuracy.min(axis=0),
        high=accuracy.max(axis=0),
    )
