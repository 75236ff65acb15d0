"""From a configuration to one frozen experiment: data pair, extractor, method, trainer settings, evaluation plan.

The only file in which a run's configuration is read. Sees every room; no room sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from immunize.config import OF_DEEP_NETS, config_dir, is_deep
from immunize.data import SourceBase
from immunize.data.images.pair import ImagePair
from immunize.data.images.source import as_image_source
from immunize.data.pair import Pair, PairedData
from immunize.data.splits import ROLES
from immunize.errors import UserError
from immunize.evaluation import EvaluationSettings
from immunize.features.deep import DeepExtractor
from immunize.features.weights import state_digest
from immunize.instantiate import NOT_ARGUMENTS, build, sources_of
from immunize.objective import Objective, task_loss
from immunize.pipeline.experiment import Experiment, Model
from immunize.pipeline.fit import HEAD_STREAM, Training
from immunize.pipeline.linear import ONE_THREAD_UP_TO, LinearModel
from immunize.pipeline.network import NetworkModel, network_facts
from immunize.processes import is_first
from immunize.records import file_digest
from immunize.schemas import ObjectiveConfig
from immunize.spectrum.erasing import SAME_DATA, same_data
from immunize.training.loggers import wandb_logger
from immunize.training.module import OptimizerFactory

log = logging.getLogger(__name__)


def assemble(
    cfg: DictConfig, sources: tuple[SourceBase, SourceBase] | None = None, record: dict[str, Any] | None = None
) -> Experiment:
    """Everything of a run that its configuration decides, with the data loaded and checked.

    Args:
        cfg: the composed configuration (`conf/train.yaml`), checked.
        sources: those of D_P and D_H, if they have been built.
        record: of the run, if it is to be measured again as it was: on its device, in its shares.

    Raises:
        UserError: a bad setting, or missing or unusable data.
    """
    deep, selection, threads = is_deep(cfg), cfg.get("selection"), cfg.threads
    # None: what a record of before a hyper-parameter was there does not have, and what is for networks alone.
    given = {field.name: cfg.objective.get(field.name) for field in fields(ObjectiveConfig)}
    row = ObjectiveConfig(**given | ({} if deep else dict.fromkeys(OF_DEEP_NETS)))
    if sources is None:
        sources = sources_of(cfg)
    common: dict[str, Any] = {"seed": cfg.seed, "training": _training(cfg, row), "selection": selection}
    model: Model
    pairs: Mapping[str, Pair]
    if deep:
        model = _network(cfg, row, sources, record, common)
        pairs, facts = {"fit": model.pair}, {"network": network_facts(model.net) | model.theta_0}
    else:
        model = _linear(cfg, row, sources, common)
        pairs, facts = model.pairs, {}
        if threads is None and model.pairs["fit"].n_features <= ONE_THREAD_UP_TO:
            threads = 1
    return Experiment(
        pairs=pairs,
        model=model,
        facts=facts,
        new_loggers=partial(_loggers, cfg.logger),
        selection=selection,
        threads=threads,
        figure=cfg.get("figure", False),
        on_cpu=cfg.trainer.get("accelerator") == "cpu",
    )


def _pair_options(cfg: DictConfig, row: ObjectiveConfig) -> dict[str, Any]:
    """How data are batched and what is set aside, the same for rows and images."""
    aside = row.early_stopping or cfg.get("selection")
    return {
        "batch_size": row.batch_size,
        "mode": cfg.pairing,
        "validation_fraction": row.validation_fraction if aside else 0.0,
        "seed": cfg.seed,
    }


def _network(
    cfg: DictConfig,
    row: ObjectiveConfig,
    sources: tuple[SourceBase, SourceBase],
    record: dict[str, Any] | None,
    common: dict[str, Any],
) -> NetworkModel:
    """θ_0, the images through its transform, and the method bound to both."""
    images, settings = [as_image_source(source) for source in sources], cfg.deep
    if record is None and is_first() and not (cfg.model.get("pretrained", True) or cfg.model.get("checkpoint")):
        log.warning(
            "θ_0 has random weights, from which nobody fine-tunes: give it trained ones with model.checkpoint=<file>; "
            "python -m immunize.pretrain makes some"
        )
    net = as_extractor(build(cfg.model, leave_out=NOT_ARGUMENTS, n_classes=images[0].n_classes, seed=cfg.seed))
    net.check_classes(images[0].n_classes, f"D_P ({images[0].name})")
    pair = ImagePair(
        *images,
        epochs_on=row.epochs_on or "harmful",
        transform_fit=net.transform(train=bool(row.augment)),
        transform_eval=net.transform(),
        workers=settings.workers,
        pin_memory=torch.cuda.is_available(),
        **_pair_options(cfg, row),
    )
    pair.setup()
    objective: Objective = build(cfg.method, leave_out=NOT_ARGUMENTS)
    generator = torch.Generator().manual_seed(cfg.seed + HEAD_STREAM)
    objective.bind(net.n_features, generator, pair.n_classes("harmful"), net.dtype)
    on: torch.device | None = None
    if record is not None:  # where the run computed its features, if there is such a device here
        had = bool(record["hardware"]["accelerators"]) and cfg.trainer.get("accelerator") != "cpu"
        on = torch.device("cuda" if had and torch.cuda.is_available() else "cpu")
    return NetworkModel(
        **common,
        pair=pair,
        net=net,
        reference=net.reference(),
        objective=objective,
        theta_0=theta_0_facts(net, cfg.model.get("checkpoint")),
        plan=EvaluationSettings(
            rho=cfg.rho,
            n_groups=settings.groups,
            group_size=settings.group_size,
            replicates=settings.replicates,
            probe_steps={str(name): steps for name, steps in settings.probe_steps.items() if steps is not None},
            pretrain_probe_steps=settings.pretrain_probe_steps,
            probe_rows=settings.probe_rows,
        ),
        batch_size=settings.batch_size,
        workers=settings.workers,
        cache_dir=None if settings.cache_dir is None else Path(settings.cache_dir).expanduser(),
        most_images=settings.get("images"),
        on=on,
        shares=1 if record is None else int(record["training"]["fit"].get("processes") or 1),
    )


def _linear(
    cfg: DictConfig, row: ObjectiveConfig, sources: tuple[SourceBase, SourceBase], common: dict[str, Any]
) -> LinearModel:
    """The rows, with a second pair where they are cross-fitted, and what makes θ and the method for each."""
    rows = PairedData(*sources, passes=row.epochs if row.batch_size is None else 1, **_pair_options(cfg, row))
    pairs = {"fit": rows}
    if rows.held_out_protocol == "cross_fit" and cfg.get("selection") is None:
        pairs["cross_fit"] = rows.cross_fit_pair(cfg.seed)
    for pair in pairs.values():
        pair.setup()
    parts = [of for of in (rows.fit, rows.validation, rows.held_out) if of is not None]
    if same_data(*([(of[role].x, of[role].y) for of in parts] for role in ROLES)):
        raise UserError(SAME_DATA)
    init, seed, new_extractor = cfg.get("init") or {}, cfg.seed, partial(build, cfg.model, leave_out=NOT_ARGUMENTS)
    return LinearModel(
        **common,
        pairs=pairs,
        new_method=partial(build, cfg.method, leave_out=NOT_ARGUMENTS),
        new_extractor=lambda n: new_extractor(n_features=n, generator=torch.Generator().manual_seed(seed)),
        new_start=partial(build, init, leave_out=NOT_ARGUMENTS) if init.get("_target_") else None,
        columns=cfg.model.get("columns", "all"),
        rho=cfg.rho,
        probe_steps=cfg.probe_steps,
    )


def as_extractor(built: Any) -> DeepExtractor:
    """A network as its configuration has made it, in float32 as images are.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(built, DeepExtractor):
        raise UserError(f"model._target_ has to make a DeepExtractor (from_module), it makes a {type(built).__name__}")
    return built.float()


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
    handed_on = {key for key in weights if OmegaConf.is_interpolation(whole.method, key)}
    if twice := sorted(handed_on & set(options)):
        raise UserError(f"{', '.join(twice)}: no option of method {name!r}, but an argument of its own")
    if not handed_on and (lambda_well, lambda_ill) != (None, None):
        raise UserError(f"method {name!r} takes no lambda_well and no lambda_ill; leave them out, or see its options")
    whole.method.update(dict(options))
    return build(whole.method, leave_out=NOT_ARGUMENTS), whole.objective


