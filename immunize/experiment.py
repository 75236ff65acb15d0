"""From a composed configuration to objects: the data pair, the module, the trainer. Used by every entry point.

Sees every room; no room sees it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from immunize.building import build, build_sources
from immunize.data import ROLES, PairedData
from immunize.errors import DivergedError, UserError
from immunize.features import PRECONDITIONS, LinearExtractor
from immunize.objective import new_head, task_loss
from immunize.training import ImmunizationModule
from immunize.training.callbacks import GradientBalance, ImmunityMonitor, TheoremGuard, ValidationStop, progress

__all__ = ["Fit", "build_cross_fit", "build_data", "build_extractor", "build_loggers", "fit", "threads"]


HEAD_STREAM = 2**40
"""Added to the seed for ω, so that no run's ω comes from the draw of another run's θ."""

ONE_THREAD_UP_TO = 256
"""Largest D for which LAPACK is at least as fast on one thread, and far faster when the cores are busy."""


@dataclass
class Fit:
    """The outcome of one training.

    Attributes:
        status: "finished", "diverged" or "interrupted".
        module: the trained module, with the last finite parameters if it diverged.
        seconds: wall time of the training.
        steps: optimizer steps taken.
        facts: what the callbacks have to say (guard, balance, early stopping, divergence).
    """

    status: str
    module: ImmunizationModule
    seconds: float
    steps: int
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def theta(self) -> Tensor:
        """θ, (D, D) float64."""
        return self.module.extractor.theta.detach()


def build_data(cfg: DictConfig) -> PairedData:
    """The pair (D_P, D_H), loaded and checked.

    Raises:
        UserError: missing or unusable data.
    """
    objective = cfg.objective
    full_batch = objective.batch_size is None
    data = PairedData(
        *build_sources(cfg),
        batch_size=objective.batch_size,
        passes=objective.epochs if full_batch else 1,
        mode=cfg.pairing,
        validation_fraction=objective.validation_fraction if objective.early_stopping else 0.0,
        seed=cfg.seed,
    )
    data.setup()
    return data


def build_cross_fit(cfg: DictConfig, data: PairedData) -> PairedData:
    """The halves of `data` on which the second extractor is fitted and measured, set up."""
    pair = data.cross_fit_pair(cfg.seed)
    pair.setup()
    return pair


def build_extractor(cfg: DictConfig, n_features: int) -> LinearExtractor:
    """f_θ at its start.

    Raises:
        UserError: a bad `model` setting.
    """
    extractor: LinearExtractor = build(_without_name(cfg.model), n_features=n_features, generator=_generator(cfg.seed))
    return extractor


def build_loggers(cfg: DictConfig, folder: Path) -> list[Logger]:
    """The logger that the configuration names, writing into `folder`; none for `logger=none`.

    Raises:
        UserError: a package that the logger needs is missing.
    """
    if cfg.logger.get("_target_") is None:
        return []
    return [build(cfg.logger, save_dir=str(folder))]


@contextlib.contextmanager
def threads(cfg: DictConfig, n_features: int) -> Iterator[None]:
    """Use `threads` CPU threads within, by default 1 up to D = `ONE_THREAD_UP_TO`.

    Raises:
        UserError: fewer than 1.
    """
    wanted = cfg.threads if cfg.threads is not None else (1 if n_features <= ONE_THREAD_UP_TO else None)
    if wanted is not None and wanted < 1:
        raise UserError(f"threads has to be at least 1, it is {wanted}")
    before = torch.get_num_threads()
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fit(cfg: DictConfig, data: PairedData, loggers: list[Logger], *, label: str = "fit") -> Fit:
    """Train θ on `data` as configured. A divergence or Ctrl-C ends the training, not the process.

    Args:
        cfg: the composed configuration.
        data: the pair, set up.
        loggers: where metrics go; empty for none.
        label: what to call this training in messages.

    Raises:
        UserError: a setting that the method, callbacks or trainer refuse.
    """
    seed_everything(cfg.seed, workers=True, verbose=False)
    module = _build_module(cfg, data)
    callbacks = _build_callbacks(cfg, data, module, label)
    trainer = _build_trainer(cfg, data, loggers, list(callbacks.values()))
    started = time.perf_counter()
    status: str = "finished"
    facts = _solve(cfg, module, data)
    try:
        if "closed_form" not in facts:
            with _quiet():
                trainer.fit(module, datamodule=data)
    except (DivergedError, ValueError, RuntimeError) as error:
        diverged = error if isinstance(error, DivergedError) else _overflow(module, data, trainer.global_step)
        if diverged is None and isinstance(error, ValueError):  # a setting that only the data show to be wrong
            raise UserError(str(error)) from error
        if diverged is None:
            raise
        status = "diverged"
        facts["diverged"] = {"step": diverged.step, "term": diverged.term, "value": str(diverged.value)}
        logging.getLogger(__name__).error("%s: %s; keeping the last finite parameters", label, diverged)
        if module.last_finite:
            module.restore(module.last_finite)
    except (KeyboardInterrupt, SystemExit) as error:
        # Lightning turns Ctrl-C into SystemExit after an orderly end of its own.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, KeyboardInterrupt):
            raise
        status = "interrupted"
    seconds = time.perf_counter() - started
    facts.update(_facts(callbacks, module))
    return Fit(status, module, seconds, trainer.global_step, facts)


def _solve(cfg: DictConfig, module: ImmunizationModule, data: PairedData) -> dict[str, Any]:
    """Set θ where no training is needed (the method's own `solve`), or where one starts from it (`init`).

    Returns:
        facts for the record: under "closed_form" if θ is final, under "init" if it is a start, else empty.

    Raises:
        UserError: the data do not allow it.
    """
    facts: dict[str, Any] = {}
    solvers = {"closed_form": module.objective}
    if cfg.init.get("_target_") is not None:
        solvers["init"] = build(_without_name(cfg.init))
    for name, objective in solvers.items():
        try:
            solved = objective.solve(data.fit.pretrain.x, data.fit.harmful.x)
        except ValueError as error:
            raise UserError(str(error)) from None
        if solved is not None:
            theta, facts[name] = solved
            with torch.no_grad():
                module.extractor.theta.copy_(theta)
    return facts


def _without_name(node: DictConfig) -> DictConfig:
    """What a class is built from: everything but the name it goes by in records."""
    return OmegaConf.create({key: value for key, value in _resolved(node).items() if key != "name"})


def _build_module(cfg: DictConfig, data: PairedData) -> ImmunizationModule:
    objective = build(_without_name(cfg.method))
    generator = _generator(cfg.seed + HEAD_STREAM)
    precondition = getattr(objective, "precondition", "none")
    if precondition not in PRECONDITIONS:
        raise UserError(f"unknown method.precondition {precondition!r}; there are {', '.join(PRECONDITIONS)}")
    objective.bind(data.n_features, generator)
    try:
        loss = task_loss(cfg.objective.loss)
    except ValueError as error:
        raise UserError(str(error)) from None
    optimizer = build(cfg.objective.optimizer, lr=cfg.objective.learning_rate, _partial_=True)
    try:  # what the optimizer refuses, it refuses when it gets its parameters
        optimizer([torch.nn.Parameter(torch.zeros(1))])
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"objective.optimizer: {error}") from error
    return ImmunizationModule(
        build_extractor(cfg, data.n_features),
        new_head(data.n_features, generator),
        objective,
        loss,
        optimizer,
        full_batch=data.full_batch,
        log_every=cfg.log_every,
    )


def _build_callbacks(cfg: DictConfig, data: PairedData, module: ImmunizationModule, label: str) -> dict[str, Callback]:
    objective = cfg.objective
    try:
        callbacks: dict[str, Callback] = {}
        if objective.early_stopping:
            callbacks["early_stopping"] = ValidationStop(objective.patience)
        if objective.balance:
            callbacks["balance"] = GradientBalance(objective.balance_multiplier, objective.balance_every)
        if cfg.guard.value != "off":
            if not {"well", "ill"} & module.objective.weights.keys():
                raise UserError(
                    f"guard={cfg.guard.value} watches R_well and R_ill; method={cfg.method.name} has neither"
                )
            callbacks["guard"] = TheoremGuard(cfg.guard.value)
        # Lightning calls them in this order: the last look is at the θ that early stopping put back.
        monitor = ImmunityMonitor(data.fit, cfg.monitor_every)
        callbacks |= {"monitor": monitor, "progress": progress(monitor, label)}
    except ValueError as error:
        raise UserError(str(error)) from None
    return callbacks


def _build_trainer(cfg: DictConfig, data: PairedData, loggers: list[Logger], callbacks: list[Callback]) -> Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    objective = cfg.objective
    trainer: Trainer = build(
        cfg.trainer,
        max_epochs=1 if data.full_batch else objective.epochs,
        logger=loggers or False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        limit_val_batches=1.0 if objective.early_stopping else 0,
        num_sanity_val_steps=0,
        val_check_interval=objective.check_every if objective.early_stopping else None,
        check_val_every_n_epoch=None if objective.early_stopping else 1,
    )
    return trainer


def _overflow(module: ImmunizationModule, data: PairedData, step: int) -> DivergedError | None:
    """A spectrum cannot be computed where θ is finite but the squares of its features are not: that is a divergence."""
    with torch.no_grad():
        for role in ROLES:
            size = float(module.extractor(data.fit.of(role).x).square().sum())
            if not math.isfinite(size):
                return DivergedError(step, f"squared features of {role}", size)
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what Lightning warns of although it is as intended here, or is its own to mend."""
    with warnings.catch_warnings():
        for message in (
            ".*does not have many workers.*",  # the data lie in memory
            ".*Experiment logs directory .* exists and is not empty.*",  # Hydra's folder is the run's folder
            ".*isinstance\\(treespec, LeafSpec\\).*",
            ".*smaller than the logging interval.*",  # Lightning's own logging, which is not used
        ):
            warnings.filterwarnings("ignore", message)
        yield


def _facts(callbacks: dict[str, Callback], module: ImmunizationModule) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, callback in callbacks.items():
        if isinstance(callback, GradientBalance):
            facts[name] = callback.facts(module)
        elif isinstance(callback, TheoremGuard | ValidationStop):
            facts[name] = callback.facts()
    return facts


def _resolved(node: DictConfig) -> dict[str, Any]:
    container = OmegaConf.to_container(node, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
