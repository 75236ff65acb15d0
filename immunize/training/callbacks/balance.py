"""Choosing λ_P and λ_H by balancing gradient norms (Appendix C.2)."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from immunize.objective import mean_over_ranks
from immunize.training.module import Batch, ImmunizationModule


class GradientBalance(Callback):
    """Sets the weight of each regularizer so that its gradient norm is a multiple of the task loss's.

        λ ← multiplier · ‖∇_θ L‖ / ‖∇_θ R‖          (R preconditioned as the method does)

    With no task term in the method, both norms are balanced to 1. Terms other than "well" and "ill" keep their weight.

    Args:
        multiplier: 1, 2, 3 or 5 in C.2.
        every: balance again every so many steps; 0 balances once, before the first step.
        ill: the multiplier of R_ill, likewise; None is that of R_well.
        lower: a later balance may lower a weight and never raises one. R_ill's gradient fades as κ(H_H) grows, and a
            weight that follows it grows until the features burst.
    """

    def __init__(self, multiplier: float = 1, every: int = 0, ill: float | None = None, *, lower: bool = False) -> None:
        self.multiplier, self.every, self.lower = multiplier, every, lower
        self.multipliers = {"well": multiplier, "ill": multiplier if ill is None else ill}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Balance before the step."""
        step = trainer.global_step
        if step == 0 or (self.every and step % self.every == 0):
            assert isinstance(pl_module, ImmunizationModule)
            self.balance(pl_module, batch, within=self.lower and step > 0)

    def balance(self, module: ImmunizationModule, batch: Batch, *, within: bool = False) -> None:
        """Set the weights from the gradient norms at the current θ; `within`: to no more than they are."""
        step = module.step_of(batch)
        terms, parameters = module.objective.terms(step), module.theta_parameters()
        reference = _gradient_norm(module.reference_loss(step, terms), parameters) if "task" in terms else 1.0
        for name, multiplier in self.multipliers.items():  # in the same order in every process: they exchange each
            if name not in terms:
                continue
            norm = _gradient_norm(terms[name], parameters)
            if norm > 0:
                found, weights = multiplier * reference / norm, module.objective.weights
                weights[name] = min(found, weights[name]) if within else found

    def facts(self, module: ImmunizationModule) -> dict[str, Any]:
        """For the record, under "balance": the weights in force at the end."""
        own = self.multipliers["ill"]
        told = {"multiplier": self.multiplier} | ({} if own == self.multiplier else {"multiplier_ill": own})
        return {"balance": {**told, "every": self.every, "weights": dict(module.objective.weights)}}


def _gradient_norm(term: Tensor, parameters: list[torch.nn.Parameter]) -> float:
    gradients = torch.autograd.grad(term, parameters, allow_unused=True, retain_graph=True)
    whole = mean_over_ranks([g for g in gradients if g is not None])  # of the batch of all processes
    return float(sum(float(g.square().sum()) for g in whole) ** 0.5)