def shared_row() -> DictConfig:
    """What C.2 says of every deep net: the optimizer's momentum, the weight decay of classifiers."""
    row = OmegaConf.load(Path(config_dir()) / "objective_deep.yaml")
    assert isinstance(row, DictConfig)
    return row


# --- the training -------------------------------------------------------------------------------------------------


def _training(cfg: DictConfig, row: ObjectiveConfig) -> Training:
    return Training(
        method=cfg.method.name,
        row=row,
        guard=cfg.guard,
        log_every=cfg.log_every,
        monitor_every=cfg.monitor_every,
        resume=bool(cfg.get("resume") and not cfg.get("overwrite")),
        new_loss=partial(task_loss, row.loss, row.label_smoothing or 0.0),
        new_optimizer=partial(optimizer_factory, cfg.objective.optimizer, row.learning_rate),
        new_trainer=partial(new_trainer, partial(build, cfg.trainer)),
    )


def optimizer_factory(node: DictConfig, learning_rate: float) -> OptimizerFactory:
    """From parameters to their optimizer.

    Args:
        node: `_target_` of a torch optimizer and its arguments; what is null is left to it.
        learning_rate: η.

    Raises:
        UserError: the optimizer refuses its settings.
    """
    factory: OptimizerFactory = build(node, nulls=False, lr=learning_rate, _partial_=True)
    try:  # what the optimizer refuses, it refuses when it gets its parameters
        factory([torch.nn.Parameter(torch.zeros(1))])
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"objective.optimizer: {error}") from error
    return factory


