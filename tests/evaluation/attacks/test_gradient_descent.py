"""T0 in the eigenbasis against gradient descent step by step; the logistic descent against its own gradient."""

from __future__ import annotations

import pytest

from immunize.errors import UserError
from immunize.evaluation.attacks import Budget, GradientDescent, LogisticDescent
from tests.evaluation.attacks.making import classes, ill_conditioned

SMALL = (60, 40, 50)


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


def test_logistic_descent_lets_the_best_multiplier_run_to_the_end() -> None:
    outcome = LogisticDescent(tier="T0", multipliers=(0.01, 4.0)).run(classes(ill_conditioned(30)), Budget(300), 0)
    slow, fast = outcome.traces
    assert (slow.spent.steps, fast.spent.steps) == (25, 300)  # the last look of the first lap, and all
    assert fast.points[-1].validation > slow.points[-1].validation


@pytest.mark.parametrize("settings", [{"step": "newton"}, {"step": "fixed", "multipliers": ()}])
def test_bad_settings_are_refused(settings: dict) -> None:
    with pytest.raises(UserError):
        GradientDescent(tier="T0", **settings)
