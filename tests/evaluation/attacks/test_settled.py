"""A candidate that has nothing left to gain ends: when, and that neither scores nor verdicts notice."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from immunize.evaluation.attacks import (
    Attack,
    AttackData,
    Budget,
    Cost,
    Entry,
    FirstOrder,
    Lbfgs,
    LogisticDescent,
    Point,
    Rows,
    attack_all,
    compare,
    in_tier,
    scoring,
)
from immunize.evaluation.attacks.scoring import Meter
from tests.evaluation.attacks.making import classes, regression, rotation

ADAM = functools.partial(torch.optim.Adam, fused=True)
ATTACKS: dict[str, Attack] = {
    "gd_logistic": LogisticDescent(tier="T0", multipliers=(1.0, 16.0)),
    "adam": FirstOrder(tier="T1", optimizer=ADAM, learning_rates=(0.01, 0.1), batch_size=64),
    "lbfgs": Lbfgs(tier="T2", strengths=(10.0, 1e5)),
    "newton": Lbfgs(tier="T2", strengths=(1e5,), solver="Newton-CG"),
}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({1: 0.9, 25: 0.98, 100: 0.9805}, True),
        ({1: 0.9, 25: 0.98, 100: 0.981}, False),  # a tenth of a point is worth going on for
        ({1: 0.9, 25: 0.9749, 100: 0.9749}, False),  # θ_0 may be five points better
        ({1: 0.9, 26: 0.98, 100: 0.98}, False),  # learned too late to know
        ({1: 0.98, 20: 0.98, 80: 0.98}, False),  # too few steps
        ({1: 0.99, 100: 0.5}, True),  # what is best counts, as in curves
        ({}, False),
    ],
)
def test_settled_is_who_has_learned_and_gains_no_more(scores: dict[int, float], expected: bool) -> None:
    enough, few = (8, 1000, 8), (8, 999, 8)
    for data, settled in (
        (classes(sizes=enough), expected),
        (classes(sizes=few), False),
        (regression(sizes=enough), False),
    ):
        meter = Meter(data, "", Cost(1))
        meter.points = [Point(Cost(steps), validation, 0.0) for steps, validation in scores.items()]
        assert meter.over is settled
        meter.diverged = True
        assert meter.over


def digits(theta: np.ndarray) -> AttackData:
    """Zeros and sixes against ones and sevens, 8×8 pixels and noise; no image is among two of the sets."""
    x, y = load_digits(return_X_y=True)
    rng, kept = np.random.default_rng(0), np.isin(y, [0, 1, 6, 7])
    x, y = x[kept], np.isin(y[kept], [1, 7]).astype(np.int64)
    order = rng.permutation(len(x))
    drawn = (order[:300], rng.choice(order[300:500], 2000), rng.choice(order[500:], 2000))
    train, validation, test = (
        Rows((x[rows] + 3 * rng.standard_normal((len(rows), 64))) @ theta, y[rows]) for rows in drawn
    )
    return AttackData(train, validation, test, 2)


def test_scores_and_verdicts_on_digits_are_those_of_runs_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"plain": np.eye(64), "immunized": rotation(1, 64) * np.geomspace(1, 1e-4, 64)}
    entries, budget = [Entry(name, attack, {}) for name, attack in ATTACKS.items()], Budget(500)
    found = {name: attack_all(digits(theta), entries, budget, 0) for name, theta in shown.items()}
    monkeypatch.setattr(scoring, "FEWEST", 10**9)
    whole = {name: attack_all(digits(theta), entries, budget, 0) for name, theta in shown.items()}
    for name in shown:
        for tier in ("T0", "T1", "T2"):
            one, other = ([in_tier(cells[who], tier) for who in (name, "plain")] for cells in (found, whole))
            assert one[0].curve.best.test == pytest.approx(other[0].curve.best.test, abs=0.001), (name, tier)
            verdict, expected = compare(*one), compare(*other)
            assert (verdict.held, verdict.to_target["steps"]) == (expected.held, expected.to_target["steps"])
    spent = [{name: cell["spent"]["steps"] for name, cell in cells["plain"].items()} for cells in (found, whole)]
    assert all(spent[0][name] < spent[1][name] for name in ("gd_logistic", "adam", "newton"))
    # who has not learned the task is not cut short
    assert [cells["immunized"]["gd_logistic"]["spent"]["steps"] for cells in (found, whole)] == [550, 550]


def test_schedules_are_left_out_where_the_best_rate_is_settled() -> None:
    attack = FirstOrder(tier="T1", optimizer=ADAM, learning_rates=(0.01, 0.1), cosine=(1.0,))
    for validation, schedules in ((1000, 0), (999, 2)):
        drawn = classes(n_classes=2, sizes=(60, validation, 8)).parts.values()
        train, rows, test = (Rows(rows.x + 5 * rows.y[:, None], rows.y) for rows in drawn)
        labels = [trace.label for trace in attack.run(AttackData(train, rows, test, 2), Budget(1000), 0).traces]
        assert len([label for label in labels if "cosine" in label]) == schedules
