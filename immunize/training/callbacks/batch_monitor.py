"""Watching κ and RIR_θ0 of a network on the batch at hand, every so many steps, for the loggers.

The numbers are those of the whole batch of all processes (k ≤ the batch size); several harmful data sets count as one.
The evaluation has the reported ones.
"""

from __future__ import annotations

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from immunize.features.deep import DeepExtractor
from immunize.objective import gather_rows
from immunize.spectrum import Spectrum, immunization_ratio, spectrum_of
from immunize.training.deep import DeepModule
from immunize.training.module import Batch

__all__ = ["BatchMonitor"]


class BatchMonitor(Callback):
    """Logs κ(H_P), κ(H_H), (i), (ii) and RIR_θ0 of a batch, before the step that is made from it.

    Args:
        reference: θ_0, frozen.
        every: steps between two looks.

    Attributes:
        latest: the numbers of the last look.

    Raises:
        ValueError: `every` < 1.
    """

    def __init__(self, reference: DeepExtractor, every: int) -> None:
        if every < 1:
            raise ValueError(f"monitor_every has to be at least 1, it is {every}")
        self.reference, self.every = reference, every
        self.latest: dict[str, float] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Look, every so many steps."""
        del batch_idx
        if trainer.global_step % self.every:
            return
        assert isinstance(pl_module, DeepModule)
        self.latest = self.look(pl_module, batch)
        pl_module.log_now(self.latest)

    def look(self, module: DeepModule, batch: Batch) -> dict[str, float]:
        """The numbers of one batch."""
        self.reference.to(module.device)
        now: dict[str, Spectrum] = {}
        before: dict[str, Spectrum] = {}
        with torch.no_grad(), torch.autocast(module.device.type, enabled=False):
            step = module.step_of(batch)
            for role, side in (("pretrain", step.pretrain), ("harmful", step.harmful)):
                now[role] = spectrum_of(gather_rows(step.features(role).double()))
                before[role] = spectrum_of(gather_rows(self.reference.features(side.h).double()))
        ratio = immunization_ratio(now["pretrain"], now["harmful"], before["pretrain"], before["harmful"])
        return {
            "batch/kappa_pretrain": ratio.kappa_pretrain.value,
            "batch/kappa_harmful": ratio.kappa_harmful.value,
            "batch/ratio_pretrain": ratio.ratio_pretrain,
            "batch/ratio_harmful": ratio.ratio_harmful,
            "batch/RIR": ratio.rir,
        }
