"""`immunize.evaluate`: recomputes a run of either kind again, agrees with an honest one, names what changed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from immunize import attack, evaluate, export, threads, train
from immunize.checkpoints import load_checkpoint, save_checkpoint
from immunize.config import resolved
from immunize.errors import CheckpointError, MissingDataError
from immunize.features.weights import load_weights, save_weights
from immunize.pipeline.linear import LinearModel
from immunize.records import CHECKPOINT, RECORD, read_record
from tests.attacking import compose_attack
from tests.commands import Called
from tests.composing import compose_config, run_tiny, run_tiny_deep, theta_of
from tests.tampering import change_at, edit_json


def keep(folder: Path, **thetas: torch.Tensor) -> None:
    """Other maps in the checkpoint of a run."""
    save_checkpoint(folder / CHECKPOINT, {"theta": thetas}, config_hash=read_record(folder)["config_hash"])


@pytest.fixture
def folder(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be tampered with."""
    return Path(shutil.copytree(finished_run, tmp_path / "copy"))


TAMPERED: dict[str, dict[tuple[str, ...], Callable[[Any], Any]]] = {
    "finished_run": {
        ("metrics", "fit", "spectrum", "rir"): lambda old: old * (1 + 1e-4),
        ("metrics", "fit", "released", "kappa_pretrain_baseline"): lambda old: None,
        ("metrics", "fit", "spectrum", "facts", "kappa_harmful", "rank"): lambda old: old - 1,
        ("verdicts", "b"): lambda old: not old,
        ("verdicts", "held_out", "loss_immunized"): lambda old: old * 0.99,
        ("steps_to_norm_ratio", "fit", "harmful", "immunized", "0.1"): lambda old: 1,
        **{(said,): lambda old: f"another {old}" for said in ("method", "model", "seed")},  # beside the configuration
        # what figures are drawn from
        ("curves", "norm_ratio", "fit", "harmful", "immunized", "ratio"): lambda old: [old[0], 0.999, *old[2:]],
        ("spectra", "held_out", "harmful", "immunized", "sigma"): lambda old: [*old[:-1], old[-1] / 2],
    },
    "finished_network": {
        ("metrics_groups", "held_out", "released", "kappa_pretrain_baseline"): lambda old: old * 2,
        ("verdicts", "held_out", "ratio_harmful"): lambda old: old * 2,
        ("verdicts_groups", "accuracy_after"): lambda old: old + 1,
        ("pretrain_accuracy", "after"): lambda old: old + 1,
        ("probe_accuracy", "gd", "harmful", "immunized", "end"): lambda old: old + 1,
    },
}


@pytest.mark.parametrize("run", TAMPERED)
def test_tampered_numbers_and_no_others_are_named(run: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue(run), tmp_path / "copy"))

    def change(record: dict[str, Any]) -> None:
        for keys, value in TAMPERED[run].items():
            change_at(record, keys, value)
        record["metrics"]["held_out"]["spectrum"]["rir"] *= 1 + 1e-9
        record["metrics"]["fit"]["spectrum"]["kappa_extra"] = 3.0
        del record["metrics"]["fit"]["ridge"]["rir"]

    edit_json(folder / RECORD, change)
    one_sided = {f"metrics.fit.{name}: only on one side" for name in ("spectrum.kappa_extra", "ridge.rir")}
    differing = set(evaluate.run(folder)[1])
    assert one_sided <= differing
    named = [re.split(r": |\[", line)[0] for line in differing - one_sided]
    assert sorted(named) == sorted(".".join(path) for path in TAMPERED[run])


def test_early_stopped_run_is_measured_on_the_rows_it_was_fitted_on(tmp_path: Path) -> None:
    run_tiny(tmp_path, "objective.early_stopping=true", "objective.check_every=5")
    record, differing = evaluate.run(tmp_path)
    assert differing == []
    assert record["metrics"]["fit"]["spectrum"]["facts"]["kappa_harmful"]["n_samples"] == 32


def test_what_is_no_runs_folder_is_told(folder: Path) -> None:
    for given, told in (
        (folder / RECORD, "it is a file, name the folder that it lies in"),
        (folder / "nowhere", "there is no such folder"),
    ):
        with pytest.raises(CheckpointError, match=re.escape(told)):
            evaluate.run(given)


