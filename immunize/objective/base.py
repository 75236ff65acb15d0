"""What every method is: named terms of a loss, and their weights. One file a method beside this one.

A method sees a step only as a :class:`Step`: losses, spectra and the parameters of θ, whatever f_θ is. The two kinds
are :class:`~immunize.objective.linear.LinearStep` and :class:`~immunize.objective.deep.DeepStep`.

Shapes: N samples, D features, C outputs.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from immunize.features.deep import DeepExtractor
from immunize.features.linear import Precondition, SpectralView
from immunize.objective.ranks import mean_over_ranks
from immunize.spectrum.regularizers import kappa_of_features, r_ill_of_features, r_well_of_features

if TYPE_CHECKING:
    from immunize.objective.attacker import Attacker

TaskLoss = Callable[[Tensor, Tensor], Tensor]
"""(logits, targets) to a scalar mean over samples; (N,) and (N,) for one output, (N, C) and (N,) labels for several."""


class Labelled(Protocol):
    """Rows with their targets: a `Part` of the data room."""

    @property
    def x(self) -> Tensor:
        """(N, D) float64."""

    @property
    def y(self) -> Tensor:
        """(N,) float64, the target of a regression or the label 0 or 1; int64 classes."""


@dataclass(frozen=True)
class Head:
    """A linear classifier on the features, as values.

    Attributes:
        weight: (D, C).
        bias: (C,), or None.
    """

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (N, C) of features (N, D)."""
        logits = features @ self.weight
        return logits if self.bias is None else logits + self.bias

    def detach(self) -> Head:
        """The same classifier, which no gradient reaches."""
        return Head(self.weight.detach(), None if self.bias is None else self.bias.detach())