def new_trainer(make: Callable[..., Trainer], loggers: list[Logger], callbacks: list[Callback], **own: Any) -> Trainer:
    """Lightning's trainer.

    Args:
        make: makes it as it is configured.
        loggers: where metrics go.
        callbacks: in the order in which they are called.
        own: what the training itself sets.

    Raises:
        UserError: a bad `trainer` setting, such as devices that do not exist.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    trainer = make(
        accumulate_grad_batches=1,  # spectra of parts of a batch do not add up to that of the whole
        logger=loggers or False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        **own,
    )
    environment = trainer._accelerator_connector.cluster_environment
    if isinstance(environment, SLURMEnvironment):  # every later training there would begin with what SIGUSR1 leaves
        environment.auto_requeue = False
    return trainer


def _loggers(node: DictConfig, folder: Path, run: Mapping[str, Any]) -> list[Logger]:
    """The logger that was chosen, writing into `folder`; none for `logger=none`.

    Args:
        node: its configuration.
        folder: the output folder.
        run: what the run is called and made of, for a logger that other runs share, such as W&B's.

    Raises:
        UserError: a package that the logger needs is missing.
    """
    if node.get("_target_") is None:
        return []
    shared = node.get("_target_") == f"{wandb_logger.__module__}.{wandb_logger.__name__}"
    # As plain data: the classes that its configuration names are not to be built.
    told: dict[str, Any] = {"run": dict(run), "_recursive_": False, "_convert_": "all"} if shared else {}
    return [build(node, save_dir=str(folder), **told)]
