"""The trainings of a run: the data pair, the columns θ is trained in, and what came of it. Used by every entry point.

Sees every room; no room sees it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig
from torch import Tensor

from immunize.building import build_sources
from immunize.data import ROLES, PairedData
from immunize.errors import DivergedError, UserError
from immunize.objective import Objective
from immunize.processes import beside, can_fork
from immunize.running.assembling import build_callbacks, build_init, build_module, build_objective, build_trainer
from immunize.spectrum import compress_rows, joint_basis, lift_map, restrict_map
from immunize.threads import cpu_threads, threads_in_force
from immunize.training import LinearModule
from immunize.training.callbacks import GradientBalance, ImmunityMonitor, TheoremGuard, ValidationStop

__all__ = ["COLUMNS", "Fit", "build_cross_fit", "build_data", "fit", "fit_each", "quiet_lightning", "threads"]

COLUMNS = ("auto", "joint", "all")
"""Values of `model.columns`."""

JOINT_FROM, JOINT_BELOW = 256, 0.9
"""`model.columns=auto` trains on the joint range where D is at least the first, and n/D at most the second."""

ONE_THREAD_UP_TO = 1024
"""Largest D at which a run keeps to one thread: a second one saves a fifth of the time at most, costs several times as
much where other processes are busy, and other numbers of cores would round otherwise."""


@dataclass
class Fit:
    """The outcome of one training.

    Attributes:
        status: "finished", "diverged" or "interrupted".
        theta: θ, (D, D) float64, in all D columns; the last finite one if it diverged.
        head: ω, (D, 1) float64, likewise.
        seconds: wall time of the training.
        steps: optimizer steps taken.
        facts: what the callbacks have to say (warnings, guard, balance, early stopping, divergence).
    """

    status: str
    theta: Tensor
    head: Tensor
    seconds: float
    steps: int
    facts: dict[str, Any] = field(default_factory=dict)


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
        validation_fraction=objective.validation_fraction if objective.early_stopping or cfg.selection else 0.0,
        seed=cfg.seed,
    )
    data.setup()
    return data


def build_cross_fit(cfg: DictConfig, data: PairedData) -> PairedData:
    """The halves of `data` on which the second extractor is fitted and measured, set up."""
    pair = data.cross_fit_pair(cfg.seed)
    pair.setup()
    return pair


@contextlib.contextmanager
def threads(cfg: DictConfig, n_features: int) -> Iterator[None]:
    """Use `threads` CPU threads within, by default 1 up to D = `ONE_THREAD_UP_TO`.

    Raises:
        UserError: fewer than 1.
    """
    wanted = cfg.threads if cfg.threads is not None else (1 if n_features <= ONE_THREAD_UP_TO else None)
    if wanted is not None and wanted < 1:
        raise UserError(f"threads has to be at least 1, it is {wanted}")
    with cpu_threads(threads_in_force(wanted)):
        yield


def fit_each(
    cfg: DictConfig, pairs: dict[str, PairedData], loggers: list[Logger], *, quiet: bool
) -> Generator[tuple[str, Fit], None, None]:
    """Fit on every pair, until one does not finish: names and outcomes, in their order.

    They do not depend on each other. Where a second core is free for it, the second is fitted in a fork of this process
    meanwhile, to the same bits; not in a sweep, whose other runs have the cores.

    Args:
        cfg: the composed configuration.
        pairs: "fit", and "cross_fit" where the data set is cross-fitted; set up.
        loggers: of "fit".
        quiet: show no progress; true in a sweep.
    """
    works: dict[str, Callable[[], Fit]] = {}
    with contextlib.ExitStack() as forks:
        alone = torch.get_num_threads() == 1 and cfg.trainer.get("accelerator") == "cpu" and can_fork(len(pairs))
        for name, pair in pairs.items():
            work = partial(fit, cfg, pair, label=name.replace("_", "-"), quiet=quiet)
            if not works:
                works[name] = partial(work, loggers)
            elif quiet or not alone:
                works[name] = partial(work, [])
            else:  # a terminal has room for one bar
                works[name] = forks.enter_context(beside(partial(work, [], progress_shown=not sys.stdout.isatty())))
        for name, run in works.items():
            done = run()
            yield name, done
            if done.status != "finished":
                break


def fit(
    cfg: DictConfig,
    data: PairedData,
    loggers: list[Logger],
    *,
    label: str = "fit",
    quiet: bool = False,
    progress_shown: bool = True,
) -> Fit:
    """Find θ for `data` as configured. A divergence or Ctrl-C ends the training, not the process.

    Args:
        cfg: the composed configuration.
        data: the pair, set up.
        loggers: where metrics go; empty for none.
        label: what to call this training in messages.
        quiet: show no progress, and keep recognized failures for the record alone.
        progress_shown: false shows no progress, but says what fails.

    Raises:
        UserError: a setting that the method, callbacks or trainer refuse.
    """
    seed_everything(cfg.seed, workers=True, verbose=False)
    started = time.perf_counter()
    objective = build_objective(cfg)
    solved = _solve(objective, data)
    start = None if solved else _solve(build_init(cfg), data)
    if start is not None:
        # D_P's features as large as behind a rotation, for which learning rates are made; no κ sees it.
        x, (theta, told) = data.fit.pretrain.x, start
        start = theta * (x.norm() / (x @ theta).norm()), told
    basis = None if solved else _columns(cfg, data)
    seen = data if basis is None else data.in_coordinates(basis)
    module = build_module(cfg, seen, objective)
    facts: dict[str, Any] = {"columns": {"of": data.n_features, "trained": seen.n_features}}
    for name, found in (("closed_form", solved), ("init", start)):
        if found is not None:
            theta, facts[name] = found
            with torch.no_grad():
                module.extractor.theta.copy_(theta if basis is None else restrict_map(theta, basis))
    callbacks = build_callbacks(cfg, seen, module, label, quiet)
    if not progress_shown:
        callbacks.pop("progress", None)
    trainer = build_trainer(cfg, seen, loggers, list(callbacks.values()))
    status: str = "finished"
    try:
        if solved is None:
            with quiet_lightning():
                trainer.fit(module, datamodule=seen)
    except (DivergedError, ValueError, RuntimeError) as error:
        diverged = error if isinstance(error, DivergedError) else _overflow(module, seen, trainer.global_step)
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
    theta, head = module.extractor.theta.detach(), module.head.detach()
    if basis is not None:
        theta, head = lift_map(theta, basis), basis @ head
    return Fit(status, theta, head, seconds, trainer.global_step, facts)


def _solve(objective: Objective | None, data: PairedData) -> tuple[Tensor, dict[str, Any]] | None:
    """θ (D, D) and facts about it from an objective that computes it; None from one that trains it.

    Raises:
        UserError: the data do not allow it.
    """
    try:
        return None if objective is None else objective.solve_labelled(data.fit.pretrain, data.fit.harmful)
    except ValueError as error:
        raise UserError(str(error)) from None


def _columns(cfg: DictConfig, data: PairedData) -> Tensor | None:
    """The basis in which θ is trained, (D, n); None for all D columns.

    Raises:
        UserError: an unknown `model.columns`.
    """
    wanted = cfg.model.get("columns", "all")
    if wanted not in COLUMNS:
        raise UserError(f"unknown model.columns {wanted!r}; there are {', '.join(COLUMNS)}")
    if wanted == "all" or (wanted == "auto" and data.n_features < JOINT_FROM):
        return None
    watched = data.validation if cfg.objective.early_stopping else None  # otherwise measured in all D columns
    parts = [pair.of(role).x for pair in (data.fit, watched) if pair is not None for role in ROLES]
    basis = joint_basis(*(compress_rows(x) for x in parts))
    return None if wanted == "auto" and basis.shape[1] > JOINT_BELOW * data.n_features else basis


def _overflow(module: LinearModule, data: PairedData, step: int) -> DivergedError | None:
    """A spectrum cannot be computed where θ is finite but the squares of its features are not: that is a divergence."""
    with torch.no_grad():
        for role in ROLES:
            size = float(module.extractor(data.fit.of(role).x).square().sum())
            if not math.isfinite(size):
                return DivergedError(step, f"squared features of {role}", size)
    return None


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


def _facts(callbacks: dict[str, Callback], module: LinearModule) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, callback in callbacks.items():
        if isinstance(callback, GradientBalance | ImmunityMonitor):
            facts[name] = callback.facts(module)
        elif isinstance(callback, TheoremGuard | ValidationStop):
            facts[name] = callback.facts()
    return facts
