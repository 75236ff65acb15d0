"""docs/sanity_check.md: its commands run and print what they are shown for, its table is that of the record."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from experiments.sanity_mnist.__main__ import DOCUMENT, HERE, provoking, table
from immunize import forecast, train
from immunize.training.callbacks.signatures import SIGNATURES
from tests.commands import Called, Done

TEXT = DOCUMENT.read_text(encoding="utf-8")
COMMANDS = re.findall(r"^python -m immunize\.(\w+) (.*)$", TEXT, re.M)
PLAIN = [command for command in COMMANDS if "mnist" not in command[1] and command[1] not in
         [shlex.join(arguments[2:]) for _, arguments in provoking()]]  # fmt: skip
SHORTER = ["objective.epochs=60", "probe_steps=50", "logger=none", "figure=false", "hydra.run.dir=run"]
MAINS = {"train": train.main, "forecast": forecast.main}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(called: Called) -> Called:
    """A command in this process, made shorter."""

    def shorter(module: str, *arguments: str) -> Done:
        return called(MAINS[module], *arguments, *(SHORTER if module == "train" else []))

    return shorter


def test_every_signature_has_a_section_and_a_command() -> None:
    assert [name for name, _ in provoking()] == list(SIGNATURES)
    assert re.findall(r"^### `(\w+)`$", TEXT, re.M) == list(SIGNATURES)


@pytest.mark.parametrize(("name", "arguments"), provoking(), ids=SIGNATURES)
def test_the_command_provokes_the_warning(name: str, arguments: list[str], call: Called) -> None:
    assert arguments[:2] == ["-m", "immunize.train"]
    _, out, err = call("train", *arguments[2:])
    assert re.search(rf"^\[WARNING\] fit, step \d+: {name}: \S", err, re.M)
    assert re.search(rf"^warnings:\n(  .*\n)*  {name} \(fit, step \d+", out, re.M)
    record = json.loads(Path("run/record.json").read_text(encoding="utf-8"))
    assert name in [warning["name"] for warning in record["training"]["fit"]["warnings"]]


def test_the_advice_against_the_pole_of_r_ill_works(call: Called) -> None:
    arguments = dict(provoking())["ill_denominator"]
    call("train", *arguments[2:], "model.init=uniform")
    record = json.loads(Path("run/record.json").read_text(encoding="utf-8"))
    assert {"ill_denominator", "sigma_min_tied"}.isdisjoint(w["name"] for w in record["training"]["fit"]["warnings"])


@pytest.mark.parametrize(("module", "arguments"), PLAIN, ids=" ".join)
def test_other_commands_run(module: str, arguments: str, call: Called) -> None:
    _, out, err = call(module, *shlex.split(arguments))
    assert out.splitlines()[-1].endswith(".json")
    assert "WARNING" not in err


def test_the_table_is_that_of_the_record() -> None:
    record = json.loads((HERE / "record.json").read_text(encoding="utf-8"))
    assert (HERE / "table.md").read_text(encoding="utf-8") == table(record)
    assert (record["status"], record["pretrain"], record["harmful"]) == ("finished", "mnist", "mnist")
