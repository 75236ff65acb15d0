"""When a training ends, what is said until then, and what is kept of one that was interrupted.

It ends by a validation split that is neither fitted on nor reported, or after a number of steps; about ten lines say
how far it is, and on a terminal one between them that is rewritten.

A checkpoint is written every epoch and on SIGTERM, from which a training goes on to bit-equal results. It holds what is
trained, the optimizer's state, the weights of the terms and where the training stood; what is frozen comes from θ_0
again. It belongs to one configuration, whose hash it holds.

Of several processes each may be told to end at another moment, while the others wait for it in the middle of a step. So
they ask each other before every step, and all of them end before the same one. (Lightning broadcasts from within the
signal's handler, which may meet any other exchange between the processes.)
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, distributed

from immunize.data import ROLES, Parts
from immunize.errors import UserError
from immunize.files import whole
from immunize.objective import LinearStep, Side
from immunize.spectrum.condition import immunization_ratio, spectrum_of
from immunize.training.loggers import CurveLogger, RunLogger
from immunize.training.module import ImmunizationModule, LinearModule, SupervisedModule


class BestLook(Callback):
    """Looks at a training every so many steps, keeps what has the largest score so far, and ends it if none is better.

    Args:
        every: steps between two looks.
        patience: looks without improvement before the end; None never ends it, and keeps nothing.
    """

    def __init__(self, every: int, patience: int | None) -> None:
        self.every, self.patience = every, patience
        self._best: dict[str, Tensor] = {}
        self._score, self._waited = -math.inf, 0
        self._step: int | None = None

    @abstractmethod
    def look(self, trainer: Trainer, module: LightningModule) -> None:
        """Look after a step."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse to stop a training that ends before the first look.

        Raises:
            UserError: it does.
        """
        assert isinstance(pl_module, ImmunizationModule)
        if self.patience is not None and pl_module.steps < self.every:
            raise UserError(
                f"objective.check_every={self.every} looks at none of the {pl_module.steps} steps of this training; "
                "choose a smaller one for early stopping"
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the steps."""
        if trainer.global_step % self.every == 0:
            self.look(trainer, pl_module)

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
        best = {"best_step": self._step, "best_val_log_rir": None if self._step is None else self._score}
        return {} if self.patience is None else {"early_stopping": best}


class ValidationStop(BestLook):
    """Early stopping of a linear model by RIR (`spectrum`) on rows that were set aside.

    Args:
        parts: those rows.
        every: steps between two looks.
        patience: looks without improvement before stopping.
    """

    def __init__(self, parts: Parts, every: int, patience: int) -> None:
        super().__init__(every, patience)
        self.parts = parts
        self._raw = {role: spectrum_of(part.x) for role, part in parts.items()}

    @torch.no_grad()
    def look(self, trainer: Trainer, module: LightningModule) -> None:
        """At RIR and the task loss."""
        assert isinstance(module, LinearModule)
        p, h = (spectrum_of(module.extractor(self.parts[role].x), rank_of_data=self._raw[role].rank) for role in ROLES)
        score = math.log(immunization_ratio(p, h, self._raw["pretrain"], self._raw["harmful"]).rir)
        rows = self.parts["pretrain"]
        side = Side(rows.x, rows.y, rows.x)
        loss = LinearStep(module.extractor, module.head, side, side, module.task_loss).pretrain_loss()
        module.log_now({"val/log_rir": score, "val/task_loss": loss.item()})
        self.judge(torch.tensor(score, dtype=torch.float32).item(), trainer, module)  # rounded as in Lightning's own


REDRAWN = 1.0
"""Seconds between two states of the line on a terminal."""

CLEAR = "\r\x1b[2K"


