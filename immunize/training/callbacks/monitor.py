"""Watching κ, RIR, R_well and R_ill during training, on the data θ is fitted on."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from immunize.data import ROLES, PairParts, Role
from immunize.spectrum import (
    Spectrum,
    compress_rows,
    default_tolerance,
    immunization_ratio,
    r_ill_of_features,
    r_well_of_features,
    spectrum_of,
)
from immunize.training.module import ImmunizationModule

__all__ = ["ImmunityMonitor"]


class ImmunityMonitor(Callback):
    """Logs RIR and both ratios (`spectrum`), R_well(H_P) and R_ill(H_H) of the whole `fit` part.

    Args:
        parts: the data to watch.
        every: steps between two looks; the last step is always looked at.

    Raises:
        ValueError: `every` < 1.
    """

    def __init__(self, parts: PairParts, every: int) -> None:
        if every < 1:
            raise ValueError(f"monitor_every has to be at least 1, it is {every}")
        self.every = every
        self.latest: dict[str, float] = {}
        self._rows = {role: compress_rows(parts.of(role).x) for role in ROLES}
        self._samples = {role: len(parts.of(role)) for role in ROLES}
        self._baseline = {role: self._spectrum(role, None) for role in ROLES}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look, every so many steps."""
        del outputs, batch, batch_idx
        if trainer.global_step % self.every == 0:
            self._look(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last look."""
        if trainer.global_step % self.every:
            self._look(pl_module)

    def _look(self, module: LightningModule) -> None:
        assert isinstance(module, ImmunizationModule)
        with torch.no_grad():
            theta = module.extractor.theta
            ratio = immunization_ratio(
                self._spectrum("pretrain", theta),
                self._spectrum("harmful", theta),
                self._baseline["pretrain"],
                self._baseline["harmful"],
            )
            self.latest = {
                "RIR": ratio.rir,
                "ratio_harmful": ratio.ratio_harmful,
                "ratio_pretrain": ratio.ratio_pretrain,
                "kappa_pretrain": ratio.kappa_pretrain.value,
                "kappa_harmful": ratio.kappa_harmful.value,
                "R_well": float(r_well_of_features(self._rows["pretrain"] @ theta, tolerance=self._cut("pretrain"))),
                "R_ill": float(r_ill_of_features(self._rows["harmful"] @ theta, tolerance=self._cut("harmful"))),
            }
        module.log_now(self.latest)

    def _cut(self, name: Role) -> float:
        return default_tolerance(self._samples[name], self._rows[name].shape[1])

    def _spectrum(self, name: Role, theta: torch.Tensor | None) -> Spectrum:
        rows = self._rows[name]
        return spectrum_of(rows if theta is None else rows @ theta, n_samples=self._samples[name])
