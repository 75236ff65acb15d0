"""One training, of whatever: ended in order however it ends, and what came of it.

Sees every room; no room sees it.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from immunize.errors import DivergedError, UserError
from immunize.objective import Objective, TaskLoss
from immunize.schemas import ObjectiveConfig
from immunize.training import ImmunizationModule
from immunize.training.callbacks import TheoremGuard
from immunize.training.module import OptimizerFactory

__all__ = ["TRAINING", "Fit", "Training", "quiet_lightning", "train"]

TRAINING = "training.ckpt"
"""In the output folder of a run that has not finished: what `resume=true` goes on from."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Training:
    """How a training goes.

    Attributes:
        method: its name.
        row: the hyper-parameters.
        guard: what the theorem guard does: "off" or "warn".
        log_every: steps between two rows of the loggers.
        monitor_every: steps between two looks at RIR.
        resume: an interrupted training goes on.
        new_loss: makes L.
        new_optimizer: makes what makes the optimizer.
        new_trainer: (loggers, callbacks, further settings) to Lightning's trainer.
    """

    method: str
    row: ObjectiveConfig
    guard: str
    log_every: int
    monitor_every: int
    resume: bool
    new_loss: Callable[[], TaskLoss]
    new_optimizer: Callable[[], OptimizerFactory]
    new_trainer: Callable[..., Trainer]

    def guards(self, objective: Objective) -> dict[str, TheoremGuard]:
        """The theorem guard by its name, if there is to be one.

        Raises:
            UserError: the method gives it nothing to watch.
        """
        if self.guard == "off":
            return {}
        if not {"well", "ill"} & objective.weights.keys():
            raise UserError(f"guard={self.guard} watches R_well and R_ill; method={self.method} has neither")
        return {"guard": TheoremGuard()}


@dataclass
class Fit:
    """The outcome of one training.

    Attributes:
        status: "finished", "diverged" or "interrupted".
        seconds: wall time.
        steps: optimizer steps taken, those before a resumption included.
        facts: what the callbacks have to say.
        signal: number of the signal that ended it; 0 for none.
        theta: of a linear model, (D, D) float64, in all D columns; the last finite one if it diverged.
        head: ω of a linear model, (D, C) float64, likewise.
        released: a network with the map that its method has computed; None where it was trained, which is in place.
    """

    status: str = "finished"
    seconds: float = 0.0
    steps: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    signal: int = 0
    theta: Tensor | None = None
    head: Tensor | None = None
    released: nn.Module | None = None

    def diverged(self, error: DivergedError) -> None:
        """Say where it diverged."""
        self.status = "diverged"
        self.facts["diverged"] = {"step": error.step, "term": error.term, "value": str(error.value)}


def train(
    module: LightningModule,
    data: Any,
    trainer: Trainer,
    *,
    label: str,
    checkpoint: Path | None = None,
    unusable: Callable[[], tuple[str, float] | None] = lambda: None,
) -> Fit:
    """Train in place. SIGTERM or Ctrl-C ends the training, not the process, and a divergence that of an immunization.

    Args:
        module: what is trained.
        data: a data module, set up, or a loader.
        trainer: Lightning's.
        label: what to call this training in messages.
        checkpoint: where the training goes on; None begins it.
        unusable: of what a spectrum cannot be computed, and its value: then an error is a divergence.

    Raises:
        UserError: a setting that only the data show to be wrong.
        DivergedError: of another training.
    """
    fit, started = Fit(), time.perf_counter()
    try:
        with quiet_lightning():
            trainer.fit(module, data, ckpt_path=None if checkpoint is None else str(checkpoint))
    except (DivergedError, ValueError, RuntimeError) as error:
        if not isinstance(module, ImmunizationModule):
            raise
        if isinstance(error, DivergedError):
            diverged = error
        elif (found := unusable()) is not None:
            diverged = DivergedError(trainer.global_step, *found)
        elif isinstance(error, ValueError):
            raise UserError(str(error)) from error
        else:
            raise
        fit.diverged(diverged)
        log.error("%s: %s; keeping the last finite parameters", label, diverged)
        if module.last_finite:
            module.restore(module.last_finite)
    except (KeyboardInterrupt, SystemExit) as error:
        # Lightning turns Ctrl-C into SystemExit after an orderly end of its own; another SystemExit is SIGTERM.
        pressed = isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)
        fit.status, fit.signal = "interrupted", 0 if pressed else int(signal.SIGTERM)
    fit.seconds, fit.steps = time.perf_counter() - started, trainer.global_step
    return fit


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide what Lightning warns of although it is as intended here, or is its own to mend."""
    with warnings.catch_warnings():
        for message in (
            ".*does not have many workers.*",  # the data lie in memory
            ".*Experiment logs directory .* exists and is not empty.*",  # Hydra's folder is the run's folder
            ".*isinstance\\(treespec, LeafSpec\\).*",
            ".*module\\(s\\) in eval mode at the start of training.*",  # a network keeps θ_0's statistics
            ".*your dataloader is not resumable.*",  # it is, see ImagePair.go_on
            ".*smaller than the logging interval.*",  # Lightning's own logging, which is not used
        ):
            warnings.filterwarnings("ignore", message)
        yield
