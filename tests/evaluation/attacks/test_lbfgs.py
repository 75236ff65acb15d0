"""Logistic regression against scikit-learn; its solvers side by side are told what they ask, none is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from immunize.evaluation.attacks import Budget, Lbfgs
from immunize.evaluation.attacks.coordinates import feature_scale
from immunize.evaluation.attacks.lbfgs import together
from immunize.evaluation.attacks.logistic import Logistic, answers
from tests.evaluation.attacks.making import classes, ill_conditioned

Ask = Callable[[Any], Any]


def test_questions_of_all_that_wait_are_answered_at_once() -> None:
    rounds = []

    def counting(first: int, last: int) -> Callable[[Ask], list[int]]:
        return lambda ask: [ask(number) for number in range(first, last)]

    def squares(questions: list[int]) -> list[int]:
        rounds.append(questions)
        return [number**2 for number in questions]

    found = together([counting(0, 3), counting(5, 6), counting(7, 7), counting(10, 12)], squares)
    assert found == [[0, 1, 4], [25], [], [100, 121]]
    assert rounds == [[0, 5, 10], [1, 11], [2]]
    assert together([], squares) == []


def test_one_runs_at_a_time() -> None:
    running: list[int] = []

    def work(at: int) -> Callable[[Ask], None]:
        def run(ask: Ask) -> None:
            for _ in range(20):
                running.append(at)
                assert running == [at]
                running.remove(at)
                ask(at)

        return run

    together([work(at) for at in range(4)], list)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_failure_is_raised_and_ends_the_others(step: int) -> None:
    ended = []

    def patient(ask: Ask) -> None:
        try:
            while True:
                ask(None)
        finally:
            ended.append("patient")

    def failing(ask: Ask) -> None:
        for _ in range(step):
            ask(None)
        raise ValueError("no more")

    before = threading.active_count()
    with pytest.raises(ValueError, match="no more"):
        together([patient, failing, patient], lambda questions: [None] * len(questions))
    assert ended == ["patient"] * (2 if step else 1)  # the last has not begun where the second fails at once
    ended.clear()
    with pytest.raises(ZeroDivisionError):
        together([patient], lambda questions: 1 / 0)  # type: ignore[arg-type]
    assert ended == ["patient"]
    assert threading.active_count() <= before + 1  # the last one may still be on its way out


@pytest.mark.parametrize("n_classes", [2, 4])
def test_answers_together_are_those_alone_to_the_last_bit(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("immunize.evaluation.attacks.logistic.CACHED", 2**12)
    data = classes(ill_conditioned(1e3), sizes=(600, 50, 50), n_classes=n_classes)
    losses = [Logistic(data, penalty=penalty) for penalty in (1e-3, 0.1, 10.0)]
    points = np.random.default_rng(0).standard_normal((3, losses[0].shape[0] * losses[0].shape[1]))
    questions = [(losses[0], points[0], None), (losses[1], points[1], points[2]), (losses[2], points[2], None)]
    (value, slope), moved, (other, last) = answers(questions)
    ((value_alone, slope_alone),), (moved_alone,), ((other_alone, last_alone),) = (answers([one]) for one in questions)
    assert (value, other) == (value_alone, other_alone)
    for one, expected in ((slope, slope_alone), (moved, moved_alone), (last, last_alone)):
        assert np.array_equal(one, expected)


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
