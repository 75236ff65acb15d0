"""The fields of every configuration and their types.

They let Hydra itself refuse `seed=abc` or a misspelt key before anything heavy is imported. Values live in `conf/`
only: a field without a default here is set there.

Groups whose keys belong to the class that a YAML names (`_target_`: model, data sets, methods, trainer, logger) are
left open for outside packages to add their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class ObjectiveConfig:
    """Hyper-parameters of Eq. (11), a row of Table 4.

    Attributes:
        lambda_well: λ_P.
        lambda_ill: λ_H.
        learning_rate: η.
        epochs: passes over the data; in full-batch mode one pass is one step.
        batch_size: rows a batch of each data set; null is full-batch.
        loss: L, "mse" or "bce"; "ce" for deep nets and for a classification.
        optimizer: `_target_` of a torch optimizer and its arguments; parameters and learning rate are filled in.
        lr_decay: share of the steps, the last ones, over which η falls to zero; null for none.
        balance: set λ_P and λ_H from the gradient norms (C.2) instead of from the two above.
        balance_multiplier: 1, 2, 3 or 5, of λ_P and λ_H.
        balance_multiplier_ill: the same of λ_H alone; null is that of both.
        balance_every: steps between two balancings; 0 balances once, before the first step.
        early_stopping: hold a validation split out of `fit` and keep the best θ by its RIR; of a network by its RIR
            where D_P's accuracy is kept (C.2).
        validation_fraction: its share of the rows.
        check_every: steps between two looks at it.
        patience: looks without improvement before stopping.
        label_smoothing: of "ce". This and what follows: deep nets only, null for the linear model.
        weight_decay: of the extractor (C.2).
        head_weight_decay: of the classifiers (C.2).
        epochs_on: "harmful": an epoch is one pass over D_H (C.2); "longest": over the longer data set.
        max_steps: end after so many steps, whatever `epochs` says; null for no limit.
        augment: random crops and flips, as the network's own training had them.
        cache_frozen: compute what the frozen trunk makes of every image once, and train on that.
    """

    lambda_well: float = MISSING
    lambda_ill: float = MISSING
    learning_rate: float = MISSING
    epochs: int = MISSING
    batch_size: int | None = MISSING
    loss: str = MISSING
    optimizer: dict[str, Any] = MISSING
    lr_decay: float | None = MISSING
    balance: bool = MISSING
    balance_multiplier: float = MISSING
    balance_multiplier_ill: float | None = MISSING
    balance_every: int = MISSING
    early_stopping: bool = MISSING
    validation_fraction: float = MISSING
    check_every: int = MISSING
    patience: int = MISSING
    label_smoothing: float | None = MISSING
    weight_decay: float | None = MISSING
    head_weight_decay: float | None = MISSING
    epochs_on: str | None = MISSING
    max_steps: int | None = MISSING
    augment: bool | None = MISSING
    cache_frozen: bool | None = MISSING


@dataclass
class DeepConfig:
    """How a deep net is fed and measured; without effect on the linear model.

    Attributes:
        workers: processes that read images; 0 reads them in the training process.
        batch_size: images at once when features are computed; halved where memory does not suffice.
        cache_dir: where computed features are kept for other runs; null keeps none.
        images: most images of each part of a data set that are measured, drawn once for all seeds; null takes all.
        groups: random groups of Eq. (17)'s protocol (§5.2).
        group_size: samples each.
        replicates: of the bootstrap.
        probe_steps: optimizer to steps of the linear probe on D_H; one that is null is not tried.
        pretrain_probe_steps: most steps of each probe on D_P.
        probe_rows: most images that a probe is trained on; null takes all.
    """

    workers: int = MISSING
    batch_size: int = MISSING
    cache_dir: str | None = MISSING
    images: int | None = MISSING
    groups: int = MISSING
    group_size: int = MISSING
    replicates: int = MISSING
    probe_steps: dict[str, int | None] = MISSING
    pretrain_probe_steps: int = MISSING
    probe_rows: int | None = MISSING


@dataclass
class ExperimentConfig:
    """The sweep that a run belongs to; no number depends on it.

    Attributes:
        name: of the preset in `conf/experiment/`; null for none.
        reduced: a shorter version of it, whose numbers are not to be reported.
    """

    name: str | None = MISSING
    reduced: bool = MISSING


@dataclass
class TrainConfig:
    """`python -m immunize.train`; every key is explained in `conf/train.yaml`."""

    model: Any = MISSING
    pretrain: Any = MISSING
    harmful: Any = MISSING
    method: Any = MISSING
    objective: ObjectiveConfig = MISSING
    trainer: Any = MISSING
    logger: Any = MISSING
    init: Any = MISSING
    experiment: ExperimentConfig = MISSING
    seed: int = MISSING
    guard: str = MISSING
    data_root: str = MISSING
    pairing: str = MISSING
    overwrite: bool = MISSING
    resume: bool = MISSING
    rho: float = MISSING
    probe_steps: int = MISSING
    monitor_every: int = MISSING
    figure: bool = MISSING
    log_every: int = MISSING
    threads: int | None = MISSING
    selection: str | None = MISSING
    deep: DeepConfig = MISSING


@dataclass
class PretrainConfig:
    """`python -m immunize.pretrain`; every key is explained in `conf/pretrain_theta.yaml`."""

    model: Any = MISSING
    pretrain: Any = MISSING
    trainer: Any = MISSING
    seed: int = MISSING
    data_root: str = MISSING
    overwrite: bool = MISSING
    resume: bool = MISSING
    epochs: int = MISSING
    batch_size: int = MISSING
    learning_rate: float = MISSING
    weight_decay: float = MISSING
    clip: float | None = MISSING
    label_smoothing: float = MISSING
    validation_fraction: float = MISSING
    augment: bool = MISSING
    workers: int = MISSING
    threads: int | None = MISSING


@dataclass
class EvaluateConfig:
    """`python -m immunize.evaluate` and `verify`; every key is explained in `conf/evaluate.yaml`."""

    run: str = MISSING
    data_root: str | None = MISSING


@dataclass
class ForecastConfig:
    """`python -m immunize.forecast`; every key is explained in `conf/forecast.yaml`."""

    pretrain: Any = MISSING
    harmful: Any = MISSING
    seed: int = MISSING
    data_root: str = MISSING
    overwrite: bool = MISSING
    top_k: int | None = MISSING
    shrinkage: Any = MISSING
    budget: float = MISSING
    rho: float = MISSING
    threads: int = MISSING


@dataclass
class ExportConfig:
    """`python -m immunize.export`; every key is explained in `conf/export.yaml`."""

    run: str = MISSING
    out: str | None = MISSING
    overwrite: bool = MISSING


@dataclass
class BudgetConfig:
    """What an attack may spend; `conf/attack/standard.yaml`."""

    steps: int = MISSING
    flops: float = MISSING


@dataclass
class GridConfig:
    """A grid of attacks; `conf/attack/standard.yaml`. What an attack may be told, its own class knows."""

    name: str = MISSING
    reduced: bool = MISSING
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    attacks: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class AttackConfig:
    """`python -m immunize.attack`; every key is explained in `conf/attack.yaml`."""

    attack: GridConfig = field(default_factory=GridConfig)
    model: Any = MISSING
    pretrain: Any = MISSING
    harmful: Any = MISSING
    run: str | None = MISSING
    checkpoint: str | None = MISSING
    data_root: str | None = MISSING
    out: str | None = MISSING
    cells: str | None = MISSING
    features: str | None = MISSING
    reference: str | None = MISSING
    benign: dict[str, Any] = field(default_factory=dict)
    images: int | None = MISSING
    workers: int = MISSING
    overwrite: bool = MISSING
    tiers: list[str] | None = MISSING
    tasks: list[str] | None = MISSING
    seeds: list[int] = MISSING
    validation_fraction: float = MISSING
    own_rows: bool = MISSING
    test_fraction: float = MISSING
    benign_digits: int = MISSING
    threads: int = MISSING
    jobs: int | None = MISSING


@dataclass
class CardConfig:
    """`python -m immunize.report card`; every key is explained in `conf/report/card.yaml`."""

    run: str = MISSING
    out: str | None = MISSING


@dataclass
class HtmlConfig:
    """`python -m immunize.report html`; every key is explained in `conf/report/html.yaml`."""

    run: str | None = MISSING
    sweep: str | None = MISSING
    out: str | None = MISSING


@dataclass
class ReportConfig:
    """`python -m immunize.report`; every key is explained in `conf/report/report.yaml`."""

    runs: str = MISSING
    experiment: str | None = MISSING
    out: str | None = MISSING
    keep: bool = MISSING
    published: str = MISSING
