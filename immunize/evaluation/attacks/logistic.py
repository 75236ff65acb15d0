"""Multinomial logistic regression: its loss, gradient and curvature products, which four attacks share.

    L(W) = mean_n [ logsumexp(x_nW) - (x_nW)_{y_n} ] + (λ/2)‖W‖²          (the intercept, if any, is not penalized)
    ∇L   = Xᵀ(P - Y)/N + λW
    ∇²L[S] = Xᵀ(P∘(XS) - P∘rowsum(P∘(XS)))/N + λS

The features are first divided by σ_1(X)/√N, so that λ, step lengths and the curvature bound ½ (Böhning 1992) mean the
same for every multiple of them.

Shapes: N samples, D features (D + 1 rows of W with an intercept), C classes.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit
from torch import Tensor

from immunize.evaluation.attacks.coordinates import pass_over, principal
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.protocol import Array, AttackData, Predict
from immunize.remembering import remembered

__all__ = ["CURVATURE", "BudgetSpentError", "Logistic", "feature_scale"]

CACHED = 2**20
"""Bytes of rows that stay in the cache of a core between two products."""

CURVATURE = 0.5
"""Largest curvature of the loss for σ_1(X)/√N = 1."""


@remembered(8)
def feature_scale(x: Array) -> float:
    """σ_1(X)/√N, which multiplies with the features.

    Args:
        x: (N, D) float64, not all zero.
    """
    smaller = x if len(x) <= x.shape[1] else x.T
    largest = float(np.linalg.eigvalsh(smaller @ smaller.T)[-1])
    return math.sqrt(max(largest, 0.0) / len(x)) or 1.0


class BudgetSpentError(Exception):
    """Another pass was asked for than the budget allows."""


class Logistic:
    """The training loss of one task; `passes` counts what it was asked for, up to `limit`.

    It sees the features in their principal axes, and of two classes that start alike one column v, W = (-v, v)/√2: both
    are isometries, which methods that follow gradients from zero do not notice. What they cost is counted as if they
    were not there.

    Args:
        data: a classification task.
        penalty: λ.
        intercept: append a constant feature.

    Attributes:
        seen: the task as this loss sees it; what `predictor` takes is of these rows.
        shape: of W, (k, C) or (k, 1); a row more with an intercept.
    """

    def __init__(self, data: AttackData, *, penalty: float = 0.0, intercept: bool = True) -> None:
        of_axes = principal(data)
        self.seen, self.intercept = of_axes.data, intercept
        self.scale = float(of_axes.axes.sigma[0]) / math.sqrt(len(data.train)) or 1.0
        self.x = self._rows(data)
        self.labels = data.train.y.astype(np.int64)
        self.two = data.n_classes == 2
        self.shape = (self.x.shape[1], 1 if self.two else data.n_classes)
        self.penalty = np.full((self.x.shape[1], 1), penalty)
        if intercept:
            self.penalty[-1] = 0
        self._classes = _Two(self.x, self.labels) if self.two else _Several(self.x, self.labels)
        self.passes, self.limit = 0, sys.maxsize
        one = pass_over(data)
        columns = data.n_features + intercept
        self.per_pass = Cost(1, one.seconds, one.samples, 4.0 * one.samples * columns * data.n_classes)

    def loss_and_gradient(self, w: Array) -> tuple[float, Array]:
        """L and ∇L at a flat W.

        Raises:
            BudgetSpentError: `limit` passes were made before.
        """
        self._count()
        weights = w.reshape(self.shape)
        loss, gradient = self._classes.loss_and_gradient(weights)
        decay = 0.5 * float((self.penalty * np.square(weights)).sum())
        return loss + decay, (gradient + self.penalty * weights).ravel()

    def gradient(self, w: Array) -> Array:
        """∇L alone.

        Raises:
            BudgetSpentError: as above.
        """
        self._count()
        weights = w.reshape(self.shape)
        return np.asarray(self._classes.gradient(weights) + self.penalty * weights).ravel()

    def curvature(self, w: Array, direction: Array) -> Array:
        """∇²L(W) times a flat direction.

        Raises:
            BudgetSpentError: as above.
        """
        self._count()
        step = direction.reshape(self.shape)
        moved = self._classes.curvature(w.reshape(self.shape), step)
        return np.asarray(moved + self.penalty * step).ravel()

    def predictor(self, w: npt.NDArray[np.float64]) -> Predict:
        """Outputs of a flat W for rows of `seen`."""
        weights = np.array(w).reshape(self.shape)
        inner, last = (weights[:-1], weights[-1]) if self.intercept else (weights, np.zeros(self.shape[1]))
        inner = inner / self.scale

        def outputs(x: Array) -> Array:
            found = x @ inner + last
            return np.hstack([-found, found]) / math.sqrt(2) if self.two else found

        return outputs

    def _count(self) -> None:
        if self.passes >= self.limit:
            raise BudgetSpentError
        self.passes += 1

    def _rows(self, data: AttackData) -> Array:
        """Of the principal axes over the scale, (N, k); kept with the task, for every penalty and solver."""
        kept: dict[bool, Array] = data.kept.setdefault("rows", {})
        if self.intercept not in kept:
            scaled = self.seen.train.x / self.scale
            kept[self.intercept] = np.column_stack([scaled, np.ones(len(scaled))]) if self.intercept else scaled
        return kept[self.intercept]


class _Two:
    """The mean loss of two classes, which share a column v: their outputs differ by √2·xv.

    A block of rows stays in the processor's cache between the product that gives its outputs and the one that gives its
    share of the gradient, so that the rows are read from memory once.

    Args:
        x: (N, k).
        labels: (N,) 0 or 1.
    """

    def __init__(self, x: Array, labels: npt.NDArray[np.int64]) -> None:
        self.x, self.labels = x, labels.astype(np.float64)
        rows = max(1, CACHED // (x.shape[1] * x.itemsize))
        self.blocks = [slice(at, at + rows) for at in range(0, len(x), rows)]
        self._at: tuple[Array, Array] | None = None

    def loss_and_gradient(self, weights: Array) -> tuple[float, Array]:
        v, loss, total = self._column(weights), 0.0, np.zeros(len(weights))
        for block in self.blocks:
            x, labels = self.x[block], self.labels[block]
            margin = x @ v
            loss += float(np.logaddexp(0, margin).sum() - labels @ margin)
            total += (expit(margin) - labels) @ x
        return loss / len(self.x), total[:, None] * (math.sqrt(2) / len(self.x))

    def gradient(self, weights: Array) -> Array:
        v, total = self._column(weights), np.zeros(len(weights))
        for block in self.blocks:
            x = self.x[block]
            total += (expit(x @ v) - self.labels[block]) @ x
        return np.asarray(total[:, None] * (math.sqrt(2) / len(self.x)))

    def curvature(self, weights: Array, step: Array) -> Array:
        if self._at is None or not np.array_equal(self._at[0], weights):  # Newton takes many products at one point
            p = expit(self.x @ self._column(weights))
            self._at = weights.copy(), p * (1 - p)
        v, total = self._column(step), np.zeros(len(weights))
        for block in self.blocks:
            x = self.x[block]
            total += (self._at[1][block] * (x @ v)) @ x
        return np.asarray(total[:, None] * (math.sqrt(2) / len(self.x)))

    def _column(self, weights: Array) -> Array:
        return np.asarray(math.sqrt(2) * weights[:, 0])


class _Several:
    """The mean loss of C classes with a column each.

    Args:
        x: (N, k).
        labels: (N,) 0 to C-1.
    """

    def __init__(self, x: Array, labels: npt.NDArray[np.int64]) -> None:
        self.x, self.labels = torch.from_numpy(x), torch.from_numpy(labels)
        self.rows = torch.arange(len(labels))
        self._at: tuple[Array, Tensor] | None = None

    def loss_and_gradient(self, weights: Array) -> tuple[float, Array]:
        log_p = self._outputs(weights).log_softmax(dim=1)
        loss = -float(log_p[self.rows, self.labels].mean())
        return loss, self._gradient(log_p.exp_())

    def gradient(self, weights: Array) -> Array:
        return self._gradient(self._outputs(weights).softmax(dim=1))

    def curvature(self, weights: Array, step: Array) -> Array:
        if self._at is None or not np.array_equal(self._at[0], weights):
            self._at = weights.copy(), self._outputs(weights).softmax(dim=1)
        p = self._at[1]
        moved = p * self._outputs(step)
        moved -= p * moved.sum(dim=1, keepdim=True)
        return np.asarray((self.x.T @ moved).numpy() / len(self.x))

    def _outputs(self, weights: Array) -> Tensor:
        return self.x @ torch.from_numpy(np.ascontiguousarray(weights))

    def _gradient(self, p: Tensor) -> Array:
        p[self.rows, self.labels] -= 1
        return np.asarray((self.x.T @ p).numpy() / len(self.x))
