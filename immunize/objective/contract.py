"""An attacker whose steps bring less and less, in the spirit of CLAMP (CVPR 2026), whose abstract alone we know.

    (θ_k, w_k)  θ and a probe of D_H after k of K steps on two thirds of a batch
    L = L of `censor`, whose probes look at θ, or at θ_k for a k from 0 to K
      + w_G · Σ_k max(0, ℓ_k - ℓ_{k+1} - τ q^k)        ℓ_k the cross-entropy of (θ_k, w_k) on the other third
      + w_C · mean over k of max(0, ρ_k - q)²          ρ_k = ‖T_{k+1}(θ_{k+1}) - T_k(θ_k)‖/‖θ_{k+1} - θ_k‖

T_k(θ) = θ - η ∇ℓ(θ, w_k) is a step of gradient descent on all of the two thirds, the head at rest. From CLAMP we have
the aim alone: that fine-tuning is a contraction, so that what it gains is bounded whatever the number of steps. The
rest is ours:

    gains that shrink        with ℓ_k - ℓ_{k+1} ≤ τ q^k for all k an attacker gains at most τ/(1 - q) nats
    steps that draw nearer   ρ_k ≤ q asks that gradient descent from two places of the attacker's path ends nearer

ρ_k is no Lipschitz constant: the head moves too, from w_k to w_{k+1}, so that T is another map at each k, and the path
is the attacker's, by its own optimizer on mini-batches, and not that of T. So a small ρ_k promises no fixed point, and
bounds neither a way in θ nor a gain. The gains are asked for at the K steps that are tried: a penalty, no proof.
Neither says anything of θ_0 itself: a task that its features show is there before the first step, which is why
`censor` is the rest of the loss. Weights that grow shorten an attacker's steps relative to them, without anything being
lost: a larger learning rate undoes it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from immunize.objective.attacker import OF_STEPS, Attacker, InnerOptimizer, attack, gradients_of, harmful_loss
from immunize.objective.base import Step, check_weight
from immunize.objective.censor import HEAD_MULTIPLIER, Censor
from immunize.objective.deep import DeepStep


class Contract(Censor):
    """What `censor` asks for, and simulated fine-tuning that gains less and less.

    Args:
        gain: w_G ≥ 0.
        contraction: w_C ≥ 0.
        factor: q, between 0 and 1.
        first_gain: τ ≥ 0, nats of cross-entropy.
        descent_rate: η > 0 of T.
        attack_steps: K ≥ 0; 0 is `censor`.
        attack_learning_rate: of the simulated steps, > 0.
        attack_optimizer: "sgd" or "adam".
        attack_batch_size: images of a simulated step.
        head_multiplier: the new head's learning rate over that of the weights, ≥ 0.
        second_order: differentiate through the simulated steps, with sgd alone.
        probes_after: the probes look at the network after k of the steps, k from 0 to K as the batch falls, and not at
            θ itself.
        censored: what `Censor` takes beside its attacker.

    Raises:
        ValueError: a value outside its range.
    """

    def __init__(
        self,
        gain: float = 1.0,
        contraction: float = 1.0,
        *,
        factor: float = 0.5,
        first_gain: float = 0.01,
        descent_rate: float = 0.1,
        attack_steps: int = 4,
        attack_learning_rate: float = 1e-3,
        attack_optimizer: InnerOptimizer = "adam",
        attack_batch_size: int = 64,
        head_multiplier: float = HEAD_MULTIPLIER,
        second_order: bool = False,
        probes_after: bool = False,
        **censored: Any,
    ) -> None:
        super().__init__(**censored)
        self.attacker = Attacker(
            attack_steps, attack_learning_rate, attack_optimizer, head_multiplier, second_order, attack_batch_size
        )
        wanted = {"gain": gain, "contraction": contraction}
        checked = {name: check_weight(f"method.{name}", value) for name, value in wanted.items()}
        self.weights |= {name: value for name, value in checked.items() if value and attack_steps}
        if not 0 < factor < 1:
            raise ValueError(f"method.factor has to lie between 0 and 1, it is {factor}")
        if not 0 <= first_gain < math.inf or not 0 < descent_rate < math.inf:
            raise ValueError(
                f"method.first_gain has to be finite and at least 0, method.descent_rate positive and finite; they are "
                f"{first_gain} and {descent_rate}"
            )
        self.factor, self.first_gain, self.descent_rate = factor, first_gain, descent_rate
        self.probes_after = probes_after

    @property
    def unused(self) -> tuple[str, ...]:
        """Of terms that have no weight, and of an attacker that takes no step."""
        of_gain = () if "gain" in self.weights else ("first_gain",)
        of_contraction = () if "contraction" in self.weights else ("descent_rate",)
        if {"gain", "contraction"} & self.weights.keys():
            return of_gain + of_contraction
        if self.attacker.steps and self.probes_after:
            return (*of_gain, *of_contraction, "factor")
        others = ("attack_steps",) if self.attacker.steps else ("gain", "contraction", "probes_after")
        return (*of_gain, *of_contraction, *others, *OF_STEPS, "factor")

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Those of `censor`, and what the attacker's steps bring too much; `gained` and `factor` are watched."""
        found = super().terms(step)
        assert isinstance(step, DeepStep)
        if not {"gain", "contraction"} & self.weights.keys():
            return found
        judged, path = attack(step, self.attacker, self.n_outputs)
        whole = self.attacker.second_order  # else the steps count as constants
        learned, unseen = ((~judged).nonzero().squeeze(1), judged.nonzero().squeeze(1))
        losses, steps = [], []
        for parameters, head in path:
            losses.append(harmful_loss(step, unseen, parameters, head))
            if "contraction" in self.weights:
                value = harmful_loss(step, learned, parameters, head if whole else head.detach())
                slopes = gradients_of(value, list(parameters.values()), graph=True)
                place = _flat(parameters.values())
                steps.append((place if whole else place.detach(), _flat(step.averaged(slopes))))
        found |= self._gain(torch.stack(losses), step) | self._contraction(steps, losses[0])
        return {name: value for name, value in found.items() if name in self.weights}

    def _attacked(self, step: DeepStep) -> dict[str, Tensor] | None:
        return super()._attacked(step) if self.probes_after else None

    def _gain(self, losses: Tensor, step: DeepStep) -> dict[str, Tensor]:
        """Of each process's share of ℓ_0, …, ℓ_K."""
        (whole,) = step.averaged([losses])
        self.watched["gained"] = (whole[0] - whole[-1]).detach()
        gains = whole[:-1] - whole[1:]
        allowed = self.first_gain * self.factor ** torch.arange(len(gains), dtype=gains.dtype, device=gains.device)
        return {"gain": (gains - allowed).clamp_min(0).sum()}

    def _contraction(self, steps: list[tuple[Tensor, Tensor]], like: Tensor) -> dict[str, Tensor]:
        """Of weights and slopes along the way; pairs that are at the same place have no factor."""
        factors = []
        for (here, slope), (there, other) in pairwise(steps):
            moved = there - here
            if moved.any():
                factors.append((moved - self.descent_rate * (other - slope)).norm() / moved.norm())
        if not factors:
            return {"contraction": torch.zeros_like(like)}
        of_all = torch.stack(factors)
        self.watched["factor"] = of_all.detach().max()
        return {"contraction": (of_all - self.factor).clamp_min(0).square().mean()}


def _flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
