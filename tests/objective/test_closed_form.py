"""`method=closed_form` and `init=closed_form`, through the same run as every other method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from immunize.objective.closed_form import ClosedForm
from tests import reference as ref
from tests.composing import run_tiny

BEST = ["method=closed_form", "method.budget=1", "method.shrinkage=0"]


def test_solve_attains_the_bound_of_the_theory() -> None:
    pretrain, harmful = ref.gaussian(60, 8, seed=1), ref.gaussian(50, 8, seed=2) * torch.logspace(0, 1, 8)
    theta, facts = ClosedForm(budget=10.0, shrinkage=0.0).solve(pretrain, harmful)
    mu = torch.linalg.eigvals(torch.linalg.solve(pretrain.T @ pretrain, harmful.T @ harmful)).real
    kappa_gen = float(mu.max() / mu.min())
    assert ref.kappa_spectrum(ref.hessian(pretrain, theta), 60) == pytest.approx(10, rel=1e-8)
    assert ref.kappa_spectrum(ref.hessian(harmful, theta), 50) == pytest.approx(10 * kappa_gen, rel=1e-8)
    assert facts["kappa_gen"] == pytest.approx(kappa_gen, rel=1e-8)


def test_a_run_takes_no_step_and_has_every_number(tmp_path: Path) -> None:
    record = run_tiny(tmp_path, *BEST)
    assert record["status"] == "finished"
    assert record["training"]["fit"]["steps"] == 0
    assert record["metrics"]["fit"]["spectrum"]["kappa_pretrain"] == pytest.approx(1, rel=1e-9)
    forecast = record["training"]["fit"]["closed_form"]["forecast_rir"]
    assert record["metrics"]["fit"]["spectrum"]["rir"] == pytest.approx(forecast, rel=1e-6)


def test_ours_can_start_from_it(tmp_path: Path) -> None:
    ours = ["method=ours", "init=closed_form", "init.shrinkage=0", "objective.learning_rate=1e-12"]
    started = run_tiny(tmp_path / "started", *ours)
    best = run_tiny(tmp_path / "best", *BEST)
    rir = [record["metrics"]["fit"]["spectrum"]["rir"] for record in (started, best)]
    assert started["training"]["fit"]["steps"] == 30
    assert rir[0] == pytest.approx(rir[1], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"budget": 0.5}, "at least 1"),
        ({"budget": float("nan")}, "at least 1"),
        ({"budget": "most"}, "auto"),
        ({"shrinkage": -1e-3}, "negative"),
        ({"shrinkage": "some"}, "ledoit_wolf"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ClosedForm(**arguments)


def test_too_few_rows_without_shrinkage_are_refused_with_the_option_to_set() -> None:
    with pytest.raises(ValueError, match="shrinkage"):
        ClosedForm(shrinkage=0.0).solve(ref.gaussian(4, 6, seed=1), ref.gaussian(4, 6, seed=2))
