"""`method=closed_form` and `init=closed_form`, through the same run as every other method."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from immunize.objective.closed_form import ClosedForm
from immunize.spectrum import closed_form
from tests.composing import run_tiny
from tests.reference import rows


def of(*rows: torch.Tensor) -> list[Any]:
    """Data sets of which only the rows matter."""
    return [SimpleNamespace(x=x) for x in rows]


BEST = ["method=closed_form", "method.budget=1", "method.shrinkage=0"]


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
        *(({"budget": bad}, "method.budget has to be at least 1") for bad in (0.5, 1 - 1e-9, math.nan, math.inf)),
        ({"budget": "most"}, "auto"),
        ({"shrinkage": -1e-3}, "negative"),
        ({"shrinkage": math.inf}, "negative"),
        ({"shrinkage": "ledoit wolf"}, "method.shrinkage is a number"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ClosedForm(**arguments)


def test_closed_form_leaves_the_facts_of_its_map() -> None:
    x_p, x_h = rows(1), rows(2)
    options: dict[str, Any] = {"budget": "auto", "shrinkage": "auto", "seed": 3}
    theta, facts = ClosedForm(**options).solve(*of(x_p, x_h))
    best = closed_form(x_p, x_h, **options)
    assert torch.equal(theta, best.theta)
    choice = best.budget_choice
    assert choice is not None
    assert facts == {
        "budget": best.budget,
        "shrinkage": list(best.shrinkage),
        "shrinkage_chosen_by": "auto",
        "budget_feasible": choice.feasible,
        "budget_reason": choice.reason,
        "forecast_rir": best.rir,
        "forecast_kappa_pretrain": best.kappa_pretrain,
        "kappa_gen": best.harmful.kappa_gen,
        "notes": list(best.notes),
    }


def test_closed_forms_defaults_and_the_edges_of_its_options() -> None:
    method = ClosedForm()
    assert (method.budget, method.shrinkage, method.seed) == (1.0, 1e-3, 0)
    _, facts = method.solve(*of(rows(1), rows(2)))
    assert (facts["shrinkage_chosen_by"], facts["budget_feasible"], facts["budget_reason"]) == ("given", None, None)
    assert ClosedForm(budget=1, shrinkage=0).shrinkage == 0
    assert ClosedForm(shrinkage="ledoit_wolf").solve(*of(rows(1), rows(2)))[1]["shrinkage_chosen_by"] == "ledoit_wolf"
