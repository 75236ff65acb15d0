"""From configuration nodes to the parts of a deep net's training: data, network, module, callbacks, trainer.

Sees every room; no room sees it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import Dataset, Subset

from immunize.building import build, build_sources
from immunize.data import ROLES, Role
from immunize.data.images import ImagePair, as_image_source
from immunize.errors import UserError
from immunize.evaluation.deep import EvaluationSettings
from immunize.features import DeepExtractor, state_digest
from immunize.objective import Objective, task_loss
from immunize.records import file_digest
from immunize.running.assembling import HEAD_STREAM, arguments_of, build_objective
from immunize.training import DeepModule
from immunize.training.callbacks import GradientBalance, NetworkWatch, Resuming, StepLimit, Throughput

WATCHED_GROUPS = 5
"""So many of `deep.groups` times `deep.group_size` images of each data set are watched while a network trains."""

__all__ = [
    "build_deep_callbacks",
    "build_deep_module",
    "build_deep_trainer",
    "build_network",
    "build_pair",
    "evaluation_settings",
    "method_of",
    "optimizer_factory",
]


def build_pair(cfg: DictConfig) -> tuple[ImagePair, DeepExtractor]:
    """Both image sets, and the network that sees them, at θ_0.

    Raises:
        UserError: missing or unusable data, or a bad `model` setting.
    """
    sources = [as_image_source(source) for source in build_sources(cfg)]
    net = build_network(cfg, sources[0].n_classes)
    net.check_classes(sources[0].n_classes, f"D_P ({sources[0].name})")
    objective = cfg.objective
    pair = ImagePair(
        *sources,
        batch_size=objective.batch_size,
        mode=cfg.pairing,
        epochs_on=objective.epochs_on,
        transform_fit=net.transform(train=bool(objective.augment)),
        transform_eval=net.transform(),
        validation_fraction=objective.validation_fraction if objective.early_stopping or cfg.selection else 0.0,
        workers=cfg.deep.workers,
        pin_memory=torch.cuda.is_available(),
        seed=cfg.seed,
    )
    pair.setup()
    return pair, net


def build_network(cfg: DictConfig, n_classes: int | None) -> DeepExtractor:
    """f_θ and ω at θ_0.

    Args:
        cfg: a configuration with `model` and `seed`.
        n_classes: of D_P; None takes those of the weights' own classifier.

    Raises:
        UserError: a bad `model` setting, or weights that cannot be had or do not fit.
    """
    net: DeepExtractor = build(arguments_of(cfg.model), n_classes=n_classes, seed=cfg.seed)
    return net


def theta_0_facts(cfg: DictConfig, net: DeepExtractor) -> dict[str, str | None]:
    """What the run begins with, for its record: a digest of all weights, and one of the file they came from.

    Args:
        cfg: a configuration with `model`.
        net: θ_0.
    """
    file = cfg.model.get("checkpoint")
    return {
        "theta_0_sha256": state_digest(net.full_state_dict()),
        "checkpoint_sha256": None if file is None else file_digest(Path(file).expanduser()),
    }


def method_of(cfg: DictConfig, net: DeepExtractor, n_outputs: int) -> Objective:
    """The method, with the parameters that it owns.

    Args:
        cfg: the composed configuration.
        net: f_θ.
        n_outputs: classes of D_H.

    Raises:
        UserError: a bad `method` setting.
    """
    objective = build_objective(cfg)
    generator = torch.Generator().manual_seed(cfg.seed + HEAD_STREAM)
    objective.bind(net.n_features, generator, n_outputs, net.dtype)
    return objective


def build_deep_module(
    cfg: DictConfig,
    net: DeepExtractor,
    objective: Objective,
    reference: DeepExtractor,
    *,
    cached: bool,
    harmful_classes: tuple[int, ...] = (),
) -> DeepModule:
    """The network and the method, ready to train.

    Args:
        cfg: the composed configuration.
        net: f_θ and ω.
        objective: the method.
        reference: θ_0.
        cached: batches hold trunk outputs.
        harmful_classes: C of each of several harmful data sets.

    Raises:
        UserError: a bad setting of `objective`.
    """
    settings = cfg.objective
    try:
        loss = task_loss(settings.loss, settings.label_smoothing)
    except ValueError as error:
        raise UserError(str(error)) from None
    return DeepModule(
        net,
        objective,
        loss,
        optimizer_factory(settings.optimizer, settings.learning_rate),
        weight_decay=settings.weight_decay,
        head_weight_decay=settings.head_weight_decay,
        harmful_classes=harmful_classes,
        over_sets=settings.harmful,
        cached=cached,
        log_every=cfg.log_every,
        lr_decay=settings.lr_decay,
        max_steps=settings.max_steps,
        reference=reference,
    )


def optimizer_factory(node: DictConfig, learning_rate: float) -> Any:
    """From parameters to their optimizer; what the node sets to null is left to the optimizer.

    Raises:
        UserError: the optimizer refuses its settings.
    """
    kept = OmegaConf.create({str(key): value for key, value in node.items() if value is not None})
    factory = build(kept, lr=learning_rate, _partial_=True)
    try:  # what the optimizer refuses, it refuses when it gets its parameters
        factory([torch.nn.Parameter(torch.zeros(1))])
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"objective.optimizer: {error}") from error
    return factory


def build_deep_callbacks(
    cfg: DictConfig,
    objective: Objective,
    reference: DeepExtractor,
    pair: ImagePair,
    checkpoint: Path,
    *,
    run_hash: str,
    quiet: bool,
) -> dict[str, Callback]:
    """What watches the training, by name, in the order in which Lightning is to call them.

    Args:
        cfg: the composed configuration.
        objective: the method.
        reference: θ_0.
        pair: the data, set up.
        checkpoint: where the training is kept.
        run_hash: of its configuration and of θ_0.
        quiet: show no progress.

    Raises:
        UserError: a setting that one of them refuses.
    """
    settings = cfg.objective
    try:
        callbacks: dict[str, Callback] = {}
        if settings.balance and {"well", "ill"} & objective.weights.keys():
            callbacks["balance"] = GradientBalance(
                settings.balance_multiplier, settings.balance_every, settings.balance_multiplier_ill
            )
        elif settings.balance and not quiet:  # a sweep over methods shares one row of hyper-parameters
            logging.getLogger(__name__).warning(
                "objective.balance=true has no effect: method=%s has no λ that it could set", cfg.method.name
            )
        stopping = settings.early_stopping
        callbacks["watch"] = NetworkWatch(
            reference,
            _watched(cfg, pair),
            every=settings.check_every if stopping else cfg.monitor_every,
            patience=settings.patience if stopping else None,
            quiet=quiet,
        )
        if settings.max_steps is not None:
            callbacks["step_limit"] = StepLimit(settings.max_steps)
        callbacks["throughput"] = Throughput(cfg.method.name, max_steps=settings.max_steps, quiet=quiet)
        callbacks["resuming"] = Resuming(checkpoint, run_hash)
    except ValueError as error:
        raise UserError(str(error)) from None
    return callbacks


def _watched(cfg: DictConfig, pair: ImagePair) -> dict[Role, Dataset[Any]]:
    """Images of both data sets that are looked at while training: those set aside if there are any, else of `fit`."""
    most = cfg.deep.group_size * min(cfg.deep.groups, WATCHED_GROUPS)
    found: dict[Role, Dataset[Any]] = {}
    for role in ROLES:
        aside = pair.validation(role)
        images = pair.measured(role).fit if aside is None else aside
        drawn = torch.randperm(len(images), generator=torch.Generator().manual_seed(cfg.seed))[:most]
        found[role] = Subset(images, drawn.tolist())
    return found


def build_deep_trainer(cfg: DictConfig, loggers: list[Logger], callbacks: list[Callback]) -> Trainer:
    """Lightning's trainer.

    Raises:
        UserError: a bad `trainer` setting, such as devices that do not exist.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    settings = cfg.objective
    own = {"use_distributed_sampler"}
    node = OmegaConf.create({str(key): value for key, value in cfg.trainer.items() if key not in own})
    trainer: Trainer = build(
        node,
        max_epochs=settings.epochs,
        use_distributed_sampler=False,  # the pair gives every process its share
        logger=loggers or False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    return trainer


def device_of_run(cfg: DictConfig) -> torch.device:
    """Where this process trains and measures.

    Raises:
        UserError: a bad `trainer` setting, such as devices that do not exist.
    """
    return build_deep_trainer(cfg, [], []).strategy.root_device


def evaluation_settings(cfg: DictConfig) -> EvaluationSettings:
    """How large the evaluation is."""
    deep = cfg.deep
    return EvaluationSettings(
        rho=cfg.rho,
        n_groups=deep.groups,
        group_size=deep.group_size,
        replicates=deep.replicates,
        probe_steps={str(name): steps for name, steps in deep.probe_steps.items() if steps is not None},
        pretrain_probe_steps=deep.pretrain_probe_steps,
        probe_rows=deep.probe_rows,
    )
