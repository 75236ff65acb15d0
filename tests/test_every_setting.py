"""A setting that does nothing must not exist: each that a record prints is changed, and a number has to change.

The settings are those of the records themselves, so that a new one is covered from the day it is there: it changes a
number of one of the tiny runs below, or is refused, or stands under `without_effect` in the record; otherwise it needs
a line in `NO_NUMBER`, with the reason.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from immunize import attack, forecast, pretrain, records, settings, train
from immunize.data.digits import DigitImages, embedded_digits
from immunize.data.images.source import StoredSplits
from immunize.effects import TAKES_NO_STEPS, given_names, refuse_idle
from immunize.errors import UserError
from immunize.evaluation.attacks import scoring
from immunize.evaluation.attacks.protocol import Array, AttackData, Rows
from immunize.evaluation.attacks.scoring import shares
from immunize.features.deep import DeepExtractor
from immunize.features.weights import load_weights
from immunize.instantiate import sources_of
from immunize.pipeline.network import NetworkModel
from immunize.training import DeepModule
from tests.attacking import timeless
from tests.composing import compose_config
from tests.test_deep_several import write_images

NAMED = "what is built, or what it is called"
SHOWN = "how a run is shown, or which sweep it belongs to"
PLACE = "where files lie"
POINTED = "which run is attacked, another one for every user"
SPEED = "speed alone: numbers differ by rounding"
NO_NUMBER = {
    **dict.fromkeys(("*_target_", "*._convert_", "*._partial_", "*.name", "*.kind", "*.role"), NAMED),
    **dict.fromkeys(("logger.*", "experiment.*", "figure", "log_every", "monitor_every"), SHOWN),
    **dict.fromkeys(("data_root", "overwrite", "resume", "out", "cells", "features"), PLACE),
    **dict.fromkeys((f"*.imagefolder.{name}" for name in ("root", "train", "test")), PLACE),
    **dict.fromkeys(("run", "checkpoint", "reference"), POINTED),
    "attack.reduced": "a word on the grid: numbers of a quick one are not to be reported",
    "model.checkpoint": "the file of a network, another one for every user",
    **dict.fromkeys(("threads", "workers", "jobs", "deep.workers", "deep.batch_size", "deep.cache_dir"), SPEED),
    **dict.fromkeys(("objective.cache_frozen", "*optimizer.fused", "trainer.accelerator"), SPEED),
    "guard": "it counts, in the record, and warns",
    "method.slack": "a bound that no choice in so small a run meets: tests/objective/test_erase.py",
    "trainer.devices": "the same batch on several devices: tests/test_processes.py",
}
"""Settings that change no number, and why. Nothing else may be here."""

OTHER: dict[str, Any] = {
    "tasks": (["harmful"], ["pretrain"]),
    **dict.fromkeys(("attack.attacks.*.optimizer.momentum", "attack.attacks.*.share", "model.data.crop_pct"), 0.5),
    **dict.fromkeys(("method.shrinkage", "method.inner_learning_rate", "shrinkage", "weight_decay"), 0.5),
    **dict.fromkeys((f"objective.{name}weight_decay" for name in ("", "head_")), 0.5),
    **dict.fromkeys(("objective.label_smoothing", "objective.optimizer.momentum"), 0.5),
    **dict.fromkeys(("objective.max_steps", "deep.pretrain_probe_steps"), 1),
    **dict.fromkeys(("objective.lr_decay", "objective.optimizer.eps", "attack.attacks.last_block.flops"), 1.0),
    **dict.fromkeys(("objective.balance_multiplier*", "top_k", "method.rank", "attack.attacks.*.tuning_steps"), 2),
    **dict.fromkeys(("harmful.angle", "pretrain.angle", "attack.attacks.*.optimizer.weight_decay"), 20.0),
    **dict.fromkeys(("deep.images", "deep.probe_rows"), 20),
    **dict.fromkeys(("method.lambda_ill", "objective.lambda_ill"), 1e9),
    **dict.fromkeys(("method.gradient_clip", "clip"), 1e-3),
    **dict.fromkeys(("objective.validation_fraction", "validation_fraction"), 0.4),
    **dict.fromkeys(("method.protect", "objective.augment"), True),
    "attack.attacks.*.modules": ["layer3", "layer4"],
    "attack.attacks.*.tier": ("T0", "T1"),
    "attack.attacks.*.step": ("fixed", "line_search"),
    "attack.attacks.*.solver": "L-BFGS-B",
    "attack.attacks.*.strengths": [1e-4],
    "attack.attacks.*.repair": ("centre", "standardize"),
    "attack.attacks.*.head": "linear",
    "attack.attacks.*.rows": [10],
    "attack.attacks.*.max_rows": 10,
    "attack.attacks.*.floors": [0.5],
    "attack.attacks.*.cosine": [0.5],
    "attack.attacks.*.probe": {"_target_": "immunize.evaluation.attacks.Ridge", "tier": "T2", "penalties": [1e-3]},
    "tiers": ["T0"],
    "harmful.pair": [0, 2],
    "pretrain.pair": [2, 1],
    "init.budget": 3.0,
    "model.architecture": "resnet34",
    "model.columns": "joint",
    "model.data.interpolation": "nearest",
    "model.init": "identity",
    "model.kwargs.channels": [4, 8, 8, 16],
    "model.ridge": 0.1,
    "model.trainable": ["layer3", "layer4"],
    "method.budget": 30.0,
    "method.depths": ["layer4.0"],
    "method.kernels": ["linear"],
    "method.precondition": ("none", "dummy", "features"),
    "method.suppress": "uniform",
    "method.attack_optimizer": ("sgd", "adam"),
    "objective.batch_size": (16, 8),
    "objective.epochs_on": "longest",
    "objective.loss": "mse",
    "objective.optimizer.betas": [0.5, 0.9],
    "pairing": "min_size",
    "selection": "validation",
}
"""Another value that is as good, where twice or one more of a number, and not of a switch, are not."""

TRAINED = ("metrics", "metrics_groups", "verdicts", "verdicts_groups", "steps_to_norm_ratio", "curves", "spectra")
ACCURACIES = ("probe_accuracy", "pretrain_accuracy", "harmful_sets")
FORECAST = ("data_sets", "alignment", "joint_range", "bound", "metrics", "curves", "verdict")


Numbers = dict[str, Any]


class OtherWeightsError(Exception):
    """Training leads to other weights, which are numbers enough: it need not go on, and nothing to be measured."""


def train_numbers(cfg: DictConfig, folder: Path, before: Numbers) -> tuple[dict[str, Any], Numbers]:
    step, measure = DeepModule.optimizer_step, NetworkModel.numbers
    weights: dict[str, dict[str, float]] = {}

    def look(when: str, net: DeepExtractor) -> None:
        weights[when] = norms_of(net.full_state_dict())
        if before and records.differences(before["weights"].get(when), weights[when], ""):
            raise OtherWeightsError

    def stepped(module: DeepModule, *arguments: Any) -> None:
        step(module, *arguments)
        if "first step" not in weights:
            look("first step", module.net)

    def numbers(model: NetworkModel, *arguments: Any) -> dict[str, Any]:
        look("end", model.net)
        return measure(model, *arguments)

    with (
        mock.patch.object(DeepModule, "optimizer_step", stepped),
        mock.patch.object(NetworkModel, "numbers", numbers),
    ):
        try:
            record = train.run(cfg, folder, quiet=True)
        except OtherWeightsError:
            return {}, {"weights": weights}
    steps = {name: fit["steps"] for name, fit in record["training"].items()}
    found = {name: record.get(name) for name in ("status", *TRAINED, *ACCURACIES)}
    return record, {"weights": weights, "steps": steps} | found


def norms_of(weights: dict[str, Tensor]) -> dict[str, float]:
    return {name: value.double().norm().item() for name, value in weights.items()}


def forecast_numbers(cfg: DictConfig, folder: Path, before: Numbers) -> tuple[dict[str, Any], Numbers]:
    record = forecast.run(cfg, folder)
    return record, {name: record[name] for name in FORECAST}


def pretrain_numbers(cfg: DictConfig, folder: Path, before: Numbers) -> tuple[dict[str, Any], Numbers]:
    record = pretrain.run(cfg, folder, quiet=True)
    return record, {"accuracy": record["accuracy"], "weights": norms_of(load_weights(folder / records.CHECKPOINT))}


def attack_numbers(cfg: DictConfig, folder: Path, before: Numbers) -> tuple[dict[str, Any], Numbers]:
    """Finished attacks are shared, so that a setting that is missing in the key of a cell changes nothing."""
    places = {"out": folder, **{name: folder.parent / name for name in ("cells", "features")}}
    for name, place in places.items():
        cfg[name] = str(place)
    with pytest.MonkeyPatch.context() as patched:
        if Path(cfg.run).name == "network":
            patched.setattr(scoring, "shares", probability_of_the_right_class)
        record = attack.run(cfg)
    found = timeless({name: record[name] for name in ("results", "attacks", "best_so_far", "verdicts")})
    return record, records.without(found, "best")  # what the best candidate was called says its settings


@dataclass(frozen=True)
class World:
    """A tiny run, and the settings that are tried in it.

    Attributes:
        overrides: of the run.
        tried: patterns of settings that are tried although they have changed a number in a run before.
        base: of this run alone, in place of that of the others.
    """

    overrides: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    base: tuple[str, ...] = ()


OF_METHODS = (
    *("method.*", "init.*", "objective.lambda_*", "objective.balance*", "objective.loss"),
    *("objective.label_smoothing", "objective.head_weight_decay"),
)
"""What one method uses and another does not."""
TABLE: tuple[str, ...] = (
    *("harmful=synthetic", "harmful.n_features=4", "harmful.n_samples=30", "harmful.condition=20", "probe_steps=50"),
    *("objective.epochs=6", "objective.lambda_ill=1e3", "logger=none", "figure=false"),
)
PLAIN_SGD = (  # Adam does not see how long the gradient of a single term is
    *("objective.learning_rate=1e-4", "objective.optimizer._target_=torch.optim.SGD"),
    *("~objective.optimizer.betas", "~objective.optimizer.eps"),
)
DIGITS = (*("harmful=digits", "objective.epochs=2", "probe_steps=10", "logger=none", "figure=false"),)
FEWER_ROWS = "attack.attacks.kernel_ridge.first_rows=10"  # than there are, so that not the whole grid is kept
GRID = (
    *("attack=quick", "attack.budget.steps=12", "seeds=[0]", FEWER_ROWS),
    "+attack/t4@attack.attacks.last_block=last_block",
    *(f"~attack.attacks.{name}" for name in ("gd_line_search", "sgd", "nearest_neighbours")),
)
OF_ANY_TARGET = ("sgd", "adamw", "adam_raw", "mlp_head", "nearest_neighbours", "linear_map")
MORE = (
    *("attack=standard", "attack.budget.steps=12", "seeds=[0]", "tasks=[harmful]", FEWER_ROWS),
    "+attack/t5@attack.attacks.linear_map=linear_map",
    *(f"~attack.attacks.{name}" for name in ("gd_fixed", "gd_line_search", "adam", "lbfgs", "ridge", "whiten")),
    *(f"~attack.attacks.{name}" for name in ("centre", "standardize", "normalize", "conjugate_gradient")),
    *(f"~attack.attacks.{name}" for name in ("sgd_raw", "batchnorm_head")),
)
"""The attackers that `GRID` leaves out, but for those that have no setting beyond what others of their class have."""
OF_WEIGHTS = (
    *("attack=t4", "attack.budget.steps=12", "seeds=[0]", "tasks=[harmful]", "images=40", "jobs=1"),
    "~attack.attacks.full_finetune",
    "attack.attacks.last_block={learning_rates:[0.01],steps:3,measured:10,batch_size:16,probe:null}",
    "attack.attacks.lora={learning_rates:[0.01],steps:6,batch_size:16,ranks:[1],probe:null}",
)
"""Those who move the weights of a network, here in this process, where scores are replaced; `full_finetune` has the
settings that they share and no other."""
STOPPING = (
    *("objective.early_stopping=true", "objective.check_every=2", "objective.patience=1"),
    *("objective.epochs=24", "objective.learning_rate=0.3"),
)
SWITCHED = ("selection=validation", "objective.batch_size=8", "objective.balance=true", "objective.balance_every=2")
LINEAR = (
    World(),
    World(STOPPING),
    World((*SWITCHED, "init=closed_form", "pretrain.n_samples=40")),
    *(World((f"method={name}", *PLAIN_SGD), OF_METHODS) for name in ("ill_only", "well_only")),
    *(World((f"method={name}",), OF_METHODS) for name in ("none", "imma", "opt_kappa", "closed_form")),
    World(base=DIGITS),
    World(("method=erase", "method.seed=1"), ("method.*",), (*DIGITS, "harmful=digits5to9")),
)
NETWORK = (
    *("model=resnet_small", "harmful=digits", "model.kwargs.channels=[4,8,8,12]", "model.image_size=16", "threads=1"),
    *("objective.epochs=1", "objective.learning_rate=3e-3", "objective.cache_frozen=false", "objective.batch_size=16"),
    *("deep.groups=2", "deep.group_size=8", "deep.replicates=2", "deep.pretrain_probe_steps=2"),
    *("deep.probe_steps={gd:2,least_squares:2,sgd:2,adam:2}", "objective.balance_every=1", "logger=none"),
)


def check_training(cfg: DictConfig) -> None:
    settings.check_settings(cfg)
    sources_of(cfg)


CHECKS: dict[str, Callable[[DictConfig], Any]] = {"train": check_training, "attack": attack.entries_of}
"""What refuses a bad configuration before a run."""


def leaves(config: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(".".join(keys), value) for keys, value in records.leaves(config) if value != {}]


def others(name: str, value: Any) -> tuple[Any, ...]:
    """Other values for a setting, by its type or by the table; the first that is not refused is tried."""
    pattern = name if name in OTHER else next((one for one in OTHER if fnmatch(name, one)), None)
    if pattern is not None:
        found = OTHER[pattern] if isinstance(OTHER[pattern], tuple) else (OTHER[pattern],)
        return tuple(another for another in found if another != value)
    if isinstance(value, list):
        return ([number * 2 or 1 for number in value],)
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int | float):
        return (value * 2 or 1,)
    raise AssertionError(f"{name}={value}: say in OTHER what else it may be")


def _can_be_set(name: str, value: Any) -> bool:
    """Not for an optimizer's null, in whose place a value would be passed on, and for settings told above."""
    null = value is None and name.startswith("objective.optimizer.")
    return not null and not any(fnmatch(name, pattern) for pattern in NO_NUMBER)


