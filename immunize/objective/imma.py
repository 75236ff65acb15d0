"""Baseline IMMA (Zheng & Yeh 2024), bilevel as §5 describes it for a classifier.

    lower level   θ* = argmin_θ L(D_H, w, θ), by a few gradient steps that stay differentiable
    upper level   max_θ L(D_H, w, θ*) - L(D_P, ω, θ*), back-propagated through θ*

The classifiers are trained beside it: ω as in every method, w to solve the harmful task on the current features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from immunize.objective.attacker import Attacker
from immunize.objective.base import Head, Objective, Step, new_head


class Imma(Objective):
    """The upper-level objective of θ, and the losses that train the two classifiers.

    Args:
        inner_steps: gradient steps of the lower level, ≥ 1.
        inner_learning_rate: their step size, > 0.

    Raises:
        ValueError: no inner step, or a step size ≤ 0.
    """

    takes_harmful_loss = True
    attacker: Attacker
    harmful_head: nn.Parameter

    def __init__(self, inner_steps: int = 1, inner_learning_rate: float = 1e-2) -> None:
        super().__init__({"outer": 1.0, "heads": 1.0})
        if not isinstance(inner_steps, int) or inner_steps < 1:
            raise ValueError(f"method.inner_steps has to be a whole number of at least 1, it is {inner_steps}")
        if not 0 < inner_learning_rate < float("inf"):
            raise ValueError(f"method.inner_learning_rate has to be positive and finite, it is {inner_learning_rate}")
        self.attacker = Attacker(inner_steps, inner_learning_rate, second_order=True)

    def bind(
        self,
        n_features: int,
        generator: torch.Generator | None = None,
        n_outputs: int = 1,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """Create w (D, C), the classifier of the harmful task."""
        self.harmful_head = new_head(n_features, generator, n_outputs, dtype)

    def terms(self, step: Step) -> dict[str, Tensor]:
        """`outer` moves θ alone; `heads` moves ω and w alone."""
        w, omega = Head(self.harmful_head), step.omega
        *_, (theta, _) = self.attacker.path(step, w.detach(), lambda _, theta, w: step.loss("harmful", w, theta))
        harmful = step.loss("harmful", w.detach(), theta)
        pretrain = step.loss("pretrain", omega.detach(), theta)

        frozen = {name: value.detach() for name, value in step.parameters().items()}
        heads = step.loss("harmful", w, frozen) + step.loss("pretrain", omega, frozen)
        return {"outer": pretrain - harmful, "heads": heads}
