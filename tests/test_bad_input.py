"""What a user can get wrong: one clear message on stderr, an exit code that says so, and nothing lost.

The commands run in this process, through `main` as the console script does, so that fifty of them cost seconds.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from immunize import api, attack, forecast, pretrain, settings, train
from immunize.errors import UserError
from tests.commands import Called
from tests.composing import compose_config

TINY = ["objective.epochs=2", "probe_steps=10", "logger=none", "figure=false"]
Refused = Callable[..., str]
"""The fixture `refused`: the message of a command that has to fail."""


# What Hydra refuses: names and types.


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("method=our", ["method/our", "opt_kappa", "ours"]),
        ("harmful=cifar10", ["no row of hyper-parameters for these data", "linear_mnist", "objective=<row>"]),
        ("sede=1", ["Could not override", "Did you mean seed?"]),
        ("+sede=1", ["no setting sede"]),
        ("trainer.precision=64-true", ["Could not override", "append to your config use +trainer.precision=64-true"]),
        ("seed=abc", ["seed", "abc"]),
        ("guard=maybe", ["guard", "maybe", "off, warn"]),
        ("harmful.pair=[0,1", ["input '[0,1'"]),
    ],
)
def test_misspelt_names_and_wrong_types_are_refused(refused: Refused, override: str, words: list[str]) -> None:
    message = refused(train.main, *TINY, override)
    assert all(word in message for word in words), message
    assert not re.search("object_type|search path|append to your config use [+]se", message)


# What this package refuses: values. Those of one setting by itself, with the rules alone; then one of each way in which
# a mistake comes up in a command. What a data set or a method refuses is tested with its class.


LIMITS: tuple[tuple[str, Callable[[float], float], Callable[[float], float]], ...] = (
    (r"(?:at least |between |from |≥ |in \[)(\d+)", lambda least: least - 1, lambda least: least),
    (r"(\d+) or more", lambda least: least - 1, lambda least: least),
    (r"(?:at most|and|to) (\d[\d.]*)", lambda most: math.nextafter(most, math.inf), lambda most: most),
    (r"(?:below |in \[0, )(\d+)", lambda end: end, lambda end: math.nextafter(end, 0)),
    (r"^(positive)", lambda _: 0, lambda _: 1e-300),
    (r"(finite)", lambda _: math.nan, lambda _: 1e300),
    (r"(finite)", lambda _: math.inf, lambda _: 1e300),
)
"""What a rule says of a limit, and values next to it: one that it refuses and one that it allows."""


def limits_of(words: str) -> list[tuple[float, float]]:
    """Of each limit that a rule's words name, a value that is refused and one that is allowed."""
    found = [(re.search(pattern, words), refused, allowed) for pattern, refused, allowed in LIMITS]
    numbers = [(json.loads(one[1]) if one[1][0].isdigit() else 0, *values) for one, *values in found if one]
    return [(refused(number), allowed(number)) for number, refused, allowed in numbers]


OF_COMMANDS = (settings.RULES, settings.DEEP_RULES, attack.RULES, forecast.RULES, pretrain.RULES, api.SETTINGS.values())
OF_CHOICES = (settings.EARLY_STOPPING_RULES, settings.BALANCE_RULES, settings.SELECTION_RULES)
LIMITED = [
    rule
    for rule in itertools.chain(*OF_COMMANDS, *OF_CHOICES)
    if rule[0] != "seeds" and (limits_of(rule[2]) or "or null" in rule[2])
]


@pytest.mark.parametrize(("name", "holds", "words"), LIMITED, ids=lambda of: of if isinstance(of, str) else "")
def test_a_rule_holds_within_the_limits_that_it_tells_and_nowhere_else(name: str, holds: Any, words: str) -> None:
    assert len(LIMITED) >= 60, "none may go missing"
    assert not [refused for refused, _ in limits_of(words) if holds(refused)]
    assert not [allowed for _, allowed in limits_of(words) if not holds(allowed)]
    assert "or null" not in words or holds(None)


