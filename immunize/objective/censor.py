"""A defence in the weights: the network is trained until no probe learns D_H's labels, and D_P stays (docs/erasure.md).

    L = w_A · mean over depths, kernels and ρ of max(c, 0)²                  c of a ridge probe of D_H (`separability`)
      + w_T · the same of a probe of f_0W                                    W a ridge probe of D_H's labels at θ_0
      + w_F · mean over D_P of ‖(f - f_0)/s‖²/D                              s the deviations of θ_0's features
      + w_L · mean over D_P of KL( softmax(f_0W_0 + b_0) ‖ softmax(fW + b) )
      + λ_P R_well + λ_H R_ill                                               Eq. (11)'s, where λ are not 0

What is hidden from probes of the labels of some images is not hidden for others, of which the attacker has some: a
network soon knows by heart what to hide. f_0W is dense where labels are sparse, and a function of the image: it has to
go for all of them, and what θ_0 knew of the labels goes with it.

The probe is the closed-form optimum of its third of the batch, so that the gradient of c knows how an attacker answers.
D_P is kept by repeating θ_0 and not by the task's loss, which would train it again, and on its own labels alone.

Shapes: N samples, D features, C classes; f are features, f_0 those of θ_0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from immunize.errors import UserError
from immunize.features.deep import DeepExtractor, check_depths
from immunize.objective.attacker import Attacker, attack, thirds
from immunize.objective.base import Labelled, Objective, Step, check_weight
from immunize.objective.deep import DeepStep
from immunize.objective.ranks import gather_rows
from immunize.spectrum.erasing import ONE_LABEL, Erasure, ridge_weights
from immunize.spectrum.erasing_choice import erase
from immunize.spectrum.separability import KERNELS, RHOS, Kernel, cross_fitted_correlation

HEAD_MULTIPLIER = 10.0
"""A new head's learning rate over that of the weights, as in tier T4."""

LEAST_SPREAD = 1e-2
"""Added to the variance of every feature of θ_0, in units of their mean: some hardly vary (ours)."""

FEATURES = "features"
"""What the probe at the classifier's place is called beside those at other depths."""


