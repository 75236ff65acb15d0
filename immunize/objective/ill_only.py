"""Baseline "R_ill Only" (§5): minimize R_ill(H_H(θ)) alone by gradient descent."""

from __future__ import annotations

from immunize.features.linear import Precondition
from immunize.objective.base import Objective, check_weight


class IllOnly(Objective):
    """λ_H R_ill(H_H(θ)); ω is not trained.

    Args:
        lambda_ill: λ_H ≥ 0.
        precondition: "none" is the paper's plain gradient descent.

    Raises:
        ValueError: a negative λ.
    """

    def __init__(self, lambda_ill: float, precondition: Precondition = "none") -> None:
        super().__init__({"ill": check_weight("objective.lambda_ill", lambda_ill)}, precondition)
