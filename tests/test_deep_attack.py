"""`immunize.attack` on networks: features once, the network for T4, benign tasks, the card, and what it refuses."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console
from safetensors.torch import load_file

from immunize import attack
from immunize.attack import FEATURES, assemble
from immunize.attack_grid.run import RESULTS
from immunize.errors import CheckpointError, UserError
from immunize.evaluation.attacks import Attack, AttackData, Budget, ImagesAlone, Ridge, StageProbes
from immunize.features.append import MAP_OFF
from immunize.features.weights import load_weights, save_weights
from immunize.records import ATTACK_CELLS, ATTACK_RECORD, CHECKPOINT, RECORD, read_record, whole_config
from immunize.report.attacks.one_run import not_tried
from immunize.report.card import card_of, card_text
from immunize.report.one_run import show_record
from tests.attacking import TINY_GRID, TINY_NETWORK_GRID, TINY_T4, compose_attack, target_of, timeless
from tests.composing import FEW_DIGITS, run_tiny_deep
from tests.data.image_files import write_noisy_classes
from tests.tampering import edit_json

D = 12
NETWORK = ("model=resnet_small", f"model.kwargs.channels=[4,8,8,{D}]", "harmful=digits", *FEW_DIGITS)


def attack_network(folder: Path, *overrides: str) -> dict[str, Any]:
    return attack.run(compose_attack(f"run={folder}", *TINY_NETWORK_GRID, *overrides))


@pytest.fixture(scope="module")
def original(finished_network: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(finished_network, tmp_path_factory.mktemp("attack") / "run"))
    attack_network(folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def test_record_has_both_data_sets_and_says_what_was_attacked(original: Path) -> None:
    record = json.loads((original / ATTACK_RECORD).read_text())
    assert record["tasks"].keys() == {"harmful", "pretrain"}
    assert record["tasks"]["harmful"] == {
        "kind": "harmful", "about": "digits, 5 classes", "task": "classification", "n_classes": 5,
        "rows": {"train": 160, "validation": 54, "test": 95},
    }  # fmt: skip
    subject, run = record["subject"], read_record(original)
    assert (subject["run_config_hash"], subject["data_hash"]) == (run["config_hash"], run["data_hash"])
    assert subject["pretrain_accuracy"] == run["pretrain_accuracy"]
    assert (subject["n_features"], subject["appended_map"]) == (D, False)
    assert subject["flops_per_image"] > 0


def check_shown(data: AttackData) -> None:
    """T4's copies give the features of a row for its image: the whole network, and the tail behind the trunk."""
    network = data.network
    for rows, numbers in ((data.validation, network.validation[:5]), (data.test, network.test[:5])):
        for module, inputs in ((network.whole(), network.images), (network.tail(), network.trunk_outputs)):
            with torch.no_grad():
                features = module.eval()(inputs.at(numbers)).double().numpy()
            assert np.allclose(features, rows.x[:5], rtol=1e-3, atol=1e-4 * np.abs(rows.x).max())


def test_features_are_those_that_the_run_itself_was_measured_on(folder: Path) -> None:
    """The network's own head on them gives the accuracies of the record."""
    found = target_of(f"run={folder}")
    weights, record = load_file(folder / CHECKPOINT), read_record(folder)
    held = found.image_tasks["pretrain"].features["immunized"][1]
    logits = held.x @ weights["fc.weight"].T + weights["fc.bias"]
    accuracy, rounded_over = 100 * float((logits.argmax(1) == held.y).double().mean()), 101 / len(held.y)  # a row
    assert accuracy == pytest.approx(record["pretrain_accuracy"]["after"], abs=rounded_over)
    views = found.tasks(0)["harmful"]
    theta_0, immunized, control = (views.seen_by(name) for name in ("theta_0", "immunized", "random_orthogonal"))
    for data in (theta_0, immunized, control):
        check_shown(data)
    assert not np.allclose(theta_0.train.x, immunized.train.x)
    assert np.allclose(theta_0.train.x @ theta_0.train.x.T, control.train.x @ control.train.x.T)
    assert np.array_equal(immunized.reference.test.x, theta_0.test.x)


