"""From configuration nodes to the parts of one training: extractor, module, callbacks, trainer, loggers.

Sees every room; no room sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from immunize.building import build
from immunize.config import config_dir
from immunize.data import PairedData
from immunize.errors import UserError
from immunize.features import LinearExtractor
from immunize.objective import Objective, new_head, task_loss
from immunize.training import LinearModule
from immunize.training.callbacks import GradientBalance, ImmunityMonitor, TheoremGuard, ValidationStop, progress
from immunize.training.loggers import wandb_logger

__all__ = [
    "HEAD_STREAM",
    "arguments_of",
    "build_callbacks",
    "build_extractor",
    "build_init",
    "build_loggers",
    "build_module",
    "build_objective",
    "build_trainer",
    "method_named",
    "shared_row",
]

HEAD_STREAM = 2**40
"""Added to the seed for ω, so that no run's ω comes from the draw of another run's θ."""

NOT_ARGUMENTS = ("name", "kind", "columns")
"""Keys of a node that its class does not take: how it is called in records, and what the run itself reads."""


def build_extractor(cfg: DictConfig, n_features: int) -> LinearExtractor:
    """f_θ at its start.

    Raises:
        UserError: a bad `model` setting.
    """
    extractor: LinearExtractor = build(arguments_of(cfg.model), n_features=n_features, generator=_generator(cfg.seed))
    return extractor


def build_loggers(cfg: DictConfig, folder: Path, run: Mapping[str, Any]) -> list[Logger]:
    """The logger that the configuration names, writing into `folder`; none for `logger=none`.

    Args:
        cfg: the composed configuration.
        folder: the output folder.
        run: what the run is called and made of, for a logger that other runs share.

    Raises:
        UserError: a package that the logger needs is missing.
    """
    target = cfg.logger.get("_target_")
    if target is None:
        return []
    if target != f"{wandb_logger.__module__}.{wandb_logger.__name__}":
        return [build(cfg.logger, save_dir=str(folder))]
    # As plain data: the classes that its configuration names are not to be built.
    return [build(cfg.logger, save_dir=str(folder), run=dict(run), _recursive_=False, _convert_="all")]


def build_objective(cfg: DictConfig) -> Objective:
    """The method.

    Raises:
        UserError: a bad `method` setting.
    """
    objective: Objective = build(arguments_of(cfg.method))
    return objective


def build_init(cfg: DictConfig) -> Objective | None:
    """What computes the start of θ; None where θ starts as `model.init` says.

    Raises:
        UserError: a bad `init` setting.
    """
    return None if cfg.init.get("_target_") is None else build(arguments_of(cfg.init))


def build_module(cfg: DictConfig, data: PairedData, objective: Objective) -> LinearModule:
    """θ, ω and the method, ready to train on `data`.

    Raises:
        UserError: a bad setting of `model` or `objective`.
    """
    generator = _generator(cfg.seed + HEAD_STREAM)
    objective.bind(data.n_features, generator, data.n_outputs("harmful"))
    try:
        loss = task_loss(cfg.objective.loss)
    except ValueError as error:
        raise UserError(str(error)) from None
    optimizer = build(cfg.objective.optimizer, lr=cfg.objective.learning_rate, _partial_=True)
    try:  # what the optimizer refuses, it refuses when it gets its parameters
        optimizer([torch.nn.Parameter(torch.zeros(1))])
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"objective.optimizer: {error}") from error
    return LinearModule(
        build_extractor(cfg, data.n_features),
        new_head(data.n_features, generator, data.n_outputs("pretrain")),
        objective,
        loss,
        optimizer,
        full_batch=data.full_batch,
        log_every=cfg.log_every,
        lr_decay=cfg.objective.lr_decay,
    )


def build_callbacks(
    cfg: DictConfig, data: PairedData, module: LinearModule, label: str, quiet: bool
) -> dict[str, Callback]:
    """What watches the training, by name, in the order in which Lightning is to call them.

    Args:
        cfg: the composed configuration.
        data: the pair as the module sees it.
        module: what is trained.
        label: what to call this training in messages.
        quiet: show no progress.

    Raises:
        UserError: a setting that one of them refuses.
    """
    objective = cfg.objective
    try:
        callbacks: dict[str, Callback] = {}
        if objective.early_stopping:
            callbacks["early_stopping"] = ValidationStop(objective.patience)
        if objective.balance:
            callbacks["balance"] = GradientBalance(
                objective.balance_multiplier, objective.balance_every, objective.balance_multiplier_ill
            )
        if cfg.guard.value != "off":
            if not {"well", "ill"} & module.objective.weights.keys():
                raise UserError(
                    f"guard={cfg.guard.value} watches R_well and R_ill; method={cfg.method.name} has neither"
                )
            callbacks["guard"] = TheoremGuard(cfg.guard.value)
        # Lightning calls them in this order: the last look is at the θ that early stopping put back.
        monitor = ImmunityMonitor(data.fit, cfg.monitor_every, label, quiet=quiet)
        callbacks |= {"warnings": monitor} | ({} if quiet else {"progress": progress(monitor, label)})
    except ValueError as error:
        raise UserError(str(error)) from None
    return callbacks


def build_trainer(cfg: DictConfig, data: PairedData, loggers: list[Logger], callbacks: list[Callback]) -> Trainer:
    """Lightning's trainer for this training.

    Raises:
        UserError: a bad `trainer` setting.
    """
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
    if (processes := trainer.num_devices * trainer.num_nodes) > 1:
        raise UserError(f"a linear model trains in one process, not in {processes}: set trainer.devices=1")
    return trainer


def method_named(
    name: str, lambda_well: float | None, lambda_ill: float | None, options: Mapping[str, Any], seed: int
) -> tuple[Objective, DictConfig]:
    """A network's method as its YAML builds it, and the hyper-parameters that go with it.

    Args:
        name: of the YAML.
        lambda_well: λ_P, or None.
        lambda_ill: λ_H, or None.
        options: of the method's own settings, those that differ.
        seed: of the method.

    Raises:
        UserError: an unknown method, or a setting of it that is unknown or bad.
    """
    folder = Path(config_dir()) / "method"
    if not (folder / f"{name}.yaml").is_file():
        names = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        raise UserError(f"unknown method {name!r}; there are {names}")
    weights = {
        "lambda_well": 1.0 if lambda_well is None else lambda_well,
        "lambda_ill": 1.0 if lambda_ill is None else lambda_ill,
    }
    cfg = OmegaConf.create({"objective": OmegaConf.merge(shared_row(), weights), "seed": seed})
    cfg.method = OmegaConf.load(folder / f"{name}.yaml")
    if (own := folder / "own" / f"{name}.yaml").is_file():
        cfg.merge_with(OmegaConf.load(own))
    assert isinstance(cfg, DictConfig)
    if unknown := sorted(set(options) - set(map(str, cfg.method))):
        raise UserError(f"method {name!r} has no option {', '.join(unknown)}")
    cfg.method.update(dict(options))
    objective: Objective = build(arguments_of(cfg.method))
    return objective, cfg.objective


def shared_row() -> DictConfig:
    """What C.2 says of every deep net: the optimizer's momentum, the weight decay of classifiers."""
    row = OmegaConf.load(Path(config_dir()) / "objective_deep.yaml")
    assert isinstance(row, DictConfig)
    return row


def arguments_of(node: DictConfig) -> DictConfig:
    """What a class is built from: everything but `NOT_ARGUMENTS`."""
    container = OmegaConf.to_container(node, resolve=True)
    assert isinstance(container, dict)
    return OmegaConf.create({str(key): value for key, value in container.items() if key not in NOT_ARGUMENTS})


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
