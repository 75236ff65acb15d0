"""Watching a network while it trains, always on the same images, and stopping it in time if asked to (C.2).

One look gives κ(H_P), κ(H_H), (i), (ii) and RIR_θ0 (Eq. 17), D_P's accuracy, and what a ridge probe can learn of both
tasks. Failures are recognized as those of a linear θ are (:mod:`.signatures`), and one more: D_P's accuracy falls.

Shapes: N images, D features; h whatever enters the network's trained part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import Dataset

from immunize.data import ROLES, Role
from immunize.errors import DivergedError
from immunize.features import DeepExtractor
from immunize.spectrum import ACCURACY_SLACK, Spectrum, immunization_ratio, probe_correlation, spectrum_of
from immunize.training.callbacks.signatures import FailureSignatures, Look, Warned
from immunize.training.deep import DeepModule

__all__ = ["ACCURACY_COLLAPSED", "NetworkWatch"]

ACCURACY_COLLAPSED = 5.0
"""Points lost of which a warning is due: more than the 3 that the summary's first experiment allows (ours)."""

BATCH = 64
"""Images at once."""


class NetworkWatch(Callback):
    """Looks every so many steps and at the end; logs every look, and keeps what looks like a failure for the record.

    Args:
        reference: θ_0, frozen.
        images: of each data set (tensor, label), few enough to be held in memory as h; set aside for early stopping.
        every: steps between two looks.
        patience: looks without improvement before the training ends; None trains to the end. A look is better if its
            RIR is larger and D_P's accuracy no more than `ACCURACY_SLACK` points below θ_0's; what was trained at the
            best look, which may be θ_0 itself, is put back at the end.
        label: what the training is called in messages.
        quiet: keep recognized failures without a message.

    Raises:
        ValueError: `every` or `patience` < 1.
    """

    def __init__(
        self,
        reference: DeepExtractor,
        images: Mapping[Role, Dataset[Any]],
        *,
        every: int,
        patience: int | None = None,
        label: str = "fit",
        quiet: bool = False,
    ) -> None:
        if every < 1:
            raise ValueError(f"monitor_every has to be at least 1, it is {every}")
        if patience is not None and patience < 1:
            raise ValueError(f"objective.patience has to be at least 1, it is {patience}")
        self.reference, self.images, self.every, self.patience = reference, images, every, patience
        self.latest: dict[str, float] = {}
        self.signatures = FailureSignatures({}, {}, label, quiet=quiet)
        self._h: dict[Role, Tensor] = {}
        self._y: dict[Role, Tensor] = {}
        self._before: dict[Role, Spectrum] = {}
        self._accuracy_before = math.nan
        self._seen_at = -1
        self._best: dict[str, Tensor] = {}
        self._best_score, self._best_step, self._waited = -math.inf, 0, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the images, and judge the start, which is logged nowhere."""
        module = _deep(pl_module)
        self.reference.to(module.device)
        for role in ROLES:
            rows = [self.images[role][i] for i in range(len(self.images[role]))]  # type: ignore[arg-type]
            self._y[role] = torch.tensor([int(y) for _, y in rows])
            images = torch.stack([x for x, _ in rows])
            self._h[role] = _in_batches(module.net.trunk, images.to(module.net.dtype), module)
            features = _in_batches(self.reference.features, self._h[role], module)
            self._before[role] = spectrum_of(features.double())
            if role == "pretrain":
                self._accuracy_before = self._accuracy(self.reference, features)
        look, numbers = self._look(trainer, module)
        self.signatures.see(look)
        if self.patience is not None and not self._best:
            self._judge(trainer, module, numbers)
        self._stop_in_time(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look, every so many steps."""
        del outputs, batch, batch_idx
        if trainer.global_step % self.every:
            return
        module = _deep(pl_module)
        numbers = self._logged_look(trainer, module)
        if self.patience is not None:
            self._judge(trainer, module, numbers)
            self._stop_in_time(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the best back; the last look is at what is kept."""
        module = _deep(pl_module)
        if self._best:
            module.restore(self._best)
        if self._best or self._seen_at != trainer.global_step:
            self._logged_look(trainer, module, last=True)

    def state_dict(self) -> dict[str, Any]:
        """For a training that goes on later: the best so far."""
        best = {name: value.detach().cpu().clone() for name, value in self._best.items()}
        return {"best": best, "score": self._best_score, "step": self._best_step, "waited": self._waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it over."""
        self._best, self._best_score = dict(state_dict["best"]), state_dict["score"]
        self._best_step, self._waited = state_dict["step"], state_dict["waited"]

    def facts(self) -> dict[str, Any]:
        """For the record: the failures recognized, and where early stopping found the best."""
        found: dict[str, Any] = {"warnings": self.signatures.facts()}
        if self.patience is not None:
            found["early_stopping"] = {"best_step": self._best_step, "best_val_log_rir": self._best_score}
        return found

    def _logged_look(self, trainer: Trainer, module: DeepModule, *, last: bool = False) -> dict[str, float]:
        look, self.latest = self._look(trainer, module)
        self._seen_at = trainer.global_step
        module.log_now(self.latest)
        now, before = self.latest["accuracy_pretrain"], self._accuracy_before
        fallen = [_fallen(look, before, now)] if before - now > ACCURACY_COLLAPSED else []
        self.signatures.see(look, last=last, more=fallen)
        return self.latest

    def _look(self, trainer: Trainer, module: DeepModule) -> tuple[Look, dict[str, float]]:
        step = trainer.global_step
        now: dict[Role, Tensor] = {}
        for role in ROLES:
            now[role] = _in_batches(module.net.features, self._h[role], module).double()
            if not bool(torch.isfinite(now[role]).all()) or not bool(now[role].any()):
                raise DivergedError(step, f"features of {role}", float(now[role].abs().max()))
        spectra, before = {role: spectrum_of(x) for role, x in now.items()}, self._before
        ratio = immunization_ratio(spectra["pretrain"], spectra["harmful"], before["pretrain"], before["harmful"])
        numbers = {
            "RIR": ratio.rir,
            "ratio_harmful": ratio.ratio_harmful,
            "ratio_pretrain": ratio.ratio_pretrain,
            "kappa_pretrain": ratio.kappa_pretrain.value,
            "kappa_harmful": ratio.kappa_harmful.value,
            "accuracy_pretrain": self._accuracy(module.net, now["pretrain"]),
            **{f"separability_{role}": probe_correlation(now[role], self._y[role]) for role in ROLES},
        }
        return Look(step, ratio, spectra, tuple(module.objective.weights)), numbers

    def _accuracy(self, net: DeepExtractor, features: Tensor) -> float:
        with torch.no_grad():
            logits = net.head(features.to(net.head.weight.device, net.dtype)).cpu()
        return 100 * float((logits.argmax(1) == self._y["pretrain"]).double().mean())

    def _judge(self, trainer: Trainer, module: DeepModule, numbers: dict[str, float]) -> None:
        """The same in every process, whatever the devices round."""
        kept = self._accuracy_before - numbers["accuracy_pretrain"] <= ACCURACY_SLACK
        score = trainer.strategy.broadcast(math.log(numbers["RIR"]) if kept else -math.inf)
        self._waited += 1
        if score > self._best_score:
            self._best_score, self._best_step, self._waited = score, trainer.global_step, 0
            self._best = {}
            module.keep(self._best)

    def _stop_in_time(self, trainer: Trainer) -> None:
        trainer.should_stop |= self.patience is not None and self._waited >= self.patience


def _deep(module: LightningModule) -> DeepModule:
    assert isinstance(module, DeepModule)
    return module


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
