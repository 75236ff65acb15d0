"""Simulated fine-tuning, the family of SOPHON (Deng et al., S&P 2024) and MLAC (Henderson et al., AIES 2023).

    (θ_k, w_k)   θ and a probe of the harmful task after k of K steps on two thirds of a batch of D_H
    L = L(D_P, ω, θ) + w_S · mean over k = 0 … K of S(the other third, w_k, θ_k)

S is small where the attacker is wrong:

    inverse   mean of -log(1 - p_y)              SOPHON's inverse cross-entropy, bounded below by 0
    uniform   mean over samples of KL(1/C ‖ p)    SOPHON's distance to the uniform answer
    ascent    minus the cross-entropy            MLAC's, without a lower bound

What is ours: one step minimizes the sum, where SOPHON takes turns between the two losses; the attacker starts from a
ridge probe, as the grid's T4 does, which is a constant in the gradient, second order or not (`censor` differentiates
through its own); D_P is kept by its labels, as in all methods but `censor`.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from immunize.objective.attacker import OF_STEPS, Attacker, InnerOptimizer, attack
from immunize.objective.base import Objective, Step, check_weight
from immunize.objective.deep import DeepStep
from immunize.objective.ranks import mean_of_all

Suppression = Literal["inverse", "uniform", "ascent"]
SUPPRESSIONS: tuple[Suppression, ...] = get_args(Suppression)


class SimulatedFineTuning(Objective):
    """D_P's loss, and what keeps simulated attackers of D_H wrong.

    Args:
        suppress: S, one of `SUPPRESSIONS`.
        weight: w_S ≥ 0.
        attack_steps: K ≥ 0; 0 suppresses the probe of θ alone.
        attack_learning_rate: of the simulated steps, > 0.
        attack_optimizer: "sgd" or "adam".
        attack_batch_size: images of a simulated step.
        head_multiplier: the new head's learning rate over that of the weights, ≥ 0.
        second_order: differentiate through the steps, with sgd alone.
        gradient_clip: the largest norm of a gradient.

    Raises:
        ValueError: a value outside its range.
    """

    attacker: Attacker
    aims_at_kappa = False  # but at an attacker who stays wrong

    def __init__(
        self,
        suppress: Suppression = "inverse",
        weight: float = 1.0,
        *,
        attack_steps: int = 4,
        attack_learning_rate: float = 1e-3,
        attack_optimizer: InnerOptimizer = "adam",
        attack_batch_size: int = 64,
        head_multiplier: float = 10.0,
        second_order: bool = False,
        gradient_clip: float = 5.0,
    ) -> None:
        super().__init__({"task": 1.0, "suppressed": check_weight("method.weight", weight)})
        if suppress not in SUPPRESSIONS:
            raise ValueError(f"method.suppress is one of {', '.join(SUPPRESSIONS)}, it is {suppress!r}")
        if not gradient_clip > 0:
            raise ValueError(f"method.gradient_clip has to be positive, it is {gradient_clip}")
        self.suppress, self.gradient_clip = suppress, gradient_clip
        self.attacker = Attacker(
            attack_steps, attack_learning_rate, attack_optimizer, head_multiplier, second_order, attack_batch_size
        )

    @property
    def unused(self) -> tuple[str, ...]:
        """Of an attacker that takes no step."""
        return () if self.attacker.steps else OF_STEPS

    def terms(self, step: Step) -> dict[str, Tensor]:
        """L(D_P, ω, θ), and S over the attacker's path; `attacked` is watched: its cross-entropy at the end."""
        if not isinstance(step, DeepStep):
            raise TypeError("method=simulated trains a network")
        judged, path = attack(step, self.attacker, self.n_outputs)
        unseen = judged.nonzero().squeeze(1)
        mine = step.of_harmful(unseen)
        suppressed = []
        for parameters, head in path:
            logits = mine.logits("harmful", head, parameters)
            suppressed.append(mean_of_all(suppression(self.suppress, logits, mine.harmful.y), len(unseen)))
        with torch.no_grad():
            at_the_end = functional.cross_entropy(logits, mine.harmful.y, reduction="none")
            (attacked,) = step.averaged([mean_of_all(at_the_end, len(unseen))])
            self.watched = {"attacked": attacked}
        return {"task": step.pretrain_loss(), "suppressed": torch.stack(suppressed).mean()}


def suppression(which: Suppression, logits: Tensor, labels: Tensor) -> Tensor:
    """S of each sample, (N,).

    Args:
        which: one of `SUPPRESSIONS`.
        logits: (N, C).
        labels: (N,) int64.
    """
    log_p = logits.log_softmax(1)
    if which == "ascent":
        return log_p.gather(1, labels[:, None]).squeeze(1)
    if which == "uniform":
        return -log_p.mean(1) - math.log(logits.shape[1])
    return -log_p.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
