"""What values a setting may have, checked before anything heavy is imported; types are the schemas' business.

Settings that one class alone takes (a budget, a pair of digits) are checked by its constructor, which runs
before training as well.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf

from immunize.config import is_deep
from immunize.errors import CheckpointError, UserError
from immunize.files import held
from immunize.records import read_record
from immunize.schemas import TrainConfig

LARGEST_SEED = 2**32 - 1
"""Numpy's largest."""

MOST_THREADS = 1024
"""Far above any machine's use, far below what torch takes."""

MULTIPLIERS = (1, 2, 3, 5)
"""The multiples of the task loss's gradient norm that C.2 searches over."""

PAIRINGS, LINEAR_LOSSES, DEEP_LOSSES = ("max_size_cycle", "min_size"), ("mse", "bce", "ce"), ("ce",)
"""What `immunize.data.pair.Mode` and `task_loss` accept; their rooms import torch."""

PROBES = ("gd", "least_squares", "sgd", "adam")
"""Optimizers of the probe, which `immunize.evaluation.feature_probe` knows."""

HALF = ("16-true", "bf16-true", "transformer-engine", "transformer-engine-float16")
"""Lightning's names of whatever makes a network's own weights half as wide."""

FRACTION = "objective.validation_fraction"

Rule = tuple[str, Callable[[Any], bool], str]
"""The place of a setting, what it may be, and that in words."""


def _at_least(least: int, *names: str, null: bool = False) -> tuple[Rule, ...]:
    """Of whole numbers; `null` is allowed as well if it says so."""
    words = f"at least {least}{', or null' if null else ''}"
    return tuple((name, lambda value: (null and value is None) or value >= least, words) for name in names)


def _finite(*names: str, words: str = "a finite number ≥ 0") -> tuple[Rule, ...]:
    return tuple((name, lambda value: value is not None and 0 <= value < math.inf, words) for name in names)


THREADS: Rule = ("threads", lambda value: 1 <= value <= MOST_THREADS, f"at least 1 and at most {MOST_THREADS}")
THREADS_OR_NULL: Rule = ("threads", lambda value: value is None or THREADS[1](value), f"{THREADS[2]}, or null")
SEED: Rule = ("seed", lambda value: 0 <= value <= LARGEST_SEED, f"between 0 and {LARGEST_SEED}")
RHO: Rule = ("rho", lambda value: 0 < value < math.inf, "positive and finite")
RATE: Rule = ("objective.learning_rate", lambda value: 0 < value < math.inf, "positive and finite")
MULTIPLIER: Rule = ("objective.balance_multiplier", lambda value: value in MULTIPLIERS, f"one of {MULTIPLIERS} (C.2)")
RULES: tuple[Rule, ...] = (
    SEED,
    RHO,
    *_at_least(1, "probe_steps", "monitor_every", "log_every"),
    THREADS_OR_NULL,
    *_finite("objective.lambda_well", "objective.lambda_ill", words="a finite number ≥ 0 (Algorithm 1)"),
    ("pairing", lambda value: value in PAIRINGS, f"one of {', '.join(PAIRINGS)}, so that every batch has rows of both"),
    ("selection", lambda value: value in (None, "validation"), "validation, or null"),
    ("guard", lambda value: value in ("off", "warn"), "one of off, warn"),
    *_at_least(1, "objective.epochs"),
    RATE,
    ("objective.batch_size", lambda value: value is None or value >= 2, "at least 2, or null for full-batch steps"),
    ("objective.lr_decay", lambda value: value is None or 0 < value <= 1, "positive and at most 1, or null"),
)


def _precondition(*known: str) -> Rule:
    """What this kind of model can do to a regularizer's gradient; methods without a regularizer have no setting."""
    return "method.precondition", lambda value: value in (None, *known), f"one of {', '.join(known)} for this model"


