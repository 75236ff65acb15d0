"""`make bench`: its command, how it times one, and one table of what the files hold.

Limits are judged from the files, and what they were measured with stands beside them.
"""

from __future__ import annotations

import json
import math
import sys
import types
from pathlib import Path

import pytest
import torch

from experiments.bench import __main__ as bench
from experiments.bench import attack, deep, machine, start, table
from experiments.bench.machine import HERE, ROOT, read, write_csv
from immunize import records
from immunize.errors import UserError
from immunize.report.loading import write_results
from tests.composing import compose_config


@pytest.mark.parametrize(
    ("where", "limit", "beyond", "words"),
    [
        (("start.csv", 0, "seconds"), 7.0, 7.1, "`python -m immunize.train`: start to exit"),
        (("mnist.csv", 1, "rir_fit_released"), 100.0, 99.0, "the same: RIR on `fit`, `released`, beside table 4's"),
        (("deep_step.csv", 0, "ratio"), 1.1, math.nan, "`resnet18_64px`: a step with regularizers against one without"),
    ],
)
def test_a_limit_is_met(where: tuple[str, int, str], limit: float, beyond: float, words: str, tmp_path: Path) -> None:
    name, index, key = where
    for number, missed in ((limit, 0), (beyond, 1)):
        rows = [row | {key: limit} for row in read(HERE / name)]
        rows[index][key] = number
        write_csv(tmp_path / name, rows)
        found = [of for of in table.lines(tmp_path, tmp_path) if of.name.startswith(words) and of.met is not None]
        assert found
        told = [of.measured for of in found if not of.met]
        assert len(told) == missed
        assert not missed or f"{beyond:g}" in told[0]


def test_what_is_met_missed_and_not_measured_yet_is_counted(tmp_path: Path) -> None:
    write_csv(tmp_path / "start.csv", [{"command": name, "seconds": 0.5, "processor_s": 1} for name in start.CASES])
    every, measured = len(table.lines(tmp_path, tmp_path)), len(start.CASES)
    counts = f"{measured - 1} of {every} limits are met, 1 is missed, {every - measured} were not measured yet."
    assert counts in table.readme(tmp_path, tmp_path)


def test_an_experiment_counts_when_all_its_runs_are_there(tmp_path: Path) -> None:
    hardware = {"processor": "p", "cores": 4, "threads": 2, "memory_gib": 8, "accelerators": [], "system": "Linux"}
    common = {"schema_version": 1, "status": "finished", "pretrain": "a", "harmful": "b", "hardware": hardware}
    common |= {"started": "2030-01-02T03:04:05Z", "git_commit": "f" * 40 + "-dirty", "peak_memory_mib": 1.0}
    runs = [common | {"config": {}, "method": "ours", "seed": seed, "seconds": 20.0} for seed in range(36)]
    for count, measured in ((35, table.NOT_YET), (36, "6.0 min")):
        write_results(runs[:count], tmp_path / "table3_digits")
        lines = table.lines(tmp_path, tmp_path)
        (found,) = [line for line in lines if line.command == "make table3 SCALE=digits"]
        assert found.measured == measured
    assert found.made["commit"] == "ffffffffff-dirty"


def test_committed_page_is_that_of_the_committed_files() -> None:
    assert (HERE / table.README).read_text(encoding="utf-8") == table.readme(HERE, ROOT / "experiments")


# The attack grid's part.


def test_attack_grid_is_measured() -> None:
    tiny = ("attack=quick", "attack.budget.steps=4", "~attack.attacks.adam", "~attack.attacks.lbfgs")
    row = attack.measure(60, 6, 3, tiny)
    assert row["attacks"] >= 3
    assert 0.1 < row["peak_gb"] < 8


@pytest.mark.parametrize("name", ["resnet18_64px", "vit_small"])
def test_networks_are_those_of_the_configurations(name: str) -> None:
    model = compose_config(f"model={name}", "harmful=digits", "objective=resnet_small_digits").model
    spec = deep.NETWORKS[name]
    assert (spec.architecture, [spec.trainable]) == (model.architecture, list(model.trainable))
    assert (spec.image_size, dict(spec.kwargs)) == (model.image_size, dict(model.kwargs))


