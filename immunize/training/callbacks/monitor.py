"""Watching κ, RIR and what a probe can learn during training, on the same rows throughout, and naming failures.

A linear model is watched on all rows that θ is fitted on. A network is watched on some images, and stopped in time if
asked to (C.2); one more failure is recognized there: D_P's accuracy falls.

Shapes: N samples, D features; h whatever enters the network's trained part.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import Dataset

from immunize.data import ROLES, Part, Parts, Role
from immunize.errors import DivergedError
from immunize.features.deep import DeepExtractor
from immunize.spectrum.condition import ACCURACY_SLACK, Spectrum, check_varying, immunization_ratio, spectrum_of
from immunize.spectrum.ranges import spectrum_of_map
from immunize.spectrum.regularizers import r_ill_of_spectrum, r_well_of_spectrum
from immunize.spectrum.separability import probe_correlation, share_right
from immunize.training.callbacks.signatures import FailureSignatures, Look, Warned
from immunize.training.callbacks.stopping import BestLook
from immunize.training.module import DeepModule, LinearModule, compressed

JUDGED = 1000
"""Rows of each data set of which is seen what a probe can learn: all of House Prices' D_P, and quick for images."""

ACCURACY_COLLAPSED = 5.0
"""Points lost of which a warning is due: more than the 3 that the summary's first experiment allows (ours)."""

BATCH = 64
"""Images at once."""


class _Monitor(BestLook):
    """Logs RIR, both ratios and both κ (`spectrum`) at every look, and names failures; a subclass says of what.

    Args:
        every: steps between two looks; the last step is always looked at.
        patience: see :class:`~immunize.training.callbacks.stopping.BestLook`.
        signatures: the failures recognized so far; it sees the start of the training as well.

    Attributes:
        latest: the numbers of the last look that was logged.
    """

    def __init__(self, every: int, patience: int | None, signatures: FailureSignatures) -> None:
        super().__init__(every, patience)
        self.signatures = signatures
        self.latest: dict[str, float] = {}
        self._before: dict[Role, Spectrum] = {}
        self._seen: Look | None = None

    @abstractmethod
    def _spectra(self, module: Any, step: int) -> dict[Role, Spectrum]:
        """Of H_P and H_H as they are now."""

    @abstractmethod
    def _numbers(self, module: Any, look: Look) -> dict[str, float]:
        """What is logged of a look beside its ratios."""

    @abstractmethod
    def _is_seen(self, module: Any) -> bool:
        """Whether what is trained is still what the last look saw."""

    def _fallen(self, look: Look) -> list[Warned]:
        """What else has failed in the look whose numbers are the latest."""
        return []

    def _look(self, module: Any, step: int, terms: Collection[str] | None = None) -> Look:
        spectra, before, objective = self._spectra(module, step), self._before, module.objective
        ratio = immunization_ratio(spectra["pretrain"], spectra["harmful"], before["pretrain"], before["harmful"])
        terms = tuple(objective.weights if terms is None else terms)
        self._seen = Look(step, ratio, spectra, terms, objective.aims_at_kappa)
        return self._seen

    def _measured(self, module: Any, step: int) -> tuple[Look, dict[str, float]]:
        look = self._look(module, step)
        return look, look.numbers() | self._numbers(module, look)

    def _logged_look(self, trainer: Trainer, module: Any) -> Look:
        look, self.latest = self._measured(module, trainer.global_step)
        module.log_now(self.latest)
        return look

    def look(self, trainer: Trainer, module: LightningModule) -> None:
        """At what is trained."""
        look = self._logged_look(trainer, module)
        self.signatures.see(look, more=self._fallen(look))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last look, at what is kept; early stopping may have put another θ back."""
        super().on_train_end(trainer, pl_module)
        look = self._seen
        if look is None or look.step != trainer.global_step or not self._is_seen(pl_module):
            look = self._logged_look(trainer, pl_module)
        self.signatures.see(look, last=True, more=self._fallen(look))

    def state_dict(self) -> dict[str, Any]:
        """For a training that goes on later: the best so far, and the failures recognized."""
        return {**super().state_dict(), "signatures": self.signatures.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it over."""
        super().load_state_dict(state_dict)
        self.signatures.load_state_dict(state_dict["signatures"])

    def facts(self, module: LightningModule) -> dict[str, Any]:
        """For the record: the failures recognized, and where early stopping found the best."""
        return {"warnings": self.signatures.facts(), **super().facts(module)}


