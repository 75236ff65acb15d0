"""Multinomial logistic regression: its loss, gradient and curvature products, which four attacks share.

    L(W) = mean_n [ logsumexp(x_nW) - (x_nW)_{y_n} ] + (λ/2)‖W‖²          (the intercept, if any, is not penalized)
    ∇L   = Xᵀ(P - Y)/N + λW
    ∇²L[S] = Xᵀ(P∘(XS) - P∘rowsum(P∘(XS)))/N + λS

The features are first divided by σ_1(X)/√N, so that λ, step lengths and the curvature bound ½ (Böhning 1992) mean the
same for every multiple of them. Two classes have two columns.

Shapes: N samples, D features (D + 1 rows of W with an intercept), C classes.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.protocol import Array, AttackData, Predict

__all__ = ["CURVATURE", "BudgetSpentError", "Logistic", "feature_scale"]

CURVATURE = 0.5
"""Largest curvature of the loss for σ_1(X)/√N = 1."""


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

    Args:
        data: a classification task.
        penalty: λ.
        intercept: append a constant feature.
    """

    def __init__(self, data: AttackData, *, penalty: float = 0.0, intercept: bool = True) -> None:
        self.scale, self.intercept = feature_scale(data.train.x), intercept
        self.x = torch.from_numpy(self._rows(data.train.x))
        self.labels = torch.from_numpy(data.train.y.astype(np.int64))
        self.shape = (self.x.shape[1], data.n_classes)
        self.penalty = torch.full((self.x.shape[1], 1), penalty, dtype=torch.float64)
        if intercept:
            self.penalty[-1] = 0
        self.passes, self.limit = 0, sys.maxsize

    @property
    def per_pass(self) -> Cost:
        """Rows and FLOPs of one gradient or curvature product."""
        return Cost(1, 0.0, len(self.x), 4.0 * self.x.numel() * self.shape[1])

    def loss_and_gradient(self, w: Array) -> tuple[float, Array]:
        """L and ∇L at a flat (D·C,) W.

        Raises:
            BudgetSpentError: `limit` passes were made before.
        """
        self._count()
        weights = torch.from_numpy(w).view(self.shape)
        logits = self.x @ weights
        log_p = logits.log_softmax(dim=1)
        rows = torch.arange(len(self.labels))
        loss = -float(log_p[rows, self.labels].mean()) + 0.5 * float((self.penalty * weights.square()).sum())
        residual = log_p.exp_()
        residual[rows, self.labels] -= 1
        gradient = self.x.T @ residual / len(self.x) + self.penalty * weights
        return loss, _flat(gradient)

    def curvature(self, w: Array, direction: Array) -> Array:
        """∇²L(W) times a flat direction.

        Raises:
            BudgetSpentError: `limit` passes were made before.
        """
        self._count()
        p = (self.x @ torch.from_numpy(w).view(self.shape)).softmax(dim=1)
        step = torch.from_numpy(np.ascontiguousarray(direction)).view(self.shape)
        moved = p * (self.x @ step)
        moved -= p * moved.sum(dim=1, keepdim=True)
        return _flat(self.x.T @ moved / len(self.x) + self.penalty * step)

    def predictor(self, w: npt.NDArray[np.float64]) -> Predict:
        """Outputs of a flat W for features in their own units."""
        weights = np.array(w).reshape(self.shape)
        if self.intercept:
            return lambda x: np.asarray(x @ (weights[:-1] / self.scale) + weights[-1])
        return lambda x: np.asarray(x @ (weights / self.scale))

    def _count(self) -> None:
        if self.passes >= self.limit:
            raise BudgetSpentError
        self.passes += 1

    def _rows(self, x: Array) -> Array:
        scaled = x / self.scale
        return np.column_stack([scaled, np.ones(len(x))]) if self.intercept else scaled


def _flat(tensor: Tensor) -> Array:
    return np.asarray(tensor.reshape(-1).numpy(), dtype=np.float64)