def test_a_run_that_was_judged_by_images_set_aside_is_attacked_with_those(folder: Path, tmp_path: Path) -> None:
    """No held-out image is looked at, and the attacker has none of those that the run was judged by."""
    selecting = ("selection=validation", "objective.validation_fraction=0.3", "objective.max_steps=1")
    write_images(tmp_path / "caltech101")
    judged = run_tiny_deep(tmp_path / "run", *selecting)
    console = Console(record=True, width=100)
    show_record(judged, console)
    assert "D_P accuracy on validation images: " in console.export_text()
    third = ("benign=[caltech101]", f"data_root={tmp_path}")
    target, every = (target_of(f"run={run}", *third) for run in (tmp_path / "run", folder))
    assert target.facts["selection"] == "validation"
    assert list(target.image_tasks) == ["harmful", "pretrain", "benign_caltech101"]
    for name, task in target.image_tasks.items():
        sets = (task.fit, task.held_out, every.image_tasks[name].fit)
        has, aside, fit = ([images[i][0].numpy().tobytes() for i in range(len(images))] for images in sets)
        assert sorted([*has, *aside]) == sorted(fit)
        assert len(aside) == round(0.3 * len(fit))


def test_an_attacker_with_images_of_its_own_has_none_that_the_immunization_saw(folder: Path) -> None:
    own = target_of(f"run={folder}", "own_rows=true", "test_fraction=0.5")
    task, network = own.image_tasks["harmful"], own.tasks(0)["harmful"].seen_by("immunized").network
    numbers = np.sort(np.concatenate([network.train, network.validation, network.test]))
    assert np.array_equal(numbers, len(task.fit) + np.arange(len(task.held_out)))
    assert len(network.test) == round(0.5 * len(task.held_out))
    drawn, whole = network.test - len(task.fit), task.features["theta_0"][1].y.numpy()
    assert np.abs(np.bincount(whole[drawn]) - 0.5 * np.bincount(whole)).max() <= 2


def test_features_are_extracted_once_and_found_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list((folder / FEATURES).iterdir())) == 8  # two networks, two data sets, two parts
    before = json.loads((folder / ATTACK_RECORD).read_text())
    monkeypatch.setattr(sys.modules["immunize.features.extract"], "_compute", lambda *_: pytest.fail("was known"))
    again = attack_network(folder)
    for key in ("subject", "tasks", "results", "verdicts"):
        assert timeless(again[key]) == timeless(before[key])


