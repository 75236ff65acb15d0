"""What a user can get wrong: one clear message on stderr, an exit code that says so, and nothing lost.

The commands run in this process, through `main` as the console script does, so that fifty of them cost seconds.
"""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from omegaconf import OmegaConf

from immunize import train
from immunize.errors import UserError
from immunize.settings import check_settings
from tests.commands import Called, Done, loaded_by
from tests.composing import compose_config

TINY = ["objective.epochs=2", "probe_steps=10", "logger=none", "figure=false"]


class Command:
    """`immunize-train` with arguments, in an empty working directory."""

    def __init__(self, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, called: Called) -> None:
        self.monkeypatch, self.called, self._refused = monkeypatch, called, refused
        self.folder, self.run = Path.cwd(), Path.cwd() / "run"

    def __call__(self, *arguments: str) -> Done:
        return self.called(train.main, *arguments)

    def refused(self, *arguments: str) -> str:
        """The message of a command that has to fail."""
        tiny = TINY if "method=erase" not in arguments else TINY[1:]  # which takes no steps
        return self._refused(train.main, *tiny, *arguments)


@pytest.fixture
def command(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, called: Called) -> Command:
    return Command(refused, monkeypatch, called)


# What Hydra refuses: names and types.


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("method=our", ["method/our", "opt_kappa", "ours"]),
        ("sede=1", ["sede", "Could not override"]),
        ("+sede=1", ["no setting sede"]),
        ("harmful.pear=[0,1]", ["harmful.pear"]),
        ("seed=abc", ["seed", "abc"]),
        ("guard=maybe", ["guard", "maybe", "off, warn"]),
        ("harmful.pair=[0,1", ["input '[0,1'"]),
        ("objective", ["objective"]),
    ],
)
def test_misspelt_names_and_wrong_types_are_refused(command: Command, override: str, words: list[str]) -> None:
    message = command.refused(override)
    for word in words:
        assert word in message
    assert not re.search("object_type|search path|append to your config use [+]se", message)


# What this package refuses: values. Those of one setting by itself, with the rules alone; then one of each way in which
# a mistake comes up in a command. What a data set or a method refuses is tested with its class.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("seed=-1", "seed has to be .*-1"),
        ("rho=0", "rho has to be positive"),
        ("rho=nan", "rho has to be positive"),
        ("probe_steps=0", "probe_steps has to be at least 1"),
        ("monitor_every=0", "monitor_every has to be at least 1"),
        ("log_every=0", "log_every has to be at least 1"),
        ("threads=0", "threads has to be at least 1"),
        ("threads=99999999999", "threads has to be at least 1 and at most 1024, or null; it is 99999999999"),
        ("pairing=sequential", "pairing has to be one of max_size_cycle.*sequential"),
        ("objective.epochs=0", "objective.epochs has to be at least 1"),
        ("objective.learning_rate=-1", "objective.learning_rate has to be positive"),
        ("objective.learning_rate=inf", "objective.learning_rate has to be positive and finite"),
        ("objective.lr_decay=0", "objective.lr_decay has to be positive and at most 1, or null"),
        ("objective.batch_size=1", "objective.batch_size has to be at least 2"),
        ("objective.lambda_well=-1", "objective.lambda_well.*-1"),
        ("objective.lambda_ill=nan", "objective.lambda_ill.*finite"),
        ("objective.loss=l1", "objective.loss.*mse, bce, ce.*l1"),
        ("objective.balance=true objective.balance_multiplier=4", r"objective.balance_multiplier .*\(1, 2, 3, 5\)"),
        ("objective.balance=true objective.balance_every=-1", "objective.balance_every has to be at least 0"),
        ("objective.early_stopping=true objective.patience=0", "objective.patience has to be at least 1"),
        ("objective.early_stopping=true objective.check_every=0", "objective.check_every"),
        ("objective.early_stopping=true objective.validation_fraction=0", "objective.validation_fraction"),
        ("objective.early_stopping=true objective.validation_fraction=1.5", "objective.validation_fraction"),
        ("method.precondition=foo", "method.precondition.*inverse_free.*foo"),
    ],
)
def test_values_out_of_range_are_refused(settings: str, words: str) -> None:
    cfg = compose_config()
    for line in settings.split():
        key, _, value = line.partition("=")
        OmegaConf.update(cfg, key, value)
    with pytest.raises(UserError, match=words):
        check_settings(cfg)


