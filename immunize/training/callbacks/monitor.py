"""Watching κ, RIR, R_well and R_ill during training, on the data θ is fitted on, and what looks like a failure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from immunize.data import ROLES, PairParts, Part, Role
from immunize.errors import DivergedError
from immunize.spectrum import (
    ImmunizationRatio,
    Spectrum,
    compress_rows,
    default_tolerance,
    immunization_ratio,
    probe_correlation,
    r_ill_of_features,
    r_well_of_features,
    rank_of_map,
    spectrum_of,
)
from immunize.training.callbacks.signatures import FailureSignatures, Look
from immunize.training.linear import LinearModule

__all__ = ["ImmunityMonitor"]

JUDGED = 1000
"""Rows of each data set of which is seen what a probe can learn: all of House Prices' D_P, and quick for images."""


class ImmunityMonitor(Callback):
    """Logs RIR and both ratios (`spectrum`), R_well(H_P) and R_ill(H_H) of the `fit` part, and c of a ridge probe.

    Args:
        parts: the data to watch.
        every: steps between two looks; the last step is always looked at.
        label: what the training is called in messages.
        quiet: keep recognized failures for the record without a message.

    Attributes:
        latest: the numbers of the last look that was logged.
        signatures: the failures recognized so far; it sees the start of the training as well.

    Raises:
        ValueError: `every` < 1.
    """

    def __init__(self, parts: PairParts, every: int, label: str = "fit", *, quiet: bool = False) -> None:
        if every < 1:
            raise ValueError(f"monitor_every has to be at least 1, it is {every}")
        self.every = every
        self.latest: dict[str, float] = {}
        self._rows = {role: compress_rows(parts.of(role).x) for role in ROLES}
        self._samples = {role: len(parts.of(role)) for role in ROLES}
        self._baseline = {role: self._spectrum(role, None) for role in ROLES}
        self._seen: Look | None = None
        self._theta: torch.Tensor | None = None
        self._told = {role: drawn for role in ROLES if (drawn := _told_apart(parts.of(role))) is not None}
        self.signatures = FailureSignatures(self._rows, self._samples, label, quiet=quiet)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge the start, which is logged nowhere."""
        assert isinstance(pl_module, LinearModule)
        self.signatures.see(self._look(pl_module, trainer.global_step, pl_module.objective.weights))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look, every so many steps."""
        del outputs, batch, batch_idx
        if trainer.global_step % self.every == 0:
            self.signatures.see(self._logged_look(trainer, pl_module))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last look, at the θ that is kept; early stopping may have put another one back."""
        assert isinstance(pl_module, LinearModule)
        look = self._seen
        if look is None or look.step != trainer.global_step or not self._is_seen(pl_module):
            look = self._logged_look(trainer, pl_module)
        self.signatures.see(look, last=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A divergence may have a name, visible at the θ at which it happened."""
        assert isinstance(pl_module, LinearModule)
        if not isinstance(exception, DivergedError):
            return
        theta = pl_module.extractor.theta.detach()
        sizes = [float((self._rows[role] @ theta).square().sum()) for role in ROLES]
        if all(0 < size < math.inf for size in sizes):
            self.signatures.see(self._look(pl_module, trainer.global_step, pl_module.objective.weights))

    def facts(self, module: LinearModule) -> list[dict[str, Any]]:
        """For the record: the failures recognized. A θ that was computed and not trained is judged here."""
        if self._seen is None:
            self.signatures.see(self._look(module, 0, ("solved",)), last=True)
        return self.signatures.facts()

    def _is_seen(self, module: LinearModule) -> bool:
        return self._theta is not None and torch.equal(self._theta, module.extractor.theta.detach())

    def _look(self, module: LinearModule, step: int, terms: Collection[str]) -> Look:
        self._theta = module.extractor.theta.detach().clone()
        spectra = {role: self._spectrum(role, self._theta) for role in ROLES}
        ratio = immunization_ratio(
            spectra["pretrain"], spectra["harmful"], self._baseline["pretrain"], self._baseline["harmful"]
        )
        self._seen = Look(step, ratio, spectra, tuple(terms))
        return self._seen

    def _logged_look(self, trainer: Trainer, module: LightningModule) -> Look:
        assert isinstance(module, LinearModule)
        look = self._look(module, trainer.global_step, module.objective.weights)
        self.latest = self._numbers(look.ratio, module.extractor.theta.detach())
        module.log_now(self.latest)
        return look

    def _numbers(self, ratio: ImmunizationRatio, theta: torch.Tensor) -> dict[str, float]:
        return {
            "RIR": ratio.rir,
            "ratio_harmful": ratio.ratio_harmful,
            "ratio_pretrain": ratio.ratio_pretrain,
            "kappa_pretrain": ratio.kappa_pretrain.value,
            "kappa_harmful": ratio.kappa_harmful.value,
            "R_well": float(r_well_of_features(self._rows["pretrain"] @ theta, tolerance=self._cut("pretrain"))),
            "R_ill": float(r_ill_of_features(self._rows["harmful"] @ theta, tolerance=self._cut("harmful"))),
            **{f"separability_{role}": probe_correlation(x @ theta, y) for role, (x, y) in self._told.items()},
        }

    def _cut(self, name: Role) -> float:
        return default_tolerance(self._samples[name], self._rows[name].shape[1])

    def _spectrum(self, name: Role, theta: torch.Tensor | None) -> Spectrum:
        rows = self._rows[name]
        if theta is None:
            return spectrum_of(rows, n_samples=self._samples[name])
        spectrum = spectrum_of(rows @ theta, n_samples=self._samples[name], rank_of_data=len(rows))
        if spectrum.numerical_rank < len(rows):  # a θ that is badly conditioned, or has no inverse
            spectrum = replace(spectrum, rank_of_data=rank_of_map(rows, theta))
        return spectrum


def _told_apart(part: Part) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Rows by which to judge what can be learned, at most `JUDGED`; None of a single label, where nothing can."""
    if bool((part.y == part.y[0]).all()):
        return None
    drawn = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))[:JUDGED]
    return part.x[drawn], part.y[drawn]
