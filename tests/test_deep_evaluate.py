"""`immunize.evaluate` on runs with deep nets: an honest record agrees, and what was changed is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from immunize import evaluate
from immunize.errors import CheckpointError
from immunize.features import load_weights, save_weights
from immunize.records import CHECKPOINT, RECORD, read_record
from tests.composing import run_tiny_deep
from tests.tampering import edit_json


@pytest.fixture
def folder(finished_network: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be tampered with."""
    return Path(shutil.copytree(finished_network, tmp_path / "copy"))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None], config_hash: str = "") -> None:
    """The checkpoint with changed weights."""
    state = load_weights(folder / CHECKPOINT)
    change(state)
    save_weights(folder / CHECKPOINT, state, {"config_hash": config_hash or read_record(folder)["config_hash"]})


@pytest.mark.parametrize(
    "overrides",
    [
        ["objective.cache_frozen=true"],
        ["selection=validation"],
        ["method=closed_form", "method.budget=10", "method.shrinkage=0.1"],
        ["+trainer.precision=64-true"],
    ],
    ids=["cached", "validation", "closed_form", "float64"],
)
def test_other_kinds_of_runs_agree_too(overrides: list[str], tmp_path: Path) -> None:
    run_tiny_deep(tmp_path, "objective.max_steps=2", *overrides)
    record, differing = evaluate.run(tmp_path)
    assert differing == []
    assert ("validation" in record["metrics"]) == ("selection=validation" in overrides)


TAMPERED = (
    "metrics.fit.spectrum.rir",
    "metrics.held_out.ridge.facts.kappa_harmful.sigma_min",
    "metrics_groups.held_out.released.kappa_pretrain_baseline",
    "verdicts.held_out.ratio_harmful",
    "verdicts_groups.accuracy_after",
    "pretrain_accuracy.after",
    "probe_accuracy.gd.harmful.immunized.end",
)


def test_tampered_numbers_are_named_and_no_other(folder: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        for path in TAMPERED:
            *keys, last = path.split(".")
            place = record
            for key in keys:
                place = place[key]
            place[last] = 1.5 * place[last] + 1

    edit_json(folder / RECORD, change)
    assert sorted(line.partition(": ")[0] for line in evaluate.run(folder)[1]) == sorted(TAMPERED)


def test_numbers_come_from_the_checkpoint(folder: Path) -> None:
    def moved(state: dict[str, torch.Tensor]) -> None:
        state["layer4.1.conv2.weight"] *= 1.1

    rewrite(folder, moved)
    names = {line.partition(":")[0] for line in evaluate.run(folder)[1]}
    assert {"metrics.fit.spectrum.rir", "metrics_groups.held_out.spectrum.kappa_harmful"} <= names
    assert not any(name.endswith("baseline") for name in names)  # θ_0 is what it was


def test_checkpoint_with_another_frozen_part_is_refused(folder: Path) -> None:
    def moved(state: dict[str, torch.Tensor]) -> None:
        state["conv1.weight"] += 1e-3

    rewrite(folder, moved)
    with pytest.raises(CheckpointError, match=r"conv1\.weight was not trained"):
        evaluate.run(folder)


def test_checkpoint_of_another_run_or_none_is_refused(folder: Path) -> None:
    rewrite(folder, lambda _: None, "0123456789abcdef")
    with pytest.raises(CheckpointError, match="belongs to another run"):
        evaluate.run(folder)
    (folder / CHECKPOINT).unlink()
    with pytest.raises(CheckpointError, match="does not exist"):
        evaluate.run(folder)


def test_checkpoint_whose_features_are_of_no_use_is_refused(folder: Path) -> None:
    def dead(state: dict[str, torch.Tensor]) -> None:
        for name, value in state.items():
            if name.startswith("layer4") and "running" not in name:
                value.zero_()

    rewrite(folder, dead)
    with pytest.raises(CheckpointError, match=r"gives no numbers any more: .*features of pretrain.* 0\.0"):
        evaluate.run(folder)


def test_processes_are_stood_for_by_their_shares(folder: Path) -> None:
    """Of two processes each had every other image; the same images in other batches round differently at most."""
    edit_json(folder / RECORD, lambda record: record["training"]["fit"].update(processes=2))
    record, _ = evaluate.run(folder)
    was = read_record(folder)
    for group in ("metrics", "metrics_groups"):
        assert record[group]["fit"]["spectrum"]["rir"] == pytest.approx(was[group]["fit"]["spectrum"]["rir"], rel=1e-3)
