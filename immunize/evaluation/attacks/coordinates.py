"""A task in the principal axes of its training rows, for attacks whose result does not depend on the basis.

Both are kept with the task, so that the attacks on it share them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.factoring import Array, Axes, both_axes
from immunize.evaluation.attacks.protocol import AttackData
from immunize.evaluation.attacks.scoring import target_matrix

__all__ = ["Principal", "pass_over", "principal"]


@dataclass(frozen=True)
class Principal:
    """A task in other coordinates.

    Attributes:
        axes: principal axes of its training rows, (x - m)V = UΣ.
        data: the task with rows (x - m)V, (·, k).
        targets: (k, C) UᵀY, of the training targets less `offset`.
        offset: (C,) their mean if m is that of the rows, else zeros.
        seconds: what the products (x - m)V took.
    """

    axes: Axes
    data: AttackData
    targets: Array
    offset: Array
    seconds: float


def principal(data: AttackData, *, centred: bool = False) -> Principal:
    """The task in the principal axes of its training rows, about zero or about their mean.

    What has made rows of mean zero, and knows their axes by that, leaves these and the task in them in
    `data.kept["axes"]`.
    """
    kept: dict[bool, Principal] = data.kept.setdefault("principal", {})
    if centred not in kept:
        seconds, other = 0.0, kept.get(not centred)
        if "axes" in data.kept:
            axes, seen = data.kept["axes"]
        else:
            if "both axes" not in data.kept:
                data.kept["both axes"] = both_axes(data.train.x)
            axes = data.kept["both axes"][centred]
            if other and other.axes is axes:
                seen, seconds = other.data, other.seconds
            else:
                started = time.perf_counter()
                seen = data.mapped(axes.coordinates)
                seconds = time.perf_counter() - started
        y = target_matrix(data, data.train)
        offset = y.mean(axis=0) if centred else np.zeros(y.shape[1])
        with np.errstate(invalid="ignore"):  # rows of zeros
            targets = seen.train.x.T @ (y - offset) / axes.sigma[:, None]
        kept[centred] = Principal(axes, seen, targets, offset, seconds)
    return kept[centred]


def pass_over(data: AttackData) -> Cost:
    """One step of an attacker who takes a gradient over all rows, as they are: rows, FLOPs, the shortest time of three.

    What attacks in principal axes charge for a step, which is quicker for us than for an attacker without them.
    """
    if "pass" not in data.kept:
        x, w, seconds = data.train.x, np.zeros((data.n_features, data.n_outputs)), []
        for _ in range(3):
            started = time.perf_counter()
            x.T @ (x @ w)
            seconds.append(time.perf_counter() - started)
        data.kept["pass"] = Cost(1, min(seconds), len(x), 4.0 * x.size * data.n_outputs)
    cost: Cost = data.kept["pass"]
    return cost