COMMANDS: tuple[Callable[[Path], object], ...] = (
    evaluate.run,
    lambda run: attack.assemble(compose_attack(f"run={run}")),
)
CALLED: list[str] = []


def by_others(name: str) -> str:
    """What a record that others wrote might name, with `name` as it may."""
    CALLED.append(name)
    return name


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("at", [("harmful",), ("pretrain", "seed"), ("model", "init", 0)])
def test_nothing_but_parts_of_a_run_is_called_for_a_record(
    command: Callable[[Path], object], at: tuple[Any, ...], folder: Path
) -> None:
    call = {"_target_": f"{__name__}.by_others", "name": "run"}
    edit_json(folder / RECORD, lambda record: change_at(record["config"], at[:2], lambda _: [call] if at[2:] else call))
    with pytest.raises(CheckpointError, match=r"the record has .*by_others called, which makes no part of a run"):
        command(folder)
    assert not CALLED


def test_a_method_of_others_is_not_called_to_tell_whether_it_needs_the_loss(folder: Path) -> None:
    """D_P with classes, which mse does not know: a method that computes θ would need no loss."""
    of_classes = resolved(compose_config("harmful=digits5to9"))["pretrain"]
    changed = {"pretrain": of_classes, "method": {"_target_": f"{__name__}.by_others", "name": "run"}}
    edit_json(folder / RECORD, lambda record: record["config"].update(changed))
    with pytest.raises(CheckpointError, match="by_others called, which makes no part of a run"):
        evaluate.run(folder)
    assert not CALLED


@pytest.mark.parametrize("command", [*COMMANDS, export.run])
def test_a_record_of_something_else_is_told(command: Callable[[Path], object], folder: Path) -> None:
    record = read_record(folder)
    for change, told in (
        ({"config": None}, "holds what no run writes"),
        ({"without_effect": []}, "holds what no run writes"),
        ({"hardware": ...}, "lacks hardware: it is of another version"),
    ):
        changed = {key: value for key, value in {**record, **change}.items() if value is not ...}
        (folder / RECORD).write_text(json.dumps(changed))
        with pytest.raises(CheckpointError, match=told):
            command(folder)


