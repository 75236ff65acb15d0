"""The module of the linear model, f_θ(x) = xᵀθ: full batches compressed once, and the validation split's RIR.

Shapes: N samples, D features.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from immunize.data import ROLES
from immunize.features import LinearExtractor
from immunize.objective import LinearStep, Objective, Side, TaskLoss
from immunize.spectrum import compress_rows, immunization_ratio, spectrum_of
from immunize.training.module import Batch, ImmunizationModule, OptimizerFactory

if TYPE_CHECKING:
    from immunize.data import PairedData

__all__ = ["LinearModule"]


class LinearModule(ImmunizationModule):
    """Trains θ and ω (and whatever the method owns) on {pretrain, harmful} batches.

    Args:
        extractor: f_θ.
        head: ω, (D, 1).
        objective: the method.
        task_loss: L.
        optimizer: builds the optimizer from the parameters.
        full_batch: every batch is the whole of both data sets; they are then compressed once to at most D rows
            each, from which every step computes its spectra (K is fixed).
        log_every: steps between two rows of the loggers.
        lr_decay: see :class:`~immunize.training.module.ImmunizationModule`.
    """

    def __init__(
        self,
        extractor: LinearExtractor,
        head: nn.Parameter,
        objective: Objective,
        task_loss: TaskLoss,
        optimizer: OptimizerFactory,
        *,
        full_batch: bool,
        log_every: int = 10,
        lr_decay: float | None = None,
    ) -> None:
        super().__init__(objective, optimizer, log_every=log_every, lr_decay=lr_decay)
        self.extractor, self.head = extractor, head
        self.task_loss, self.full_batch = task_loss, full_batch
        self._compressed: dict[str, Tensor] = {}

    def step_of(self, batch: Batch) -> LinearStep:
        """What the method sees of a batch."""
        return LinearStep(
            self.extractor,
            self.head,
            self._side("pretrain", *batch["pretrain"]),
            self._side("harmful", *batch["harmful"]),
            self.task_loss,
        )

    def theta_parameters(self) -> list[nn.Parameter]:
        """θ alone."""
        return list(self.extractor.parameters())

    def unusable(self, pair: PairedData) -> tuple[str, float] | None:
        """Of which rows the squared features are not finite, although θ is, and what they come to: no spectrum."""
        with torch.no_grad():
            for role in ROLES:
                size = float(self.extractor(pair.fit.of(role).x).square().sum())
                if not math.isfinite(size):
                    return f"squared features of {role}", size
        return None

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """RIR (`spectrum`) and task loss on the validation split, for early stopping."""
        del batch_idx
        sides = {name: Side(x, y, x) for name, (x, y) in batch.items()}
        step = LinearStep(self.extractor, self.head, sides["pretrain"], sides["harmful"], self.task_loss)
        p, h = step.pretrain.x, step.harmful.x
        raw = [spectrum_of(x) for x in (p, h)]
        now = [spectrum_of(self.extractor(x), rank_of_data=of.rank) for x, of in zip((p, h), raw, strict=True)]
        ratio = immunization_ratio(now[0], now[1], raw[0], raw[1])
        values = {
            "val/log_rir": math.log(ratio.rir),
            "val/task_loss": step.pretrain_loss().item(),
        }
        self.log_dict(values, logger=False)
        self.log_now(values)

    def _side(self, name: str, x: Tensor, y: Tensor) -> Side:
        if not self.full_batch:
            return Side(x, y, x)
        if name not in self._compressed:
            self._compressed[name] = compress_rows(x)
        return Side(x, y, self._compressed[name])