def of_class(cfg: DictConfig, name: str) -> str:
    """The name of a setting, of an attack by its class: all attacks of a class use it alike."""
    found = re.match(r"attack\.attacks\.(\w+)\.(.+)", name)
    if found is None:
        return name
    target = str(cfg.attack.attacks[found[1]]._target_)
    return f"{target.replace('.Lora', '.LastBlock')}.{found[2]}"  # these share what both have


def with_others(cfg: DictConfig, names: list[str], check: Callable[[DictConfig], Any]) -> DictConfig:
    """The configuration with another value for each of these settings, but for those that are then refused."""
    for name in names:
        changed = copy.deepcopy(cfg)
        with contextlib.suppress(UserError, AssertionError, IndexError):
            OmegaConf.update(changed, name, others(name, OmegaConf.select(changed, name))[0])
            check(changed)
            cfg = changed
    return cfg


def every_setting_counts(
    numbers_of: Callable[[DictConfig, Path, Numbers], tuple[dict[str, Any], Numbers]],
    config: str,
    base: tuple[str, ...],
    worlds: tuple[World, ...],
    folder: Path,
) -> None:
    """Fail with a line for each setting of a record that changed nothing, and for what changed something unsaid."""
    folders = (folder / str(number) for number in itertools.count())
    fine: set[str] = set()
    refused: set[str] = set()
    lines: list[str] = []
    for world in worlds:
        cfg = compose_config(*(world.base or base), *world.overrides, primary=config)
        record, before = numbers_of(cfg, next(folders), {})
        assert record["status"] == "finished", world
        of = f"{record.get('method', config)} {' '.join(world.overrides)}"
        for name, value in leaves(record["config"]):
            shared = of_class(cfg, name)
            done = shared in fine and not any(fnmatch(name, pattern) for pattern in world.tried)
            if done or any(fnmatch(name, pattern) for pattern in NO_NUMBER):
                continue
            after = None
            for another in others(name, value):
                changed = copy.deepcopy(cfg)
                OmegaConf.update(changed, name, another, force_add=True)
                with contextlib.suppress(UserError):
                    _, after = numbers_of(changed, next(folders), before)
                    break
            if after is None:
                refused.add(shared)
            elif records.differences(records.plain(before), records.plain(after), ""):
                fine.add(shared)
            else:
                lines.append(f"{name}: {value} or {another} is the same ({of})")
        idle = [name for name, value in leaves(record.get("without_effect", {})) if _can_be_set(name, value)]
        if idle:
            changed = with_others(cfg, idle, CHECKS.get(config, bool))
            assert changed != cfg, f"no other value of {idle} passes the checks ({of})"
            _, after = numbers_of(changed, next(folders), before)
            if found := records.differences(records.plain(before), records.plain(after), ""):
                lines.append(f"what is said to have no effect has one ({of}): {found[0]}")
    more = [f"{name}: every other value is refused" for name in refused - fine - FIXED.keys()]
    assert not lines + more, "\n".join(lines + more)


