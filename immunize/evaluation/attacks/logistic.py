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
from torch import Tensor, nn

from immunize.evaluation.attacks.coordinates import pass_over, principal
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.protocol import Array, AttackData, Predict
from immunize.remembering import remembered

__all__ = ["CURVATURE", "BudgetSpentError", "Logistic", "feature_scale"]

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
        self.x = torch.from_numpy(self._rows(self.seen.train.x))
        self.labels = torch.from_numpy(data.train.y.astype(np.int64))
        self.two = data.n_classes == 2
        self.shape = (self.x.shape[1], 1 if self.two else data.n_classes)
        self.penalty = torch.full((self.x.shape[1], 1), penalty, dtype=torch.float64)
        if intercept:
            self.penalty[-1] = 0
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
        weights = torch.from_numpy(w).view(self.shape)
        decay = 0.5 * float((self.penalty * weights.square()).sum())
        if self.two:  # the outputs differ by √2·xv
            margin = math.sqrt(2) * self.x.mv(weights[:, 0])
            loss = float((nn.functional.softplus(margin) - self.labels * margin).mean())
            residual = margin.sigmoid_().sub_(self.labels).mul_(math.sqrt(2) / len(self.x))
            return loss + decay, _flat(self.x.T.mv(residual)[:, None] + self.penalty * weights)
        log_p = (self.x @ weights).log_softmax(dim=1)
        rows = torch.arange(len(self.labels))
        loss = -float(log_p[rows, self.labels].mean())
        residual = log_p.exp_()
        residual[rows, self.labels] -= 1
        return loss + decay, _flat(self.x.T @ residual / len(self.x) + self.penalty * weights)

    def curvature(self, w: Array, direction: Array) -> Array:
        """∇²L(W) times a flat direction.

        Raises:
            BudgetSpentError: `limit` passes were made before.
        """
        self._count()
        weights = torch.from_numpy(w).view(self.shape)
        step = torch.from_numpy(np.ascontiguousarray(direction)).view(self.shape)
        if self.two:
            p = (math.sqrt(2) * self.x.mv(weights[:, 0])).sigmoid_()
            moved = 2 * p * (1 - p) * self.x.mv(step[:, 0])
            return _flat(self.x.T.mv(moved)[:, None] / len(self.x) + self.penalty * step)
        p = (self.x @ weights).softmax(dim=1)
        moved = p * (self.x @ step)
        moved -= p * moved.sum(dim=1, keepdim=True)
        return _flat(self.x.T @ moved / len(self.x) + self.penalty * step)

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

    def _rows(self, x: Array) -> Array:
        scaled = x / self.scale
        return np.column_stack([scaled, np.ones(len(x))]) if self.intercept else scaled


def _flat(tensor: Tensor) -> Array:
    return np.asarray(tensor.reshape(-1).numpy(), dtype=np.float64)
