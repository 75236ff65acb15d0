"""What a probe costs: descent and Adam against torch's, steps to a threshold, rows set aside."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from immunize.objective.attacker_cost import (
    ADAM_RATES,
    Cost,
    Course,
    ProbeTask,
    _looks,
    adam,
    baseline,
    cost,
    descent,
    set_aside,
)
from tests import reference as ref
from tests.objective.making import D, classification, regression
from tests.reference import rows


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


def test_descent_is_full_batch_gradient_descent_with_step_one_over_l() -> None:
    """Against autograd and torch.optim.SGD."""
    one = classification(1)
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
    one = classification(3)
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
    noise = ProbeTask(rows(1), ref.gaussian(60, seed=7), rows(2) * 0, ref.gaussian(60, seed=8))
    with pytest.raises(ValueError, match="no probe"):
        baseline(noise, 20, 10)


def test_a_course_reaches_what_it_equals_and_knows_when_it_saw_nothing() -> None:
    course = Course((2, 3), (0.25, 0.5))
    assert (course.steps_to(0.25), course.steps_to(0.5), course.last) == (2, 3, 0.5)
    assert Course((1,), (math.nan,)).best == -math.inf
    assert Cost(4, 9, True, True, 0.0).times(Cost(1, 1, True, True, 0.0)) == 6
    assert Cost(4, 9, True, True, 0.0).times(Cost(2, 2, True, True, 0.0)) == 3


def test_scores_are_looked_at_after_each_early_step_and_rarely_later() -> None:
    assert _looks(1) == {1}
    assert _looks(40) == {*range(1, 38), 38, 39, 40}
    late = sorted(_looks(1000))
    assert late[-1] == 1000
    gaps = [after / before for before, after in pairwise(late) if before >= 100]
    assert max(gaps) < 1.04
    assert min(gaps[:-1]) > 1.02


def test_classes_are_counted_in_both_parts() -> None:
    x = rows(1, 2)
    assert ProbeTask(x, torch.tensor([0, 1]), x, torch.tensor([3, 0])).classes == 4
    assert ProbeTask(x, torch.tensor([0.0, 1.0]), x, torch.tensor([3.0, 0.0])).classes == 0


def test_descent_of_a_regression_is_gradient_descent_with_step_one_over_l() -> None:
    one = regression()
    scale = one.x.square().mean().sqrt()
    x, test = one.x / scale, one.x_test / scale
    rate = 1 / torch.linalg.eigvalsh(x.T @ x / len(x))[-1]
    w, expected = torch.zeros(D, dtype=torch.float64), []
    for _ in range(12):
        w = w - rate * x.T @ (x @ w - one.y) / len(x)
        errors = (test @ w - one.y_test).square().mean()
        expected.append(float(1 - errors / one.y_test.var(unbiased=False)))
    assert descent(one, None, 12).scores == pytest.approx(expected, rel=1e-10)
    assert descent(one, torch.eye(D, dtype=torch.float64), 12).scores == pytest.approx(expected, rel=1e-10)


def test_training_stops_at_the_score_but_not_before_so_many_steps() -> None:
    one = regression()
    whole = descent(one, None, 60)
    goal = whole.scores[9]
    assert descent(one, None, 60, until=goal).steps == whole.steps[:10]
    assert descent(one, None, 60, until=goal, at_least=20).steps == whole.steps[:20]
    assert descent(one, None, 60, until=goal, at_least=20).scores == whole.scores[:20]
    fast = adam(one, None, 60)
    assert adam(one, None, 60, until=fast.scores[4]).steps == fast.steps[:5]


@pytest.mark.parametrize("train", [descent, adam])
def test_single_precision_trains_in_single_precision_to_the_same_scores(train: Any) -> None:
    single, double = (classification(dtype=dtype) for dtype in (torch.float32, torch.float64))
    for theta in (None, ref.extractor(D, seed=3)):
        assert train(single, theta, 20).scores == pytest.approx(train(double, theta, 20).scores, abs=0.04)


def test_adam_of_classes_is_torchs() -> None:
    one = classification()
    scale = one.x.square().mean().sqrt()
    x, test, best = one.x / scale, one.x_test / scale, []
    for rate in ADAM_RATES:
        weight, scores = torch.zeros(D, 3, dtype=torch.float64, requires_grad=True), []
        optimizer = torch.optim.Adam([weight], lr=rate)
        for _ in range(15):
            optimizer.zero_grad()
            nn.functional.cross_entropy(x @ weight, one.y).backward()
            optimizer.step()
            scores.append(float(((test @ weight).argmax(1) == one.y_test).double().mean()))
        best.append(scores)
    assert adam(one, None, 15).scores == pytest.approx([max(of) for of in zip(*best, strict=True)])


def test_the_threshold_is_nine_tenths_of_the_best_and_costs_are_steps_to_it() -> None:
    one, theta = regression(), torch.diag(torch.logspace(0, -1, D, dtype=torch.float64))
    slow, fast = descent(one, None, 300), adam(one, None, 300)
    base = baseline(one, 300, 10)
    assert base.threshold == pytest.approx(0.9 * max(slow.best, fast.best))
    assert base.cost.descent == slow.steps_to(base.threshold)
    assert base.cost.adam == (fast.steps_to(base.threshold) or 300)
    assert base.cost.adam_reached == (fast.steps_to(base.threshold) is not None)
    assert base.cost.score == slow.scores[9]
    dear = cost(one, theta, 0.4, 300, 20)
    slow, fast = descent(one, theta, 300), adam(one, theta, 300)
    assert (dear.descent, dear.adam) == (slow.steps_to(0.4) or 300, fast.steps_to(0.4) or 300)
    assert dear.score == slow.scores[19]
    never = cost(one, theta, 2.0, 30, 40)  # no share of the variance is above 1
    assert (never.descent, never.adam, never.descent_reached, never.adam_reached) == (30, 30, False, False)
    assert never.score == descent(one, theta, 30).last


def test_half_of_a_class_of_one_stays_and_a_share_is_exclusive() -> None:
    y = torch.tensor([0, 0, 1, 1, 1, 1])
    for share, counts in ((0.25, [0, 1]), (0.26, [1, 1]), (0.5, [1, 2]), (0.9, [2, 4])):
        rest, aside = set_aside(y, share, np.random.default_rng(0))
        assert torch.bincount(y[aside], minlength=2).tolist() == counts
        assert len(rest) == 6 - sum(counts)
