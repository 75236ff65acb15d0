"""A step of the linear model, f_θ(x) = xᵀθ (§5.1).

Shapes: N samples, D features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from immunize.features.linear import LinearExtractor, Precondition, SpectralView
from immunize.objective.base import Head, Step, TaskLoss
from immunize.spectrum.condition import default_tolerance


@dataclass(frozen=True)
class Side:
    """One data set's part of a step.

    Attributes:
        x: (N, D) inputs.
        y: (N,) targets, or int64 classes.
        rows: (≤N, D) rows with the same K = XᵀX as `x`: `x` itself, or its compression in full-batch mode.
    """

    x: Tensor
    y: Tensor
    rows: Tensor


@dataclass(frozen=True)
class LinearStep(Step):
    """A batch of both data sets, f_θ and ω.

    Attributes:
        extractor: f_θ.
        head: ω, (D, C), the classifier of the pre-training task; C = 1 but for a classification.
        pretrain: D_P.
        harmful: D_H.
        task_loss: (logits (N,) or (N, C), targets (N,)) to a scalar.
    """

    extractor: LinearExtractor
    head: Tensor
    pretrain: Side
    harmful: Side
    task_loss: TaskLoss

    @property
    def omega(self) -> Head:
        """ω, (D, C)."""
        return Head(self.head)

    def parameters(self) -> dict[str, Tensor]:
        """θ, (D, D)."""
        return dict(self.extractor.named_parameters())

    def loss(self, role: str, head: Head, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """L of the scores x(θw), (N,), or (N, C) of a classification."""
        side = self._side(role)
        if parameters is None:
            scores = self.extractor(side.x, head.weight)
        else:
            scores = functional_call(self.extractor, parameters, (side.x, head.weight))
        return self.task_loss(scores if side.y.dtype == torch.int64 else scores.squeeze(-1), side.y)

    def spectral_view(self, role: str, precondition: Precondition) -> SpectralView:
        """Features of the side's rows, (≤N, D); see :meth:`LinearExtractor.spectral_view`."""
        return self.extractor.spectral_view(self._side(role).rows, precondition)

    def tolerance(self, role: str) -> float:
        """Of the true N, also where the rows are compressed."""
        return default_tolerance(*self._side(role).x.shape)

    def _side(self, role: str) -> Side:
        return {"pretrain": self.pretrain, "harmful": self.harmful}[role]