class ImmunityMonitor(_Monitor):
    """Logs RIR and both ratios (`spectrum`), R_well(H_P) and R_ill(H_H) of the `fit` part, and c of a ridge probe.

    Args:
        parts: the data to watch.
        every: steps between two looks; the last step is always looked at.
        label: what the training is called in messages.
        quiet: keep recognized failures for the record without a message.
        rows: :func:`~immunize.training.module.compressed` of them, where the caller has it.

    Attributes:
        latest: the numbers of the last look that was logged.
        signatures: the failures recognized so far; it sees the start of the training as well.
    """

    def __init__(
        self,
        parts: Parts,
        every: int,
        label: str = "fit",
        *,
        quiet: bool = False,
        rows: Mapping[Role, Tensor] | None = None,
    ) -> None:
        self._rows = dict(rows or compressed(parts))
        self._samples = {role: len(part) for role, part in parts.items()}
        super().__init__(every, None, FailureSignatures(self._rows, self._samples, label, quiet=quiet))
        self._before = {role: spectrum_of(self._rows[role], n_samples=self._samples[role]) for role in ROLES}
        self._theta: Tensor | None = None
        self._told = {role: drawn for role, part in parts.items() if (drawn := _told_apart(part)) is not None}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge the start, which is logged nowhere."""
        self.signatures.see(self._look(pl_module, trainer.global_step))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A divergence may have a name, visible at the θ at which it happened."""
        assert isinstance(pl_module, LinearModule)
        if not isinstance(exception, DivergedError):
            return
        theta = pl_module.extractor.theta.detach()
        sizes = [float((self._rows[role] @ theta).square().sum()) for role in ROLES]
        if all(0 < size < math.inf for size in sizes):
            self.signatures.see(self._look(pl_module, trainer.global_step))

    def facts(self, module: LightningModule) -> dict[str, Any]:
        """For the record: the failures recognized. A θ that was computed and not trained is judged here."""
        if self._seen is None:
            self.signatures.see(self._look(module, 0, ("solved",)), last=True)
        return super().facts(module)

    def _is_seen(self, module: LinearModule) -> bool:
        return self._theta is not None and torch.equal(self._theta, module.extractor.theta.detach())

    def _spectra(self, module: LinearModule, step: int) -> dict[Role, Spectrum]:
        self._theta = theta = module.extractor.theta.detach().clone()
        return {role: spectrum_of_map(self._rows[role], theta, self._samples[role]) for role in ROLES}

    def _numbers(self, module: LinearModule, look: Look) -> dict[str, float]:
        theta = module.extractor.theta.detach()
        return {
            "R_well": r_well_of_spectrum(look.spectra["pretrain"]),
            "R_ill": r_ill_of_spectrum(look.spectra["harmful"]),
            **{f"separability_{role}": probe_correlation(x @ theta, y) for role, (x, y) in self._told.items()},
        }


def _told_apart(part: Part) -> tuple[Tensor, Tensor] | None:
    """Rows by which to judge what can be learned, at most `JUDGED`; None of a single label, where nothing can."""
    if bool((part.y == part.y[0]).all()):
        return None
    drawn = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))[:JUDGED]
    return part.x[drawn], part.y[drawn]