class Progress(Callback):
    """Step, what `said` adds, and seconds left, on stderr of the first process; it counts samples for the record.

    Args:
        label: what is being trained, a module that knows its `steps`.
        said: a few words on how it goes, such as RIR; None says samples a second, which are then for the record too.
        quiet: count without saying anything.
        lines: how many lines a training.
    """

    def __init__(
        self,
        label: str,
        *,
        said: Callable[[], str] | None = None,
        quiet: bool = False,
        lines: int = 10,
    ) -> None:
        self.label, self.said, self.quiet, self.lines = label, said, quiet, lines
        self._images = self._begun = 0
        self._started = self._seconds = self._told_at = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; the first step, which sets everything up, only starts the clock."""
        now, done = time.perf_counter(), trainer.global_step
        if not self._started:
            self._started, self._begun = now, done
            return
        self._seconds = now - self._started
        sides = batch.values() if isinstance(batch, dict) else [batch]
        self._images += trainer.world_size * sum(len(y) for _, y in sides)
        if self.quiet or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, ImmunizationModule | SupervisedModule)
        total, terminal = pl_module.steps, sys.stderr.isatty()
        kept = done == total or not done % max(1, total // self.lines)
        if not (kept or (terminal and now - self._told_at >= REDRAWN)):
            return
        self._told_at = now
        left = self._seconds / (done - self._begun) * (total - done)
        said = f"{self.rate:.0f} images/s" if self.said is None else self.said()
        text = "   ".join(filter(None, (f"{self.label}: step {done}/{total}", said, f"{left:.0f} s left")))
        with contextlib.suppress(OSError):  # a terminal that was closed, whose SIGHUP keeps what was trained
            print(CLEAR * terminal + text, end="\n" if kept else "\r", file=sys.stderr, flush=True)

    @property
    def rate(self) -> float:
        """Samples a second, of both data sets and all processes; 0 before the second step."""
        return self._images / self._seconds if self._seconds else 0.0

    def facts(self, module: LightningModule) -> dict[str, Any]:
        """For the record, where samples a second count; null where nothing was measured."""
        if self.said is not None:
            return {}
        peak = torch.cuda.max_memory_allocated() / 1024**2 if torch.cuda.is_available() else None
        rate = {"images_per_second": self.rate or None, "peak_accelerator_memory_mib": peak}
        return {"processes": module.trainer.world_size, **rate}


log = logging.getLogger(__name__)


class Resuming(Callback):
    """Writes the checkpoint, whole or not at all.

    Args:
        path: the file.
        config_hash: of the run.
        resume: go on from the file, if it is of the same configuration.

    Attributes:
        place: epoch and step in it from which the training goes on; None where it begins.
        run_id: of the W&B run that it goes on with; None where there is none.
    """

    def __init__(self, path: Path, config_hash: str, *, resume: bool) -> None:
        self.path, self.config_hash = path, config_hash
        known = _facts_in(path, config_hash) if resume else {}
        self.place = (known["epoch"], known["step"]) if known else None
        self.run_id, self._rows = known.get("run_id"), known.get("rows", 0)
        self._steps, self._asked, self._started = 0, False, False
        self._before_s, self._since = 0.0, time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """In the checkpoint."""
        return {"seconds": self._before_s + time.perf_counter() - self._since}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From the checkpoint."""
        self._before_s = state_dict["seconds"]

    @property
    def begins_with(self) -> Path | None:
        """The checkpoint that the training goes on from."""
        return None if self.place is None else self.path

    def facts(self, module: LightningModule) -> dict[str, Any]:
        """For the record."""
        if self.place is None:
            return {"resumed": None}
        epoch, step = self.place
        return {"resumed": {"epoch": epoch, "step": step, "seconds": self._before_s}}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put the curves of before back at once: Lightning has just removed their file."""
        if self.place is not None and trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, CurveLogger):
                    logger.go_on(self._rows)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take SIGTERM over from Lightning, which gives it back in the end."""
        self._started = True
        if trainer.world_size > 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_asked", True))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Of a training that has no epoch left Lightning calls neither start nor end: the others are owed both."""
        if not self._started:
            others = [one for one in trainer.callbacks if one is not self]  # type: ignore[attr-defined]
            for callback in others:
                callback.on_train_start(trainer, pl_module)
            for callback in others:
                callback.on_train_end(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """End, if any process was told to.

        Raises:
            SystemExit: in all processes before the same step.
        """
        if trainer.world_size > 1:
            asked = torch.tensor(float(self._asked), device=pl_module.device)
            distributed.all_reduce(asked, distributed.ReduceOp.MAX)
            if bool(asked):
                raise SystemExit(128 + signal.SIGTERM)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batches of this epoch."""
        self._steps = batch_idx + 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Every epoch."""
        self._steps = 0
        self._save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """SIGTERM ends a training between two batches."""
        if self._steps and isinstance(exception, SystemExit):
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        """All processes take part, the first writes: beside the file first, as Lightning copies across file systems."""
        if not trainer.is_global_zero:
            trainer.save_checkpoint(self.path)
            return
        for logger in trainer.loggers:
            logger.save()  # a training that goes on takes its rows from there
        with whole(self.path) as partial:
            trainer.save_checkpoint(partial)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Name the run, and the place in its data."""
        place = (trainer.current_epoch, self._steps) if self._steps else (trainer.current_epoch + 1, 0)
        facts = {"config_hash": self.config_hash, "epoch": place[0], "step": place[1]}
        runs = [logger.version for logger in trainer.loggers if isinstance(logger, RunLogger)]
        rows = sum(logger.rows for logger in trainer.loggers if isinstance(logger, CurveLogger))
        checkpoint["immunize"] = facts | {"run_id": next(iter(runs), None), "rows": rows}


def _facts_in(path: Path, config_hash: str) -> dict[str, Any]:
    """Where a training stopped that can be gone on with.

    Args:
        path: the checkpoint; it need not exist.
        config_hash: of the run.

    Returns:
        "epoch" and "step", the next ones, "run_id", and "rows" of the curves; nothing if there is no such checkpoint
        of the same configuration.
    """
    if not path.is_file():
        return {}
    try:
        facts: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["immunize"]
    except Exception as error:  # whatever the bytes of a file may cause
        log.warning("%s cannot be read (%s); the training begins anew", path, error)
        return {}
    if facts["config_hash"] != config_hash:
        log.warning("%s belongs to another configuration; the training begins anew", path)
        return {}
    return facts
