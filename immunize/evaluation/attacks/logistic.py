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
from collections.abc import Callable, Sequence
from typing import Any

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

    def gradients(self, several: Sequence[Array]) -> list[Array]:
        """∇L alone at several flat W, of which each counts as a pass.

        Raises:
            BudgetSpentError: `limit` passes were made before.
        """
        weights = [w.reshape(self.shape) for w in several]
        for _ in weights:
            self.count()
        found = self.classes.gradients(weights)
        return [(gradient + self.penalty * of).ravel() for gradient, of in zip(found, weights, strict=True)]

    def predictor(self, w: npt.NDArray[np.float64]) -> Predict:
        """Outputs of a flat W for rows of `seen`."""
        weights = np.array(w).reshape(self.shape)
        inner, last = (weights[:-1], weights[-1]) if self.intercept else (weights, np.zeros(self.shape[1]))
        inner = inner / self.scale

        def outputs(x: Array) -> Array:
            found = x @ inner + last
            return np.hstack([-found, found]) / math.sqrt(2) if self.two else found

        return outputs

    def count(self) -> None:
        """Another pass.

        Raises:
            BudgetSpentError: `limit` passes were made before.
        """
        if self.passes >= self.limit:
            raise BudgetSpentError
        self.passes += 1


Question = tuple[Logistic, Array, Array | None]
"""A loss, a flat W, and a flat direction; without one it asks for L and ∇L there."""


def answers(questions: Sequence[Question]) -> list[Any]:
    """What several losses are asked: L and ∇L at W, or ∇²L(W) times a direction; see `Logistic.count`.

    Args:
        questions: of losses of one task, whose rows are read once for all of them where there are two classes.
    """
    asked = [
        (loss, w.reshape(loss.shape), None if direction is None else direction.reshape(loss.shape))
        for loss, w, direction in questions
    ]
    kind: Any = type(asked[0][0].classes)
    found = kind.answers([(loss.classes, weights, step) for loss, weights, step in asked])
    return [_penalized(*of, plain) for of, plain in zip(asked, found, strict=True)]


def _penalized(loss: Logistic, weights: Array, step: Array | None, plain: Any) -> Any:
    if step is not None:
        return np.asarray(plain + loss.penalty * step).ravel()
    value, gradient = plain
    decay = 0.5 * float((loss.penalty * np.square(weights)).sum())
    return value + decay, (gradient + loss.penalty * weights).ravel()


_Residual = Callable[[Array, slice], Array]
"""Margins of a block of rows to what each adds of itself."""


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

    @staticmethod
    def answers(asked: Sequence[tuple[_Two, Array, Array | None]]) -> list[Any]:
        losses = [0.0] * len(asked)
        residuals = [
            of.losing(losses, at) if step is None else of.curving(weights)
            for at, (of, weights, step) in enumerate(asked)
        ]
        found = asked[0][0].sums([weights if step is None else step for _, weights, step in asked], residuals)
        return [
            (losses[at] / len(of.x), sums) if step is None else sums
            for at, ((of, _, step), sums) in enumerate(zip(asked, found, strict=True))
        ]

    def gradients(self, several: Sequence[Array]) -> list[Array]:
        return self.sums(several, [lambda margin, block: np.asarray(expit(margin) - self.labels[block])] * len(several))

    def losing(self, losses: list[float], at: int) -> _Residual:
        """P - Y, while the losses are summed up."""

        def residual(margin: Array, block: slice) -> Array:
            labels = self.labels[block]
            losses[at] += float(np.logaddexp(0, margin).sum() - labels @ margin)
            return np.asarray(expit(margin) - labels)

        return residual

    def curving(self, weights: Array) -> _Residual:
        """How P changes with the margins."""
        if self._at is None or not np.array_equal(self._at[0], weights):  # Newton takes many products at one point
            v, last = self._column(weights)
            p = expit(self.x @ v + last)
            self._at = weights.copy(), p * (1 - p)
        slopes = self._at[1]
        return lambda margin, block: slopes[block] * margin

    def sums(self, several: Sequence[Array], residuals: Sequence[_Residual]) -> list[Array]:
        """For each W the sum over rows of √2·x times what its residual makes of their margins, over N."""
        columns = [self._column(weights) for weights in several]
        totals, sums = np.zeros((len(columns), self.x.shape[1])), np.zeros(len(columns))
        for block in self.blocks:
            x = self.x[block]
            for at, (v, last) in enumerate(columns):
                share = residuals[at](x @ v + last, block)
                totals[at] += share @ x
                sums[at] += share.sum()
        whole = np.column_stack([totals, sums]) * (math.sqrt(2) / len(self.x))
        return [found[: len(weights), None] for found, weights in zip(whole, several, strict=True)]

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

    @staticmethod
    def answers(asked: Sequence[tuple[_Several, Array, Array | None]]) -> list[Any]:
        return [
            of.loss_and_gradient(weights) if step is None else of.curvature(weights, step)
            for of, weights, step in asked
        ]

    def loss_and_gradient(self, weights: Array) -> tuple[float, Array]:
        log_p = self._outputs(weights).log_softmax(dim=1)
        loss = -float(log_p[self.rows, self.labels].mean())
        return loss, self._gradient(log_p.exp_(), len(weights))

    def gradients(self, several: Sequence[Array]) -> list[Array]:
        return [self._gradient(self._outputs(weights).softmax(dim=1), len(weights)) for weights in several]

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
