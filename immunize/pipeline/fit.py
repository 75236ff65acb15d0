"""One training, of whatever: ended in order however it ends, and what came of it.

Sees every room; no room sees it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor, cuda, nn

from immunize.data.images.pair import random_state
from immunize.data.pair import Pair
from immunize.errors import DivergedError, UserError
from immunize.features.append import AppendedHead
from immunize.objective import Objective, TaskLoss
from immunize.schemas import ObjectiveConfig
from immunize.training import ImmunizationModule
from immunize.training.callbacks import GradientBalance, Progress, TheoremGuard
from immunize.training.module import OptimizerFactory

HEAD_STREAM = 2**40
"""Added to the seed for ω, so that no run's ω comes from the draw of another run's θ."""

TRAINING = "training.ckpt"
"""In the output folder of a run that has not finished: what `resume=true` goes on from."""

if not cuda.is_available():
    # Lightning sets it, for the sake of forks; without a GPU it has every step of Adam look for a driver: 0.15 ms.
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Telling:
    """What a training tells while it goes on.

    Attributes:
        label: what it is called.
        quiet: nothing; what would be warned of is kept for the record alone.
        progress: how far it is, unless quiet.
    """

    label: str = "fit"
    quiet: bool = False
    progress: bool = True


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

    def of(self, objective: Objective) -> dict[str, Any]:
        """The method with its loss and its steps, as every `ImmunizationModule` takes them."""
        row = self.row
        made = {"objective": objective, "task_loss": self.new_loss(), "optimizer": self.new_optimizer()}
        return {**made, "log_every": self.log_every, "lr_decay": row.lr_decay, "max_steps": row.max_steps}

    def trainer(self, loggers: list[Logger], callbacks: list[Callback], pair: Pair) -> Trainer:
        """Lightning's, which looks at no validation set: callbacks do.

        Raises:
            UserError: a bad `trainer` setting, such as devices that do not exist.
        """
        epochs = 1 if pair.full_batch else self.row.epochs  # whose one pass has them all
        return self.new_trainer(loggers, callbacks, max_epochs=epochs, limit_val_batches=0, overfit_batches=0.0)

    def callbacks(
        self,
        objective: Objective,
        monitor: Callback,
        telling: Telling,
        said: Callable[[], str] | None = None,
    ) -> list[Callback]:
        """What watches a training, in the order in which Lightning is to call it.

        Args:
            objective: the method.
            monitor: looks at what is trained.
            telling: what it tells.
            said: of the progress, see there.

        Raises:
            UserError: a guard that the method gives nothing to watch.
        """
        row, weighted = self.row, {"well", "ill"} & objective.weights.keys()
        if row.early_stopping and not objective.aims_at_kappa:
            raise UserError(f"objective.early_stopping judges by RIR, at which method={self.method} does not aim")
        found: list[Callback] = []
        if row.balance and weighted:
            found.append(GradientBalance(row.balance_multiplier, row.balance_every, row.balance_multiplier_ill))
        elif row.balance and objective.trains and not telling.quiet:
            # A sweep over methods, which is quiet, shares one row of hyper-parameters.
            log.warning("objective.balance=true has no effect: method=%s has no λ that it could set", self.method)
        if self.guard != "off" and not weighted:
            raise UserError(f"guard={self.guard} watches R_well and R_ill; method={self.method} has neither")
        found += [TheoremGuard()] if self.guard != "off" else []
        return [*found, monitor, Progress(telling.label, said=said, quiet=telling.quiet or not telling.progress)]


@dataclass
class Fit:
    """The outcome of one training.

    Attributes:
        status: "finished", "diverged" or "interrupted".
        seconds: wall time, that before a resumption included.
        steps: optimizer steps taken, those before a resumption included.
        facts: what the callbacks have to say.
        signal: number of the signal that ended it; 0 for none.
        theta: of a linear model, (D, D) float64, in all D columns; the last finite one if it diverged.
        head: ω of a linear model, (D, C) float64, likewise.
        error: where it diverged.
        appended: the map that a network's method has computed, with the classifier behind it; None where the network
            was trained, which is in place.
        released: the network with that map.
    """

    status: str = "finished"
    seconds: float = 0.0
    steps: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    signal: int = 0
    theta: Tensor | None = None
    head: Tensor | None = None
    error: DivergedError | None = None
    appended: AppendedHead | None = None
    released: nn.Module | None = None

    def diverged(self, error: DivergedError) -> None:
        """Say where it diverged."""
        self.status, self.error = "diverged", error
        self.facts["diverged"] = {"step": error.step, "term": error.term, "value": str(error.value)}


def train(
    module: LightningModule,
    data: Any,
    trainer: Trainer,
    *,
    label: str | None = None,
    checkpoint: Path | None = None,
) -> Fit:
    """Train in place. SIGTERM or Ctrl-C ends the training, not the process, and a divergence that of an immunization.

    Args:
        module: what is trained.
        data: a data module, set up, or loaders.
        trainer: Lightning's.
        label: what to call this training in messages; None tells nothing.
        checkpoint: where the training goes on; None begins it.

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
        elif (found := module.unusable()) is not None:
            diverged = DivergedError(trainer.global_step, *found)
        elif isinstance(error, ValueError):
            raise UserError(str(error)) from error
        else:
            raise
        fit.diverged(diverged)
        if label is not None:
            log.error("%s: %s; keeping the last finite parameters", label, diverged)
        if module.last_finite:
            module.restore(module.last_finite)
    except (KeyboardInterrupt, SystemExit) as error:
        # Lightning turns Ctrl-C into SystemExit after an orderly end of its own; another SystemExit is SIGTERM.
        pressed = isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)
        fit.status, fit.signal = "interrupted", 0 if pressed else int(signal.SIGTERM)
    fit.facts |= facts_of(trainer.callbacks, module)  # type: ignore[attr-defined]
    fit.seconds, fit.steps = time.perf_counter() - started, trainer.global_step
    if resumed := fit.facts.get("resumed"):
        fit.seconds += resumed["seconds"]
    return fit


def facts_of(callbacks: Iterable[Callback], module: LightningModule) -> dict[str, Any]:
    """What module and callbacks leave in the record: each names it itself."""
    facts = module.objective.facts() if isinstance(module, ImmunizationModule) else {}
    for callback in callbacks:
        facts |= callback.facts(module) if hasattr(callback, "facts") else {}
    return facts


@contextlib.contextmanager
def by_its_own_numbers(seed: int) -> Iterator[None]:
    """Random numbers by `seed`, gradients, no autocast within; the caller's generators, modes, log levels come back."""
    lightning = logging.getLogger("lightning.pytorch")
    with contextlib.ExitStack() as within:
        within.callback(lightning.setLevel, lightning.level)
        if torch.backends.mps.is_available():
            within.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
        within.enter_context(torch.random.fork_rng(range(torch.cuda.device_count())))
        within.enter_context(torch.inference_mode(False))
        within.enter_context(torch.enable_grad())
        for device in {"cpu", getattr(torch.accelerator.current_accelerator(), "type", "cpu")}:
            within.enter_context(torch.autocast(device, enabled=False))
        within.enter_context(random_state(seed, seed, seed))
        torch.manual_seed(seed)  # of accelerators too
        yield


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
