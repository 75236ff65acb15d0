"""One training of a deep net: gone on with where it was interrupted, and ended in order however it ends.

Sees every room; no room sees it.
"""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from immunize.data.images import ImagePair
from immunize.errors import DivergedError, UserError
from immunize.features import DeepExtractor
from immunize.running.deep_assembling import build_deep_callbacks, build_deep_trainer
from immunize.running.experiment import quiet_lightning
from immunize.training import DeepModule
from immunize.training.callbacks import GradientBalance, NetworkWatch, Throughput, place_in

__all__ = ["TRAINING", "DeepFit", "signal_behind", "train"]

TRAINING = "training.ckpt"
"""In the output folder of a run that has not finished: what `resume=true` goes on from."""

log = logging.getLogger(__name__)


@dataclass
class DeepFit:
    """The outcome of one training.

    Attributes:
        status: "finished", "diverged" or "interrupted".
        seconds: wall time.
        steps: optimizer steps taken, those before a resumption included.
        facts: what the callbacks have to say.
        signal: number of the signal that ended it; 0 for none.
    """

    status: str
    seconds: float
    steps: int
    facts: dict[str, Any] = field(default_factory=dict)
    signal: int = 0


def train(
    cfg: DictConfig,
    module: DeepModule,
    pair: ImagePair,
    reference: DeepExtractor,
    *,
    folder: Path,
    loggers: list[Logger],
    run_hash: str,
    quiet: bool = False,
) -> DeepFit:
    """Train. A divergence, SIGTERM or Ctrl-C ends the training, not the process.

    Args:
        cfg: the composed configuration.
        module: the network and the method; trained in place.
        pair: the data, set up.
        reference: θ_0.
        folder: the output folder.
        loggers: where metrics go.
        run_hash: of its configuration and of θ_0.
        quiet: show no progress.

    Raises:
        UserError: a setting that a callback, the trainer or the data refuse.
    """
    checkpoint = folder / TRAINING
    place = place_in(checkpoint, run_hash) if cfg.resume and not cfg.overwrite else None
    if place is not None:
        pair.go_on(*place)
    callbacks = build_deep_callbacks(cfg, module.objective, reference, pair, checkpoint, run_hash=run_hash, quiet=quiet)
    trainer = build_deep_trainer(cfg, loggers, list(callbacks.values()))
    started = time.perf_counter()
    fit = DeepFit("finished", 0.0, 0)
    try:
        with quiet_lightning():
            trainer.fit(module, datamodule=pair, ckpt_path=None if place is None else str(checkpoint))
    except (DivergedError, ValueError) as error:
        diverged = error if isinstance(error, DivergedError) else _overflow(module, trainer)
        if diverged is None:  # a setting that only the data show to be wrong
            raise UserError(str(error)) from error
        fit.status = "diverged"
        fit.facts["diverged"] = {"step": diverged.step, "term": diverged.term, "value": str(diverged.value)}
        log.error("%s: %s; keeping the last finite parameters", cfg.method.name, diverged)
        if module.last_finite:
            module.restore(module.last_finite)
    except (KeyboardInterrupt, SystemExit) as error:
        fit.status = "interrupted"
        fit.signal = signal_behind(error)
    fit.seconds, fit.steps = time.perf_counter() - started, trainer.global_step
    fit.facts["resumed"] = None if place is None else {"epoch": place[0], "step": place[1]}
    fit.facts["processes"] = trainer.world_size
    if watched := module.watched():
        fit.facts["watched"] = watched
    for name, callback in callbacks.items():
        if isinstance(callback, GradientBalance):
            fit.facts[name] = callback.facts(module)
        elif isinstance(callback, NetworkWatch | Throughput):
            fit.facts |= callback.facts()
    return fit


def signal_behind(error: KeyboardInterrupt | SystemExit) -> int:
    """What ended a training of Lightning's: 0 for Ctrl-C, otherwise the number of SIGTERM.

    Lightning turns Ctrl-C into SystemExit after an orderly end of its own; another SystemExit is SIGTERM.
    """
    pressed = isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)
    return 0 if pressed else int(signal.SIGTERM)


def _overflow(module: DeepModule, trainer: Trainer) -> DivergedError | None:
    """A spectrum cannot be computed of features that are not finite or all zero: that is a divergence."""
    found = module.unusable()
    return None if found is None else DivergedError(trainer.global_step, f"features of {found[0]}", found[1])
