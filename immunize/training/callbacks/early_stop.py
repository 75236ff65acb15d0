"""Early stopping on a validation split that is neither fitted on nor reported."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

from immunize.training.module import ImmunizationModule

__all__ = ["ValidationStop"]


class ValidationStop(EarlyStopping):
    """Lightning's EarlyStopping on the validation RIR; the parameters of the best look are put back at the end.

    Args:
        patience: looks without improvement before stopping.
    """

    def __init__(self, patience: int) -> None:
        if patience < 1:
            raise ValueError(f"objective.patience has to be at least 1, it is {patience}")
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

    def facts(self) -> dict[str, int | float | None]:
        """For the record."""
        return {"best_step": self.best_step, "best_val_log_rir": float(self.best_score)}
