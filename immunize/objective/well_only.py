"""Baseline of Nenov et al. (2024): minimize R_well(H_P(θ)) alone, with no harmful data."""

from __future__ import annotations

from torch import Tensor

from immunize.features import Precondition
from immunize.objective.base import Objective, Step, check_weight, well_term


class WellOnly(Objective):
    """λ_P R_well(H_P(θ)); ω is not trained.

    Args:
        lambda_well: λ_P ≥ 0.
        precondition: "none" is plain gradient descent, as in that paper.

    Raises:
        ValueError: a negative λ.
    """

    def __init__(self, lambda_well: float, precondition: Precondition = "none") -> None:
        super().__init__({"well": check_weight("objective.lambda_well", lambda_well)})
        self.precondition = precondition

    def terms(self, step: Step) -> dict[str, Tensor]:
        """R_well(H_P(θ))."""
        return {"well": well_term(step, self.precondition)}