def test_both_steps_do_the_same_but_for_the_regularizers() -> None:
    """The one with weights of the regularizers near zero moves the classifier as the plain one does."""
    moved = []
    for name in ("immunize", "plain"):
        torch.manual_seed(0)
        steps = deep.Steps(deep.NETWORKS["vit_small"].build(), deep.random_batch(4, 32))
        before = steps.net.head.weight.detach().clone()
        frozen = steps.net.network.get_submodule("blocks.0.attn.qkv").weight.detach().clone()  # type: ignore[operator]
        for group in steps.optimizer.param_groups:
            group["lr"] = 0.1
        getattr(steps, name)()
        moved.append(steps.net.head.weight.detach() - before)
        assert torch.equal(steps.net.network.get_submodule("blocks.0.attn.qkv").weight, frozen)  # type: ignore[arg-type]
        assert all(parameter.grad is not None for parameter in steps.module.theta_parameters())
    assert float(moved[0].norm()) > 0
    torch.testing.assert_close(moved[0], moved[1])


def test_a_step_is_measured_by_the_shortest_time_of_each() -> None:
    calls: list[str] = []
    times = deep.in_turns(lambda: calls.append("a"), lambda: calls.append("b"), seconds=0.0, fewest=2)
    assert calls == ["a", "b"] * 3  # one to warm up
    assert all(0 <= wall < 1 and 0 <= process < 1 for wall, process in times)
    row = deep.measure_step("vit_small", 4, 0.0)
    assert row["ratio"] == pytest.approx(row["immunize_ms"] / row["plain_ms"], rel=0.05)
    assert row["features"] == 64


# The command.


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The parts replaced by ones that take no time: who ran is noted."""
    ran: list[str] = []

    def stand_in(name: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(run=lambda out: ran.append(name.rpartition(".")[2]))

    monkeypatch.setattr(bench, "HERE", tmp_path)
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "importlib", types.SimpleNamespace(import_module=stand_in))  # others import as ever
    return ran


def test_interrupted_bench_goes_on(parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = {"start": "abc", "mnist": "abc", "deep": "old"}
    (tmp_path / machine.MACHINE).write_text(json.dumps({part: {"git_commit": c} for part, c in commits.items()}))
    monkeypatch.setattr(records, "_git_commit", lambda: "abc")
    for ran in (["deep", "in_place", "defence", "attack", "busy"], []):
        assert bench.main(["rest"]) == 0
        assert parts == ran
        parts.clear()
    monkeypatch.setattr(records, "_git_commit", lambda: "abc-dirty")
    assert bench.main(["rest"]) == 0
    assert parts == list(bench.PARTS)


@pytest.mark.parametrize(("seconds", "code"), [(0.31, 1), (0.3, 0)])
def test_missed_limit_of_a_part_is_exit_code_1(
    seconds: float, code: int, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"command": "import immunize", "seconds": seconds, "processor_s": 0.1}
    machine.write_csv(tmp_path / "start.csv", [row])
    assert bench.main(["all"]) == code
    assert parts == list(bench.PARTS)
    told = "`import immunize`: start to exit: 0.31 s, 0.1 s of the processor; the limit is 0.3 s"
    assert (told in capsys.readouterr().err) is bool(code)
    assert bench.main(["mnist"]) == 0  # the limits of other parts are not its own
    assert parts[len(bench.PARTS) :] == ["mnist"]
    assert bench.main(["fast"]) == 2


def test_a_command_is_timed_by_clock_and_processor() -> None:
    seconds, processor, peak = machine.timed_command([sys.executable, "-c", "import time; time.sleep(1)"])
    assert seconds >= 1
    assert processor < seconds
    assert peak > 1e6
    with pytest.raises(UserError, match="ended with 1: no data"):
        machine.timed_command([sys.executable, "-c", "raise SystemExit('no data')"])
