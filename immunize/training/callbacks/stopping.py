"""When a training ends: by a validation split that is neither fitted on nor reported, or after a number of steps."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from immunize.data import ROLES
from immunize.data.pair import PairParts
from immunize.objective import LinearStep, Side
from immunize.spectrum import immunization_ratio, spectrum_of
from immunize.training.module import ImmunizationModule, LinearModule

__all__ = ["BestLook", "StepLimit", "ValidationStop", "Watch"]


class Watch(Callback):
    """Looks at a training every so many steps.

    Args:
        every: so many.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    @abstractmethod
    def look(self, trainer: Trainer, module: LightningModule) -> None:
        """Look after a step."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the steps."""
        del outputs, batch, batch_idx
        if trainer.global_step % self.every == 0:
            self.look(trainer, pl_module)


class BestLook(Watch):
    """Keeps what was trained at the look with the largest score so far, and ends a training that has waited for better.

    Args:
        every: steps between two looks.
        patience: looks without improvement before that; None never ends it, and keeps nothing.
    """

    def __init__(self, every: int, patience: int | None) -> None:
        super().__init__(every)
        self.patience = patience
        self._best: dict[str, Tensor] = {}
        self._score, self._waited = -math.inf, 0
        self._step: int | None = None

    def judge(self, score: float, trainer: Trainer, module: ImmunizationModule) -> None:
        """Keep it, or wait for a better."""
        self._waited += 1
        if score > self._score:
            self._best, self._score, self._step, self._waited = {}, score, trainer.global_step, 0
            module.keep(self._best)
        self.stop_in_time(trainer)

    def stop_in_time(self, trainer: Trainer) -> None:
        """End the training if it has waited long enough."""
        trainer.should_stop |= self.patience is not None and self._waited >= self.patience

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the best back."""
        del trainer
        assert isinstance(pl_module, ImmunizationModule)
        if self._best:
            pl_module.restore(self._best)

    def state_dict(self) -> dict[str, Any]:
        """For a training that goes on later: the best so far."""
        best = {name: value.detach().cpu().clone() for name, value in self._best.items()}
        return {"best": best, "score": self._score, "step": self._step, "waited": self._waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it over."""
        self._best, self._score = dict(state_dict["best"]), state_dict["score"]
        self._step, self._waited = state_dict["step"], state_dict["waited"]

    def facts(self, module: LightningModule) -> dict[str, Any]:
        """For the record: where early stopping found the best; None where nothing was kept."""
        del module
        best = {"best_step": self._step, "best_val_log_rir": None if self._step is None else self._score}
        return {} if self.patience is None else {"early_stopping": best}


class ValidationStop(BestLook):
    """Early stopping of a linear model by RIR (`spectrum`) on rows that were set aside.

    Args:
        parts: those rows.
        every: steps between two looks.
        patience: looks without improvement before stopping.
    """

    def __init__(self, parts: PairParts, every: int, patience: int) -> None:
        super().__init__(every, patience)
        self.parts = parts
        self._raw = {role: spectrum_of(parts.of(role).x) for role in ROLES}

    @torch.no_grad()
    def look(self, trainer: Trainer, module: LightningModule) -> None:
        """At RIR and the task loss."""
        assert isinstance(module, LinearModule)
        p, h = (
            spectrum_of(module.extractor(self.parts.of(role).x), rank_of_data=self._raw[role].rank) for role in ROLES
        )
        score = math.log(immunization_ratio(p, h, self._raw["pretrain"], self._raw["harmful"]).rir)
        rows = self.parts.pretrain
        side = Side(rows.x, rows.y, rows.x)
        loss = LinearStep(module.extractor, module.head, side, side, module.task_loss).pretrain_loss()
        module.log_now({"val/log_rir": score, "val/task_loss": loss.item()})
        self.judge(torch.tensor(score, dtype=torch.float32).item(), trainer, module)  # rounded as in Lightning's own


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
