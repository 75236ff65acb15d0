"""Baseline IMMA (Zheng & Yeh 2024), bilevel as §5 describes it for a classifier.

    lower level   θ* = argmin_θ L(D_H, w, θ), by a few gradient steps that stay differentiable
    upper level   max_θ L(D_H, w, θ*) - L(D_P, ω, θ*), back-propagated through θ*

The classifiers are trained beside it: ω as in every method, w to solve the harmful task on the current features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from immunize.objective.base import Objective, Step, new_head

__all__ = ["Imma"]


class Imma(Objective):
    """The upper-level objective of θ, and the losses that train the two classifiers.

    Args:
        inner_steps: gradient steps of the lower level, ≥ 1.
        inner_learning_rate: their step size, > 0.

    Raises:
        ValueError: no inner step, or a step size ≤ 0.
    """

    harmful_head: nn.Parameter

    def __init__(self, inner_steps: int = 1, inner_learning_rate: float = 1e-2) -> None:
        super().__init__({"outer": 1.0, "heads": 1.0})
        if not isinstance(inner_steps, int) or inner_steps < 1:
            raise ValueError(f"method.inner_steps has to be a whole number of at least 1, it is {inner_steps}")
        if not 0 < inner_learning_rate < float("inf"):
            raise ValueError(f"method.inner_learning_rate has to be positive and finite, it is {inner_learning_rate}")
        self.inner_steps, self.inner_learning_rate = inner_steps, inner_learning_rate

    def bind(self, n_features: int, generator: torch.Generator | None = None) -> None:
        """Create w, the classifier of the harmful task."""
        self.harmful_head = new_head(n_features, generator)

    def terms(self, step: Step) -> dict[str, Tensor]:
        """`outer` moves θ alone; `heads` moves ω and w alone."""
        extractor, w, omega = step.extractor, self.harmful_head, step.head

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor, head: Tensor) -> Tensor:
            return step.task_loss(functional_call(extractor, parameters, (x, head)).squeeze(-1), y)

        theta: dict[str, Tensor] = dict(extractor.named_parameters())
        for _ in range(self.inner_steps):
            inner = loss(theta, step.harmful.x, step.harmful.y, w.detach())
            gradients = torch.autograd.grad(inner, list(theta.values()), create_graph=True)
            theta = {
                name: value - self.inner_learning_rate * gradient
                for (name, value), gradient in zip(theta.items(), gradients, strict=True)
            }
        harmful = loss(theta, step.harmful.x, step.harmful.y, w.detach())
        pretrain = loss(theta, step.pretrain.x, step.pretrain.y, omega.detach())

        frozen = {name: value.detach() for name, value in extractor.named_parameters()}
        heads = loss(frozen, step.harmful.x, step.harmful.y, w) + loss(frozen, step.pretrain.x, step.pretrain.y, omega)
        return {"outer": pretrain - harmful, "heads": heads}
