"""T3: features repaired from the statistics of the attacker's own training rows, then an ordinary probe on them.

centre        less the mean
standardize   less the mean, over the standard deviation of each feature
normalize     each row divided by its length
whiten        principal components over the root of their variance; those below a share of the largest are left out

The repair is one pass over the rows before the first step: its cost stands before that of every candidate.

Shapes: N samples, D features, k components.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import principal
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.factoring import Axes, principal_axes
from immunize.evaluation.attacks.inner import check_inner, run_inner
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome, Predict

__all__ = ["REPAIRS", "Repaired"]

ROUNDING = 1e-12
"""Spreads and lengths below this share of the largest are rounding; they are not blown up."""


@dataclass(frozen=True, kw_only=True)
class Repaired(Attack):
    """A repair, then each of the inner attacks with an equal share of the budget.

    Attributes:
        repair: one of `REPAIRS`.
        floors: of "whiten" alone: shares of the largest variance below which a component is left out; a grid.
        inner: attacks on the repaired features, by name.

    Raises:
        UserError: an unknown repair, an empty grid, or no inner attack.
    """

    repair: str
    inner: Mapping[str, Attack]
    floors: tuple[float, ...] = (1e-12,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repair not in REPAIRS:
            raise UserError(f"unknown repair {self.repair!r}; there are {', '.join(REPAIRS)}")
        check_inner(self.inner, f"the repair {self.repair!r}")
        if not self.floors or min(self.floors) <= 0:
            raise UserError("to whiten takes at least one floor, and positive ones")

    @property
    def scale_free(self) -> bool:
        """As far as the inner attacks are."""
        return all(attack.scale_free for attack in self.inner.values())

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Repair, then attack."""
        floors = self.floors if self.repair == "whiten" else (ROUNDING,)
        traces = []
        for floor in floors:
            if self.repair == "whiten":
                centred = principal(data, centred=True)
                spreads = _spreads(centred.axes, len(data.train), floor)
                learning = _whitening(centred.axes, data.train.x, spreads)
                applied = time.perf_counter() - centred.seconds  # of products that every floor shares
                repaired = centred.data.mapped(functools.partial(_divided, spreads))
            else:
                transform, learning = REPAIRS[self.repair](data.train.x, floor)
                applied = time.perf_counter()
                repaired = data.mapped(transform)
            setup = learning + Cost(1, time.perf_counter() - applied, len(data.train))
            if self.repair == "standardize":
                repaired = data.kept.setdefault("standardized", repaired)
            if self.repair in AXES:
                centred = principal(data, centred=True)
                seen = repaired if self.repair == "whiten" else centred.data
                repaired.kept["axes"] = AXES[self.repair](centred.axes, data, floor), seen
            name = f"{self.repair} {floor:g}" if len(floors) > 1 else self.repair
            traces += run_inner(self.inner, repaired, budget.share(len(floors)), seed, setup=setup, prefix=name)
        return Outcome(tuple(traces))


def centre(x: Array, floor: float) -> tuple[Predict, Cost]:
    """Less the mean of these rows, and the seconds of learning that, and the FLOPs of that and of applying it."""
    started = time.perf_counter()
    mean = x.mean(axis=0)
    return lambda rows: rows - mean, _paid(started, 2.0 * x.size)


def standardize(x: Array, floor: float) -> tuple[Predict, Cost]:
    """Less the mean, over the standard deviation; a feature that does not vary stays at zero."""
    started = time.perf_counter()
    mean, spread = x.mean(axis=0), x.std(axis=0)
    safe = np.where(spread > floor * spread.max(), spread, np.inf)
    return lambda rows: (rows - mean) / safe, _paid(started, 5.0 * x.size)


def standardized(data: AttackData) -> AttackData:
    """The task with standardized features, kept with it: three attacks see it, and its principal axes."""
    if "standardized" not in data.kept:
        data.kept["standardized"] = data.mapped(standardize(data.train.x, ROUNDING)[0])
    known: AttackData = data.kept["standardized"]
    return known


def normalize(x: Array, floor: float) -> tuple[Predict, Cost]:
    """Each row over its length; rows of zeros stay."""
    started = time.perf_counter()
    least = floor * float(np.linalg.norm(x, axis=1).max())

    def apply(rows: Array) -> Array:
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.where(lengths > least, lengths, np.inf))

    return apply, _paid(started, 3.0 * x.size)


def whiten(x: Array, floor: float) -> tuple[Predict, Cost]:
    """Principal components of variance one, (M, k)."""
    axes = principal_axes(x, centred=True)
    spreads = _spreads(axes, len(x), floor)
    return lambda rows: _divided(spreads, axes.coordinates(rows)), _whitening(axes, x, spreads)


def _whitening(axes: Axes, x: Array, spreads: Array) -> Cost:
    long, short = max(x.shape), min(x.shape)
    flops = 4.0 * long * short**2 + 8.0 * short**3 + 2.0 * x.size * len(spreads)
    return Cost(seconds=axes.seconds, flops=flops)


def _spreads(axes: Axes, n_rows: int, floor: float) -> Array:
    """(k,) standard deviations of the components that whitening keeps, the first ones."""
    return np.asarray(axes.sigma[axes.sigma**2 > floor * axes.sigma[0] ** 2] / np.sqrt(n_rows))


def _divided(spreads: Array, components: Array) -> Array:
    """The first components over their spreads; W = V/σ would mix sizes that differ by the κ of the rows."""
    return np.asarray(components[:, : len(spreads)] / spreads)


def _of_centred(axes: Axes, data: AttackData, floor: float) -> Axes:
    return replace(axes, mean=np.zeros_like(axes.mean))


def _of_whitened(axes: Axes, data: AttackData, floor: float) -> Axes:
    """Components of variance one are axes themselves, and as long as there are rows."""
    k = len(_spreads(axes, len(data.train), floor))
    return Axes(np.zeros(k), np.full(k, np.sqrt(len(data.train))), np.eye(k), axes.seconds)


def _paid(started: float, flops: float) -> Cost:
    return Cost(seconds=time.perf_counter() - started, flops=flops)


REPAIRS: dict[str, Callable[[Array, float], tuple[Predict, Cost]]] = {
    "centre": centre,
    "standardize": standardize,
    "normalize": normalize,
    "whiten": whiten,
}

AXES: dict[str, Callable[[Axes, AttackData, float], Axes]] = {"centre": _of_centred, "whiten": _of_whitened}
"""Principal axes of repaired rows that follow from those of the rows about their mean; others are computed."""
