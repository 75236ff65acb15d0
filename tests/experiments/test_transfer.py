"""`experiments.transfer`: what predicts, what is measured, and what the report says of it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.alignment import correlating
from experiments.closed_form_mnist.pair import LIMIT
from experiments.deep_features import FeatureSet
from experiments.transfer import __main__ as transfer
from experiments.transfer import digits as transfer_digits
from experiments.transfer import images as transfer_images
from experiments.transfer import report as transfer_report
from experiments.transfer.digits import Digits, digit_cells, found_maps
from experiments.transfer.measures import RHO, Cell, Similarities, Similarity
from experiments.transfer.report import conclusions, correlations, effects_of, matrix_tables
from immunize.checkpoints import save_checkpoint
from immunize.errors import DataError, MissingDataError, UserError
from tests.data.test_mnist import write_mnist

D = 12


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlating, "RESAMPLES", 100)


def gram(seed: int, rank: int = D) -> Tensor:
    x = torch.randn(3 * D, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.pad(x.T @ x, (0, D - rank, 0, D - rank))


def similarity(pretrain: Tensor, proxy: Tensor, target: Tensor) -> Similarity:
    return Similarities({"P": pretrain, "proxy": proxy, "target": target}.__getitem__).of("P", "proxy", "target")


def cell(proxy: int | str, target: int | str, rir: float | None, **others: Any) -> Cell:
    facts: dict[str, Any] = {
        **{"family": "mnist", "method": "ours", "pretrain": "0", "seed": 0, "rir_spectrum": None},
        **{"ratio_harmful": 1.0, "ratio_pretrain": 1.0, "probe": 30.0, "probe_theta_0": 10.0},
        **{"probe_pretrain": 5.0, "probe_pretrain_theta_0": 10.0},
        **{"alignment": 1.0, "overlap": 0.5, "whitened": 0.5, "to_pretrain": 2.0},
    }
    return Cell(proxy=str(proxy), target=str(target), rir_ridge=rir, **(facts | others))


def matrix(value: Callable[[int, int], float], alike: Callable[[int, int], float]) -> list[Cell]:
    return [cell(p, t, value(p, t), alignment=alike(p, t)) for p in range(6) for t in range(6)]


def test_a_data_set_is_like_itself_and_unlike_one_beside_it() -> None:
    k = gram(0)
    same = similarity(gram(1), k, k)
    assert same.alignment == pytest.approx(10)
    assert same.overlap == pytest.approx(1)
    assert same.whitened == pytest.approx(1)
    beside = similarity(torch.eye(D, dtype=torch.float64), gram(0, rank=6), gram(0, rank=6).flip(0, 1))
    assert beside.whitened == pytest.approx(0)


def test_whitened_is_the_cosine_of_what_the_closed_form_acts_on() -> None:
    pretrain, a, b = gram(1), gram(2), gram(3)
    inverse = torch.linalg.inv(pretrain + RHO * pretrain.trace() / D * torch.eye(D, dtype=torch.float64))

    def inner(one: Tensor, other: Tensor) -> float:
        return float((inverse @ one @ inverse @ other).trace())

    wanted = inner(a, b) / math.sqrt(inner(a, a) * inner(b, b))
    assert similarity(pretrain, a, b).whitened == pytest.approx(wanted, rel=1e-9)


def test_effect_is_the_geometric_mean_over_seeds_of_what_is_finite() -> None:
    cells = [cell(1, 2, 2.0), cell(1, 2, 8.0, seed=1), cell(1, 3, None)]
    assert effects_of(cells, "rir_ridge") == pytest.approx({("1", "2"): 4.0})
    assert effects_of(cells, "rir_spectrum") == {}


def test_correlation_is_over_the_cells_off_the_diagonal() -> None:
    ordered = matrix(lambda p, t: 1.0 if p == t else 1.0 + p * t + t, lambda p, t: 99.0 if p == t else p * t + t)
    of = {one.predictor: one for one in correlations(ordered)}
    assert of.keys() == {"alignment"}  # the others do not vary, nor does the diagonal
    assert (of["alignment"].points, of["alignment"].verdict) == (30, "for")
    assert of["alignment"].rho == pytest.approx(1)
    falling = [replace(one, alignment=-one.alignment) for one in ordered]
    assert correlations(falling)[0].verdict == "against"
    assert correlations([one for one in ordered if int(one.proxy) < transfer_report.FEWEST - 1]) == []


def test_conclusions_count_what_carries() -> None:
    cells = matrix(lambda p, t: 50.0 if p == t else 4.0 if t < 2 else 1.0, lambda p, t: 1.0)
    sentence, ratios = conclusions(cells, correlations(cells))
    assert "by `ridge` the medians are (i) = 1 and (ii) = 1" in ratios
    assert "RIR by `ridge` is 50 where the attacker brings the proxy itself, 1 where not (medians)" in sentence
    assert "2 or more in 10 of 30 cells off the diagonal" in sentence
    assert "is ordered" not in sentence
    images = [cell(p, t, 7.0, family="images", probe=0.1, probe_theta_0=0.4) for p in "ab" for t in "ab"]
    assert effects_of(images, "accuracy") == pytest.approx({(p, t): 4.0 for p in "ab" for t in "ab"})


def test_matrices_hold_every_cell() -> None:
    cells = [cell(1, 1, 50.0), cell(1, 2, 3.0), cell(2, 1, None, probe=None), cell(2, 2, 9.0)]
    first, _, second = matrix_tables(cells)
    assert [list(row) for row in first.rows] == [["`1`", "**50**", "3"], ["`2`", "–", "**9**"]]
    bound = f"> {LIMIT / 10:,.0f} ×"
    assert [list(row) for row in second.rows] == [
        ["`1`", "0.5 ×", "**3 ×**", "3 ×"],
        ["`2`", "0.5 ×", bound, "**3 ×**"],
    ]
    images = [cell("a", t, 2.0, family="images", probe=0.25, probe_theta_0=0.5) for t in ("a", "b")]
    scores = matrix_tables(images)[0]
    assert [list(row) for row in scores.rows] == [["θ_0", "0.500", "0.500"], ["`a`", "**0.250**", "0.250"]]


# --- the digits ---------------------------------------------------------------------------------------------------


@pytest.fixture
def few_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_mnist(tmp_path)  # digits 0 to 2
    monkeypatch.setattr(transfer_digits, "DIGITS", range(3))
    monkeypatch.setattr(transfer_digits, "MOST", 0)
    monkeypatch.setattr(transfer_digits, "SECOND", 2)
    return tmp_path


def a_run(runs: Path, name: str, theta: Tensor, **changes: Any) -> None:
    folder = runs / name
    folder.mkdir(parents=True)
    save_checkpoint(folder / "checkpoint.safetensors", {"fit": theta}, {}, config_hash=name)
    record = {"status": "finished", "harmful": "mnist", "method": "ours", "seed": 0, "data_hash": "0"}
    record |= {"config": {"harmful": {"pair": [0, 1]}}} | changes
    (folder / "record.json").write_text(json.dumps(record))


def test_a_map_that_changes_nothing_transfers_nothing(few_digits: Path) -> None:
    q, _ = torch.linalg.qr(torch.randn(784, 784, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    runs = few_digits / "runs"
    a_run(runs, "turned", 3.0 * q)
    a_run(runs, "other", q, method="imma")
    a_run(runs, "unfinished", q, seed=1, status="interrupted")
    assert list(found_maps(runs, [0], [0, 1])) == [("ours", 0, 1, 0)]
    cells = digit_cells(runs, [0], [0], few_digits, few_digits / "cache")
    assert [(one.proxy, one.target) for one in cells] == [("1", "1"), ("1", "2")]
    for one in cells:
        assert one.rir_ridge == pytest.approx(1, rel=1e-6)
        assert one.rir_spectrum == pytest.approx(1, rel=1e-6)
        assert one.probe == one.probe_theta_0
    assert cells[0].alignment == pytest.approx(10)
    again = digit_cells(runs, [0], [0], few_digits, few_digits / "cache")
    assert again == cells
    with pytest.raises(UserError, match="make table2 first"):
        digit_cells(runs, [2], [0], few_digits, few_digits / "cache")


def test_no_image_of_a_digit_is_dropped(few_digits: Path) -> None:
    digits = Digits(few_digits)
    assert digits.held_out(1).spectrum.n_samples == 4  # its 5 images, and 4 of the digit beside it
    assert digits.held_out(2).spectrum.n_samples == 3


# --- the images ---------------------------------------------------------------------------------------------------


def features(classes: int, seed: int, each: int = 6) -> FeatureSet:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(classes).repeat(each)
    centres = 3 * torch.randn(classes, D, generator=generator)
    x, held = (centres[y] + torch.randn(len(y), D, generator=generator) for _ in range(2))
    return FeatureSet(x, y, held, y)


NAMES = sorted([*transfer_images.VEHICLES, "ant", "bonsai"])


def test_the_halves_of_cars_share_no_class_and_labels_start_at_zero() -> None:
    cars, caltech = features(8, 0), features(len(NAMES), 1)
    parts = transfer_images.parts_of(cars, caltech, NAMES)
    a, b = parts["cars_a"], parts["cars_b"]
    assert len(a.x) + len(b.x) == len(cars.x)
    assert not {tuple(row.tolist()) for row in a.x} & {tuple(row.tolist()) for row in b.x}
    for part, classes in ((a, 4), (b, 4), (parts["vehicles"], 7), (parts["caltech_others"], 2)):
        assert part.y_held_out is not None
        assert sorted(set(part.y.tolist())) == sorted(set(part.y_held_out.tolist())) == list(range(classes))
    with pytest.raises(DataError, match="no class schooner"):
        transfer_images.parts_of(cars, caltech, [name if name != "schooner" else "sofa" for name in NAMES])


def test_images_are_measured_kept_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NAMES:
        (tmp_path / "caltech101" / "train" / name).mkdir(parents=True)
    sets = {"tiny_imagenet": features(5, 2, 20), "stanford_cars": features(8, 0, 12)}
    sets |= {
        "caltech101": features(len(NAMES), 1, 12),
        "imagenet_1_per_class": replace(features(9, 3, 4), x_held_out=None, y_held_out=None),
    }
    monkeypatch.setattr(transfer_images, "load_sets", lambda root, cache: sets)
    monkeypatch.setattr(transfer_images, "STEPS", 20)
    arguments = ["families=images", f"out={tmp_path / 'out'}", f"cache={tmp_path / 'cache'}", f"data_root={tmp_path}"]
    transfer.run(arguments)
    assert capsys.readouterr().err.count("computing") == 5 + 2 * 5
    again = transfer_images.image_cells(tmp_path, tmp_path, tmp_path / "cache")
    assert "computing" not in capsys.readouterr().err
    assert len(again) == 50
    names = {"README.md", "results.csv", "correlations.csv", "table.md", "transfer.png", "transfer.pdf"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    with (tmp_path / "out" / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 50
    from immunize.evaluation.alignment import measure
    from immunize.spectrum import closed_form

    pretrain, cars = sets["tiny_imagenet"], sets["stanford_cars"]
    theta = closed_form(pretrain.x.double(), cars.x.double(), budget=100.0, shrinkage=1e-2).theta
    assert pretrain.x_held_out is not None
    assert cars.x_held_out is not None
    wanted = measure(theta, (pretrain.x_held_out.double(), cars.x_held_out.double()))["ridge"].rir
    direct, spared = (line for line in lines if (line["proxy"], line["target"]) == ("cars", "cars"))
    assert (direct["method"], spared["method"]) == ("closed_form", "sparing")
    assert float(direct["rir_ridge"]) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    ("argument", "words"),
    [("families=cars", "there are mnist, images"), ("pretrain=x", "whole numbers"), ("pretrain=10", "0 to 9")],
)
def test_bad_arguments_are_refused(argument: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        transfer.run([argument])


def test_missing_images_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="data_root"):
        transfer.run(["families=images", f"data_root={tmp_path}", f"cache={tmp_path}", f"features={tmp_path}"])
