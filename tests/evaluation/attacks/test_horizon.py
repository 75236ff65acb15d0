"""Numbers of a long fine-tuning: on curves whose area is known, and a share of the images."""

from __future__ import annotations

import numpy as np
import pytest

from immunize.evaluation.attacks import AttackData, Cost, Curve, Point, Rows, horizon_of
from immunize.evaluation.attacks.fine_tuning import with_share


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
    steps = np.linspace(0, 3, 300_001)
    retention = np.where(steps < 1, 0, np.where(steps < 2, 0.4, 0.8))
    assert found.area == pytest.approx(retention.mean(), abs=1e-4)


def test_where_theta_0_learns_nothing_there_is_no_number() -> None:
    assert horizon_of(THETA_0, curve((1, 0.1)), 0.1, 1000) is None
    assert horizon_of(curve(), THETA_0, 0.1, 1000) is None


def test_a_share_is_drawn_once_with_two_classes_and_the_same_for_everybody() -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    y = (np.arange(200) == 7).astype(np.int64)
    rows = Rows(x, y)
    data, other = (AttackData(Rows(factor * x, y), rows, rows, 2) for factor in (1, 2))
    some, same = with_share(data, 0.1, seed=3), with_share(other, 0.1, seed=3)
    assert len(some.train) in (20, 21)
    np.testing.assert_array_equal(2 * some.train.x, same.train.x)
    assert set(some.train.y) == {0, 1}
    assert len(with_share(data, 1e-6, seed=3).train) == 2
    assert with_share(data, 1.0, seed=3) is data
    assert not np.array_equal(with_share(data, 0.1, seed=4).train.x, some.train.x)
