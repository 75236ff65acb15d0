"""Baseline "Opt κ" (§5): minimize κ(H_P(θ)) - κ(H_H(θ)), or the difference of their logarithms, by gradient descent.

The paper writes κ. The released code's `condition_number()` returns log σ_max - log σ_min, and is what its authors use
everywhere; their script of this baseline is not released. Of κ itself the larger one rules the gradient, and the other
side is hardly seen; of its logarithms neither does.
"""

from __future__ import annotations

from torch import Tensor

from immunize.features.linear import Precondition
from immunize.objective.base import Objective, Step, kappa_term


class OptKappa(Objective):
    """The difference of both κ, with the closed-form subgradient of κ (autograd through `eigh` reaches NaN).

    Args:
        precondition: "none" is the paper's plain gradient descent.
        log: of log κ, as the released code's `condition_number()`; false: of κ, as the paper writes it.
    """

    def __init__(self, precondition: Precondition = "none", log: bool = True) -> None:
        super().__init__({"kappa_pretrain": 1.0, "kappa_harmful": -1.0}, precondition)
        self.log = log

    def terms(self, step: Step) -> dict[str, Tensor]:
        """κ of both Hessians, or its log; the second has weight -1. Of several harmful sets the sum."""
        return {
            "kappa_pretrain": self._kappa(step, "pretrain"),
            "kappa_harmful": step.over_harmful(lambda role: self._kappa(step, role)),
        }

    def _kappa(self, step: Step, role: str) -> Tensor:
        value = kappa_term(step, role, self.precondition)
        return value.log() if self.log else value
