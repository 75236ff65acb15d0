"""T0 in the eigenbasis against gradient descent step by step; the logistic descent against its own gradient."""

from __future__ import annotations

import numpy as np
import pytest

from immunize.errors import UserError
from immunize.evaluation.attacks import AttackData, Budget, GradientDescent, LogisticDescent
from immunize.evaluation.attacks.logistic import Logistic
from immunize.evaluation.attacks.scoring import score, target_matrix
from tests.evaluation.attacks.making import classes, ill_conditioned, regression

SMALL = (60, 40, 50)


def naive(data: AttackData, step: str, multiplier: float, steps: int) -> list[float]:
    """Test scores after each step."""
    x, y = data.train.x, target_matrix(data, data.train)
    w, scores = np.zeros((x.shape[1], y.shape[1])), []
    largest = np.linalg.eigvalsh(x.T @ x)[-1]
    for _ in range(steps):
        gradient = x.T @ (x @ w - y)
        line = (gradient**2).sum() / ((x @ gradient) ** 2).sum()
        w = w - (multiplier / largest if step == "fixed" else line) * gradient
        scores.append(score(data, data.test, data.test.x @ w))
    return scores


@pytest.mark.parametrize(
    "data", [classes(ill_conditioned(30), sizes=SMALL), regression(ill_conditioned(30), sizes=SMALL)]
)
@pytest.mark.parametrize("step", ["fixed", "line_search"])
def test_scores_are_those_of_the_naive_iteration(data: AttackData, step: str) -> None:
    attack = GradientDescent(tier="T0", step=step, multipliers=(1.3,))
    (trace,) = attack.run(data, Budget(200), 0).traces
    expected = naive(data, step, 1.3, 200)
    assert len(trace.points) > 20
    for point in trace.points:
        assert point.test == pytest.approx(expected[point.cost.steps - 1], abs=1e-9)


def test_cost_is_that_of_real_passes() -> None:
    data = classes(sizes=SMALL)
    (trace,) = GradientDescent(tier="T0", step="line_search").run(data, Budget(7), 0).traces
    last = trace.points[-1].cost
    assert last.samples == 7 * 60
    assert last.flops == 7 * 4 * 60 * 8 * 4
    assert last.seconds > 0


def test_step_that_is_too_long_is_reported_as_diverged() -> None:
    outcome = GradientDescent(tier="T0", step="fixed", multipliers=(2.5,)).run(classes(sizes=SMALL), Budget(1000), 0)
    assert outcome.status == "diverged"
    assert outcome.traces[0].spent.steps < 1000
    both = GradientDescent(tier="T0", step="fixed", multipliers=(1.0, 2.5)).run(classes(sizes=SMALL), Budget(1000), 0)
    assert both.status == "finished"
    assert [trace.status for trace in both.traces] == ["finished", "diverged"]


def test_logistic_gradient_and_curvature_are_right() -> None:
    data = classes(ill_conditioned(5), sizes=SMALL)
    loss = Logistic(data, penalty=0.01)
    rng = np.random.default_rng(0)
    w, direction = rng.standard_normal((2, loss.shape[0] * loss.shape[1]))
    eps = 1e-6
    plus, minus = loss.loss_and_gradient(w + eps * direction), loss.loss_and_gradient(w - eps * direction)
    assert loss.loss_and_gradient(w)[1] @ direction == pytest.approx((plus[0] - minus[0]) / (2 * eps), rel=1e-7)
    assert loss.curvature(w, direction) == pytest.approx((plus[1] - minus[1]) / (2 * eps), rel=1e-6, abs=1e-9)


def test_logistic_descent_lets_the_best_multiplier_run_to_the_end() -> None:
    outcome = LogisticDescent(tier="T0", multipliers=(0.01, 4.0)).run(classes(ill_conditioned(30)), Budget(300), 0)
    slow, fast = outcome.traces
    assert (slow.spent.steps, fast.spent.steps) == (25, 300)  # the last look of the first lap, and all
    assert fast.points[-1].validation > slow.points[-1].validation


@pytest.mark.parametrize("settings", [{"step": "newton"}, {"step": "fixed", "multipliers": ()}])
def test_bad_settings_are_refused(settings: dict) -> None:
    with pytest.raises(UserError):
        GradientDescent(tier="T0", **settings)
