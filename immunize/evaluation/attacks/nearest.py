"""T3: k nearest neighbours, by scikit-learn; no weights, no condition number.

Distances see the features' spread as it is, so they are taken on the features themselves and on standardized ones.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import principal
from immunize.evaluation.attacks.curves import Cost, Trace
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.repaired import ROUNDING, standardize
from immunize.evaluation.attacks.scoring import Meter, target_matrix

__all__ = ["NearestNeighbours"]

METRICS = ("euclidean", "cosine")

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class NearestNeighbours(Attack):
    """k nearest neighbours.

    Attributes:
        neighbours: the grid of k; those above N are left out.
        metrics: of "euclidean" and "cosine".

    Raises:
        UserError: an empty grid, k < 1, or an unknown metric.
    """

    neighbours: tuple[int, ...]
    metrics: tuple[str, ...] = METRICS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.neighbours or min(self.neighbours) < 1:
            raise UserError("the grid of k has to hold at least one number, 1 or more")
        if not self.metrics or not set(self.metrics) <= set(METRICS):
            raise UserError(f"unknown metric among {', '.join(self.metrics)}; there are {', '.join(METRICS)}")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Remember the training rows; the cost is that of answering for the test rows, one search for all k."""
        n = len(data.train)
        ks = [k for k in self.neighbours if k <= n] or [1]
        flops = 2.0 * len(data.test) * data.train.x.size
        transform, _ = standardize(data.train.x, ROUNDING)
        return Outcome(
            tuple(
                trace
                for name, seen in (("features", data), ("standardized", data.mapped(transform)))
                for metric in self.metrics
                for trace in _traces(principal(seen).data, ks, metric, name, flops)
            )
        )


def _traces(rows: AttackData, ks: list[int], metric: str, name: str, flops: float) -> list[Trace]:
    """One search for all k; in principal axes a row only loses what is the same for all training rows."""
    started = time.perf_counter()
    test = _nearest(rows.train.x, rows.test.x, max(ks), metric)
    once = Cost(1, time.perf_counter() - started, len(rows.train), flops)
    validation = _nearest(rows.train.x, rows.validation.x, max(ks), metric)
    traces = []
    for k in ks:
        meter = Meter(rows, f"k {k}, {metric}, {name}", once)
        answers = [_answers(rows, of[:, :k]) for of in (validation, test)]
        meter.note(1, functools.partial(list, answers))
        traces.append(meter.trace())
    return traces


def _nearest(train: Array, asked: Array, k: int, metric: str) -> Numbers:
    """(M, k) numbers of training rows, the nearest first.

    Of rows of length 1 the largest cosine is the smallest distance, which scikit-learn finds without keeping them all;
    a row of zeros counts as one of cosine ½.
    """
    if metric == "cosine":
        train, asked = normalize(train), normalize(asked)
    search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(train)
    return np.asarray(search.kneighbors(asked, return_distance=False), dtype=np.int64)


def _answers(data: AttackData, nearest: Numbers) -> Array:
    """(M, C): the share of each class among the neighbours, or the mean of their targets."""
    if not data.n_classes:
        return np.asarray(target_matrix(data, data.train)[nearest].mean(axis=1))
    rows = np.arange(len(nearest))[:, None] * data.n_classes + data.train.y[nearest].astype(np.int64)
    votes = np.bincount(rows.ravel(), minlength=len(nearest) * data.n_classes)
    return np.asarray(votes.reshape(len(nearest), data.n_classes) / nearest.shape[1])
