"""Baseline "Opt κ" (§5): minimize κ(H_P(θ)) - κ(H_H(θ)) itself by gradient descent."""

from __future__ import annotations

import torch
from torch import Tensor

from immunize.features import Precondition
from immunize.objective.base import Objective, Step, kappa_term

__all__ = ["OptKappa"]


class OptKappa(Objective):
    """κ(H_P(θ)) - κ(H_H(θ)), with the closed-form subgradient of κ (autograd through `eigh` reaches NaN).

    Args:
        precondition: "none" is the paper's plain gradient descent.
    """

    def __init__(self, precondition: Precondition = "none") -> None:
        super().__init__({"kappa_pretrain": 1.0, "kappa_harmful": -1.0})
        self.precondition = precondition

    def terms(self, step: Step) -> dict[str, Tensor]:
        """κ of both Hessians; the second has weight -1. Of several harmful data sets the sum or the smallest."""
        return {
            "kappa_pretrain": kappa_term(step, "pretrain", self.precondition),
            "kappa_harmful": step.over_harmful(
                lambda role: kappa_term(step, role, self.precondition), weakest=torch.min
            ),
        }