class Censor(Objective):
    """What a probe can learn of D_H's labels is trained away, and θ_0 is repeated on D_P.

    Args:
        adversary: w_A ≥ 0.
        answers: w_T ≥ 0.
        features: w_F ≥ 0.
        logits: w_L ≥ 0.
        kernels: of the probes, of `KERNELS`.
        rhos: ρ > 0 of the probes.
        depths: names of modules at whose outputs probes look as well.
        erased: repeat θ_0's features behind the map of method=erase instead of as they are.
        attack_steps: K ≥ 0: the probes look at the network after k steps of fine-tuning on what probes are fitted on,
            k from 0 to K as the batch falls; 0 is the network as it is.
        attack_learning_rate: of these steps, Adam's, > 0; the new head's is ten times that.
        attack_batch_size: images of each of them.
        lambda_well: λ_P ≥ 0 of R_well.
        lambda_ill: λ_H ≥ 0 of R_ill.
        gradient_clip: the largest norm of a gradient.

    Raises:
        ValueError: a value outside its range.
    """

    attacker: Attacker
    looks_at_theta_0 = True
    takes_loss = False  # D_P is kept by repeating θ_0
    trains_classifier = True  # by the distance of its logits

    def __init__(
        self,
        adversary: float = 20.0,
        answers: float = 2.5,
        features: float = 4.0,
        logits: float = 3.0,
        *,
        kernels: Sequence[Kernel] = KERNELS,
        rhos: Sequence[float] = RHOS,
        depths: Sequence[str] = (),
        erased: bool = False,
        attack_steps: int = 0,
        attack_learning_rate: float = 1e-3,
        attack_batch_size: int = 64,
        lambda_well: float = 0.0,
        lambda_ill: float = 0.0,
        gradient_clip: float = 5.0,
    ) -> None:
        kept = {FEATURES: features, "logits": logits}
        wanted = {"adversary": adversary, "answers": answers, "lambda_well": lambda_well, "lambda_ill": lambda_ill}
        checked = {name: check_weight(f"method.{name}", value) for name, value in (kept | wanted).items()}
        super().__init__(
            {name.removeprefix("lambda_"): value for name, value in checked.items() if value or name in kept}
        )
        self.aims_at_kappa = bool({"well", "ill"} & self.weights.keys())
        if not kernels or not set(kernels) <= set(KERNELS):
            raise ValueError(f"method.kernels has to name some of {', '.join(KERNELS)}, it is {list(kernels)}")
        if not rhos or not all(0 < rho < math.inf for rho in rhos):
            raise ValueError(f"method.rhos has to hold positive numbers, it is {list(rhos)}")
        if not gradient_clip > 0:
            raise ValueError(f"method.gradient_clip has to be positive, it is {gradient_clip}")
        self.kernels, self.rhos, self.depths = tuple(kernels), tuple(rhos), tuple(depths)
        self.erased, self.gradient_clip = erased, gradient_clip
        self.attacker = Attacker(
            attack_steps, attack_learning_rate, "adam", HEAD_MULTIPLIER, batch_size=attack_batch_size
        )
        self._erasure: Erasure | None = None
        self._probes: list[Tensor] = []  # W of each D_H, (D, C)

    @property
    def unused(self) -> tuple[str, ...]:
        """Of an attacker that takes no step."""
        return () if self.attacker.steps else ("attack_learning_rate", "attack_batch_size")

    def prepare(self, net: DeepExtractor, labels: Sequence[Tensor], theta_0: Callable[[], Sequence[Labelled]]) -> None:
        """Look at what is to be censored before the first step.

        Args:
            net: the network, at θ_0.
            labels: of each D_H, (N,).
            theta_0: gives θ_0's features and labels, first of D_P, then of each D_H; called where needed.

        Raises:
            UserError: a D_H whose labels are all the same, or each another; a depth that the network does not have; or
                features that cannot be erased.
        """
        for y in labels:
            if bool((y == y[0]).all()):
                raise UserError(ONE_LABEL.format(len(y)).replace("erasing needs", "a probe needs"))
            if int((torch.bincount(torch.unique(y, return_inverse=True)[1]) >= 2).sum()) < 2:
                raise UserError("fewer than two classes of D_H have two images: a probe can be fitted, but not judged")
        check_depths(net, self.depths)
        if not self.erased and "answers" not in self.weights:
            return
        (x, y), *harmful = ((of.x.double(), of.y) for of in theta_0())
        try:
            self._probes = [ridge_weights(*one) for one in harmful]
            if self.erased:
                self._erasure = erase(x, [one for one, _ in harmful], [one for _, one in harmful], y_pretrain=y)
        except ValueError as error:
            raise UserError(f"θ_0's features: {error}") from None

    def terms(self, step: Step) -> dict[str, Tensor]:
        """How the probes do on D_H, the two distances to θ_0 on D_P, and Eq. (11)'s terms where they have a weight."""
        if not isinstance(step, DeepStep):
            raise TypeError("method=censor trains a network; a linear model has method=erase, in closed form")
        return self._adversary(step) | self._distances(step) | super().terms(step)

    def _adversary(self, step: DeepStep) -> dict[str, Tensor]:
        parameters = self._attacked(step)
        rows = step.look("harmful", self.depths, parameters)
        before = [step.before("harmful")] if "answers" in self.weights else []
        found: dict[str, Tensor] = {}
        self.watched = {}
        for which in [name for name in ("adversary", "answers") if name in self.weights]:

            def of(role: str, which: str = which) -> Tensor:
                outputs, labels = step.labelled(role, rows if which == "adversary" else [*rows, *before])
                targets, values, judged = labels, [], thirds(labels)
                if which == "answers":
                    theta_0 = outputs.pop()
                    targets = theta_0 @ self._probes[int(role.partition(":")[2] or 0)].to(theta_0.device)
                for name, output in zip((FEATURES, *self.depths), outputs, strict=True):
                    for kernel in self.kernels:
                        c = cross_fitted_correlation(output, targets, judged, self.rhos, kernel=kernel)
                        values.append(c.clamp_min(0).square().mean())
                        best, key = c.detach().max(), f"c/{which}/{name}/{kernel}"
                        self.watched[key] = torch.maximum(best, self.watched.get(key, best))
                return torch.stack(values).mean()

            found[which] = step.over_harmful(of)
        return found

    def _attacked(self, step: DeepStep) -> dict[str, Tensor] | None:
        """θ after the attacker's steps, in which it sees what probes are fitted on; None without a step."""
        steps = self.attacker.steps
        drawn = int(step.labelled("harmful", [])[1].sum()) + step.number  # a batch may hold all of D_H every time
        k = drawn % (steps + 1)
        if not k:
            return None
        _, path = attack(step, replace(self.attacker, steps=k), self.n_outputs)
        *_, (parameters, _) = path
        return parameters

    def _distances(self, step: DeepStep) -> dict[str, Tensor]:
        before, after = step.before("pretrain"), step.features("pretrain")
        with torch.autocast(after.device.type, enabled=False):
            variance = gather_rows(before.double()).var(0)
            scale = (variance + LEAST_SPREAD * variance.mean()).sqrt().to(after.dtype)
            target = before if self._erasure is None else self._erasure(before.double()).to(after.dtype)
            return {FEATURES: ((after - target) / scale).square().mean(), "logits": step.divergence()}
