"""An attacker's steps inside a step of a method: where the weights are after some fine-tuning (T4), as functions of θ.

Shapes: N samples, B of them in a simulated step, D features, C classes.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from immunize.errors import DivergedError, UserError
from immunize.objective.base import Head, Step
from immunize.objective.deep import DeepStep, of_set, without_spectrum
from immunize.objective.ranks import all_finite, mean_of_all
from immunize.spectrum.erasing import ridge_weights

InnerOptimizer = Literal["sgd", "adam"]
OPTIMIZERS: tuple[InnerOptimizer, ...] = get_args(InnerOptimizer)

OF_STEPS = ("attack_learning_rate", "attack_optimizer", "attack_batch_size", "head_multiplier", "second_order")
"""A method's settings that have no effect where no step is taken."""

BETAS, EPS = (0.9, 0.999), 1e-8
"""Adam's (Kingma & Ba, ICLR 2015), bias corrected."""

DIVERGED = 100.0
"""Times the loss that it begins with, or that of guessing: an attacker whose loss is larger has diverged (ours)."""

FOLDS = 3
"""Two thirds of a batch of D_H are learned from, one third judges what was learned."""

LEAST_IMAGES = 2
"""Of a class in a batch, on average (ours)."""

SHARPNESS = tuple(2.0**power for power in range(-2, 8))
"""What the outputs of ridge regression, between 0 and 1, may be multiplied with to be logits; ours."""

AttackerLoss = Callable[[int, dict[str, Tensor], Head], Tensor]
"""What the attacker makes small in step k, counted from 0, for parameters of θ and a classifier."""


