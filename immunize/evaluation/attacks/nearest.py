"""T3: k nearest neighbours, by scikit-learn; no weights, no condition number.

Distances see the features' spread as it is, so they are taken on the features themselves and on standardized ones.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.repaired import ROUNDING, standardize
from immunize.evaluation.attacks.scoring import Meter, target_matrix

__all__ = ["NearestNeighbours"]

METRICS = ("euclidean", "cosine")


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
        """Remember the training rows; the cost is that of answering for the test rows."""
        n = len(data.train)
        ks = [k for k in self.neighbours if k <= n] or [1]
        flops = 2.0 * len(data.test) * data.train.x.size
        targets = data.train.y if data.n_classes else target_matrix(data, data.train)[:, 0]
        transform, _ = standardize(data.train.x, ROUNDING)
        traces = []
        for name, seen in (("features", data), ("standardized", data.mapped(transform))):
            for metric in self.metrics:
                for k in ks:
                    started = time.perf_counter()
                    kind = KNeighborsClassifier if data.n_classes else KNeighborsRegressor
                    model = kind(n_neighbors=k, metric=metric, algorithm="brute", n_jobs=1).fit(seen.train.x, targets)
                    predict = functools.partial(_outputs, model, data.n_classes)
                    predict(seen.test.x)
                    meter = Meter(seen, f"k {k}, {metric}, {name}", Cost(1, time.perf_counter() - started, n, flops))
                    meter.look(1, predict)
                    traces.append(meter.trace())
        return Outcome(tuple(traces))


def _outputs(model: Any, n_classes: int, x: Array) -> Array:
    if not n_classes:
        return np.asarray(model.predict(x)[:, None])
    outputs = np.zeros((len(x), n_classes))
    outputs[:, model.classes_] = model.predict_proba(x)
    return outputs
