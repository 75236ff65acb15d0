"""`method=signal`: what a probe costs, how γ, B and q are chosen, and a run of the whole method."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from immunize import train
from immunize.errors import UserError
from immunize.objective.attacker_cost import (
    ADAM_RATES,
    Cost,
    Course,
    ProbeTask,
    adam,
    baseline,
    cost,
    descent,
    set_aside,
)
from immunize.objective.signal import Signal, directions_of, labels_of
from immunize.objective.signal_choice import SignalTrial, _chosen, choose
from tests import reference as ref
from tests.composing import compose_config, run_tiny

D = 6


def features(seed: int, count: int = 120) -> Tensor:
    return ref.gaussian(count, D, seed=seed) * torch.logspace(0, -1, D, dtype=torch.float64)


def classes(x: Tensor, seed: int) -> Tensor:
    return (x @ ref.gaussian(D, 3, seed=seed)).argmax(1)


def task(seed: int, labels: int = 9) -> ProbeTask:
    x, test = features(seed), features(seed + 100)
    return ProbeTask(x, classes(x, labels), test, classes(test, labels))


def regression() -> ProbeTask:
    """Every direction has an equal part in y, whatever its variance."""
    x, test = features(1), features(2)
    w = torch.logspace(0, 1, D, dtype=torch.float64)
    return ProbeTask(x, x @ w, test, test @ w)


def test_a_share_of_every_class_is_set_aside() -> None:
    y = torch.tensor([0] * 8 + [2] * 40 + [1] * 4 + [3])[torch.randperm(53, generator=torch.Generator().manual_seed(0))]
    rest, aside = set_aside(y, 0.25, np.random.default_rng(3))
    assert sorted([*rest.tolist(), *aside.tolist()]) == list(range(53))
    assert torch.bincount(y[aside], minlength=4).tolist() == [2, 1, 10, 0]
    assert not torch.equal(aside, set_aside(y, 0.25, np.random.default_rng(4))[1])


def test_of_a_regression_any_rows_are_set_aside() -> None:
    rest, aside = set_aside(torch.linspace(0, 1, 40), 0.25, np.random.default_rng(3))
    assert sorted([*rest.tolist(), *aside.tolist()]) == list(range(40))
    assert len(aside) == 10
    assert int(aside.max()) > 9  # not the first ones


# --- what a probe costs -------------------------------------------------------------------------------------------


def test_descent_is_full_batch_gradient_descent_with_step_one_over_l() -> None:
    """Against autograd and torch.optim.SGD."""
    one = task(1)
    scale = one.x.square().mean().sqrt()
    x, test = one.x / scale, one.x_test / scale
    weight = torch.zeros(D, 3, dtype=torch.float64, requires_grad=True)
    largest = torch.linalg.eigvalsh(x.T @ x / len(x))[-1]
    optimizer = torch.optim.SGD([weight], lr=float(2 / largest))
    expected = []
    for _ in range(25):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(x @ weight, one.y).backward()
        optimizer.step()
        expected.append(float(((test @ weight).argmax(1) == one.y_test).double().mean()))
    course = descent(one, None, 25)
    assert course.steps == tuple(range(1, 26))
    assert course.scores == pytest.approx(expected)


def test_adam_is_the_best_of_its_rates() -> None:
    one = regression()
    scale = one.x.square().mean().sqrt()
    x, test = one.x / scale, one.x_test / scale
    best = []
    for rate in ADAM_RATES:
        weight = torch.zeros(D, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=rate)
        scores = []
        for _ in range(20):
            optimizer.zero_grad()
            (0.5 * (x @ weight - one.y).square().mean()).backward()
            optimizer.step()
            errors = (test @ weight.detach() - one.y_test).square().mean()
            scores.append(float(1 - errors / one.y_test.var(unbiased=False)))
        best.append(scores)
    assert adam(one, None, 20).scores == pytest.approx([max(of) for of in zip(*best, strict=True)], rel=1e-9)


def test_a_map_counts_and_its_scale_does_not() -> None:
    one = task(3)
    theta = torch.diag(torch.logspace(0, -2, D, dtype=torch.float64))
    assert descent(one, 1e3 * theta, 40).scores == descent(one, theta, 40).scores
    assert descent(one, theta, 40).scores != descent(one, None, 40).scores
    assert adam(one, 1e3 * theta, 40).scores == pytest.approx(adam(one, theta, 40).scores)


def test_worse_conditioned_features_cost_more_steps() -> None:
    one = regression()
    base = baseline(one, 1000, 100)
    theta = torch.diag(torch.logspace(0, -1.5, D, dtype=torch.float64))
    dear = cost(one, theta, base.threshold, 1000, 100)
    assert dear.descent > base.cost.descent
    assert dear.score < base.cost.score
    assert dear.times(base.cost) > 1
    assert base.cost.times(base.cost) == 1


def test_a_cost_beyond_the_limit_is_marked() -> None:
    theta = torch.diag(torch.logspace(0, -6, D, dtype=torch.float64))
    dear = cost(regression(), theta, baseline(regression(), 200, 50).threshold, 200, 50)
    assert (dear.descent, dear.descent_reached) == (200, False)


def test_course_tells_its_steps_and_ignores_nan() -> None:
    course = Course((1, 2, 5), (0.1, math.nan, 0.4))
    assert course.best == 0.4
    assert course.last == 0.4
    assert course.steps_to(0.3) == 5
    assert course.steps_to(0.5) is None


def test_what_cannot_be_learned_has_no_cost() -> None:
    noise = ProbeTask(features(1), ref.gaussian(120, seed=7), features(2) * 0, ref.gaussian(120, seed=8))
    with pytest.raises(ValueError, match="no probe"):
        baseline(noise, 20, 10)


# --- the choice ---------------------------------------------------------------------------------------------------


def trial(times: float, feasible: bool = True, **changes: Any) -> SignalTrial:
    values: dict[str, Any] = {"gamma": 0.0, "budget": 1.0, "sharpness": 1.0, "ratio_pretrain": 0.5} | changes
    return SignalTrial(
        **values,
        ratio_harmful=1.0,
        harmful=Cost(1, 1, True, True, 1.0),
        times=times,
        spared={"D_P": -0.1},
        feasible=feasible,
    )


def reason(*trials: SignalTrial) -> tuple[float, float, bool, str]:
    found = _chosen(trials, baseline(regression(), 20, 10), 1.0)
    return found.gamma, found.budget, found.feasible, found.reason


def test_dearest_feasible_wins_and_says_what_labels_were_worth() -> None:
    gamma, _, feasible, words = reason(trial(2.0), trial(9.0, gamma=0.5), trial(50.0, gamma=1.0, feasible=False))
    assert (gamma, feasible) == (0.5, True)
    assert "9 times" in words
    assert "closed form within the same constraints 2 times" in words


def test_useless_labels_are_said_to_be_useless() -> None:
    gamma, budget, _, words = reason(trial(3.0, budget=10.0), trial(3.0, gamma=0.5), trial(3.0, budget=100.0))
    assert (gamma, budget) == (0.0, 10.0)  # what buys nothing is not spent
    assert "labels buy nothing" in words
    assert "this is the closed form" in words


def test_nothing_feasible_takes_the_one_that_keeps_the_condition_number() -> None:
    gamma, _, feasible, words = reason(
        trial(9.0, feasible=False, gamma=1.0, ratio_pretrain=50.0), trial(2.0, feasible=False, gamma=0.25)
    )
    assert (gamma, feasible) == (0.25, False)
    assert "raise method.slack" in words


def test_choice_measures_every_setting_and_keeps_the_constraints() -> None:
    pretrain, harmful = task(1, labels=11), task(3, labels=12)
    directions = directions_of((pretrain.x, pretrain.y), (harmful.x, harmful.y), (1e-2, 1e-2), 1e-2)
    found = choose(
        directions,
        harmful,
        {"D_P": pretrain},
        gammas=(0.0, 0.5),
        budgets=(1.0, 10.0),
        sharpnesses=(1.0, 4.0),
        limit=60,
        score_steps=20,
    )
    assert len(found.trials) == 6  # at B = 1 sharpness changes nothing
    raw = descent(pretrain, None, 20).last
    for one in found.trials:
        assert one.feasible == (one.ratio_pretrain <= 0.9 and one.spared["D_P"] >= -0.02)
        assert -1 <= one.spared["D_P"] <= 1 - raw
    best = next(
        t for t in found.trials if (t.gamma, t.budget, t.sharpness) == (found.gamma, found.budget, found.sharpness)
    )
    assert best.feasible == found.feasible
    assert not found.feasible or best.times == max(t.times for t in found.trials if t.feasible)


def test_choosing_from_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        choose(
            directions_of((task(1).x, task(1).y), (task(3).x, task(3).y), (1e-2, 1e-2), 1e-2), task(3), {}, gammas=()
        )


# --- the method ---------------------------------------------------------------------------------------------------


def part(seed: int, y: Tensor | None = None) -> Any:
    x = features(seed)
    return SimpleNamespace(x=x, y=x @ ref.gaussian(D, seed=seed + 50) if y is None else y)


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
    parts[side] = part(1 + side, torch.full((120,), float(side)))
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
    few = SimpleNamespace(x=features(1)[:5], y=torch.arange(5.0) * 0.3)
    with pytest.raises(ValueError, match="too few"):
        Signal(shrinkage=1e-2).solve_labelled(few, few)