LINEAR_RULES: tuple[Rule, ...] = (
    (
        "method.name",
        lambda value: value not in ("censor", "contract", "simulated"),
        "another for a linear model, such as erase, which is there in closed form what censor trains a network to be",
    ),
    ("objective.loss", lambda value: value in LINEAR_LOSSES, f"one of {', '.join(LINEAR_LOSSES)} for a linear model"),
    _precondition("inverse_free", "dummy", "literal", "none"),
)
DEEP_RULES: tuple[Rule, ...] = (
    (
        "objective.loss",
        lambda value: value in DEEP_LOSSES,
        "ce for a deep model; choose a row of hyper-parameters that is made for one, such as objective=resnet18_cars",
    ),
    (
        "trainer.precision",
        lambda value: value not in HALF,
        "32-true, 64-true or a mixed one: features rounded to half precision have no small singular values left",
    ),
    ("model.image_size", lambda value: not isinstance(value, int) or value >= 1, "1 or more, or null"),
    ("objective.batch_size", lambda value: value is not None, "a number for a deep model"),
    ("objective.label_smoothing", lambda value: value is not None and 0 <= value < 1, "in [0, 1)"),
    *_finite("objective.weight_decay", "objective.head_weight_decay"),
    ("objective.epochs_on", lambda value: value in ("harmful", "longest"), "harmful (C.2) or longest"),
    *_at_least(1, "objective.max_steps", null=True),
    _precondition("features", "none"),
    ("init._target_", lambda value: value is None, "left out (init=none) for a deep model, which starts at θ_0"),
    *_at_least(0, "deep.workers", "deep.replicates"),
    *_at_least(1, "deep.batch_size", "deep.groups", "deep.pretrain_probe_steps"),
    (
        "deep.probe_steps",
        lambda value: value.keys() <= set(PROBES) and all(steps is None or steps >= 1 for steps in value.values()),
        f"steps of {', '.join(PROBES)}, one or more each; null leaves one out",
    ),
    *_at_least(2, "deep.images", "deep.probe_rows", null=True),
    *_at_least(2, "deep.group_size"),
)
EARLY_STOPPING_RULES: tuple[Rule, ...] = (
    (FRACTION, lambda value: 0 < value <= 0.9, "positive and at most 0.9 for early stopping"),
    *_at_least(1, "objective.check_every", "objective.patience"),
)
BALANCE_RULES: tuple[Rule, ...] = (
    MULTIPLIER,
    (
        "objective.balance_multiplier_ill",
        lambda value: value is None or value in MULTIPLIERS,
        f"one of {MULTIPLIERS} (C.2), or null for that of both",
    ),
    ("objective.balance_every", lambda value: value >= 0, "at least 0; 0 balances once, before the first step"),
)
SELECTION_RULES: tuple[Rule, ...] = (
    (FRACTION, lambda value: 0 < value <= 0.9, "positive and at most 0.9 for selection=validation"),
    ("objective.early_stopping", lambda value: not value, "false for selection=validation: both need the same rows"),
)


def check_settings(cfg: DictConfig) -> None:
    """Check that every mandatory setting is there and every common one within its range.

    Raises:
        UserError: one is not.
        OmegaConfBaseException: a missing value, or a reference to a setting that does not exist.
    """
    check(cfg, TrainConfig)
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    objective = cfg.objective
    check_rules(cfg, (*RULES, *(DEEP_RULES if is_deep(cfg) else LINEAR_RULES)))
    check_rules(cfg, SELECTION_RULES if cfg.selection is not None else ())
    check_rules(cfg, EARLY_STOPPING_RULES if objective.early_stopping else ())
    check_rules(cfg, BALANCE_RULES if objective.balance else ())


def check(node: DictConfig, schema: type, rules: Iterable[Rule] = (), prefix: str = "") -> None:
    """Check what Hydra lets pass: a "+" adds any key, a "~" takes any away, and the two together change its type.

    Args:
        node: a composed configuration.
        schema: the dataclass it is to have the keys and types of.
        rules: the place of a setting, what it may be, and that in words.
        prefix: of a part of one, what its names begin with.

    Raises:
        UserError: a key too many or too few, or a value that is not allowed; the first.
        OmegaConfBaseException: a value of the wrong type, or a missing one.
    """
    known = schema.__dataclass_fields__.keys()  # type: ignore[attr-defined]
    if unknown := sorted(str(key) for key in node.keys() - known):
        raise UserError(f"there is no setting {prefix}{unknown[0]}; --help lists those there are")
    if gone := sorted(known - node.keys()):
        raise UserError(f"{prefix}{gone[0]} cannot be taken out; give it a value")
    for name, kind in _types_of(schema).items():
        if is_dataclass(kind) and isinstance(node[name], DictConfig):
            check(node[name], kind, prefix=f"{prefix}{name}.")  # type: ignore[arg-type]
    if not prefix:
        OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.to_container(node))
    check_rules(node, rules)


_types_of = functools.cache(get_type_hints)  # what a dataclass says of itself is compiled once


def check_rules(node: DictConfig, rules: Iterable[Rule]) -> None:
    """The last step of :func:`check`, by itself.

    Raises:
        UserError: a value that is not allowed; the first.
        OmegaConfBaseException: a missing one.
    """
    for name, allowed, words in rules:
        value = OmegaConf.select(node, name, throw_on_missing=True)
        if not allowed(value):
            raise UserError(f"{name} has to be {words}; it is {value}")


def refuse_finished(folder: Path, overwrite: bool) -> None:
    """Protect a finished record.

    Raises:
        UserError: the folder holds one, and `overwrite` is false.
    """
    with contextlib.suppress(CheckpointError):  # there is none
        if not overwrite and read_record(folder)["status"] == "finished":
            raise UserError(f"{folder} already holds a finished record; choose another folder or set overwrite=true")


def check_folder(folder: Path, setting: str = "hydra.run.dir") -> None:
    """Create the output folder and check that it can be written into, before hours of work depend on it.

    Args:
        folder: it.
        setting: that chooses it.

    Raises:
        UserError: it cannot.
    """
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink(missing_ok=True)  # another process of the run may have been quicker
    except OSError as error:
        raise UserError(
            f"cannot write into the output folder {folder} ({error.strerror}); choose another with {setting}=<folder>"
        ) from None


@contextlib.contextmanager
def alone_in(folder: Path, overwrite: bool) -> Iterator[None]:
    """Hold the output folder for this run.

    Raises:
        UserError: on entering, where another run is at work there, or has finished since :func:`refuse_finished`.
    """
    at_work = f"another run is at work in {folder}; wait for its end, or choose another: hydra.run.dir=..."
    with held(folder, UserError(at_work)):
        refuse_finished(folder, overwrite)
        yield
