"""Multinomial logistic regression: its loss, gradient and curvature products, which four attacks share.

    L(W) = mean_n [ logsumexp(x_nW) - (x_nW)_{y_n} ] + (λ/2)‖W‖²          (the intercept, if any, is not penalized)
    ∇L   = Xᵀ(P - Y)/N + λW
    ∇²L[S] = Xᵀ(P∘(XS) - P∘rowsum(P∘(XS)))/N + λS

The features are divided by σ_1(X)/√N, so that λ, step lengths and the curvature bound ½ (Böhning 1992) mean the
same for every multiple of them.

Shapes: N samples, D features (D + 1 rows of W with an intercept), C classes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit
from torch import Tensor

from immunize.evaluation.attacks.coordinates import feature_scale, pass_over, principal
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.protocol import Array, AttackData, Predict

CACHED = 2**19
"""Bytes of rows that stay in the cache of a core between two products."""

CURVATURE = 0.5
"""Largest curvature of the loss for σ_1(X)/√N = 1."""


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
        self.seen, self.intercept, self.scale = principal(data).data, intercept, feature_scale(data)
        self.two = data.n_classes == 2
        axes = self.seen.n_features
        self.shape = (axes + intercept, 1 if self.two else data.n_classes)
        self.penalty = np.full((self.shape[0], 1), penalty)
        self.penalty[axes:] = 0
        kind = _Two if self.two else _Several
        if "scaled" not in data.kept:
            x = self.seen.train.x
            data.kept["scaled"] = x if self.scale == 1 else x / self.scale  # for every penalty and solver
        self.classes = kind(data.kept["scaled"], data.train.y.astype(np.int64))
        self.passes, self.limit = 0, sys.maxsize
        one = pass_over(data)
        columns = data.n_features + intercept
        self.per_pass = Cost(1, one.seconds, one.samples, 4.0 * one.samples * columns * data.n_classes)

    def value_and_gradient(self, w: Array) -> tuple[float, Array]:
        """L and ∇L at a flat W, in one pass.

        Raises:
            BudgetSpentError: `limit` passes were made before.
        """
        weights = self._counted(w)
        value, gradient = self.classes.value_and_gradient(weights)
        decay = 0.5 * float((self.penalty * np.square(weights)).sum())
        return value + decay, (gradient + self.penalty * weights).ravel()

    def gradient(self, w: Array) -> Array:
        """∇L alone; errors as :meth:`value_and_gradient`."""
        weights = self._counted(w)
        return np.asarray(self.classes.gradient(weights) + self.penalty * weights).ravel()

    def curvature(self, w: Array, direction: Array) -> Array:
        """∇²L(W) times a flat direction; errors as :meth:`value_and_gradient`."""
        step = direction.reshape(self.shape)
        return np.asarray(self.classes.curvature(self._counted(w), step) + self.penalty * step).ravel()

    def predictor(self, w: npt.NDArray[np.float64]) -> Predict:
        """Outputs of a flat W for rows of `seen`."""
        weights = np.array(w).reshape(self.shape)
        inner, last = (weights[:-1], weights[-1]) if self.intercept else (weights, np.zeros(self.shape[1]))
        inner = inner / self.scale

        def outputs(x: Array) -> Array:
            found = x @ inner + last
            return np.hstack([-found, found]) / math.sqrt(2) if self.two else found

        return outputs

    def _counted(self, w: Array) -> Array:
        """W of a flat one, of which another pass is taken."""
        if self.passes >= self.limit:
            raise BudgetSpentError
        self.passes += 1
        return w.reshape(self.shape)


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

    def value_and_gradient(self, weights: Array) -> tuple[float, Array]:
        loss = 0.0

        def residual(margin: Array, block: slice) -> Array:
            nonlocal loss
            labels = self.labels[block]
            loss += float(np.logaddexp(0, margin).sum() - labels @ margin)
            return np.asarray(expit(margin) - labels)

        gradient = self._sum(weights, residual)
        return loss / len(self.x), gradient

    def gradient(self, weights: Array) -> Array:
        return self._sum(weights, lambda margin, block: np.asarray(expit(margin) - self.labels[block]))

    def curvature(self, weights: Array, step: Array) -> Array:
        if self._at is None or not np.array_equal(self._at[0], weights):  # Newton takes many products at one point
            v, last = self._column(weights)
            p = expit(self.x @ v + last)
            self._at = weights.copy(), p * (1 - p)
        slopes = self._at[1]
        return self._sum(step, lambda margin, block: slopes[block] * margin)

    def _sum(self, weights: Array, residual: Callable[[Array, slice], Array]) -> Array:
        """The sum over rows of √2·x times what `residual` makes of the margins of a block of them, over N."""
        v, last = self._column(weights)
        total = np.zeros(self.x.shape[1] + 1)
        for block in self.blocks:
            x = self.x[block]
            share = residual(x @ v + last, block)
            total[:-1] += share @ x
            total[-1] += share.sum()
        return (total * (math.sqrt(2) / len(self.x)))[: len(weights), None]

    def _column(self, weights: Array) -> tuple[Array, float]:
        """What multiplies with rows of x, and the intercept."""
        column, axes = math.sqrt(2) * weights[:, 0], self.x.shape[1]
        return column[:axes], float(column[axes:].sum())


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

    def value_and_gradient(self, weights: Array) -> tuple[float, Array]:
        log_p = self._outputs(weights).log_softmax(dim=1)
        loss = -float(log_p[self.rows, self.labels].mean())
        return loss, self._gradient(log_p.exp_(), len(weights))

    def gradient(self, weights: Array) -> Array:
        return self._gradient(self._outputs(weights).softmax(dim=1), len(weights))

    def curvature(self, weights: Array, step: Array) -> Array:
        if self._at is None or not np.array_equal(self._at[0], weights):
            self._at = weights.copy(), self._outputs(weights).softmax(dim=1)
        p = self._at[1]
        moved = p * self._outputs(step)
        moved -= p * moved.sum(dim=1, keepdim=True)
        return self._sum(moved, len(weights))

    def _outputs(self, weights: Array) -> Tensor:
        axes = self.x.shape[1]
        found = self.x @ torch.from_numpy(np.ascontiguousarray(weights[:axes]))
        return found.add_(torch.from_numpy(weights[axes:].sum(axis=0)))

    def _gradient(self, p: Tensor, n_rows: int) -> Array:
        p[self.rows, self.labels] -= 1
        return self._sum(p, n_rows)

    def _sum(self, shares: Tensor, n_rows: int) -> Array:
        """The mean over rows of [x 1]ᵀ times their shares; without the last row where W has no intercept."""
        whole = torch.cat([self.x.T @ shares, shares.sum(dim=0, keepdim=True)])
        return whole[:n_rows].numpy() / len(self.x)
