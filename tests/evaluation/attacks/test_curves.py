"""Best so far is what an attacker that tunes on validation rows has in its hands; numbers of a long fine-tuning."""

from __future__ import annotations

import itertools

import pytest

from immunize.evaluation.attacks import RESOURCES, Cost, Curve, Point, Trace, best_so_far, horizon_of
from immunize.evaluation.attacks.curves import look_steps


def point(steps: int, validation: float, test: float, flops: float = 1.0) -> Point:
    return Point(Cost(steps, 0.5 * steps, 10 * steps, flops * steps), validation, test)


def test_choice_is_by_validation_and_value_is_test() -> None:
    slow = [point(1, 0.2, 0.9), point(4, 0.8, 0.7), point(9, 0.7, 1.0)]
    fast = [point(1, 0.5, 0.4), point(2, 0.6, 0.5)]
    curve = best_so_far([("slow", slow), ("fast", fast)])
    assert [(p.cost.steps, p.test) for p in curve.points] == [(1, 0.4), (2, 0.5), (4, 0.7)]
    assert curve.labels == ("fast", "fast", "slow")
    assert curve.best == slow[1]  # not its last point, whose test score nobody would have known


def test_of_equal_validation_scores_the_cheaper_counts() -> None:
    curve = best_so_far([("dear", [point(3, 0.5, 0.1, flops=9)]), ("cheap", [point(3, 0.5, 0.2), point(7, 0.5, 0.9)])])
    assert curve.labels == ("cheap",)
    assert curve.points[0].cost.flops == 3


def test_cost_of_a_score_and_nothing_at_all() -> None:
    curve = best_so_far([("a", [point(1, 0.1, 0.1), point(5, 0.6, 0.55), point(8, 0.9, 0.95)])])
    assert curve.cost_of(0.55) == 5
    assert curve.cost_of(0.96) is None
    assert best_so_far([]).best is None


def test_every_resource_has_its_own_cheapest_way() -> None:
    factored = [point(1, 0.9, 0.9, flops=1000.0)]  # one step with a dear factorization
    plain = [point(1, 0.3, 0.3), point(20, 0.9, 0.91)]
    curves = {by: best_so_far([("factored", factored), ("plain", plain)], by) for by in RESOURCES}
    assert {by: curve.cost_of(0.8) for by, curve in curves.items()} == {
        "steps": 1,
        "seconds": 0.5,
        "samples": 10,
        "flops": 20.0,
    }
    assert curves["flops"].labels == ("plain", "plain")


@pytest.mark.parametrize("by", RESOURCES)
def test_curve_survives_the_record(by: str) -> None:
    curve = best_so_far([("a", [point(1, 0.1, 0.2), point(5, 0.6, 0.55)])], by)
    assert Curve.of_plain(curve.plain(), by) == curve


def test_setup_is_paid_before_the_first_step() -> None:
    trace = Trace("inner", (point(2, 0.5, 0.5),), "finished", Cost(3, 1.5, 30, 3.0)).after(
        Cost(1, 2.0, 7, 100.0), "outer "
    )
    assert trace.points[0].cost == Cost(3, 3.0, 27, 102.0)
    assert trace.spent == Cost(4, 3.5, 37, 103.0)
    assert trace.label == "outer inner"


@pytest.mark.parametrize("last", [1, 2, 9, 10, 37, 3000, 10_000])
def test_looks_are_dense_enough_for_a_factor_of_two(last: int) -> None:
    looks = look_steps(last)
    assert looks[0] == 1
    assert looks[-1] == last
    assert looks == sorted(set(looks))
    assert all(b <= max(a + 1, 1.34 * a) for a, b in itertools.pairwise(looks))
    assert len(looks) < 60


def curve(*points: tuple[int, float]) -> Curve:
    return Curve(tuple(Point(Cost(steps), score, score) for steps, score in points), ("",) * len(points))


THETA_0 = curve((1, 0.3), (10, 0.6))


def test_theta_0_at_once_has_area_one_and_nothing_learned_none() -> None:
    at_once = horizon_of(curve((1, 0.6)), THETA_0, 0.1, 1000)
    assert at_once is not None
    assert (at_once.area, at_once.end, at_once.deviation) == pytest.approx((1, 1, 0))
    assert at_once.steps == (1, 1)
    never = horizon_of(curve((1, 0.1)), THETA_0, 0.1, 1000)
    assert never is not None
    assert (never.area, never.end, never.steps) == (0, 0, (None, None))
    assert never.deviation == pytest.approx(5 / 6)


def test_area_is_the_mean_of_retention_over_the_logarithm_of_steps() -> None:
    """Nothing until 10, .4 of θ_0's end until 100, .8 until 1,000."""
    found = horizon_of(curve((10, 0.3), (100, 0.5)), THETA_0, 0.1, 1000)
    assert found is not None
    assert found.area == pytest.approx((0 + 0.4 + 0.8) / 3)
    assert found.steps == (100, None)
    assert found.curve == ((10, 0.3), (100, 0.5))


def test_where_theta_0_learns_nothing_there_is_no_number() -> None:
    assert horizon_of(THETA_0, curve((1, 0.1)), 0.1, 1000) is None
    assert horizon_of(curve(), THETA_0, 0.1, 1000) is None
