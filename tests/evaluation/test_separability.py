"""What a record says a ridge probe can learn: of which rows, by which halves, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from immunize.evaluation.separability import separability
from immunize.records import read_record
from immunize.report.card import card_of, card_text
from immunize.report.one_run import separability_lines
from immunize.spectrum.separability import folds_of
from tests import reference as ref


def test_every_row_is_judged_once_and_each_half_has_its_share_of_every_class() -> None:
    y = torch.tensor([0] * 30 + [1] * 9 + [2] * 2)
    x = ref.gaussian(41, 5, seed=1)
    x[:, 0] += y
    found = separability(x, y)
    assert found["in_sample"]["0.01"] == pytest.approx(ref.in_sample_share(x, ref.one_hot(y), 0.01), abs=1e-8)
    half = folds_of(y, 2) == 0
    assert torch.bincount(y[half]).tolist() in ([15, 5, 1], [15, 4, 1])
    wanted = [ref.cross_fitted_correlation(x, ref.one_hot(y), judged, 0.1) for judged in (half, ~half)]
    assert found["cross_fitted"]["0.1"] == pytest.approx(sum(wanted) / 2, abs=1e-8)


def test_a_target_is_split_by_its_values() -> None:
    y = ref.gaussian(101, seed=3)
    x = torch.stack([y, ref.gaussian(101, seed=4)], 1)
    assert separability(x, y)["cross_fitted"]["0.001"] > 0.999


def test_the_card_says_what_a_probe_learns_and_of_a_record_of_before_nothing(finished_run: Path) -> None:
    record = read_record(finished_run)
    of = record["separability"]["fit"]["harmful"]
    before, after = (max(of[which]["cross_fitted"].values()) for which in ("identity", "immunized"))
    assert f"harmful {before:.3f} → {after:.3f}" in card_text(card_of(record, None), None)
    del record["separability"]
    assert "ridge probe" not in card_text(card_of(record, None), None)


def test_a_task_with_nothing_to_tell_apart_has_no_line() -> None:
    nothing, something = {"before": 0.0, "after": 0.0}, {"before": 0.5, "after": -0.25}
    assert separability_lines({"fit": {"pretrain": nothing, "harmful": nothing}}) == []
    *_, line = separability_lines({"held_out": {"pretrain": nothing, "harmful": something}})
    assert line == "held out: harmful 0.500 → -0.250"
