"""T2 against scikit-learn and the normal equations."""

from __future__ import annotations

import pytest
from sklearn.linear_model import LogisticRegression

from immunize.evaluation.attacks import Budget, ConjugateGradient, Lbfgs, Ridge
from immunize.evaluation.attacks.logistic import feature_scale
from tests.evaluation.attacks.making import classes, ill_conditioned, regression

SMALL = (80, 60, 2000)


@pytest.mark.parametrize("solver", ["L-BFGS-B", "Newton-CG"])
@pytest.mark.parametrize("strength", [0.1, 10.0])
def test_logistic_regression_is_scikit_learns(solver: str, strength: float) -> None:
    data = classes(ill_conditioned(10), sizes=SMALL)
    (trace,) = Lbfgs(tier="T2", strengths=(strength,), solver=solver).run(data, Budget(2000), 0).traces
    scale = feature_scale(data)
    model = LogisticRegression(C=strength, tol=1e-10, max_iter=5000).fit(data.train.x / scale, data.train.y)
    assert trace.points[-1].test == pytest.approx(model.score(data.test.x / scale, data.test.y), abs=1.5 / 2000)


def test_passes_are_counted_and_limited() -> None:
    data = classes(ill_conditioned(1e3), sizes=SMALL)
    for solver in ("L-BFGS-B", "Newton-CG"):
        outcome = Lbfgs(tier="T2", strengths=(1e3, 1e5), solver=solver).run(data, Budget(25), 0)
        assert [trace.spent.steps for trace in outcome.traces] == [25, 25]
        flops = 4 * 80 * 9 * 4  # one pass over 80 rows of 8 features and the constant one
        assert outcome.traces[0].spent.flops == 25 * flops
        shared = Lbfgs(tier="T2", strengths=(1e3, 1e5), solver=solver).run(data, Budget(10_000, 40 * flops), 0)
        assert [trace.spent.steps for trace in shared.traces] == [20, 20]


def test_conjugate_gradients_solve_in_as_many_steps_as_there_are_features() -> None:
    data = regression(ill_conditioned(10), sizes=SMALL)
    (trace,) = ConjugateGradient(tier="T2").run(data, Budget(500), 0).traces
    least_squares = Ridge(tier="T2", penalties=(1e-15,)).run(data, Budget(1), 0).traces[0]
    assert trace.points[-1].test == pytest.approx(least_squares.points[0].test, abs=1e-6)
    assert trace.spent.steps <= 12  # 8 in exact arithmetic
    (short,) = ConjugateGradient(tier="T2").run(data, Budget(3), 0).traces
    assert short.spent.steps == 3