def test_threads_are_those_of_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding depends on the number of threads, and gaps at a rank cut, as of digits, are made of rounding."""
    used, numbers = [], LinearModel.numbers

    def watched(*arguments: Any) -> dict[str, Any]:
        used.append(torch.get_num_threads())
        return numbers(*arguments)

    monkeypatch.setattr(LinearModel, "numbers", watched)
    monkeypatch.setattr(threads, "cores", lambda: 1)  # no matter what this machine leaves
    edit_json(folder / RECORD, lambda record: record["hardware"].update(threads=3))
    assert evaluate.run(folder)[1] == []
    assert used == [3]


def test_command(folder: Path, monkeypatch: pytest.MonkeyPatch, called: Called) -> None:
    monkeypatch.chdir(folder.parent)
    done = called(evaluate.main, "run=copy")
    assert "every number agrees" in done.out
    assert done.err == "copy: every number again, from checkpoint and data\n"
    keep(folder, fit=theta_of(folder).T)
    done = called(evaluate.main, "run=copy")
    assert done.code == 1
    assert "metrics.fit.spectrum.rir: " in done.out
    assert {path.name for path in folder.iterdir()} == {RECORD, CHECKPOINT, "metrics.csv", "norm_ratio.png"}
    assert [path.name for path in folder.parent.iterdir()] == ["copy"]


@pytest.mark.data
def test_cross_fitted_run_agrees(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    overrides = ("harmful=housing", f"data_root={data_root}", "objective.epochs=5", "probe_steps=50", "logger=none")
    train.run(compose_config(*overrides), folder)
    monkeypatch.delenv("IMMUNIZE_DATA", raising=False)
    thetas = load_checkpoint(folder / CHECKPOINT, 79)
    keep(folder, fit=thetas["cross_fit"], cross_fit=thetas["fit"])
    names = {line.partition(":")[0] for line in evaluate.run(folder)[1]}
    assert {"metrics.fit.spectrum.rir", "metrics.held_out.spectrum.rir"} <= names

    keep(folder, fit=thetas["fit"])
    with pytest.raises(CheckpointError, match=r"lacks theta\.cross_fit"):
        evaluate.run(folder)

    keep(folder, **thetas)
    (folder / RECORD).write_text((folder / RECORD).read_text().replace(str(data_root), "/nowhere"))
    with pytest.raises(MissingDataError, match="/nowhere/house_prices"):
        evaluate.run(folder)
    assert evaluate.run(folder, str(data_root))[1] == []  # the data have moved: said by option,
    monkeypatch.setenv("IMMUNIZE_DATA", str(data_root))  # or by the environment
    assert evaluate.run(folder)[1] == []


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object], config_hash: str = "") -> None:
    """The checkpoint with changed weights."""
    state = load_weights(folder / CHECKPOINT)
    change(state)
    save_weights(folder / CHECKPOINT, state, {"config_hash": config_hash or read_record(folder)["config_hash"]})


@pytest.mark.parametrize(
    "overrides",
    [["objective.cache_frozen=true"], ["selection=validation"], ["+trainer.precision=64-true"]],
    ids=["cached", "validation", "float64"],
)
def test_other_kinds_of_runs_agree_too(overrides: list[str], tmp_path: Path) -> None:
    run_tiny_deep(tmp_path, "objective.max_steps=2", *overrides)
    record, differing = evaluate.run(tmp_path)
    assert differing == []
    assert record["metrics"].keys() == {"fit", "validation" if "selection=validation" in overrides else "held_out"}


def test_a_checkpoint_of_a_method_that_appends_a_map_has_one_and_the_weights_of_theta_0(tmp_path: Path) -> None:
    record = run_tiny_deep(tmp_path, "method=closed_form", "method.budget=10", "method.shrinkage=0.1")
    assert evaluate.run(tmp_path)[1] == []
    state = load_weights(tmp_path / CHECKPOINT)
    could_move = record["network"]["trained"][0]  # by a method that trains
    rewrite(tmp_path, lambda weights: weights[could_move].add_(1))
    with pytest.raises(CheckpointError, match=f"{could_move} was not trained, but is not θ_0's"):
        evaluate.run(tmp_path)
    del state["fc.map.weight"]
    plain = {name.replace("fc.head", "fc"): value for name, value in state.items()}
    save_weights(tmp_path / CHECKPOINT, plain, {"config_hash": record["config_hash"]})
    with pytest.raises(CheckpointError, match="has no appended map"):
        evaluate.run(tmp_path)


def _dead(state: dict[str, torch.Tensor]) -> None:
    for name, value in state.items():
        if name.startswith("layer4") and "running" not in name:
            value.zero_()


def _other_data(record: dict[str, Any]) -> None:
    record["config"]["harmful"]["seed"] = record["config"]["pretrain"]["seed"] = 1


LINEAR, NETWORK = "finished_run", "finished_network"


@pytest.mark.parametrize(
    ("run", "spoil", "words"),
    [
        (LINEAR, lambda of: edit_json(of / RECORD, _other_data), "hash differs"),
        (LINEAR, lambda of: edit_json(of / RECORD, lambda record: record.update(status="diverged")), "is 'diverged'"),
        (LINEAR, lambda of: keep(of, fit=1e160 * theta_of(of)), "gives no numbers any more"),  # its square overflows
        # even with the very same θ: it is not known to be this run's
        (
            LINEAR,
            lambda of: save_checkpoint(of / CHECKPOINT, {"theta": {"fit": theta_of(of)}}, config_hash=""),
            "another run",
        ),
        (NETWORK, lambda of: rewrite(of, lambda state: state["conv1.weight"].add_(1e-3)), r"conv1\.weight was not tr"),
        (NETWORK, lambda of: rewrite(of, len, "0123456789abcdef"), "belongs to another run"),
        (NETWORK, lambda of: rewrite(of, _dead), r"gives no numbers any more: .*features of pretrain.* 0\.0"),
        (NETWORK, lambda of: (of / CHECKPOINT).unlink(), "does not exist"),
    ],
)
def test_what_is_not_the_runs_or_of_no_use_is_refused(
    run: str, spoil: Callable[[Path], object], words: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue(run), tmp_path / "copy"))
    spoil(folder)
    with pytest.raises(CheckpointError, match=words):
        evaluate.run(folder)
