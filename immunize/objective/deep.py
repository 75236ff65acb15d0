"""A step of a deep network, F = f_θ(X): one forward pass of the trainable tail a side (§5.2, C.3).

Losses are those of the process's own samples, which DDP averages; spectra are those of the whole batch, in float64 and
outside mixed precision (see :mod:`.ranks`).

D_H may be several data sets, whose labels are counted one after the other. A loss is that of all their samples; a
spectrum is that of one set, and R_ill (or κ) of the harmful task the sum over the sets.

Shapes: N samples, D features, C classes, M harmful data sets; h whatever enters the tail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from immunize.features.deep import DeepExtractor, features_at
from immunize.features.linear import (
    OF_NETWORKS,
    Precondition,
    SpectralView,
    preconditioned_features,
    refuse_precondition,
)
from immunize.objective.base import Head, Step, TaskLoss, divergence
from immunize.objective.ranks import gather_rows, in_order, own_of
from immunize.spectrum.condition import default_tolerance


@dataclass(frozen=True)
class DeepSide:
    """One data set's part of a step.

    Attributes:
        h: (N, ...) what the frozen trunk made of the images.
        y: (N,) int64 labels.
    """

    h: Tensor
    y: Tensor


@dataclass(frozen=True)
class DeepStep(Step):
    """A batch of both data sets, and the network.

    Attributes:
        net: f_θ and ω.
        pretrain: D_P.
        harmful: D_H.
        task_loss: (logits (N, C), labels (N,)) to a scalar.
        harmful_classes: (M,) classes of each harmful data set; of a single one it need not be told.
        theta_0: the network as it was, for a method that looks at it.
        keep_answers: D_P is kept by repeating θ_0's answers instead of by its labels, see :meth:`pretrain_loss`.
        number: steps taken before, the same in all processes.
    """

    net: DeepExtractor
    pretrain: DeepSide
    harmful: DeepSide
    task_loss: TaskLoss
    harmful_classes: tuple[int, ...] = ()
    theta_0: DeepExtractor | None = None
    keep_answers: bool = False
    number: int = 0
    _features: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _gathered: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def omega(self) -> Head:
        """ω, (D, C) and a bias."""
        return Head(self.net.head.weight.T, self.net.head.bias)

    def parameters(self) -> dict[str, Tensor]:
        """The trained parameters of the tail."""
        return dict(self.net.trainable_parameters())

    def features(self, role: str, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """F of this process's samples, (N, D); computed once a step for θ itself."""
        if parameters is None:
            return self._features[role] if role in self._features else self.look(role, ())[0]
        h = self._side(role).h
        # IMMA needs second derivatives, which fused attention does not have.
        with torch.autocast(h.device.type, enabled=False), sdpa_kernel(SDPBackend.MATH):
            return self.net.features(h, parameters)

    def logits(self, role: str, head: Head, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """Of this process's samples, (N, C)."""
        features = self.features(role, parameters)
        with torch.autocast(features.device.type, enabled=False):
            return head(features)

    def loss(self, role: str, head: Head, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """L of this process's samples."""
        logits = self.logits(role, head, parameters)
        with torch.autocast(logits.device.type, enabled=False):
            return self.task_loss(logits, self._side(role).y)

    def of_harmful(self, numbers: Tensor) -> DeepStep:
        """The same step with some samples of D_H.

        Args:
            numbers: (M,) int64, of samples in the batch of all processes; of these it has its own.
        """
        rows = own_of(numbers)
        return replace(self, harmful=DeepSide(self.harmful.h[rows], self.harmful.y[rows]))

    def pretrain_loss(self) -> Tensor:
        """L(D_P, ω, θ); where θ_0's answers are kept, how far the network's are from them."""
        return self.divergence() if self.keep_answers else super().pretrain_loss()

    def divergence(self) -> Tensor:
        """Of the answers on D_P from θ_0's, whatever the labels."""
        assert self.theta_0 is not None
        before, after = self.before("pretrain"), self.features("pretrain")
        with torch.autocast(after.device.type, enabled=False):
            return divergence(self.theta_0.head(before).detach(), self.omega(after))

    def spectral_view(self, role: str, precondition: Precondition) -> SpectralView:
        """Features of all processes' samples, (N, D) float64.

        Args:
            role: "pretrain", "harmful", or one of several harmful data sets, as :meth:`over_harmful` calls them.
            precondition: one of `OF_NETWORKS`.

        Raises:
            ValueError: a preconditioning that needs the linear model's K = XᵀX.
        """
        refuse_precondition(precondition, OF_NETWORKS, "a network")
        features = self._of_all_ranks(role)
        return SpectralView(preconditioned_features(features) if precondition == "features" else features, None)

    def tolerance(self, role: str) -> float:
        """Of the whole batch."""
        return default_tolerance(*self._of_all_ranks(role).shape)

    def look(self, role: str, depths: Sequence[str], parameters: dict[str, Tensor] | None = None) -> list[Tensor]:
        """The features and the outputs at some depths, of this process's samples, from one forward pass.

        Args:
            role: "pretrain" or "harmful".
            depths: names of modules, as :func:`~immunize.features.deep.features_at` takes them.
            parameters: other values for θ.
        """
        h = self._side(role).h
        # Mixed precision is for the frozen trunk: rounding there changes the images a little, here it changes spectra.
        with torch.autocast(h.device.type, enabled=False):
            found = features_at(self.net, h, depths, parameters)
        if parameters is None:
            self._features.setdefault(role, found[0])
        return found

    def labelled(self, role: str, rows: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Rows of all processes in the order of the batch, float64, and their labels: one process has the same ones.

        Args:
            role: as :meth:`spectral_view` takes it.
            rows: matrices with a row for each of this process's samples of the data set.
        """
        whole = role.partition(":")[0]
        mine = [self._of_set(role, one.double()) for one in rows]
        labels = self._of_set(role, self._side(whole).y)
        return [in_order(one) for one in mine], in_order(labels)

    def before(self, role: str) -> Tensor:
        """θ_0's features of this process's samples, (N, D)."""
        assert self.theta_0 is not None
        h = self._side(role).h
        with torch.no_grad(), torch.autocast(h.device.type, enabled=False):
            return self.theta_0.features(h)

    def over_harmful(self, term: Callable[[str], Tensor]) -> Tensor:
        """A term of the harmful data set; of several the sum of each one's."""
        if len(self.harmful_classes) < 2:
            return term("harmful")
        return torch.stack([term(f"harmful:{number}") for number in range(len(self.harmful_classes))]).sum()

    def again(self) -> DeepStep:
        """The same step without the features that have been computed."""
        return replace(self)

    def unusable(self) -> tuple[str, float] | None:
        """The data set whose features have no spectrum, as far as they are known; NaN if not finite, 0 if all zero."""
        found = without_spectrum((self._features | self._gathered).items())
        return None if found is None else (found[0].partition(":")[0], found[1])

    def _of_all_ranks(self, role: str) -> Tensor:
        if role not in self._gathered:
            own = self.features(role.partition(":")[0])
            self._gathered[role] = gather_rows(self._of_set(role, own).double())
        return self._gathered[role]

    def _of_set(self, role: str, rows: Tensor) -> Tensor:
        """Rows of the samples of a role; every process has as many of a set as the others."""
        number = role.partition(":")[2]
        return rows[of_set(self.harmful.y, self.harmful_classes, int(number))] if number else rows

    def _side(self, role: str) -> DeepSide:
        return {"pretrain": self.pretrain, "harmful": self.harmful}[role]


def of_set(labels: Tensor, classes: Sequence[int], number: int) -> Tensor:
    """Which labels, counted through several data sets of so many classes each, are those of one set, (N,) bool."""
    first = sum(classes[:number])
    return (labels >= first) & (labels < first + classes[number])


def without_spectrum(features: Iterable[tuple[str, Tensor]]) -> tuple[str, float] | None:
    """The first features that have no spectrum, by their name, with NaN if they are not finite, 0 if all zero."""
    for name, values in features:
        if not bool(torch.isfinite(values).all()):
            return name, math.nan
        if not bool(values.any()):
            return name, 0.0
    return None
