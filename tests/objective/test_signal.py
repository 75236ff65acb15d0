"""`method=signal`: what it solves, what it chooses on rows set aside, its defaults, and a run of the whole method."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from immunize import train
from immunize.errors import UserError
from immunize.objective.attacker_cost import (
    ProbeTask,
    set_aside,
)
from immunize.objective.signal import Signal, directions_of, labels_of
from immunize.objective.signal_choice import BUDGETS, GAMMAS, SHARPNESSES, choose
from immunize.spectrum import choose_shrinkage, ledoit_wolf, sharpen, signal_map
from tests import reference as ref
from tests.composing import compose_config, run_tiny
from tests.objective.making import D, part
from tests.reference import rows


def test_labels_of_zero_and_one_are_classes() -> None:
    assert labels_of(torch.tensor([0.0, 1.0])).dtype == torch.int64
    assert labels_of(torch.tensor([0.0, 1.5])).is_floating_point()
    assert labels_of(torch.tensor([4, 7])).tolist() == [4, 7]


def test_given_settings_need_no_choice() -> None:
    theta, facts = Signal(gamma=0.25, budget=10.0, sharpness=4.0, shrinkage=1e-2).solve_labelled(part(1), part(2))
    assert theta.shape == (D, D)
    assert (facts["gamma"], facts["budget"], facts["sharpness"]) == (0.25, 10.0, 4.0)
    assert "trials" not in facts
    assert Signal(shrinkage=1e-2).solve(part(1).x, part(2).x) is None  # rows alone do not do


@pytest.mark.parametrize("side", [0, 1])
def test_single_label_tasks_are_refused_with_the_method_to_use(side: int) -> None:
    """The paper's pairs of digits: every image of a side has the same label."""
    parts = [part(1), part(2)]
    parts[side] = part(1 + side, torch.full((60,), float(side)))
    with pytest.raises(ValueError, match=rf"D_{'PH'[side]} have the same one.*method=closed_form"):
        Signal(shrinkage=1e-2).solve_labelled(*parts)


def test_a_run_has_the_choice_in_its_record(tmp_path: Path) -> None:
    record = run_tiny(
        tmp_path,
        "method=signal",
        "method.gamma=auto",
        "method.budget=10",
        "method.sharpness=1",
        "method.shrinkage=0.01",
    )
    facts = record["training"]["fit"]["closed_form"]
    assert record["status"] == "finished"
    assert record["training"]["fit"]["steps"] == 0
    assert len(facts["trials"]) == 4
    assert facts["reason"].startswith(f"γ = {facts['gamma']:g}")
    assert {"threshold", "raw_cost", "feasible"} <= facts.keys()


