"""The paper's method, Eq. (11): L(D_P, ω, θ) + λ_P R_well(H_P(θ)) + λ_H R_ill(H_H(θ))."""

from __future__ import annotations

from immunize.features.linear import Precondition
from immunize.objective.base import Objective, check_weight


class Ours(Objective):
    """Eq. (11), its regularizers' gradients preconditioned as in Algorithm 1 where the model can do that.

    Args:
        lambda_well: λ_P ≥ 0.
        lambda_ill: λ_H ≥ 0.
        precondition: of a linear extractor one of `OF_LINEAR`, of a network one of `OF_NETWORKS`, see
            :mod:`immunize.features.linear`.

    Raises:
        ValueError: a negative λ.
    """

    def __init__(self, lambda_well: float, lambda_ill: float, precondition: Precondition = "inverse_free") -> None:
        weights = {
            "task": 1.0,
            "well": check_weight("objective.lambda_well", lambda_well),
            "ill": check_weight("objective.lambda_ill", lambda_ill),
        }
        super().__init__(weights, precondition)
