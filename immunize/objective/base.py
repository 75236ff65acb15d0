"""What every method is: named terms of a loss, and their weights. One file a method beside this one.

Shapes: N samples, D features, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from immunize.features import LinearExtractor, Precondition
from immunize.spectrum import default_tolerance, kappa_of_features, r_ill_of_features, r_well_of_features

__all__ = ["Objective", "Side", "Step", "TaskLoss", "check_weight", "ill_term", "kappa_term", "new_head", "well_term"]

TaskLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Side:
    """One data set's part of a step.

    Attributes:
        x: (N, D) inputs.
        y: (N,) targets.
        rows: (≤N, D) rows with the same K = XᵀX as `x`: `x` itself, or its compression in full-batch mode.
    """

    x: Tensor
    y: Tensor
    rows: Tensor

    @property
    def tolerance(self) -> float:
        """Relative rank cut for H of this batch, from the true N also where `rows` are compressed."""
        return default_tolerance(*self.x.shape)


@dataclass(frozen=True)
class Step:
    """Everything a method may look at in one step of Eq. (11).

    Attributes:
        extractor: f_θ.
        head: ω, (D, 1), the classifier of the pre-training task.
        pretrain: D_P.
        harmful: D_H.
        task_loss: (logits (N,), targets (N,)) to a scalar.
    """

    extractor: LinearExtractor
    head: Tensor
    pretrain: Side
    harmful: Side
    task_loss: TaskLoss

    def pretrain_loss(self) -> Tensor:
        """L(D_P, ω, θ)."""
        return self.task_loss(self.extractor(self.pretrain.x, self.head).squeeze(-1), self.pretrain.y)


class Objective(nn.Module, ABC):
    """A method: `terms` gives the unweighted terms of its loss, `weights` the factor of each.

    A module, because a method may own parameters (IMMA's classifier of the harmful task).
    """

    def __init__(self, weights: dict[str, float]) -> None:
        super().__init__()
        self.weights = weights

    def bind(self, n_features: int, generator: torch.Generator | None = None) -> None:
        """Create the parameters that depend on D; most methods have none."""

    def solve(self, pretrain: Tensor, harmful: Tensor) -> tuple[Tensor, dict[str, Any]] | None:
        """θ and facts about it, for a method that needs no training; None for every other.

        Args:
            pretrain: (N_P, D) float64, the rows of D_P.
            harmful: (N_H, D) float64, the rows of D_H.
        """
        del pretrain, harmful
        return None

    @abstractmethod
    def terms(self, step: Step) -> dict[str, Tensor]:
        """The scalar terms, by the names that `weights` uses; the step minimizes their weighted sum."""


def well_term(step: Step, precondition: Precondition) -> Tensor:
    """R_well(H_P(θ)), Eq. (3)."""
    view = step.extractor.spectral_view(step.pretrain.rows, precondition)
    return r_well_of_features(view.features, view.theta, tolerance=step.pretrain.tolerance)


def ill_term(step: Step, precondition: Precondition) -> Tensor:
    """R_ill(H_H(θ)), Eq. (12)."""
    view = step.extractor.spectral_view(step.harmful.rows, precondition)
    return r_ill_of_features(view.features, view.theta, tolerance=step.harmful.tolerance)


def kappa_term(step: Step, side: Side, precondition: Precondition) -> Tensor:
    """κ(H(θ)) of one side of the step, Eq. (1)."""
    view = step.extractor.spectral_view(side.rows, precondition)
    return kappa_of_features(view.features, view.theta, tolerance=side.tolerance)


def new_head(n_features: int, generator: torch.Generator | None = None) -> nn.Parameter:
    """A linear classifier (D, 1), drawn as `torch.nn.Linear` draws its weight, U(-1/√D, 1/√D)."""
    draw = torch.rand(n_features, 1, dtype=torch.float64, generator=generator)
    return nn.Parameter((2 * draw - 1) / n_features**0.5)


def check_weight(name: str, value: float) -> float:
    """λ ∈ R_+ (Algorithm 1).

    Raises:
        ValueError: negative or not finite.
    """
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} has to be a finite number ≥ 0 (Algorithm 1), it is {value}")
    return float(value)