@dataclass(frozen=True)
class Attacker:
    """Fine-tuning in miniature.

    Attributes:
        steps: K ≥ 0, at most.
        learning_rate: of the weights, > 0.
        optimizer: one of `OPTIMIZERS`.
        head_multiplier: the classifier's rate over that of the weights; 0 leaves it as it is.
        second_order: differentiate through the steps (MAML), with sgd alone; else only where they end (first-order
            MAML: what was added to θ counts as a constant).
        batch_size: B, samples in each step of :func:`attack`; all where there are fewer.
        diverged: in how many batches it was left out, by the step from which on.

    Raises:
        ValueError: a setting out of its range.
    """

    steps: int
    learning_rate: float
    optimizer: InnerOptimizer = "sgd"
    head_multiplier: float = 0.0
    second_order: bool = False
    batch_size: int = 64
    diverged: Counter[int] = field(default_factory=Counter, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 0:
            raise ValueError(f"a simulated attacker takes a whole number of steps, it is {self.steps}")
        if not 0 < self.learning_rate < math.inf or not 0 <= self.head_multiplier < math.inf:
            raise ValueError(
                f"a simulated attacker's rates have to be positive and finite, they are {self.learning_rate} and "
                f"{self.head_multiplier} times that"
            )
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"attack_batch_size has to be a whole number of at least 1, it is {self.batch_size}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"a simulated attacker's optimizer is one of {', '.join(OPTIMIZERS)}: {self.optimizer!r}")
        if self.second_order and self.optimizer != "sgd":
            raise ValueError("second-order steps need sgd: Adam's root has no derivative where a gradient is 0")

    def path(self, step: Step, head: Head, loss: AttackerLoss) -> Iterator[tuple[dict[str, Tensor], Head]]:
        """Weights and classifier after 0, 1, …, K steps; it ends early, with a warning, where a loss is not finite.

        Args:
            step: gives θ.
            head: the classifier to start with.
            loss: what the attacker makes small.
        """
        theta = step.parameters()
        own = {"head weight": head.weight, "head bias": head.bias} if self.head_multiplier else {}
        moving = theta | {name: value.detach().requires_grad_() for name, value in own.items() if value is not None}
        rates = {name: self.learning_rate * (1 if name in theta else self.head_multiplier) for name in moving}
        averages = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in moving.items()}
        start, now = moving, moving
        for k in range(self.steps + 1):
            # First order: a step from a copy, which needs no graph of the steps before.
            here = now if self.second_order else {name: of.detach().requires_grad_() for name, of in now.items()}
            with torch.set_grad_enabled(k < self.steps):
                value = loss(k, *self._parts(here, theta, head)) if self.steps else None
            if k and value is not None and not all_finite(value):
                self.diverged[k] += 1
                warnings.warn(
                    f"the simulated attacker diverged in its step {k} and is left out from there on: lower its "
                    "learning rate",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return
            yield self._parts(now, theta, head)
            if value is None or k == self.steps:
                return
            gradients = step.averaged(gradients_of(value, list(here.values()), graph=self.second_order))
            now = {
                name: of - rates[name] * self._direction(averages, name, gradient, k)
                for (name, of), gradient in zip(here.items(), gradients, strict=True)
            }
            if not self.second_order:
                now = {name: start[name] + (of - start[name]).detach() for name, of in now.items()}

    def _direction(self, averages: dict[str, tuple[Tensor, Tensor]], name: str, gradient: Tensor, k: int) -> Tensor:
        if self.optimizer == "sgd":
            return gradient
        first, second = (
            beta * average + (1 - beta) * power
            for beta, average, power in zip(BETAS, averages[name], (gradient, gradient.square()), strict=True)
        )
        averages[name] = first, second
        mean, square = (average / (1 - beta ** (k + 1)) for average, beta in zip((first, second), BETAS, strict=True))
        return mean / (square.sqrt() + EPS)

    @staticmethod
    def _parts(now: dict[str, Tensor], theta: dict[str, Tensor], head: Head) -> tuple[dict[str, Tensor], Head]:
        weights = {name: now[name] for name in theta}
        return weights, Head(now.get("head weight", head.weight), now.get("head bias", head.bias))


def gradients_of(value: Tensor, parameters: list[Tensor], *, graph: bool) -> tuple[Tensor, ...]:
    """Of a scalar; zeros of what it does not depend on. `graph`: they can be differentiated again."""
    return torch.autograd.grad(value, parameters, create_graph=graph, allow_unused=True, materialize_grads=True)


def attack(
    step: DeepStep, attacker: Attacker, n_outputs: int
) -> tuple[Tensor, Iterator[tuple[dict[str, Tensor], Head]]]:
    """Fine-tuning on two thirds of a batch of D_H, from a ridge probe (Kumar et al., ICLR 2022), as tier T4 does.

    Args:
        step: with the batch.
        attacker: minimizes the cross-entropy; one above `DIVERGED` counts as infinite.
        n_outputs: C of D_H; 1 for two classes.

    Returns:
        which samples of all processes' batch the attacker does not see, (N,) bool, and its :meth:`Attacker.path`.

    Raises:
        UserError: too few images of D_H, see :func:`thirds`.
    """
    with torch.no_grad():
        (features,), labels = step.labelled("harmful", step.look("harmful", (), step.parameters()))
    judged = thirds(labels, step.harmful_classes)
    own = features[~judged]
    if (found := without_spectrum([("harmful", own - own[:1])])) is not None:  # which no probe can be fitted to
        raise DivergedError(step.number, "features of harmful", found[1])
    seen = (~judged).nonzero().squeeze(1)
    size = min(attacker.batch_size, len(seen))
    parts = seen.unfold(0, size, size)
    used = parts.numel()
    if len(step.harmful_classes) > 1:  # one data set's images come after the other's: what is left over is of all
        seen = seen[torch.arange(used, device=seen.device) * len(seen) // used]
    if step.harmful_classes:
        parts = seen[:used].view(size, len(parts)).T

    most = torch.tensor(torch.inf)

    def loss(k: int, parameters: dict[str, Tensor], head: Head) -> Tensor:
        nonlocal most
        value = harmful_loss(step, parts[k % len(parts)], parameters, head)
        (of_all,) = step.averaged([value.detach()])
        if not k:
            most = DIVERGED * of_all.clamp_min(math.log(max(n_outputs, 2)))
        return torch.where(of_all > most, torch.inf, value)

    probe = _probe(features, labels, judged, max(n_outputs, 2), step.net.head.weight.dtype)
    return judged, attacker.path(step, probe, loss)


def harmful_loss(step: DeepStep, numbers: Tensor, parameters: dict[str, Tensor], head: Head) -> Tensor:
    """This process's share of the mean cross-entropy of some samples of D_H, ().

    Args:
        step: with the batch.
        numbers: of the samples in all processes' batch, (n,) int64.
        parameters: of θ.
        head: the classifier.
    """
    mine = step.of_harmful(numbers)
    logits = mine.logits("harmful", head, parameters)
    return mean_of_all(functional.cross_entropy(logits, mine.harmful.y, reduction="none"), len(numbers))


def _probe(features: Tensor, labels: Tensor, judged: Tensor, n_classes: int, dtype: torch.dtype) -> Head:
    """A ridge probe as logits, scaled by the cross-entropy of the rows that it did not see."""
    wanted = functional.one_hot(labels, n_classes).double()
    weight = ridge_weights(features[~judged], wanted[~judged])
    bias = wanted[~judged].mean(0) - features[~judged].mean(0) @ weight
    outputs = features[judged] @ weight + bias
    losses = torch.stack([functional.cross_entropy(sharp * outputs, labels[judged]) for sharp in SHARPNESS])
    sharp = SHARPNESS[int(losses.argmin())]
    return Head((sharp * weight).to(dtype), (sharp * bias).to(dtype))


def thirds(labels: Tensor, sets: Sequence[int] = ()) -> Tensor:
    """A third of the rows of every class, (N,) bool, which judge, by their order in the batch, which is random.

    Args:
        labels: (N,), of all processes' batch.
        sets: classes of each data set, where labels are counted through several: a third of each one's rows by itself.

    Raises:
        UserError: too few rows to have two classes on both sides.
    """
    judged = torch.empty(len(labels), dtype=torch.bool, device=labels.device)
    if sets:
        for number in range(len(sets)):
            own = of_set(labels, sets, number)
            judged[own] = thirds(labels[own])
        return judged
    judged[labels.argsort(stable=True)] = torch.arange(len(labels), device=labels.device) % FOLDS == 0
    classes = len(torch.unique(labels))
    if len(labels) < LEAST_IMAGES * classes or min(len(torch.unique(labels[side])) for side in (judged, ~judged)) < 2:
        raise UserError(
            f"a batch of D_H has {len(labels)} images of {classes} classes: two thirds fit a probe and one judges it; "
            f"both need two classes, and two images of each; raise objective.batch_size, or the loader's"
        )
    return judged
