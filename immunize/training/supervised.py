"""Ordinary supervised training of a whole network, for a θ_0 of one's own: SGD with a one-cycle learning rate.

Shapes: N images, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from immunize.errors import DivergedError
from immunize.objective import TaskLoss

__all__ = ["SupervisedModule"]


MOMENTUM = (0.85, 0.95)
"""Nesterov's: the one-cycle schedule lowers it to the first while the learning rate rises, and raises it again."""


class SupervisedModule(LightningModule):
    """Minimizes a loss of logits and labels, every parameter trained and BatchNorm statistics with them.

    Args:
        network: images → logits (N, C).
        loss: (logits, labels (N,)) to a scalar.
        learning_rate: the highest of the schedule.
        weight_decay: of every parameter with more than one dimension; biases and norms have none.
        steps: of the whole training.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: TaskLoss,
        *,
        learning_rate: float,
        weight_decay: float,
        steps: int,
    ) -> None:
        super().__init__()
        self.network, self.loss = network, loss
        self.learning_rate, self.weight_decay, self.steps = learning_rate, weight_decay, steps

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch.

        Raises:
            DivergedError: it is not finite.
        """
        del batch_idx
        x, y = batch
        loss = self.loss(self.network(x), y)
        if not bool(torch.isfinite(loss)):
            raise DivergedError(self.global_step, "task", loss.item())
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Dropout of the network draws from torch's state, which a training that goes on has to find again."""
        checkpoint["torch_random_state"] = torch.get_rng_state()
        if self.device.type == "cuda":
            checkpoint["cuda_random_state"] = torch.cuda.get_rng_state(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the random states back."""
        torch.set_rng_state(checkpoint["torch_random_state"].cpu())
        if "cuda_random_state" in checkpoint and torch.cuda.is_available():
            torch.cuda.set_rng_state(checkpoint["cuda_random_state"].cpu())

    def configure_optimizers(self) -> Any:
        """SGD, and the schedule that Lightning steps after every batch."""
        parameters = list(self.network.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.SGD(groups, lr=self.learning_rate, momentum=MOMENTUM[1], nesterov=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.learning_rate, self.steps, base_momentum=MOMENTUM[0], max_momentum=MOMENTUM[1]
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
