"""A checkpoint of the training every epoch and on SIGTERM, from which it goes on to bit-equal results.

The file holds what is trained, the optimizer's state, the weights of the terms and where the training stood; what is
frozen comes from θ_0 again. It belongs to one configuration, whose hash it holds.

Of several processes each may be told to end at another moment, while the others wait for it in the middle of a step. So
they ask each other before every step, and all of them end before the same one. (Lightning broadcasts from within the
signal's handler, which may meet any other exchange between the processes.)
"""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import distributed

from immunize.files import whole

__all__ = ["Resuming"]

log = logging.getLogger(__name__)


class Resuming(Callback):
    """Writes the checkpoint, whole or not at all.

    Args:
        path: the file.
        config_hash: of the run.
        resume: go on from the file, if it is of the same configuration.

    Attributes:
        place: epoch and step in it from which the training goes on; None where it begins.
    """

    def __init__(self, path: Path, config_hash: str, *, resume: bool) -> None:
        self.path, self.config_hash = path, config_hash
        self.place = _place_in(path, config_hash) if resume else None
        self._steps, self._asked = 0, False

    @property
    def begins_with(self) -> Path | None:
        """The checkpoint that the training goes on from."""
        return None if self.place is None else self.path

    def facts(self, module: LightningModule) -> dict[str, Any]:
        """For the record."""
        del module
        return {"resumed": None if self.place is None else dict(zip(("epoch", "step"), self.place, strict=True))}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take SIGTERM over from Lightning, which gives it back in the end."""
        del pl_module
        if trainer.world_size > 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_asked", True))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """End, if any process was told to.

        Raises:
            SystemExit: in all processes before the same step.
        """
        del batch, batch_idx
        if trainer.world_size > 1:
            asked = torch.tensor(float(self._asked), device=pl_module.device)
            distributed.all_reduce(asked, distributed.ReduceOp.MAX)
            if bool(asked):
                raise SystemExit(128 + signal.SIGTERM)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the steps of this epoch."""
        del trainer, pl_module, outputs, batch
        self._steps = batch_idx + 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Every epoch."""
        del pl_module
        self._steps = 0
        self._save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """SIGTERM ends a training between two steps; anything else may come within one, and keeps the last epoch's."""
        del pl_module
        if self._steps and isinstance(exception, SystemExit):
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        """All processes take part, the first writes: beside the file first, as Lightning copies across file systems."""
        if not trainer.is_global_zero:
            trainer.save_checkpoint(self.path)
            return
        with whole(self.path) as partial:
            trainer.save_checkpoint(partial)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Name the run, and the place in its data."""
        del pl_module
        place = (trainer.current_epoch, self._steps) if self._steps else (trainer.current_epoch + 1, 0)
        checkpoint["immunize"] = {"config_hash": self.config_hash, "epoch": place[0], "step": place[1]}


def _place_in(path: Path, config_hash: str) -> tuple[int, int] | None:
    """Where a training stopped that can be gone on with.

    Args:
        path: the checkpoint; it need not exist.
        config_hash: of the run.

    Returns:
        epoch and step in it, the next ones; None if there is no such checkpoint of the same configuration.
    """
    if not path.is_file():
        return None
    try:
        facts = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["immunize"]
    except Exception as error:  # whatever the bytes of a file may cause
        log.warning("%s cannot be read (%s); the training begins anew", path, error)
        return None
    if facts["config_hash"] != config_hash:
        log.warning("%s belongs to another configuration; the training begins anew", path)
        return None
    return facts["epoch"], facts["step"]
