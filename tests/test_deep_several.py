"""Whole runs against several harmful data sets: every set's numbers in the record, in the tables, and again."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from immunize import evaluate, train
from immunize.records import read_record
from immunize.report import show_record
from immunize.report.card import card_of, card_text
from immunize.report.html.run import run_page
from immunize.report.loading import load_records
from immunize.report.summary import summary_tables
from immunize.report.table import short
from tests.composing import FEW_DIGITS, OF_OTHER_IMAGES, Run, compose_config, run_tiny_deep
from tests.data.image_files import write_noisy_classes
from tests.report.pages import check

NUMBERS = ("metrics", "metrics_groups", "verdicts", "verdicts_groups", "pretrain_accuracy", "probe_accuracy", "curves")


def write_images(folder: Path) -> None:
    """Two classes of noise, light and dark, 40 + 20 images each."""
    levels = {"dark": (60, 140), "light": (160, 240)}
    write_noisy_classes(folder, {"train": 40, "test": 20}, levels, np.random.default_rng(0), 8)


def run_on(images: Path, folder: Path, *others: str) -> dict[str, Any]:
    """The record of a tiny run against both sets."""
    sets = ["harmful=multi", "harmful/sets=[digits,imagefolder]", f"harmful.sets.imagefolder.root={images}"]
    few = [line.replace("harmful.", "harmful.sets.digits.") for line in FEW_DIGITS]
    own = ["pretrain=digits", *few, "objective=resnet_small_digits", "objective.max_steps=4"]
    return train.run(compose_config(*OF_OTHER_IMAGES, *sets, *own, *others), folder, quiet=True)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_images(folder)
    return folder


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("several") / "run"
    return folder, run_on(images, folder)


def test_record_holds_each_set_and_the_weakest_in_front_and_evaluate_agrees(run: Run) -> None:
    folder, record = run
    again, differing = evaluate.run(folder)
    assert differing == []  # the sets' own numbers as well
    assert record["status"] == "finished"
    assert record["harmful"] == "digits+imagefolder"
    sets = record["harmful_sets"]
    assert sets.keys() == again["harmful_sets"].keys() == {"digits", "imagefolder"}
    rir = {name: of["metrics"]["held_out"]["spectrum"]["rir"] for name, of in sets.items()}
    assert record["weakest"] == min(rir, key=lambda name: rir[name])
    assert len(set(rir.values())) == 2
    for key in NUMBERS:
        assert record[key] == sets[record["weakest"]][key]
    for name, of in record["data"]["harmful"]["sets"].items():
        facts = sets[name]["metrics"]["held_out"]["spectrum"]["facts"]["kappa_harmful"]
        assert facts["n_samples"] == of["images"]["held_out"]
    for part in ("fit", "held_out"):  # D_P is the same for all
        assert len({of["metrics"][part]["spectrum"]["ratio_pretrain"] for of in sets.values()}) == 1


def test_the_numbers_of_a_set_are_those_of_a_run_against_it_alone(images: Path, tmp_path: Path) -> None:
    """Where nothing is learned from D_H, it plays no part in training: each set's numbers are what they are alone."""
    control = ("method=none", "objective.epochs_on=longest", "pairing=min_size", "objective.max_steps=2")
    both = run_on(images, tmp_path / "both", *control)
    alone = run_tiny_deep(tmp_path / "alone", *control)
    for key in NUMBERS:
        assert both["harmful_sets"]["digits"][key] == alone[key]


def test_tables_show_each_set(run: Run) -> None:
    records = load_records(run[0].parent)
    names = [f"{name} of digits+imagefolder" for name in ("digits", "imagefolder")]
    assert [record["harmful"] for record in records] == names
    assert len(summary_tables(records)) == 2
    console = Console(record=True, width=110)
    show_record(read_record(run[0]), console)
    shown = console.export_text()
    for record in records:
        assert f"against {record['harmful']}" in shown
        assert short(record["metrics"]["fit"]["spectrum"]["rir"]) in shown


def test_card_and_page_show_each_set_and_whose_numbers_the_others_are(run: Run) -> None:
    record = run[1]
    card = card_of(record, None)
    weakest = record["weakest"]
    assert card["ratios"] == {
        part: {e: {n: of[n] for n in ("ratio_harmful", "ratio_pretrain", "rir")} for e, of in estimators.items()}
        for part, estimators in record["harmful_sets"][weakest]["metrics"].items()
    }
    text = card_text(card, None)
    page = check(run_page(record, None, None))
    for shown in (text, page.text):
        assert "2 harmful data sets: numbers that name none of them are those of" in shown
    assert f"those of `{weakest}`" in text
    own = page.table("Each harmful data set, by spectrum")
    assert [row[0] for row in own.rows] == ["digits", "digits", "imagefolder", "imagefolder"]
    for row, (name, part) in zip(own.rows, itertools.product(record["harmful_sets"], ("fit", "held_out")), strict=True):
        of = record["harmful_sets"][name]
        assert row[5] == short(of["metrics"][part]["spectrum"]["rir"])
        assert row[8] == short(of["metrics_groups"][part]["spectrum"]["rir"])
        judged = of["verdicts"] if part == "fit" else of["verdicts"][part]
        assert row[9:] == ["yes" if judged[verdict] else "no" for verdict in "abc"]
        assert f"| `{name}` | {row[1]} | {row[2]} | " in text


@pytest.mark.parametrize("method", ["imma", "closed_form", "erase", "censor"])
def test_methods_take_several_sets(method: str, images: Path, tmp_path: Path) -> None:
    own = ["method.budget=10", "method.shrinkage=0.1"] if method == "closed_form" else []
    record = run_on(images, tmp_path, f"method={method}", "objective.max_steps=2", *own)
    assert record["status"] == "finished"
    assert len(record["harmful_sets"]) == 2
    assert record["training"]["fit"]["steps"] == (0 if method in ("closed_form", "erase") else 2)
    if method == "erase":  # 5 and 2 classes as one data set
        assert record["training"]["fit"]["closed_form"]["available"] == 6