class Step(ABC):
    """Everything a method may look at in one step of Eq. (11)."""

    @property
    @abstractmethod
    def omega(self) -> Head:
        """ω, the classifier of the pre-training task."""

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """The trainable parameters of θ, by name."""

    @abstractmethod
    def loss(self, role: str, head: Head, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """L(D, head, θ) of one data set, a scalar.

        Args:
            role: "pretrain" or "harmful".
            head: the classifier.
            parameters: other values for what :meth:`parameters` names, such as θ after a step; None: θ itself.
        """

    @abstractmethod
    def spectral_view(self, role: str, precondition: Precondition) -> SpectralView:
        """The features of one data set as a regularizer takes them, float64.

        Args:
            role: "pretrain" or "harmful".
            precondition: what is done to the regularizer's gradient on its way to θ.
        """

    @abstractmethod
    def tolerance(self, role: str) -> float:
        """Relative rank cut for H of one data set in this step."""

    def pretrain_loss(self) -> Tensor:
        """L(D_P, ω, θ)."""
        return self.loss("pretrain", self.omega)

    def again(self) -> Step:
        """The same step, of which nothing has been computed; autograd frees what a backward pass has used."""
        return self

    def over_harmful(self, term: Callable[[str], Tensor]) -> Tensor:
        """A term of the harmful data set; where a step has several, the sum of each one's.

        Args:
            term: of a role that :meth:`spectral_view` and :meth:`tolerance` take, a scalar.
        """
        return term("harmful")

    def averaged(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients of a loss of this step, averaged over all processes that share its batch; differentiable."""
        return mean_over_ranks(gradients)


OF_EQ_11 = {"task", "well", "ill"}
"""Names of the terms of Eq. (11)."""

OF_SPECTRA = {"well", "ill", "kappa_pretrain", "kappa_harmful"}
"""Names of terms that no loss is in."""


class Objective(nn.Module):
    """A method: `terms` gives the unweighted terms of its loss, `weights` the factor of each.

    A module, because a method may own parameters (IMMA's classifier of the harmful task).

    Args:
        weights: by the names of the terms.
        precondition: of the gradients of functions of the spectrum, where `weights` name any.

    Raises:
        TypeError: `weights` name terms that are not Eq. (11)'s, and the method does not say what they are.
    """

    gradient_clip: float | None = None
    """The largest norm of a gradient that a step is made from; None for any."""

    n_outputs: int = 1
    """C of the harmful task, as :meth:`bind` was told."""

    attacker: Attacker | None = None
    """Who takes simulated steps, in methods that look where these end."""

    looks_at_theta_0: bool = False
    """Whether its terms need the network as it was: :attr:`DeepStep.theta_0`."""

    aims_at_kappa: bool = True
    """Whether (i), (ii) and RIR are its measure; a method that aims at what can be learned of D_H has c instead."""

    has_inverse: bool = True
    """Whether the map that the method computes, if it does, can be undone in the head of a network."""

    def __init__(self, weights: dict[str, float], precondition: Precondition = "none") -> None:
        super().__init__()
        if type(self).terms is Objective.terms and (unknown := sorted(weights.keys() - OF_EQ_11)):
            raise TypeError(
                f"{type(self).__name__} has a weight for {unknown[0]!r}, but no method `terms` that says what it is"
            )
        self.weights, self.precondition = weights, precondition
        self.watched: dict[str, Tensor] = {}
        """What is logged beside the terms of a step, by name."""

    @property
    def diverged(self) -> Counter[int]:
        """In how many batches a simulated attacker was left out, by the step from which on."""
        return Counter() if self.attacker is None else self.attacker.diverged

    def facts(self) -> dict[str, Any]:
        """For the record when a training has ended: what is watched, and how often a simulated attacker diverged."""
        told = {"watched": {name: value.item() for name, value in self.watched.items()}}
        told["attackers_diverged"] = {f"in step {step}": batches for step, batches in sorted(self.diverged.items())}
        return {name: of for name, of in told.items() if of}

    def prepare(self, net: DeepExtractor, labels: Sequence[Tensor], theta_0: Callable[[], Sequence[Labelled]]) -> None:
        """What a method has to know of a network's data before the first step; most methods need nothing.

        Args:
            net: the network, at θ_0.
            labels: of each D_H, (N,).
            theta_0: gives features of θ_0 with their labels, first of D_P, then of each D_H; a pass over the data.
        """

    def bind(
        self,
        n_features: int,
        generator: torch.Generator | None = None,
        n_outputs: int = 1,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """Create the parameters that depend on the data, of which most methods have none, and know C.

        Args:
            n_features: D.
            generator: of the draw; the global one if None.
            n_outputs: C of the harmful task: 1 for a regression or two classes.
            dtype: of f_θ.
        """
        self.n_outputs = n_outputs

    @property
    def trains(self) -> bool:
        """Whether θ is found by taking steps, and not computed by :meth:`solve`."""
        return type(self).solve is Objective.solve

    @property
    def takes_loss(self) -> bool:
        """Whether a loss is among its terms; a method of spectra alone has none, and trains no classifier."""
        return not self.weights.keys() <= OF_SPECTRA

    @property
    def takes_harmful_loss(self) -> bool:
        """Whether it takes that loss of D_H's labels as well, which then have to suit it."""
        return False

    @property
    def trains_classifier(self) -> bool:
        """Whether it trains one, by that loss or by another term."""
        return self.takes_loss

    @property
    def unused(self) -> tuple[str, ...]:
        """Settings of its own that have no effect beside the others, such as the seed of a draw that is not made."""
        return ()

    def solve(self, pretrain: Labelled, harmful: Labelled) -> tuple[Tensor, dict[str, Any]] | None:
        """θ, (D, D) float64, and facts about it, for a method that needs no training; None for every other.

        Args:
            pretrain: D_P, rows (N_P, D) float64 of a linear model or θ_0's features of a network, and targets.
            harmful: D_H; of several harmful data sets all rows together.
        """
        del pretrain, harmful
        return None

    def terms(self, step: Step) -> dict[str, Tensor]:
        """The scalar terms, by the names that `weights` uses; the step minimizes their weighted sum.

        Those of Eq. (11) that have a weight, unless the method says otherwise: "task", the loss L(D_P, ω, θ), "well",
        R_well(H_P(θ)), and "ill", R_ill(H_H(θ)).
        """
        found = {"task": step.pretrain_loss()} if "task" in self.weights else {}
        regularizers = {"well": well_term, "ill": ill_term}
        return found | {name: of(step, self.precondition) for name, of in regularizers.items() if name in self.weights}


def _spectral(function: Callable[..., Tensor], step: Step, role: str, precondition: Precondition) -> Tensor:
    """A function of the features of one data set in the step."""
    view = step.spectral_view(role, precondition)
    return function(view.features, view.theta, tolerance=step.tolerance(role))


def well_term(step: Step, precondition: Precondition) -> Tensor:
    """R_well(H_P(θ)), Eq. (3)."""
    return _spectral(r_well_of_features, step, "pretrain", precondition)


def ill_term(step: Step, precondition: Precondition) -> Tensor:
    """R_ill(H_H(θ)), Eq. (12); of several harmful data sets the sum."""
    return step.over_harmful(lambda role: _spectral(r_ill_of_features, step, role, precondition))


def kappa_term(step: Step, role: str, precondition: Precondition) -> Tensor:
    """κ(H(θ)) of one data set in the step, Eq. (1)."""
    return _spectral(kappa_of_features, step, role, precondition)


def new_head(
    n_features: int,
    generator: torch.Generator | None = None,
    n_outputs: int = 1,
    dtype: torch.dtype = torch.float64,
) -> nn.Parameter:
    """A linear classifier (D, C), drawn as `torch.nn.Linear` draws its weight, U(-1/√D, 1/√D)."""
    draw = torch.rand(n_features, n_outputs, dtype=torch.float64, generator=generator)
    return nn.Parameter(((2 * draw - 1) / n_features**0.5).to(dtype))


def check_weight(name: str, value: float) -> float:
    """λ ∈ R_+ (Algorithm 1).

    Raises:
        ValueError: negative or not finite.
    """
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} has to be a finite number ≥ 0 (Algorithm 1), it is {value}")
    return float(value)


LOSSES: dict[str, TaskLoss] = {
    "mse": functional.mse_loss,
    "bce": functional.binary_cross_entropy_with_logits,
    "ce": functional.cross_entropy,
}
"""Supervised losses L of Table 4: "mse" and "bce" take scores and targets (N,), "ce" logits (N, C) and labels (N,)."""


def task_loss(name: str, label_smoothing: float = 0.0) -> TaskLoss:
    """Look a loss up.

    Args:
        name: one of `LOSSES`.
        label_smoothing: share of the target that "ce" spreads over all classes; the other losses know none.

    Raises:
        ValueError: unknown name, or smoothing outside [0, 1) or of another loss than "ce".
    """
    if name not in LOSSES:
        raise ValueError(f"unknown objective.loss {name!r}; there are {', '.join(LOSSES)}")
    if not label_smoothing:
        return LOSSES[name]
    if name != "ce" or not 0 <= label_smoothing < 1:
        raise ValueError(f"objective.label_smoothing={label_smoothing} has to be in [0, 1), and 0 but for loss=ce")
    return functools.partial(functional.cross_entropy, label_smoothing=label_smoothing)


def divergence(wanted: Tensor, found: Tensor) -> Tensor:
    """Mean over samples of KL(softmax(wanted) ‖ softmax(found)), logits (N, C): how far answers are from θ_0's."""
    known = wanted.log_softmax(1)
    return (known.exp() * (known - found.log_softmax(1))).sum(1).mean()