STOPPING = "objective.early_stopping=true objective.epochs=4 objective.check_every=50"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("pairing=sequential", ["pairing has to be one of max_size_cycle", "sequential"]),
        ("objective.loss=l1", ["objective.loss has to be", "mse, bce, ce", "l1"]),
        ("objective.balance=true objective.balance_multiplier=4", ["objective.balance_multiplier ", "(1, 2, 3, 5)"]),
        ("objective.early_stopping=true objective.patience=0", ["objective.patience has to be at least 1"]),
        ("selection=validation objective.validation_fraction=1.5", ["at most 0.9 for selection=validation"]),
        ("method.precondition=foo", ["method.precondition", "inverse_free", "foo"]),
        ("harmful=synthetic objective.loss=bce", ["objective.loss=bce", "regression", "objective.loss=mse"]),
        ("objective.loss=ce", ["objective.loss=ce", "classification", "binary", "objective.loss=mse"]),
        ("method=erase", ["same label", "method=ours"]),
        ("method=censor", ["another for a linear model", "erase"]),
        ("objective.optimizer._target_=torch.optim.Adamm", ["torch.optim.Adamm"]),
        ("harmful._target_=collections.OrderedDict", ["harmful._target_", "a SourceBase, it makes a OrderedDict"]),
        ("method._target_=collections.Counter", ["method._target_ has to make an Objective, it makes a Counter"]),
        ("objective.optimizer.betas=[2,3]", ["objective.optimizer", "beta"]),
        ("+objective.optimizer.lr=1", ["lr cannot be set here"]),
        ("method.precondition=dummy model.ridge=abc", ["LinearExtractor"]),
        ("+harmful.pear=[0,1]", ["pear"]),
        (f"{STOPPING} objective.batch_size=null", ["check_every=50 looks at none of the 4 steps"]),
        ("+trainer.max_epochs=3", ["max_epochs cannot be set here"]),
        ("+trainer.overfit_batches=1", ["overfit_batches cannot be set here"]),
        ("+trainer.accumulate_grad_batches=2", ["accumulate_grad_batches cannot be set here"]),
        ("pretrain=synthetic objective.loss=mse", ["32 features", "64", "pretrain="]),
        ("model=resnet_small deep.probe_steps.sgd=0", ["deep.probe_steps has to be steps of gd, ", "null leaves"]),
        ("model=resnet_small +deep.probe_steps.lbfgs=5", ["'lbfgs': 5"]),
    ],
)
def test_values_out_of_range_are_refused(
    overrides: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as error:
        train.run(compose_config(*TINY, *overrides.split()), tmp_path / "run")
    assert all(word in str(error.value) for word in words), error.value
    assert ": step " not in capsys.readouterr().err
    assert not (tmp_path / "run" / "record.json").exists()


def test_settings_and_rooms_accept_the_same_words() -> None:
    """The rules cannot import the rooms, which import torch."""
    from immunize.data.pair import Mode
    from immunize.objective.base import LOSSES

    assert get_args(Mode) == settings.PAIRINGS
    assert {*settings.LINEAR_LOSSES, *settings.DEEP_LOSSES} == set(LOSSES)


def test_logger_package_that_is_not_installed(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TENSORBOARD", "TENSORBOARDX"):
        monkeypatch.setattr(f"lightning.fabric.loggers.tensorboard._{name}_AVAILABLE", False)
    message = refused(train.main, *TINY, "logger=tensorboard")
    assert "cannot be imported, or what it needs" in message
    assert "tensorboard" in message


def test_a_data_set_that_an_attack_cannot_import_is_named_once(refused: Refused) -> None:
    Path("theta.safetensors").touch()
    message = refused(attack.main, "checkpoint=theta.safetensors", "harmful._target_=nope.Data")
    assert message.count("nope.Data cannot be imported") == message.count("No module named 'nope'") == 1
    assert "[ERROR]" not in message


def test_two_choices_of_a_group_are_refused_and_lists_of_those_that_are_lists_taken(refused: Refused) -> None:
    message = refused(train.main, *TINY, "logger=[csv,wandb]", "hydra.run.dir=run")
    assert "logger=[csv,wandb]: one logger can be chosen; logger=csv is one" in message
    of_sets = "model=resnet18", "harmful=multi", "harmful/sets=[cars,caltech101]", "data_root=nowhere"
    assert "was not found" in refused(train.main, *of_sets)
    assert "nothing" in refused(attack.main, "run=nothing", "benign=[caltech101,cifar10]")


def test_what_is_to_be_pasted_is_from_where_the_command_was_given(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = called(train.main, *TINY, "hydra.run.dir=run", "hydra.job.chdir=true")
    assert done.code == 0
    assert "python -m immunize.attack run=run\n" in done.err


# Output folders.


def test_finished_record_is_kept_unless_overwritten(refused: Refused, called: Called) -> None:
    run, words = Path("run"), ("hydra.run.dir=run", *TINY)
    assert called(train.main, *words).code == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    message = refused(train.main, *TINY, "seed=5")
    assert "already holds a finished record" in message
    assert "overwrite=true" in message
    assert "loading" not in message
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    (run / "export").mkdir()
    made = [run / name for name in ("CARD.md", "card.json", "report.html", "metrics.csv", "export/model.safetensors")]
    for path in made:
        path.write_text("of the run before")
    assert called(train.main, *words, "seed=5", "overwrite=true").code == 0
    assert not any(path.exists() for path in made)
    record = json.loads((run / "record.json").read_text())
    assert record["seed"] == 5
    assert record["command"].endswith("seed=5 overwrite=true hydra.run.dir=run")


def test_output_folder_that_cannot_be_made(refused: Refused) -> None:
    Path("file").write_text("not a folder")
    assert "file" in refused(train.main, *TINY, "hydra.run.dir=file/below")


def test_output_folder_that_cannot_be_written_into(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "touch", refuse)  # tests may run as root, whom no permission stops
    assert "(Permission denied); choose another with hydra.run.dir=" in refused(train.main, *TINY)


# Other ways to end.


def test_help_with_a_wrong_override_is_a_message_or_the_traceback_that_hydra_is_told_to_show(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = called(train.main, "--help", "harmful.pear=[0,1]")
    assert outcome.code == 1
    assert "harmful.pear" in outcome.err
    assert "Traceback" not in outcome.err
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(Exception, match=r"harmful\.pear"):
        called(train.main, "harmful.pear=[0,1]")


def test_diverging_run_keeps_a_record_and_says_where(called: Called, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("objective.epochs=50", "objective.learning_rate=1e200")
    outcome = called(train.main, f"hydra.run.dir={run}", *TINY, *words)
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    diverged = json.loads((run / "record.json").read_text())["training"]["fit"]["diverged"]
    assert f"'{diverged['term']}' became {diverged['value']} at step {diverged['step']}" in outcome.err
    assert outcome.out.splitlines()[-1] == str(run / "record.json")
