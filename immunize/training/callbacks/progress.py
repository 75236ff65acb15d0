"""Progress: a rich bar with the current RIR on a terminal, plain lines on stderr otherwise."""

from __future__ import annotations

import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from immunize.training.callbacks.monitor import ImmunityMonitor

__all__ = ["PlainProgress", "RirProgressBar", "progress"]


def progress(monitor: ImmunityMonitor, label: str) -> Callback:
    """The progress report that suits a terminal or a pipe; `label` names the training."""
    return RirProgressBar(monitor, label) if sys.stdout.isatty() else PlainProgress(monitor, label)


class RirProgressBar(RichProgressBar):
    """Lightning's bar, with the monitor's latest RIR beside it."""

    def __init__(self, monitor: ImmunityMonitor, label: str) -> None:
        super().__init__(refresh_rate=10, leave=False)
        self._monitor, self._label = monitor, label

    def _get_train_description(self, current_epoch: int) -> str:
        total = self.trainer.max_epochs
        return self._label if total == 1 else f"{self._label} {current_epoch + 1}/{total}"

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """The metrics shown on the bar."""
        shown = super().get_metrics(trainer, pl_module)
        shown.pop("v_num", None)
        if "RIR" in self._monitor.latest:
            shown["RIR"] = f"{self._monitor.latest['RIR']:.4g}"
        return shown


class PlainProgress(Callback):
    """About ten lines a run: step, RIR, seconds left.

    Args:
        monitor: where the RIR comes from.
        label: what is being trained.
        lines: how many lines a run.
    """

    def __init__(self, monitor: ImmunityMonitor, label: str, lines: int = 10) -> None:
        self._monitor, self._label, self._lines = monitor, label, lines
        self._started = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Print, a tenth of the run at a time."""
        total = int(trainer.estimated_stepping_batches)
        done = trainer.global_step
        if done % max(1, total // self._lines) and done != total:
            return
        left = (time.perf_counter() - self._started) / done * (total - done)
        rir = self._monitor.latest.get("RIR")
        shown = "" if rir is None else f"   RIR {rir:.4g}"
        print(f"{self._label}: step {done}/{total}{shown}   {left:.0f} s left", file=sys.stderr, flush=True)
