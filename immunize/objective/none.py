"""No immunization: θ and ω are trained on the supervised loss of the pre-training task alone."""

from __future__ import annotations

from immunize.objective.base import Objective


class Plain(Objective):
    """L(D_P, ω, θ), the control that every method is compared with (beside the identity)."""

    def __init__(self) -> None:
        super().__init__({"task": 1.0})