STOPPING = "objective.early_stopping=true objective.epochs=4 objective.check_every=50"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("objective.batch_size=100000", ["objective.batch_size=100000", "larger than both data sets"]),
        ("method=imma method.inner_steps=0", ["method.inner_steps", "at least 1"]),
        ("harmful=synthetic objective.loss=bce", ["objective.loss=bce", "regression", "objective.loss=mse"]),
        ("harmful=digits5to9 objective.loss=mse", ["objective.loss=mse", "no classes", "objective.loss=ce"]),
        ("objective.loss=ce", ["objective.loss=ce", "classification", "binary", "objective.loss=mse"]),
        ("method=erase", ["same label", "method=ours"]),
        ("method=censor", ["another for a linear model", "erase"]),
        ("harmful=digits model=resnet_small model.image_size=-3", ["model.image_size has to be 1 or more, or null"]),
        ("objective.optimizer._target_=torch.optim.Adamm", ["torch.optim.Adamm"]),
        ("objective.optimizer.betas=[2,3]", ["objective.optimizer", "beta"]),
        ("+objective.optimizer.betta=1", ["objective.optimizer", "betta"]),
        ("+objective.optimizer.lr=1", ["lr cannot be set here"]),
        ("model.init=foo", ["model.init", "foo", "orthogonal"]),
        ("method.precondition=dummy model.ridge=abc", ["LinearExtractor"]),
        ("+harmful.pear=[0,1]", ["pear"]),
        (f"{STOPPING} objective.batch_size=null", ["check_every=50 looks at none of the 4 steps"]),
        (f"{STOPPING} objective.batch_size=100", ["check_every=50 looks at none of the"]),
        ("+trainer.max_epochs=3", ["max_epochs cannot be set here"]),
        ("pretrain=synthetic objective.loss=mse", ["32 features", "64", "pretrain="]),
    ],
)
def test_impossible_values_are_refused_before_training(command: Command, overrides: str, words: list[str]) -> None:
    message = command.refused(*overrides.split())
    for word in words:
        assert word in message
    assert not (command.folder / "run" / "record.json").exists()


def test_scalars_are_refused_before_the_heavy_imports(tmp_path: Path) -> None:
    done, loaded, _ = loaded_by("immunize.train", "objective.lambda_ill=-1", cwd=tmp_path)
    assert done.returncode == 1
    assert "objective.lambda_ill" in done.stderr
    assert not loaded & {"torch", "lightning"}


def test_settings_and_rooms_accept_the_same_words() -> None:
    """The rules cannot import the rooms, which import torch."""
    from immunize import settings
    from immunize.data.pair import Mode
    from immunize.objective.base import LOSSES

    assert get_args(Mode) == settings.PAIRINGS
    assert {*settings.LINEAR_LOSSES, *settings.DEEP_LOSSES} == set(LOSSES)


def test_logger_package_that_is_not_installed(command: Command) -> None:
    real = builtins.__import__

    def no_tensorboard(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] in ("tensorboard", "tensorboardX"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    command.monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE", False)
    command.monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARDX_AVAILABLE", False)
    command.monkeypatch.setattr(builtins, "__import__", no_tensorboard)
    message = command.refused("logger=tensorboard")
    assert "needs a package that is not installed" in message
    assert "tensorboard" in message


# Output folders.


def test_finished_record_is_kept_unless_overwritten(command: Command) -> None:
    first = command("hydra.run.dir=run", *TINY)
    assert first.code == 0
    before = {path: path.read_bytes() for path in command.run.rglob("*") if path.is_file()}
    message = command.refused("seed=5")
    assert "loading" not in message
    assert "already holds a finished record" in message
    assert "overwrite=true" in message
    assert {path: path.read_bytes() for path in command.run.rglob("*") if path.is_file()} == before
    again = command("hydra.run.dir=run", *TINY, "seed=5", "overwrite=true")
    assert again.code == 0
    record = json.loads((command.run / "record.json").read_text())
    assert record["seed"] == 5
    assert record["command"].endswith("seed=5 overwrite=true hydra.run.dir=run")


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_output_folder_that_cannot_be_made(command: Command, folder: str) -> None:
    (command.folder / "file").write_text("not a folder")
    message = command.refused(f"hydra.run.dir={folder}")
    assert "file" in message


def test_output_folder_that_cannot_be_written_into(command: Command) -> None:
    def refuse(self: Path, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    command.monkeypatch.setattr(Path, "touch", refuse)  # tests may run as root, whom no permission stops
    message = command.refused()
    assert "cannot write into the output folder" in message
    assert "Permission denied" in message
    assert "hydra.run.dir=" in message


# Other ways to end.


def test_help_with_a_wrong_override(command: Command) -> None:
    outcome = command("--help", "harmful.pear=[0,1]")
    assert outcome.code == 1
    assert "harmful.pear" in outcome.err
    assert "Traceback" not in outcome.err


def test_diverging_run_keeps_a_record_and_says_where(command: Command) -> None:
    outcome = command("hydra.run.dir=run", *TINY, "objective.epochs=50", "objective.learning_rate=1e200")
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    record = json.loads((command.run / "record.json").read_text())
    assert record["status"] == "diverged"
    diverged = record["training"]["fit"]["diverged"]
    assert diverged["term"]
    assert f"at step {diverged['step']}" in outcome.err
    assert (command.run / "checkpoint.safetensors").is_file()
    assert outcome.out.splitlines()[-1] == str(command.run / "record.json")


def test_broken_command_shows_its_traceback_when_hydra_is_told_to(command: Command) -> None:
    command.monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(Exception, match=r"harmful\.pear"):
        command("harmful.pear=[0,1]")