def test_digit_pairs_are_refused_in_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="method=closed_form"):
        train.run(compose_config("harmful=digits", "method=signal", "logger=none"), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gamma": -0.1}, "gamma"),
        ({"gamma": "some"}, "auto"),
        ({"budget": 0.5}, "budget"),
        ({"sharpness": 0.0}, "sharpness"),
        ({"shrinkage": 0.0}, "positive"),
        ({"shrinkage": "some"}, "ledoit_wolf"),
        ({"floor": 0.0}, "floor"),
        ({"slack": math.nan}, "slack"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Signal(**arguments)


def test_too_few_rows_to_choose_on_are_refused() -> None:
    few = SimpleNamespace(x=rows(1)[:5], y=torch.arange(5.0) * 0.3)
    with pytest.raises(ValueError, match="too few"):
        Signal(shrinkage=1e-2).solve_labelled(few, few)


def test_signal_with_given_settings_is_the_map_of_its_directions() -> None:
    p, h = part(1), part(2, (rows(2)[:, 0] > 0).double())
    theta, facts = Signal(gamma=0.25, budget=8, sharpness=2, shrinkage=0.02, floor=0.1).solve_labelled(p, h)
    directions = directions_of((p.x, p.y), (h.x, labels_of(h.y)), (0.02, 0.02), 0.1)
    best = signal_map(sharpen(directions, 2.0), 8.0, 0.25)
    assert torch.equal(theta, best.theta)
    assert facts == {
        "shrinkage": [0.02, 0.02],
        "shrinkage_chosen_by": "given",
        "gamma": 0.25,
        "budget": 8.0,
        "sharpness": 2.0,
        "forecast_kappa_pretrain": best.kappa_pretrain,
        "forecast_rir": best.ratio_harmful / best.ratio_pretrain,
    }


def test_signal_chooses_on_rows_set_aside_and_refits_on_all() -> None:
    p, h = part(1), part(2, (rows(2) @ ref.gaussian(D, 3, seed=8)).argmax(1))
    method = Signal(gamma="auto", budget=8, sharpness=1, shrinkage=0.02, slack=0.5, validation_fraction=0.4, seed=5)
    theta, facts = method.solve_labelled(p, h)
    tasks, rest = [], []
    for stream, (x, y) in enumerate(((p.x, p.y), (h.x, h.y))):
        train, test = set_aside(y, 0.4, np.random.default_rng([5, stream]))
        tasks.append(ProbeTask(x[train], y[train], x[test], y[test]))
        rest.append((x[train], y[train]))
    found = choose(
        directions_of(rest[0], rest[1], (0.02, 0.02), method.floor),
        tasks[1],
        {"D_P": tasks[0]},
        gammas=GAMMAS,
        budgets=(8.0,),
        sharpnesses=(1.0,),
        slack=0.5,
    )
    assert [facts[name] for name in ("gamma", "budget", "sharpness", "feasible", "reason")] == [
        *(found.gamma, found.budget, found.sharpness, found.feasible, found.reason)
    ]
    assert facts["threshold"] == found.harmful.threshold
    assert facts["raw_cost"]["descent"] == found.harmful.cost.descent
    assert [trial["gamma"] for trial in facts["trials"]] == list(GAMMAS)
    directions = directions_of((p.x, p.y), (h.x, h.y), (0.02, 0.02), method.floor)
    assert torch.equal(theta, signal_map(sharpen(directions, 1.0), 8.0, found.gamma).theta)


def test_signals_defaults_and_the_edges_of_its_options() -> None:
    method = Signal()
    assert (method.gammas, method.budgets, method.sharpnesses) == (GAMMAS, BUDGETS, SHARPNESSES)
    assert (method.shrinkage, method.floor, method.slack) == ("auto", 0.01, 0.02)
    assert (method.validation_fraction, method.seed) == (0.25, 0)
    edge = Signal(0, 1, 1, shrinkage=1e-9, floor=1e-9, slack=0, validation_fraction=0.9)
    assert (edge.gammas, edge.budgets, edge.sharpnesses, edge.slack) == ((0.0,), (1.0,), (1.0,), 0)
    for name in ("gamma", "budget", "sharpness", "shrinkage", "floor", "slack"):
        with pytest.raises(ValueError, match=f"method.{name}"):
            Signal(**{name: math.inf})
    for bad in ({"validation_fraction": 0.0}, {"validation_fraction": 0.91}, {"budget": "1"}, {"sharpness": 0.99}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Signal(**bad)  # type: ignore[arg-type]


def test_signal_shrinks_as_the_closed_form_does() -> None:
    p, h = part(1), part(2)
    given: dict[str, Any] = {"gamma": 0, "budget": 1, "sharpness": 1, "seed": 4}
    chosen = choose_shrinkage(p.x, [h.x], seed=4)
    _, facts = Signal(**given).solve_labelled(p, h)
    assert (facts["shrinkage"], facts["shrinkage_chosen_by"]) == ([chosen.pretrain, chosen.harmful[0]], "auto")
    _, facts = Signal(**given, shrinkage="ledoit_wolf").solve_labelled(p, h)
    assert facts["shrinkage"] == [ledoit_wolf(p.x), ledoit_wolf(h.x)]
    assert facts["shrinkage_chosen_by"] == "ledoit_wolf"


def test_directions_have_the_shrinkage_of_their_side_in_any_precision() -> None:
    sides = [(rows(seed), rows(seed) @ ref.gaussian(D, seed=seed)) for seed in (1, 2)]
    of = directions_of(sides[0], sides[1], (0.1, 0.3), 1e-2)
    for (x, _), rho, value in zip(sides, (0.1, 0.3), (of.kappa_pretrain, of.kappa_harmful), strict=True):
        assert value == pytest.approx(ref.kappa(ref.shrunk(x.T @ x, rho)))
    single = directions_of(*((x.float(), y) for x, y in sides), (0.1, 0.3), 1e-2)  # type: ignore[misc]
    torch.testing.assert_close(single.ratios, of.ratios, rtol=1e-4, atol=0)
    assert labels_of(torch.tensor([1.0, 1.0])).dtype == torch.int64
    assert labels_of(torch.tensor([0.5, 1.0])).is_floating_point()
