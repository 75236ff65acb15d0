"""From a configuration to one frozen experiment: data pair, extractor, method, trainer settings, evaluation plan.

The only file in which a run's configuration is read. Sees every room; no room sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from immunize.config import OF_DEEP_NETS, config_dir, is_deep
from immunize.data import PairedData, Source
from immunize.data.images import ImagePair, as_image_source
from immunize.errors import UserError
from immunize.evaluation import EvaluationSettings
from immunize.features import DeepExtractor, LinearExtractor, state_digest
from immunize.instantiate import build, build_named, build_sources
from immunize.objective import Objective, TaskLoss, task_loss
from immunize.pipeline.experiment import HEAD_STREAM, Experiment
from immunize.pipeline.fit import Training
from immunize.pipeline.linear import LinearExperiment
from immunize.pipeline.network import NetworkExperiment
from immunize.records import file_digest
from immunize.schemas import ObjectiveConfig
from immunize.training.loggers import wandb_logger
from immunize.training.module import OptimizerFactory

__all__ = [
    "assemble",
    "method_named",
    "new_trainer",
    "optimizer_factory",
    "shared_row",
    "theta_0_facts",
]

Node = Mapping[str, Any]
"""A part of a configuration: a `_target_` and its arguments, or settings by name."""


def assemble(cfg: DictConfig, sources: tuple[Source, Source] | None = None) -> Experiment:
    """Everything of a run that its configuration decides, with the data loaded and checked.

    Args:
        cfg: the composed configuration (`conf/train.yaml`), checked.
        sources: those of D_P and D_H, if they have been built.

    Raises:
        UserError: a bad setting, or missing or unusable data.
    """
    deep = is_deep(cfg)
    # None: what a record of before a hyper-parameter was there does not have, and what is for networks alone.
    given = {field.name: cfg.objective.get(field.name) for field in fields(ObjectiveConfig)}
    row = ObjectiveConfig(**given | ({} if deep else dict.fromkeys(OF_DEEP_NETS)))
    training = Training(
        method=cfg.method.name,
        row=row,
        guard=str(getattr(cfg.guard, "value", cfg.guard)),
        log_every=cfg.log_every,
        monitor_every=cfg.monitor_every,
        resume=bool(cfg.get("resume") and not cfg.get("overwrite")),
        new_loss=partial(_loss, row.loss, row.label_smoothing),
        new_optimizer=partial(optimizer_factory, cfg.objective.optimizer, row.learning_rate),
        new_trainer=partial(new_trainer, cfg.trainer),
    )
    common: dict[str, Any] = {
        "seed": cfg.seed,
        "new_method": partial(build_named, cfg.method),
        "training": training,
        "new_loggers": partial(_loggers, cfg.logger),
        "selection": cfg.get("selection"),
        "threads": cfg.threads,
        "figure": cfg.get("figure", False),
        "on_cpu": cfg.trainer.get("accelerator") == "cpu",
    }
    sources = build_sources(cfg) if sources is None else sources
    options: dict[str, Any] = {
        "batch_size": row.batch_size,
        "mode": cfg.pairing,
        "validation_fraction": row.validation_fraction if row.early_stopping or cfg.get("selection") else 0.0,
        "seed": cfg.seed,
    }
    return (_network if deep else _linear)(cfg, sources, options, common)


def _linear(
    cfg: DictConfig, sources: tuple[Source, Source], options: dict[str, Any], common: dict[str, Any]
) -> LinearExperiment:
    row: ObjectiveConfig = common["training"].row
    pair = PairedData(*sources, passes=row.epochs if row.batch_size is None else 1, **options)
    pair.setup()
    cross_fit = None
    if pair.held_out_protocol == "cross_fit" and common["selection"] is None:
        cross_fit = pair.cross_fit_pair(cfg.seed)
        cross_fit.setup()
    init = cfg.get("init") or {}

    def new_extractor(n_features: int) -> LinearExtractor:
        generator = torch.Generator().manual_seed(cfg.seed)
        extractor: LinearExtractor = build_named(cfg.model, n_features=n_features, generator=generator)
        return extractor

    return LinearExperiment(
        **common,
        pair=pair,
        cross_fit=cross_fit,
        new_extractor=new_extractor,
        new_start=None if init.get("_target_") is None else partial(build_named, init),
        columns=cfg.model.get("columns", "all"),
        rho=cfg.rho,
        probe_steps=cfg.probe_steps,
    )


def _network(
    cfg: DictConfig, sources: tuple[Source, Source], options: dict[str, Any], common: dict[str, Any]
) -> NetworkExperiment:
    row: ObjectiveConfig = common["training"].row
    images = [as_image_source(source) for source in sources]
    net: DeepExtractor = build_named(cfg.model, n_classes=images[0].n_classes, seed=cfg.seed)
    net.check_classes(images[0].n_classes, f"D_P ({images[0].name})")
    deep = cfg.deep
    pair = ImagePair(
        *images,
        epochs_on=row.epochs_on or "harmful",
        transform_fit=net.transform(train=bool(row.augment)),
        transform_eval=net.transform(),
        workers=deep.workers,
        pin_memory=torch.cuda.is_available(),
        **options,
    )
    pair.setup()
    objective: Objective = common["new_method"]()
    generator = torch.Generator().manual_seed(cfg.seed + HEAD_STREAM)
    objective.bind(net.n_features, generator, pair.n_classes("harmful"), net.dtype)
    return NetworkExperiment(
        **common,
        pair=pair,
        net=net,
        reference=net.reference(),
        objective=objective,
        theta_0=theta_0_facts(net, cfg.model.get("checkpoint")),
        plan=EvaluationSettings(
            rho=cfg.rho,
            n_groups=deep.groups,
            group_size=deep.group_size,
            replicates=deep.replicates,
            probe_steps={str(name): steps for name, steps in deep.probe_steps.items() if steps is not None},
            pretrain_probe_steps=deep.pretrain_probe_steps,
            probe_rows=deep.probe_rows,
        ),
        batch_size=deep.batch_size,
        workers=deep.workers,
        cache_dir=None if deep.cache_dir is None else Path(deep.cache_dir).expanduser(),
        most_images=deep.get("images"),
    )


def theta_0_facts(net: DeepExtractor, checkpoint: str | None) -> dict[str, str | None]:
    """What a run begins with, for its record: a digest of all weights, and one of the file they came from.

    Args:
        net: θ_0.
        checkpoint: the file.
    """
    return {
        "theta_0_sha256": state_digest(net.full_state_dict()),
        "checkpoint_sha256": None if checkpoint is None else file_digest(Path(checkpoint).expanduser()),
    }


# --- the method ---------------------------------------------------------------------------------------------------


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
    whole = OmegaConf.create({"objective": OmegaConf.merge(shared_row(), weights), "seed": seed})
    whole.method = OmegaConf.load(folder / f"{name}.yaml")
    if (own := folder / "own" / f"{name}.yaml").is_file():
        whole.merge_with(OmegaConf.load(own))
    assert isinstance(whole, DictConfig)
    if unknown := sorted(set(options) - set(map(str, whole.method))):
        raise UserError(f"method {name!r} has no option {', '.join(unknown)}")
    whole.method.update(dict(options))
    objective: Objective = build_named(whole.method)
    return objective, whole.objective


def shared_row() -> DictConfig:
    """What C.2 says of every deep net: the optimizer's momentum, the weight decay of classifiers."""
    row = OmegaConf.load(Path(config_dir()) / "objective_deep.yaml")
    assert isinstance(row, DictConfig)
    return row