class NetworkMonitor(_Monitor):
    """Looks at a network every so many steps and at the end; logs every look, and keeps what looks like a failure.

    A look gives κ(H_P), κ(H_H), (i), (ii) and RIR_θ0 (Eq. 17), D_P's accuracy, and what a ridge probe can learn.

    Args:
        reference: θ_0, frozen.
        images: of each data set (tensor, label), few enough to be held in memory as h; set aside for early stopping.
        cached: they are h already.
        every: steps between two looks.
        patience: looks without improvement before the training ends; None trains to the end. A look is better if its
            RIR is larger and D_P's accuracy no more than `ACCURACY_SLACK` points below θ_0's; what was trained at the
            best look, which may be θ_0 itself, is put back at the end.
        quiet: keep recognized failures without a message.
    """

    def __init__(
        self,
        reference: DeepExtractor,
        images: Mapping[Role, Dataset[Any]],
        *,
        every: int,
        patience: int | None = None,
        cached: bool = False,
        quiet: bool = False,
    ) -> None:
        super().__init__(every, patience, FailureSignatures({}, {}, "fit", quiet=quiet))
        self.reference, self.images, self.cached = reference, images, cached
        self._h: dict[Role, Tensor] = {}
        self._y: dict[Role, Tensor] = {}
        self._now: dict[Role, Tensor] = {}
        self._accuracy_before = math.nan

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the images, and judge the start, which is logged nowhere.

        Raises:
            ValueError: θ_0's features of D_H do not vary.
        """
        module = pl_module
        assert isinstance(module, DeepModule)
        super().on_train_start(trainer, pl_module)
        self.reference.to(module.device)
        for role in ROLES:
            rows = [self.images[role][i] for i in range(len(self.images[role]))]  # type: ignore[arg-type]
            self._y[role] = torch.tensor([int(y) for _, y in rows])
            x = torch.stack([x for x, _ in rows]).to(module.net.dtype)
            self._h[role] = x if self.cached else _in_batches(module.net.trunk, x, module)
            features = _in_batches(self.reference.features, self._h[role], module)
            check_varying(features, "D_H" if role == "harmful" else "D_P")
            self._before[role] = spectrum_of(features.double())
            if role == "pretrain":
                self._accuracy_before = self._accuracy(self.reference, features)
        look, numbers = self._measured(module, trainer.global_step)
        if not trainer.global_step:  # a training that goes on was judged where it began
            self.signatures.see(look)
        elif trainer.global_step % self.every == 0:
            self.latest = numbers  # which were logged then
        if not self._best:
            self._judge(trainer, module, numbers)
        self.stop_in_time(trainer)  # one that was interrupted after its last look

    def look(self, trainer: Trainer, module: LightningModule) -> None:
        """At the images."""
        assert isinstance(module, DeepModule)
        super().look(trainer, module)
        self._judge(trainer, module, self.latest)

    def _fallen(self, look: Look) -> list[Warned]:
        now, before = self.latest["accuracy_pretrain"], self._accuracy_before
        return [_fallen(look, before, now)] if before - now > ACCURACY_COLLAPSED else []

    def _is_seen(self, module: DeepModule) -> bool:
        return bool(self.latest) and not self._best

    def _spectra(self, module: DeepModule, step: int) -> dict[Role, Spectrum]:
        for role in ROLES:
            now = self._now[role] = _in_batches(module.net.features, self._h[role], module).double()
            if not bool(torch.isfinite(now).all()) or not bool(now.any()):
                raise DivergedError(step, f"features of {role}", float(now.abs().max()))
        return {role: spectrum_of(x) for role, x in self._now.items()}

    def _numbers(self, module: DeepModule, look: Look) -> dict[str, float]:
        learned = {f"separability_{role}": probe_correlation(x, self._y[role]) for role, x in self._now.items()}
        return {"accuracy_pretrain": self._accuracy(module.net, self._now["pretrain"]), **learned}

    def _accuracy(self, net: DeepExtractor, features: Tensor) -> float:
        with torch.no_grad():
            logits = net.head(features.to(net.head.weight.device, net.dtype)).cpu()
        return 100 * float(share_right(logits, self._y["pretrain"]))

    def _judge(self, trainer: Trainer, module: DeepModule, numbers: dict[str, float]) -> None:
        """The same in every process, whatever the devices round."""
        if self.patience is None:
            return
        kept = self._accuracy_before - numbers["accuracy_pretrain"] <= ACCURACY_SLACK
        score = trainer.strategy.broadcast(math.log(numbers["RIR"]) if kept else -math.inf)
        self.judge(score, trainer, module)


def _in_batches(work: Callable[[Tensor], Tensor], rows: Tensor, module: DeepModule) -> Tensor:
    """Outputs on the CPU, in the precision of the parameters."""
    with torch.no_grad(), torch.autocast(module.device.type, enabled=False):
        return torch.cat([work(part.to(module.device)).cpu() for part in torch.split(rows, BATCH)])


def _fallen(look: Look, before: float, now: float) -> Warned:
    advice = "lower objective.learning_rate, train less (objective.max_steps), or set objective.early_stopping=true"
    if "ill" in look.terms:
        advice += "; a lower λ_H (objective.lambda_ill, or with objective.balance its multiplier) spares D_P as well"
    return Warned(
        "pretrain_accuracy_falling",
        look.step,
        "pretrain",
        {"accuracy": now, "accuracy_theta_0": before},
        f"D_P's accuracy on the images that are watched is {now:.1f} %, θ_0's is {before:.1f} %: (c) of Definition 3.1 "
        f"is being lost. {advice[0].upper()}{advice[1:]}",
    )