FIXED = {
    "pretrain.n_features": "D_P has as many columns as D_H: harmful.n_features changes both",
    "model.pretrained": "there are no public weights of so small a network",
    "objective.loss": "networks have one, ce",
}
"""Settings of which the tiny runs take one value alone, and why."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git is not asked, types are not checked, which are right, and there are only so many digits as are needed."""
    pixels, digits = embedded_digits()
    some = np.flatnonzero(np.arange(len(digits)) < np.where(digits < 5, 200, 130))  # more of D_P's than of D_H's
    few, read = (pixels[some], digits[some]), DigitImages._read

    def read_few(images: DigitImages) -> StoredSplits:
        with monkeypatch.context() as within:
            within.setattr("immunize.data.digits.embedded_digits", lambda: few)
            return read(images)

    monkeypatch.setattr(DigitImages, "_read", read_few)
    monkeypatch.setattr(records, "_git_commit", lambda: None)
    monkeypatch.setattr(settings, "check", lambda *_: None)
    monkeypatch.setattr(attack, "check", lambda cfg, _, rules: settings.check_rules(cfg, rules))


ATTACKED = ("method.attack_steps=2", "method.attack_batch_size=8")
GAINING = (
    *("method.attack_optimizer=sgd", "method.attack_learning_rate=0.01"),
    *("method.first_gain=0.05", "method.factor=0.25"),
)
UNBALANCED = ("objective.balance=false", "objective.lambda_well=1e-4", "objective.lambda_ill=1")
DEEP = (
    World(),
    World(("method=imma",), OF_METHODS),
    World(("method=closed_form", "method.shrinkage=0.1", "method.budget=10"), OF_METHODS),
    World(("method=erase",), ("method.*",)),
    World(("method=censor",), OF_METHODS),
    World(("method=censor", *ATTACKED), ("method.attack_*",)),
    World(("method=contract", *ATTACKED, *GAINING), ("method.attack_*",)),  # the others' terms are those of `censor`
    World(("method=simulated", *ATTACKED, "method.attack_optimizer=sgd"), OF_METHODS),
    World(("selection=validation", "objective.epochs_on=longest", *UNBALANCED)),
)


