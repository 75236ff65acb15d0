"""Baseline of Nenov et al. (2024): minimize R_well(H_P(θ)) alone, with no harmful data."""

from __future__ import annotations

from immunize.features.linear import Precondition
from immunize.objective.base import Objective, check_weight


class WellOnly(Objective):
    """λ_P R_well(H_P(θ)); ω is not trained.

    Args:
        lambda_well: λ_P ≥ 0.
        precondition: "none" is plain gradient descent, as in that paper.

    Raises:
        ValueError: a negative λ.
    """

    def __init__(self, lambda_well: float, precondition: Precondition = "none") -> None:
        super().__init__({"well": check_weight("objective.lambda_well", lambda_well)}, precondition)
