"""T3: k nearest neighbours, by searching all training rows; no weights, no condition number.

Distances see the features' spread as it is, so they are taken on the features themselves and on standardized ones. They
are float32, of features of size one: a rounding of 1e-7 decides between neighbours that are equally near.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import principal
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.heads import quotient
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.repaired import standardized
from immunize.evaluation.attacks.scoring import Meter, target_matrix
from immunize.evaluation.products import products

__all__ = ["NearestNeighbours", "nearest"]

METRICS = ("euclidean", "cosine")

TOGETHER = 2**22
"""Distances that are held at once: 16 MiB."""

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
    version: ClassVar[int] = 1  # one product for both metrics

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
        traces = []
        for name, seen in (("features", data), ("standardized", standardized(data))):
            rows = principal(seen).data  # in principal axes a row only loses what is the same for all training rows
            started = time.perf_counter()
            test = nearest(rows.train.x, rows.test.x, max(ks), self.metrics)
            seconds = (time.perf_counter() - started) / len(self.metrics)
            validation = nearest(rows.train.x, rows.validation.x, max(ks), self.metrics)
            for metric in self.metrics:
                for k in ks:
                    meter = Meter(rows, f"k {k}, {metric}, {name}", Cost(1, seconds, n, flops))
                    answers = [_answers(rows, of[metric][:, :k]) for of in (validation, test)]
                    meter.note(1, functools.partial(list, answers))
                    traces.append(meter.trace())
        return Outcome(tuple(traces))


def nearest(train: Array, asked: Array, k: int, metrics: Sequence[str]) -> dict[str, Numbers]:
    """(M, k) numbers of training rows by metric, the nearest first; one product of matrices serves all metrics.

    Args:
        train: (N, D).
        asked: (M, D).
        k: at most N.
        metrics: of `METRICS`. A row of zeros counts as one of cosine ½.
    """
    size = float(np.abs(train).max()) or 1.0
    x, others = (quotient(rows, size) for rows in (train, asked))
    squares = x.square().sum(dim=1)
    zero = squares == 0
    lengths = torch.where(zero, 1.0, squares.sqrt())
    found: dict[str, list[Tensor]] = {metric: [] for metric in metrics}
    for rows in others.tensor_split(max(1, round(len(others) * len(x) / TOGETHER))):
        both = products(rows, x)
        for metric in metrics:
            if metric == "euclidean":  # less the length of the asked row, the same for all training rows
                far = torch.add(squares, both, alpha=-2)
            else:
                far = both / -lengths
                far[:, zero] = -0.5 * rows.norm(dim=1, keepdim=True)
            found[metric].append(far.topk(k, dim=1, largest=False).indices)  # of equals in any order that stays
    return {metric: torch.cat(parts).numpy() for metric, parts in found.items()}


def _answers(data: AttackData, nearest: Numbers) -> Array:
    """(M, C): the share of each class among the neighbours, or the mean of their targets."""
    if not data.n_classes:
        return np.asarray(target_matrix(data, data.train)[nearest].mean(axis=1))
    rows = np.arange(len(nearest))[:, None] * data.n_classes + data.train.y[nearest].astype(np.int64)
    votes = np.bincount(rows.ravel(), minlength=len(nearest) * data.n_classes)
    return np.asarray(votes.reshape(len(nearest), data.n_classes) / nearest.shape[1])
