"""Ends a training after a number of steps, wherever that is in an epoch.

Lightning's own `max_steps` does so too. But with it, a training that goes on from the end of an epoch takes one more
step of that epoch first, as its loop waits for a validation that never comes (2.5 to 2.6), so that its results are not
those of a training without interruption.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["StepLimit"]


class StepLimit(Callback):
    """Stops before the first step above the limit.

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
