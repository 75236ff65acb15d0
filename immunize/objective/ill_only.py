"""Baseline "R_ill Only" (§5): minimize R_ill(H_H(θ)) alone by gradient descent."""

from __future__ import annotations

from torch import Tensor

from immunize.features import Precondition
from immunize.objective.base import Objective, Step, check_weight, ill_term


class IllOnly(Objective):
    """λ_H R_ill(H_H(θ)); ω is not trained.

    Args:
        lambda_ill: λ_H ≥ 0.
        precondition: "none" is the paper's plain gradient descent.

    Raises:
        ValueError: a negative λ.
    """

    def __init__(self, lambda_ill: float, precondition: Precondition = "none") -> None:
        super().__init__({"ill": check_weight("objective.lambda_ill", lambda_ill)})
        self.precondition = precondition

    def terms(self, step: Step) -> dict[str, Tensor]:
        """R_ill(H_H(θ))."""
        return {"ill": ill_term(step, self.precondition)}
