"""Configuration schemas and resolvers, registered with Hydra and OmegaConf, and where `conf/` lies.

The schemas give types, so that `seed=abc` or a misspelt key is refused by Hydra itself before anything heavy is
imported. Values live in `conf/` only: a field without a default here is set there.

Groups whose keys belong to the class that a YAML names (`_target_`: model, data sets, methods, trainer, logger) are
left open for outside packages to add their own.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

__all__ = [
    "NOT_HASHED",
    "EvaluateConfig",
    "ExperimentConfig",
    "ForecastConfig",
    "GuardMode",
    "ObjectiveConfig",
    "ReportConfig",
    "TrainConfig",
    "config_dir",
    "config_hash",
    "folder_name",
    "hash_of_run",
    "register",
    "resolved",
]

NOT_HASHED = (
    *("data_root", "overwrite", "resume", "experiment", "threads"),
    *("logger", "log_every", "monitor_every", "figure"),
)
"""Settings that change no number but by rounding: where things lie, how they are shown, which sweep a run belongs to,
how many threads compute. Left out of the config hash; reports put runs that differ in them alone into one row."""

LONGEST_NAME = 120
"""Characters of a folder name; file systems allow 255 bytes a name, and 4,096 or fewer a path."""


class GuardMode(Enum):
    """What the theorem guard does; see :mod:`immunize.training.callbacks.guard`."""

    off = "off"
    warn = "warn"
    strict = "strict"


@dataclass
class ObjectiveConfig:
    """Hyper-parameters of Eq. (11), a row of Table 4.

    Attributes:
        lambda_well: λ_P.
        lambda_ill: λ_H.
        learning_rate: η.
        epochs: passes over the data; in full-batch mode one pass is one step.
        batch_size: rows a batch of each data set; null is full-batch.
        loss: L, "mse" or "bce".
        optimizer: `_target_` of a torch optimizer and its arguments; parameters and learning rate are filled in.
        balance: set λ_P and λ_H from the gradient norms (C.2) instead of from the two above.
        balance_multiplier: 1, 2, 3 or 5.
        balance_every: steps between two balancings; 0 balances once, before the first step.
        early_stopping: hold a validation split out of `fit` and keep the best θ by its RIR.
        validation_fraction: its share of the rows.
        check_every: steps between two looks at it.
        patience: looks without improvement before stopping.
    """

    lambda_well: float = MISSING
    lambda_ill: float = MISSING
    learning_rate: float = MISSING
    epochs: int = MISSING
    batch_size: int | None = MISSING
    loss: str = MISSING
    optimizer: dict[str, Any] = MISSING
    balance: bool = MISSING
    balance_multiplier: float = MISSING
    balance_every: int = MISSING
    early_stopping: bool = MISSING
    validation_fraction: float = MISSING
    check_every: int = MISSING
    patience: int = MISSING


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
    guard: GuardMode = MISSING
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


@dataclass
class EvaluateConfig:
    """`python -m immunize.evaluate`; every key is explained in `conf/evaluate.yaml`."""

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
    top_k: int = MISSING
    shrinkage: Any = MISSING
    budget: float = MISSING
    rho: float = MISSING
    threads: int = MISSING


@dataclass
class ReportConfig:
    """`python -m immunize.report`; every key is explained in `conf/report.yaml`."""

    runs: str = MISSING
    experiment: str | None = MISSING
    out: str | None = MISSING
    published: str = MISSING


def config_dir() -> str:
    """The folder `conf/`: inside the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return str(inside if inside.is_dir() else package.parent / "conf")


def folder_name(number: int | str, overrides: str) -> str:
    """What a multirun calls a run's folder: its number, then its overrides as far as a file system can take them.

    Args:
        number: of the run; makes the name unique.
        overrides: "key=value,...", in which brackets and quotes are left out, and slashes and the like become "-".
    """
    bare = re.sub(r"[\[\]{}()'\"]", "", str(overrides))
    return f"{number}_{re.sub(r'[^A-Za-z0-9._=,+-]+', '-', bare)}"[:LONGEST_NAME].rstrip("_-,.=")


def hash_of_run(_root_: DictConfig) -> str:
    """What a preset calls a run's folder: the `config_hash` of its record, known before the run.

    Args:
        _root_: the composed configuration of one run, with or without Hydra's own node.
    """
    return config_hash(resolved(_root_))


def config_hash(config: dict[str, Any]) -> str:
    """A hash of everything in the resolved configuration that can change a number.

    Args:
        config: the plain, resolved configuration of a run.
    """
    kept = {key: value for key, value in config.items() if key not in NOT_HASHED}
    kept = _without_paths(kept, str(config.get("data_root")))
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The plain, resolved configuration of a run, without Hydra's own node.

    Raises:
        OmegaConfBaseException: a reference to a setting that does not exist.
    """
    own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    plain_config = OmegaConf.to_container(own, resolve=True, enum_to_str=True)
    assert isinstance(plain_config, dict)
    return {str(key): value for key, value in plain_config.items()}


def register() -> None:
    """Register the schemas under the names that the primary configs start with, and the resolvers of folder names."""
    OmegaConf.register_new_resolver("immunize.folder_name", folder_name, replace=True)
    OmegaConf.register_new_resolver("immunize.config_hash", hash_of_run, replace=True)
    # Where the plugin hydra-joblib-launcher is installed as well, Hydra reminds at length that it has the same name.
    warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/joblib' is validated against ConfigStore schema")
    store = ConfigStore.instance()
    store.store(name="train_schema", node=TrainConfig)
    store.store(name="evaluate_schema", node=EvaluateConfig)
    store.store(name="forecast_schema", node=ForecastConfig)
    store.store(name="report_schema", node=ReportConfig)


def _without_paths(value: Any, root: str) -> Any:
    """The same configuration on another machine has the same hash: the data folder is not part of it."""
    if isinstance(value, dict):
        return {key: _without_paths(item, root) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item, root) for item in value]
    return "<data_root>" if value == root else value
