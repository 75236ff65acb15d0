"""When a training ends: by a validation split that is neither fitted on nor reported, or after a number of steps."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

from immunize.training.module import ImmunizationModule

__all__ = ["StepLimit", "ValidationStop"]


class ValidationStop(EarlyStopping):
    """Lightning's EarlyStopping on the validation RIR; the parameters of the best look are put back at the end.

    Args:
        patience: looks without improvement before stopping.
    """

    def __init__(self, patience: int) -> None:
        super().__init__(monitor="val/log_rir", mode="max", patience=patience, check_finite=False)
        self.best_step: int | None = None
        self._best: dict[str, Tensor] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let Lightning decide whether to stop, and keep the parameters if this look was the best."""
        previous = self.best_score.clone()
        super().on_validation_end(trainer, pl_module)
        if self.best_score > previous and not trainer.sanity_checking:
            assert isinstance(pl_module, ImmunizationModule)
            pl_module.keep(self._best)
            self.best_step = trainer.global_step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the best parameters back."""
        super().on_train_end(trainer, pl_module)
        if self._best:
            assert isinstance(pl_module, ImmunizationModule)
            pl_module.restore(self._best)

    def facts(self, module: LightningModule) -> dict[str, Any]:
        """For the record."""
        del module
        return {"early_stopping": {"best_step": self.best_step, "best_val_log_rir": float(self.best_score)}}


class StepLimit(Callback):
    """Stops before the first step above the limit, wherever that is in an epoch.

    Lightning's own `max_steps` does so too. But with it, a training that goes on from the end of an epoch takes one
    more step of that epoch first, as its loop waits for a validation that never comes (2.5 to 2.6), so that its results
    are not those of a training without interruption.

    Args:
        max_steps: the limit, those before a resumption included.
    """

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A training that was interrupted after its last step takes no other."""
        del pl_module
        self._stop(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After every step."""
        del pl_module, outputs, batch, batch_idx
        self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        trainer.should_stop |= trainer.global_step >= self.max_steps
