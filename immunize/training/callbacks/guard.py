"""The theorem guard: was ηλ within Theorem 4.3's bounds, and did κ move the way the theorem promises?

The theorem speaks of one preconditioned gradient step of length ηλ on one regularizer. A real step adds both, the task
loss (the paper's own Limitations, §4.4), and an optimizer's scaling: Adam divides every coordinate of the gradient by
a running size of its own, so that its step has no ηλ to compare, and the bounds say nothing about it. The guard
therefore counts two things apart: whether ηλ was within the bounds, which are the theorem's conditions only where
`theorem_step` is true, and whether κ moved as promised, which is what matters, whatever the step.

A network's features are F = Xθ for the last linear map θ (C.3's dummy layer, θ = I) and its inputs X. The theorem holds
for a step of that map with X as it is; in a network's step everything below it moves too, and the guard counts what is
left of the promise. H is then that of the features, of several harmful data sets together.

"Right way": κ(H_P) does not rise (methods with a "well" term), κ(H_H) does not fall (methods with an "ill" term),
both on the data of that step. A step that pushes a direction below the rank cut has moved neither the right way,
although κ over the remaining spectrum may say so.

λ itself can be chosen by balancing gradient norms (Appendix C.2), at the end of this file.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from immunize.objective import Step, mean_over_ranks
from immunize.spectrum.condition import Spectrum, condition_number, spectrum_of
from immunize.spectrum.regularizers import ill_step_bound, well_step_bound
from immunize.training.module import Batch, ImmunizationModule, LinearModule

log = logging.getLogger(__name__)

ROUNDING = 1e-12
"""Relative change of κ that counts as none."""

ROLES_OF = {"well": "pretrain", "ill": "harmful"}
"""The data set of each regularizer."""

COUNTED = (
    "steps",  # all
    "eta_lambda_within_bounds",  # η·λ, as configured, was within the bound of every regularizer the method has
    "promises_kept",  # κ moved the right way, of every regularizer the method has
    "well_kept",  # κ(H_P) did not rise, where the method has R_well
    "ill_kept",  # κ(H_H) did not fall, where it has R_ill
    "broken_within_bounds",  # ηλ was within the bounds, and κ still moved the wrong way
)
"""What the guard sees, in steps."""


class TheoremGuard(Callback):
    """Checks every step against the bounds on ηλ (corrected, docs/numerics.md) and Theorem 4.3's promise.

    It counts, warns of the first broken promise, and changes nothing.
    """

    def __init__(self) -> None:
        self.counts = Counter(dict.fromkeys(COUNTED, 0))
        self._step: Step | None = None
        self._before: dict[str, Spectrum] = {}
        self._theorem_step = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See what kind of step it is."""
        assert isinstance(pl_module, ImmunizationModule)
        self._theorem_step = _takes_theorem_steps(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Remember both condition numbers and η."""
        assert isinstance(pl_module, ImmunizationModule)
        self._step = pl_module.step_of(batch)
        watched = [name for name in ROLES_OF if name in pl_module.objective.weights]
        self._before = {name: _spectrum(self._step, name, _features(self._step, name)) for name in watched}
        self._learning_rate = float(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Compare them with those after the step."""
        assert isinstance(pl_module, ImmunizationModule)
        if self._before:
            assert self._step is not None
            step = self._step.again()
            kept = {name: _moved_right(step, name, before) for name, before in self._before.items()}
            self._count(self._within_bounds(pl_module), kept)

    def _within_bounds(self, module: ImmunizationModule) -> bool:
        weights = module.objective.weights
        bounds = {
            "well": lambda s: well_step_bound(s.values[: s.rank], s.n_features),
            "ill": lambda s: ill_step_bound(s.values[: s.rank]),
        }
        return all(
            self._learning_rate * weights[name] < bounds[name](spectrum) for name, spectrum in self._before.items()
        )

    def _count(self, within: bool, kept_by: dict[str, bool]) -> None:
        kept = all(kept_by.values())
        self.counts.update(
            steps=1,
            eta_lambda_within_bounds=within,
            promises_kept=kept,
            well_kept=kept_by.get("well", False),
            ill_kept=kept_by.get("ill", False),
            broken_within_bounds=within and not kept,
        )
        if not kept and self.counts["steps"] - self.counts["promises_kept"] == 1:
            log.warning(
                "guard: step %d moved a condition number the wrong way (ηλ %s the theorem's bounds%s); "
                "later ones are counted in the record",
                self.counts["steps"] - 1,
                "within" if within else "outside",
                "" if self._theorem_step else ", which do not cover this kind of step",
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how it went."""
        kept, steps = self.counts["promises_kept"], self.counts["steps"]
        log.info("guard: %d of %d steps moved both condition numbers as promised", kept, steps)

    def state_dict(self) -> dict[str, Any]:
        """For a training that goes on later: what was counted."""
        return dict(self.counts)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it over."""
        self.counts.update(state_dict)

    def facts(self, module: LightningModule) -> dict[str, Any]:
        """For the record, under "guard"; `theorem_step`: the bounds on ηλ are the theorem's conditions in this run."""
        return {"guard": {"theorem_step": self._theorem_step, **self.counts}}


def _takes_theorem_steps(trainer: Trainer, module: ImmunizationModule) -> bool:
    """θ' = θ - ηλ·K⁻¹∇R exactly: plain gradient descent on one preconditioned regularizer and nothing else."""
    terms = module.objective.weights.keys()
    if not isinstance(module, LinearModule) or len(terms) != 1 or not terms <= {"well", "ill"}:
        return False
    if module.objective.precondition != "inverse_free":  # K⁻¹∇R without an ε, see :mod:`immunize.features.linear`
        return False
    if trainer.gradient_clip_val:
        return False
    extras = ("momentum", "weight_decay", "dampening", "maximize")
    return all(
        isinstance(optimizer, torch.optim.SGD) and not any(group[name] for name in extras)
        for optimizer in trainer.optimizers
        for group in optimizer.param_groups
    )


def _features(step: Step, name: str) -> Tensor:
    with torch.no_grad():
        return step.spectral_view(ROLES_OF[name], "none").features


def _spectrum(step: Step, name: str, features: Tensor) -> Spectrum:
    return spectrum_of(features, tolerance=step.tolerance(ROLES_OF[name]))


def _moved_right(step: Step, name: str, before: Spectrum) -> bool:
    features = _features(step, name)
    if not 0 < float(features.square().sum()) < math.inf:  # overflow, NaN or zeros: there is no spectrum to speak of
        return False
    after = _spectrum(step, name, features)
    old, new = condition_number(before).value, condition_number(after).value
    wrong = new > old * (1 + ROUNDING) if name == "well" else new < old * (1 - ROUNDING)
    return not wrong and after.rank >= before.rank


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
    return float(sum(float(g.double().square().sum()) for g in whole) ** 0.5)  # of float32 a square may be infinite