def test_features_and_cells_of_another_model_are_not_taken(original: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    run_tiny_deep(other, "objective.max_steps=5", "seed=1")
    shutil.copytree(original / FEATURES, other / FEATURES)
    shutil.copytree(original / ATTACK_CELLS, other / ATTACK_CELLS)
    lines: list[str] = []
    attack.run(compose_attack(f"run={other}", *TINY_NETWORK_GRID), lines.append)
    assert not any(line.endswith(", known") for line in lines)  # random weights of another seed: another θ_0 as well
    assert len(list((other / FEATURES).iterdir())) == 16


def test_only_wanted_tasks_are_computed_and_they_are_the_same(folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    grid = (*TINY_NETWORK_GRID, "tasks=[harmful]", f"out={tmp_path / 'alone'}")
    alone = attack.run(compose_attack(f"run={folder}", *grid), lines.append)
    assert [line for line in lines if "features of" in line] == ["harmful: features of 214 + 95 images"]
    together = json.loads((folder / ATTACK_RECORD).read_text())
    assert timeless(alone["results"]["harmful"]) == timeless(together["results"]["harmful"])


@pytest.mark.usefixtures("forked_pool")
def test_t4_moves_weights_of_all_three_and_resumes(folder: Path, tmp_path: Path) -> None:
    grid = (*TINY_T4, f"out={tmp_path / 't4'}", f"features={folder / FEATURES}")
    record = attack.run(compose_attack(f"run={folder}", *grid))
    assert record["results"].keys() == {"harmful"}
    for of in record["results"]["harmful"].values():
        assert of.keys() == {"T4"}
        assert of["T4"]["score"]["mean"] > 0
    for extractor, of in record["attacks"]["harmful"].items():
        assert of.keys() == {"last_block", "lora", "full_finetune"}
        for found in of.values():
            (numbers,) = found["horizon"]
            assert numbers["curve"][-1][0] <= numbers["last"]
            if extractor == "theta_0":
                assert (numbers["end"], numbers["deviation"]) == (1, 0)
    lines: list[str] = []
    attack.run(compose_attack(f"run={folder}", *grid), lines.append)
    assert sum(line.endswith(", known") for line in lines) == 9
    side_by_side = (*grid, "jobs=2", f"out={tmp_path / 'processes'}")
    apart = attack.run(compose_attack(f"run={folder}", *side_by_side))
    assert apart["config_hash"] == record["config_hash"]
    assert apart["cells"] == {"computed": 9, "known": {}}
    assert [timeless(apart[key]) for key in RESULTS] == [timeless(record[key]) for key in RESULTS]
    cells = [sorted(path.name for path in (tmp_path / name / ATTACK_CELLS).iterdir()) for name in ("t4", "processes")]
    assert cells[0] == cells[1]


def test_checkpoint_is_attacked_like_the_run_it_is_of(folder: Path, tmp_path: Path) -> None:
    target_of_run = target_of(f"run={folder}")
    save_weights(tmp_path / "theta_0.safetensors", target_of_run.networks["theta_0"].net.full_state_dict())
    file = Path(shutil.copy(folder / CHECKPOINT, tmp_path / "weights.safetensors"))
    given = (f"checkpoint={file}", *NETWORK, f"reference={tmp_path / 'theta_0.safetensors'}", *TINY_NETWORK_GRID)
    record = attack.run(compose_attack(*given, f"features={folder / FEATURES}"))
    of_run = json.loads((folder / ATTACK_RECORD).read_text())
    assert timeless(record["results"]) == timeless(of_run["results"])
    assert (tmp_path / ATTACK_RECORD).is_file()
    assert record["subject"]["method"] == "weights"
    with pytest.raises(UserError, match="reference=<file>"):
        attack.run(compose_attack(f"checkpoint={file}", *NETWORK, *TINY_NETWORK_GRID, f"out={tmp_path / 'x'}"))


def test_appended_map_is_part_of_what_is_attacked(tmp_path: Path) -> None:
    run_tiny_deep(tmp_path, "method=closed_form", "method.shrinkage=0.1")
    found = target_of(f"run={tmp_path}")
    assert found.facts["appended_map"] is True
    theta = load_weights(tmp_path / CHECKPOINT)["fc.map.weight"].T
    before, after = (found.image_tasks["harmful"].features[name][0].x for name in ("theta_0", "immunized"))
    torch.testing.assert_close(after, before @ theta, rtol=1e-4, atol=1e-4)
    check_shown(found.tasks(0)["harmful"].seen_by("immunized"))
    weights, other = found.networks["theta_0"].net.full_state_dict(), tmp_path / "other.safetensors"
    could_move = read_record(tmp_path)["network"]["trained"][0]  # by a method that trains
    save_weights(other, weights | {could_move: weights[could_move] + 1})
    with pytest.raises(CheckpointError, match=f"not the one that the run started from: {could_move} differs"):
        target_of(f"run={tmp_path}", f"reference={other}")


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The harmful task of a network with an appended map that erases it."""
    folder = tmp_path_factory.mktemp("erased")
    run_tiny_deep(folder, "method=erase", "method.rank=4")
    return target_of(f"run={folder}").tasks(0)["harmful"]


def test_an_appended_map_is_taken_off_and_every_stage_read(erased: Any) -> None:
    data = erased.seen_by("immunized")
    network, theta_0 = data.network, data.reference
    for stage in ("layer4", MAP_OFF):
        shown = network.stage_outputs.at(network.test)[:, network.stages.columns[stage]].double().numpy()
        assert np.allclose(shown, theta_0.test.x, rtol=1e-3, atol=1e-4 * np.abs(theta_0.test.x).max())
    ridge = Ridge(tier="T3", penalties=(1e-2, 1e-4))

    def reached(attack: Attack, data: AttackData) -> float:
        points = [point for trace in attack.run(data, Budget(1), 0).traces for point in trace.points]
        return max(points, key=lambda point: point.validation).test

    assert reached(ridge, data) < reached(ridge, theta_0) - 0.05
    probes = StageProbes(tier="T3", inner={"ridge": ridge})
    assert reached(probes, data) >= reached(ridge, theta_0) - 0.05
    (trace, *_) = probes.run(data, Budget(1), 0).traces
    assert trace.label.startswith("stage act1, ridge: ")
    assert trace.spent.flops > len(data.train) * network.stages.columns["act1"].stop


def test_images_alone_give_everyone_the_same_and_need_no_feature(erased: Any) -> None:
    """Digits have 8 × 8 pixels: no network can hide them from an attacker who has the images."""
    alone = ImagesAlone(tier="T5", inner={"ridge": Ridge(tier="T5", penalties=(1e-2, 1e-4))})
    of_erased, of_theta_0 = (alone.run(erased.seen_by(which), Budget(1), 0) for which in ("immunized", "theta_0"))
    points = [[point.test for trace in of.traces for point in trace.points] for of in (of_erased, of_theta_0)]
    assert points[0] == points[1]
    assert max(points[0]) > 0.8
    assert of_erased.traces[0].label.startswith("images, ridge: ")


# Benign third tasks.


def write_images(root: Path) -> None:
    levels = {f"class{label}": (50 * label, 50 * label + 100) for label in range(3)}
    write_noisy_classes(root, {"train": 12, "test": 6}, levels, np.random.default_rng(0), 32)


def test_benign_data_set_goes_through_the_same_grid(folder: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "caltech101")
    (folder / ATTACK_RECORD).unlink()
    record = attack_network(folder, "benign=[caltech101]", f"data_root={tmp_path}", "tiers=[T2]")
    assert list(record["tasks"]) == ["harmful", "pretrain", "benign_caltech101"]
    assert record["tasks"]["benign_caltech101"]["rows"] == {"train": 27, "validation": 9, "test": 18}
    assert record["results"]["benign_caltech101"]["theta_0"]["T2"]["score"]["mean"] > 0.5
    assert record["subject"]["benign"] == ["benign_caltech101"]
    assert not any("benign" in line for line in not_tried(record))
    (tmp_path / "moved").mkdir()
    shutil.move(tmp_path / "caltech101", tmp_path / "moved")
    elsewhere = OmegaConf.merge(whole_config(record), {"data_root": str(tmp_path / "moved")})  # as immunize.verify does
    assert timeless(attack.measure(assemble(elsewhere))["results"]) == timeless(record["results"])


def test_large_data_sets_are_drawn_from_once(folder: Path) -> None:
    some = target_of(f"run={folder}", "images=50")
    data = some.tasks(0)["harmful"].data
    assert [len(rows) for rows in data.parts.values()] == [38, 12, 50]
    other = some.tasks(1)["harmful"].data
    assert np.array_equal(data.test.x, other.test.x)
    assert not np.array_equal(data.train.x, other.train.x)


# Card.


def test_card_has_the_numbers_of_a_network(original: Path) -> None:
    record, found = read_record(original), json.loads((original / ATTACK_RECORD).read_text())
    card = card_of(record, found)
    assert card["data"]["harmful"]["rows"] == 214
    assert card["pretrain_accuracy"] == record["pretrain_accuracy"]
    for part in ("fit", "held_out"):
        for estimator, of in card["ratios_groups"][part].items():
            assert of["rir"] == record["metrics_groups"][part][estimator]["rir"]
    text = card_text(card, found)
    assert "No benign third task: none was named" in text
    assert "2 groups of 8" in text


# Mistakes.


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("reference=nowhere", "θ_0's weights are not at nowhere: name their file with reference="),
        ("benign=[cifar10] data_root=nowhere", "benign=cifar10: cifar10 was not found"),
        ("+benign.few={_target_:tests.composing.FewDigits,role:harmful,pair:[0,1]}", "is the harmful data set itself"),
    ],
)
def test_what_cannot_be_attacked_is_refused(overrides: str, words: str, folder: Path) -> None:
    with pytest.raises(UserError, match=words):
        target_of(f"run={folder}", *overrides.split())


def test_weights_of_another_run_are_refused(folder: Path) -> None:
    weights, other = load_weights(folder / CHECKPOINT), folder / "other.safetensors"
    save_weights(other, weights | {"conv1.weight": weights["conv1.weight"] + 1})
    with pytest.raises(CheckpointError, match=r"not the one that the run started from: conv1\.weight differs"):
        target_of(f"run={folder}", f"reference={other}")
    edit_json(folder / RECORD, lambda record: record.update(config_hash="0"))
    with pytest.raises(CheckpointError, match="belongs to another run"):
        target_of(f"run={folder}")


@pytest.mark.data
def test_resnet18_of_the_data_packs_on_cars(data_root: Path, tmp_path: Path) -> None:
    weights = data_root / "weights" / "resnet18_tiny_imagenet_64px.safetensors"
    given = ("model=resnet18_64px", "harmful=cars", "pretrain=tiny_imagenet", f"data_root={data_root}", "images=100")
    grid = (*TINY_GRID, "tasks=[harmful]", "tiers=[T2]", "seeds=[0]")
    record = attack.run(compose_attack(f"checkpoint={weights}", f"out={tmp_path}", *given, *grid))
    assert record["tasks"]["harmful"]["n_classes"] == 196
    for of in record["results"].values():  # the checkpoint is θ_0 itself
        assert of["immunized"]["T2"]["score"]["values"] == of["theta_0"]["T2"]["score"]["values"]
    assert record["verdicts"]["harmful"]["immunized"]["highest_tier"] is None
