"""`experiments.signal` and `experiments.appended_layer`: what is chosen, the fronts, the reports, and missing data."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import deep_features
from experiments.appended_layer import __main__ as appended_layer
from experiments.appended_layer import maps as appended_layer_maps
from experiments.appended_layer import report as appended_layer_report
from experiments.appended_layer.maps import BENIGN, HARMFUL, PRETRAIN, SPARED, TASKS
from experiments.reporting import key_values, write_csv
from experiments.signal import __main__ as signal
from experiments.signal import measures as signal_measures
from experiments.signal import report as signal_report
from immunize.errors import MissingDataError, UserError
from immunize.objective.attacker_cost import descent
from tests import reference as ref

ROOT = Path(__file__).parents[2]


def line(family: str, times: float, feasible: bool = True, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"data": "digits", "family": family, "variant": "q=1", "budget": 1.0, "gamma": 0.0}
    found |= {"ratio_pretrain": 0.5, "ratio_harmful": 2.0, "harmful_times": times, "benign_times": 1.0}
    for role in signal_measures.ROLES:
        found |= {f"{role}_score_raw": 0.9, f"{role}_score_change": 0.0}
        for optimizer in signal_measures.OPTIMIZERS:
            key = f"{role}_{optimizer}"
            found |= {key: int(8 * times), f"{key}_reached": True, f"{key}_raw": 8, f"{key}_raw_reached": True}
    return found | {"feasible": feasible} | changes


# --- experiments.signal -------------------------------------------------------------------------------------------


def test_front_keeps_what_nothing_beats() -> None:
    points = [(1.0, 2.0), (1.0, 3.0), (2.0, 2.5), (2.0, 5.0), (0.5, 1.0), (3.0, 5.0)]
    assert signal_report.front(points) == [(0.5, 1.0), (1.0, 3.0), (2.0, 5.0)]
    assert signal_report.front([]) == []


def test_each_family_is_chosen_among_what_spares_the_others() -> None:
    lines = [line("labels", 2.0), line("labels", 9.0, feasible=False), line("labels", 5.0, gamma=0.25)]
    lines += [line("sharp", 3.0, feasible=False, benign_score_change=change) for change in (-0.5, -0.04)]
    best = signal.chosen(lines)
    assert best["labels"]["harmful_times"] == 5.0
    assert best["sharp"]["benign_score_change"] == -0.04  # the nearest, marked as not feasible
    assert not best["sharp"]["feasible"]
    assert "combined" not in best


def test_fronts_leave_out_maps_that_harm_the_pretraining_task() -> None:
    lines = [
        line("labels", 2.0),
        line("labels", 4.0, ratio_pretrain=3.0),
        line("labels", 5.0, pretrain_score_change=-0.1),
    ]
    assert signal_report.points_of(lines, "labels", "adam") == [(2.0, 2.0)]


def test_report_says_plainly_when_labels_are_not_better() -> None:
    held = [line("closed_form", 4.0), line("sharp", 1.0), line("labels", 2.0), line("combined", 8.0)]
    said = " ".join(signal_report.sentences(held))
    assert "`labels` makes D_H 0.5 times as dear as `closed_form`: it is not better." in said
    assert "`combined` makes D_H 2 times as dear as `closed_form`." in said
    assert "none of these costs" in said
    said = " ".join(
        signal_report.sentences([line("labels", 2.0, benign_score_change=-0.3), line("sharp", 1.0, feasible=False)])
    )
    assert "No map of `closed_form`, `sharp`, `combined` kept the constraints" in said
    assert "`labels` cost D_P or the benign task more than two points" in said


def test_steps_beyond_the_limit_are_marked() -> None:
    one = line("labels", 2.0, harmful_adam_reached=False)
    assert signal_report._count(one, "harmful", "adam") == "> 16 (8)"
    assert signal_report._count(one, "harmful", "descent") == "16 (8)"


def small(role: int) -> signal_measures.Rows:
    x, test = (ref.gaussian(80, 5, seed=seed + role) * torch.logspace(0, -1, 5) for seed in (1, 11))
    w = ref.gaussian(5, 3, seed=20 + role)
    return signal_measures.Rows(x, (x @ w).argmax(1), test, (test @ w).argmax(1))


def test_whole_report_from_small_data_and_again_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spared = ref.gaussian(60, 5, seed=3)
    study = signal_measures.Study(
        "small",
        {role: small(index) for index, role in enumerate(signal_measures.ROLES)},
        gammas=(0.0, 0.25),
        budgets=(1.0, 10.0),
        variants=("q=1", "s=1 q=4"),
        limit=40,
        spared=spared,
    )
    for module in (signal_measures, signal_report):
        monkeypatch.setattr(module, "SCORE_STEPS", 20)
    monkeypatch.setattr(signal, "STUDIES", {"digits": lambda root: study})
    arguments = [f"out={tmp_path / 'out'}", f"cache={tmp_path / 'cache'}"]
    signal.run(arguments)
    with (tmp_path / "out" / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["family"], row["variant"]) for row in rows] == [
        *(("closed_form", "q=1"), ("labels", "q=1"), ("closed_form", "q=1"), ("combined", "q=1")),
        *(("sharp", "s=1 q=4"), ("combined", "s=1 q=4")),
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("README.md", "results.csv", "chosen.csv", "pareto.png", "pareto.pdf")
    }
    first = (tmp_path / "out" / "results.csv").read_bytes()
    monkeypatch.setattr(signal, "line_of", None)  # nothing is measured twice
    signal.run(arguments)
    assert (tmp_path / "out" / "results.csv").read_bytes() == first
    assert "## small" in capsys.readouterr().out


def test_studies_without_data_are_named_and_none_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="digits needs none"):
        signal.run([f"out={tmp_path / 'out'}", "data=cars", f"data_root={tmp_path}"])
    assert "cars is left out" in capsys.readouterr().err
    with pytest.raises(UserError, match="there are digits, cars"):
        signal.run(["data=trucks"])


# --- experiments.appended_layer -----------------------------------------------------------------------------------


def trial(harmful: float, **changes: Any) -> dict[str, Any]:
    scores = {PRETRAIN: 0.2, HARMFUL: harmful, BENIGN: 0.3}
    found = {"weight": 1.0, "budget": 100.0, "gamma": 0.0, "ratio_harmful": 15.0, "rir": 150.0}
    return found | {"scores": scores | changes.pop("scores", {})} | changes


def test_choice_takes_the_hardest_for_the_attacker_that_keeps_every_constraint() -> None:
    raw = trial(0.06)
    spoils = {"scores": {BENIGN: 0.285}}
    rest = [trial(0.02), trial(0.015, budget=150.0), trial(0.001, rir=109.0), trial(0.001, ratio_harmful=10.9)]
    best = appended_layer_maps.chosen([raw, *rest, trial(0.001, **spoils)])
    assert (best["budget"], best["feasible"]) == (150.0, True)
    missed = appended_layer_maps.chosen([raw, trial(0.021), trial(0.0, rir=60.0) | {"scores": {}}])
    assert (missed["rir"], missed["feasible"]) == (150.0, False)  # more than a third, but measured to the end
    none = appended_layer_maps.chosen([raw, trial(0.0, rir=60.0) | {"scores": {}}])
    assert (none["rir"], none["feasible"]) == (60.0, False)


def measured(name: str, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"map": name, "budget": 100.0, "weight": None, "gamma": None, "pretrain_top1": 0.25}
    for part in ("fit", "held_out"):
        for estimator in ("spectrum", "ridge"):
            for key in ("ratio_harmful", "ratio_pretrain", "rir"):
                row[f"{key}_{part}_{estimator}"] = 200.0
    for task in TASKS:
        row |= {f"{task}_gd300": 0.3, f"{task}_least_squares": 0.1}
    row |= {f"{HARMFUL}_adam300": 0.2, "logits_change_float32": 1e-6, "logits_change_float64": 1e-14}
    row["curves"] = {task: [[1, 10, 300], [0.1, 0.2, 0.3]] for task in TASKS}
    return row | changes


def test_verdicts_are_read_off_the_last_map() -> None:
    key = HARMFUL + "_gd300"
    fine = appended_layer_report.verdicts([measured("identity"), measured("sparing", **{key: 0.09})])
    assert [holds for *_, holds in fine] == [True] * 6
    poor = {
        key: 0.2,
        PRETRAIN + "_gd300": 0.25,
        "rir_held_out_spectrum": 90.0,
        "logits_change_float32": 1.0,
    }
    bad = appended_layer_report.verdicts([measured("identity"), measured("sparing", **poor)])
    assert [holds for *_, holds in bad] == [False, True, False, False, True, False]


def test_report_of_the_layer_marks_what_is_missed(tmp_path: Path) -> None:
    rows = [measured(name) for name in appended_layer.MAPS]
    best = {"weight": 1.0, "budget": 100.0, "gamma": 0.0, "feasible": False}
    appended_layer_report.report(rows, [trial(0.04), trial(0.02) | {"scores": {}}], best, tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| 1.000 | **missed** |" in text
    assert "this one is the nearest" in text
    assert {path.name for path in tmp_path.iterdir()} == {
        *("README.md", "results.csv", "choice.csv", "probes.png", "probes.pdf")
    }


def features(count: int, seed: int) -> deep_features.FeatureSet:
    x, test = (ref.gaussian(count, 8, seed=s).abs().float() for s in (seed, seed + 1))
    w = ref.gaussian(8, 4, seed=seed + 2).float()
    return deep_features.FeatureSet(x, (x @ w).argmax(1), test, (test @ w).argmax(1))


def test_maps_are_chosen_on_images_that_the_network_was_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = {name: features(80, seed) for seed, name in enumerate([*TASKS, SPARED], 40)}
    unseen = features(30, 90)
    sets[PRETRAIN] = replace(sets[PRETRAIN], x_validation=unseen.x, y_validation=unseen.y)
    seen = []
    monkeypatch.setattr(
        appended_layer_maps, "trial", lambda setting, sets, rest, tasks, raw: seen.append(tasks) or {"scores": {}}
    )
    appended_layer_maps.choose(sets, tmp_path)
    tasks = seen[0]
    cars = tasks[HARMFUL]
    assert torch.equal(tasks[PRETRAIN].x_test, unseen.x)
    assert len(tasks[PRETRAIN].x) == 60
    assert len(cars.x_test) == 20  # of the training images
    assert not (cars.x_test[:, None] == cars.x).all(-1).any()


def test_maps_and_choice_from_small_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = {name: features(80, seed) for seed, name in enumerate([*TASKS, SPARED], 40)}
    monkeypatch.setattr(appended_layer_maps, "STEPS", 15)
    monkeypatch.setattr(appended_layer_maps, "BUDGETS", (10.0, 1e4))
    monkeypatch.setattr(appended_layer_maps, "GAMMAS", (0.0,))
    monkeypatch.setattr(appended_layer_maps, "LEAST_RIR", 0.0)
    monkeypatch.setattr(appended_layer_maps, "LEAST_HARMFUL", 50.0)
    order = [BENIGN, HARMFUL, PRETRAIN]

    def part(one: dict[str, Any]) -> dict[str, float]:
        return {name: one["scores"][name] for name in order[:2] if name in one["scores"]}

    trials = appended_layer_maps.choose(sets, tmp_path)
    assert [(one["weight"], one["budget"]) for one in trials] == [
        (None, None),
        (0.5, 10),
        (0.5, 1e4),
        (1, 10),
        (1, 1e4),
    ]
    assert trials[0]["rir"] == 1.0
    too_easy = [one["ratio_harmful"] < 50 * appended_layer_maps.MARGIN for one in trials[1:]]
    assert {*too_easy} == {True, False}
    for one, easy in zip(trials[1:], too_easy, strict=True):  # in order of cost, until something is missed
        assert list(one["scores"]) == order[: len(one["scores"])]
        assert (len(one["scores"]) == 0) == easy
        assert (len(one["scores"]) == 3) == appended_layer_maps.holds(one | {"scores": part(one)}, trials[0]["scores"])
    monkeypatch.setattr(appended_layer_maps, "trial", lambda *_: pytest.fail("measured twice"))
    assert appended_layer_maps.choose(sets, tmp_path) == trials  # from the cache
    maps = appended_layer_maps.maps_of(sets, {"weight": 1.0, "budget": 10.0, "gamma": 0.0})
    k = sets[PRETRAIN].x.double().T @ sets[PRETRAIN].x.double()
    k = k + appended_layer_maps.RHO * k.trace() / 8 * torch.eye(8, dtype=torch.float64)
    for name, budget in (("closed_form", appended_layer_maps.PLAIN_BUDGET), ("sparing", 10.0)):
        one = maps[name]
        assert torch.allclose(one.theta @ one.inverse, torch.eye(8, dtype=torch.float64), atol=1e-8)
        values = torch.linalg.eigvalsh(one.theta.T @ k @ one.theta)
        assert float(values[-1] / values[0]) == pytest.approx(budget, rel=1e-6)


def test_whitening_gives_every_map_the_same_closed_form_probe() -> None:
    of = features(60, 7)
    assert of.x_held_out is not None
    assert of.y_held_out is not None
    probe = signal_measures.task_of(signal_measures.Rows(of.x.double(), of.y, of.x_held_out.double(), of.y_held_out), 1)
    theta = torch.diag(torch.logspace(0, -3, 8, dtype=torch.float64))
    eye = torch.eye(8, dtype=torch.float64)
    assert appended_layer.least_squares(probe, theta) == appended_layer.least_squares(probe, eye)
    assert descent(probe, theta, 50).last != descent(probe, eye, 50).last


# --- features and arguments ---------------------------------------------------------------------------------------


def test_missing_images_and_weights_are_named_before_anything_is_computed(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="tiny_imagenet_32"):
        deep_features.load_sets(tmp_path, tmp_path / "cache")
    for of in deep_features.SETS.values():
        for take in of.parts.values():
            folder = tmp_path / of.folder / take.split / "class"
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(25):
                (folder / f"{number:02}.jpg").touch()
    with pytest.raises(MissingDataError, match="weights"):
        deep_features.load_sets(tmp_path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_images_to_choose_by_are_no_held_out_images(tmp_path: Path) -> None:
    folder = tmp_path / "tiny_imagenet_32" / "val" / "class"
    folder.mkdir(parents=True)
    for number in range(50):
        (folder / f"{number:02}.jpg").touch()
    parts = deep_features.SETS["tiny_imagenet"].parts
    found = [
        {path.name for path, _ in deep_features._files(tmp_path, "tiny_imagenet_32", parts[name])}
        for name in ("held_out", "validation")
    ]
    assert [len(names) for names in found] == [20, 30]
    assert not found[0] & found[1]


def test_stored_features_are_used_again_only_for_the_same_images(tmp_path: Path) -> None:
    values = torch.rand(3, 2), torch.tensor([0, 1, 1])
    path = tmp_path / "a" / "x.safetensors"
    deep_features._store(path, values, "3 images")
    found = deep_features._stored(path, "3 images")
    assert found is not None
    assert torch.equal(found[0], values[0])
    assert torch.equal(found[1], values[1])
    assert deep_features._stored(path, "4 images") is None


def test_arguments_are_keys_and_values() -> None:
    assert key_values(["out=a=b", "x="], {"out", "x"}) == {"out": "a=b", "x": ""}
    for wrong in ("out", "other=1"):
        with pytest.raises(UserError, match="there are out="):
            key_values([wrong], {"out"})


def test_csv_cells(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [{"a": 1 / 3, "b": None, "c": True, "d": "x"}])
    assert (tmp_path / "a.csv").read_text() == "a,b,c,d\n0.333333,,true,x\n"


def test_every_second_class_is_numbered_anew() -> None:
    x, y = torch.arange(6.0)[:, None], torch.tensor([0, 1, 2, 3, 4, 4])
    task = signal_measures.task_of(signal_measures.Rows(x, y, x[:3], y[:3]), 2)
    assert task.y.tolist() == [0, 1, 2, 2]
    assert task.x[:, 0].tolist() == [0, 2, 4, 5]
    assert task.y_test.tolist() == [0, 1]