def test_every_setting_of_a_linear_run(tmp_path: Path) -> None:
    every_setting_counts(train_numbers, "train", TABLE, LINEAR, tmp_path)


def test_every_setting_of_a_network_run(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    shutil.rmtree(tmp_path / "images" / "test")  # which would take the place of held_out_fraction
    root = f"harmful.sets.imagefolder.root={tmp_path / 'images'}"
    sets = ("harmful=multi", "harmful/sets=[digits,imagefolder]", root)
    several = (*(word for word in NETWORK if word != "harmful=digits"), *sets, "objective=resnet_small_digits")
    worlds = (*DEEP, World(("pretrain=digits",), base=several))
    every_setting_counts(train_numbers, "train", NETWORK, worlds, tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_every_setting_of_a_forecast(tmp_path: Path) -> None:
    pair = ("harmful=synthetic", "harmful.n_features=4", "harmful.n_samples=30")
    every_setting_counts(forecast_numbers, "forecast", pair, (World(),), tmp_path)


def probability_of_the_right_class(data: AttackData, rows: Rows, outputs: Array) -> Array:
    """In the place of right or wrong, so that a few rows notice a small change."""
    if not data.n_classes:
        return shares(data, rows, outputs)
    likely = np.exp(outputs - outputs.max(1, keepdims=True))
    return np.asarray(likely[np.arange(len(rows)), rows.y.astype(int)] / likely.sum(1))


def test_every_setting_of_an_attack(tmp_path: Path) -> None:
    runs = {
        "regression": TABLE,
        "classes": (*DIGITS, "harmful=digits5to9"),
        "pair": DIGITS,
        "network": (*NETWORK, "method=none", "objective.max_steps=1"),
    }
    for name, words in runs.items():
        train.run(compose_config(*words), tmp_path / name, quiet=True)
    regression, classes, pair, network = (f"run={tmp_path / name}" for name in runs)
    worlds = (
        World((regression, "attack.budget.flops=1e4")),  # less than Adam would take
        World((classes, "tasks=[harmful]", *(f"~attack.attacks.whiten.inner.{of}" for of in ("gd_fixed", "ridge")))),
        World((pair, "benign_digits=1", "tiers=[T0]")),
        World((regression,), base=MORE),
        World((classes, *(f"~attack.attacks.{name}" for name in OF_ANY_TARGET)), base=MORE),
        World((network,), base=OF_WEIGHTS),
    )
    every_setting_counts(attack_numbers, "attack", GRID, worlds, tmp_path / "attacks")
    for name in ("attack.attacks.whiten.inner.ridge.tier", "attack.attacks.last_block.probe.tier"):
        with pytest.raises(UserError, match=f"{name} has no effect here: an inner attack has that of the one it is in"):
            attack.run(compose_config(*GRID, regression, f"{name}=T1", primary="attack"), given=[name])


def test_every_setting_of_a_pretraining(tmp_path: Path) -> None:
    small = ("model=resnet_small", "model.kwargs.channels=[4,8,8,12]", "model.image_size=16", "threads=1")
    short = ("pretrain=digits", "epochs=1", "batch_size=32")
    every_setting_counts(pretrain_numbers, "pretrain_theta", (*small, *short), (World(),), tmp_path)


COMPUTED = (*NETWORK, "method=closed_form", "+trainer.precision=64-true")


@pytest.mark.parametrize(
    ("words", "name"), [(TABLE, "deep.groups"), (NETWORK, "probe_steps"), (COMPUTED, "trainer.precision")]
)
def test_what_was_asked_for_and_does_nothing_is_refused(words: tuple[str, ...], name: str, tmp_path: Path) -> None:
    """What that is has been seen above."""
    with pytest.raises(UserError, match=f"{name} has no effect here: "):
        train.run(compose_config(*words), tmp_path / "run", quiet=True, given=[name])


def test_what_timm_has_to_be_given_is_not_refused() -> None:
    refuse_idle(["model.trainable"], {"model.trainable": TAKES_NO_STEPS})


def test_what_was_asked_for_is_what_the_command_line_of_one_run_names() -> None:
    words = ["method=none", "+trainer.clip=1", "~logger", "harmful@x=y"]
    assert given_names(words) == ["method", "trainer.clip", "harmful"]
