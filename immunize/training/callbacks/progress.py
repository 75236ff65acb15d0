"""What is said while a training goes on: about ten lines, and on a terminal one between them that is rewritten."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["Progress"]

REDRAWN = 1.0
"""Seconds between two states of the line on a terminal."""

CLEAR = "\r\x1b[2K"


class Progress(Callback):
    """Step, what `said` adds, and seconds left, on stderr of the first process; it counts samples for the record.

    Args:
        label: what is being trained.
        said: a few words on how it goes, such as RIR; None says samples a second, which are then for the record too.
        max_steps: at which the training ends, if it does so before its last epoch does.
        quiet: count without saying anything.
        lines: how many lines a training.
    """

    def __init__(
        self,
        label: str,
        *,
        said: Callable[[], str] | None = None,
        max_steps: int | None = None,
        quiet: bool = False,
        lines: int = 10,
    ) -> None:
        self.label, self.max_steps, self.quiet, self.lines = label, max_steps, quiet, lines
        self.said = said
        self._images = self._steps = 0
        self._started = self._seconds = self._told_at = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; the first step, which sets everything up, only starts the clock."""
        del pl_module, outputs, batch_idx
        now = time.perf_counter()
        if not self._started:
            self._started = now
            return
        self._seconds = now - self._started
        self._steps += 1
        sides = batch.values() if isinstance(batch, dict) else [batch]
        self._images += trainer.world_size * sum(len(y) for _, y in sides)
        if self.quiet or not trainer.is_global_zero:
            return
        total, done = int(trainer.estimated_stepping_batches), trainer.global_step
        total = total if self.max_steps is None else min(total, self.max_steps)
        terminal, kept = sys.stderr.isatty(), done == total or not done % max(1, total // self.lines)
        if not (kept or (terminal and now - self._told_at >= REDRAWN)):
            return
        self._told_at = now
        left = self._seconds / self._steps * (total - done)
        said = f"{self.rate:.0f} images/s" if self.said is None else self.said()
        text = "   ".join(filter(None, (f"{self.label}: step {done}/{total}", said, f"{left:.0f} s left")))
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