# --- the training -------------------------------------------------------------------------------------------------


def optimizer_factory(node: Node, learning_rate: float) -> OptimizerFactory:
    """From parameters to their optimizer; what the node sets to null is left to the optimizer.

    Raises:
        UserError: the optimizer refuses its settings.
    """
    kept = OmegaConf.create({str(key): value for key, value in node.items() if value is not None})
    factory: OptimizerFactory = build(kept, lr=learning_rate, _partial_=True)
    try:  # what the optimizer refuses, it refuses when it gets its parameters
        factory([torch.nn.Parameter(torch.zeros(1))])
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"objective.optimizer: {error}") from error
    return factory


def _loss(name: str, label_smoothing: float | None) -> TaskLoss:
    try:
        return task_loss(name, label_smoothing or 0.0)
    except ValueError as error:
        raise UserError(str(error)) from None


def new_trainer(node: Node, loggers: list[Logger], callbacks: list[Callback], **own: Any) -> Trainer:
    """Lightning's trainer.

    Args:
        node: `trainer`.
        loggers: where metrics go.
        callbacks: in the order in which they are called.
        own: what the training itself sets.

    Raises:
        UserError: a bad `trainer` setting, such as devices that do not exist.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    settings = {str(key): value for key, value in node.items() if key != "use_distributed_sampler"}
    trainer: Trainer = build(
        OmegaConf.create(settings),
        use_distributed_sampler=False,  # a pair gives every process its share
        logger=loggers or False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        **own,
    )
    return trainer


def _loggers(node: Node, folder: Path, run: Mapping[str, Any]) -> list[Logger]:
    """The logger that the node names, writing into `folder`; none for `logger=none`.

    Args:
        node: `logger`.
        folder: the output folder.
        run: what the run is called and made of, for a logger that other runs share.

    Raises:
        UserError: a package that the logger needs is missing.
    """
    target = node.get("_target_")
    if target is None:
        return []
    if target != f"{wandb_logger.__module__}.{wandb_logger.__name__}":
        return [build(node, save_dir=str(folder))]
    # As plain data: the classes that its configuration names are not to be built.
    return [build(node, save_dir=str(folder), run=dict(run), _recursive_=False, _convert_="all")]
