"""How γ, B and q are chosen: every setting measured, the dearest feasible one taken, and the words for it."""

from __future__ import annotations

from typing import Any

import pytest

from immunize.objective.attacker_cost import (
    baseline,
    cost,
    descent,
)
from immunize.objective.signal import directions_of
from immunize.objective.signal_choice import SignalTrial, _chosen, _dearest, choose
from immunize.spectrum import sharpen, signal_map
from tests.objective.making import classification, regression, trial


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
    pretrain, harmful = classification(1, labels=11), classification(3, labels=12)
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
            directions_of(
                (classification(1).x, classification(1).y),
                (classification(3).x, classification(3).y),
                (1e-2, 1e-2),
                1e-2,
            ),
            classification(3),
            {},
            gammas=(),
        )


def test_among_equals_the_smallest_settings_win() -> None:
    for name in ("gamma", "budget", "sharpness"):
        pair = [trial(3.0, **{name: value}) for value in (4.0, 2.0)]
        assert _dearest(pair) is pair[1]
        assert _dearest(pair[::-1]) is pair[1]
    assert _dearest([trial(3.0), trial(4.0, gamma=0.5)]).gamma == 0.5  # type: ignore[union-attr]
    assert _dearest([]) is None


def test_a_choice_names_the_best_without_labels_and_the_closed_form() -> None:
    base = baseline(regression(), 20, 10)
    trials = (
        trial(2.0, budget=10.0),
        trial(5.0, budget=10.0, sharpness=4.0),
        trial(9.0, gamma=0.5, budget=100.0),
        trial(99.0, feasible=False),
    )
    found = _chosen(trials, base, 1.0)
    assert (found.gamma, found.budget, found.sharpness, found.feasible) == (0.5, 100.0, 1.0, True)
    assert (found.closed_form, found.without_labels) == (trials[0], trials[1])
    assert (found.trials, found.harmful) == (trials, base)
    assert found.reason == (
        "γ = 0.5, B = 100, q = 1: D_H takes 9 times the raw features' steps on validation rows, "
        "without labels 5 times; the closed form within the same constraints 2 times (B = 10)"
    )
    sharp = _chosen(trials[:2], base, 1.0)
    assert sharp.reason.endswith(
        "the labels buy nothing here; the closed form within the same constraints 2 times (B = 10)"
    )
    only = _chosen((trials[2],), base, 1.0)
    assert (only.closed_form, only.without_labels) == (None, None)
    assert only.reason.endswith("steps on validation rows")


def test_the_nearest_is_the_one_that_harms_the_other_tasks_least() -> None:
    base = baseline(regression(), 20, 10)
    worse, better = trial(9.0, False, spared={"D_P": -0.3, "b": 0.0}), trial(2.0, False, spared={"D_P": -0.1, "b": 0.0})
    found = _chosen((worse, better, trial(99.0, False, ratio_pretrain=3.0, spared={"D_P": 0.0})), base, 3.0 - 1e-9)
    assert "scores change by D_P -0.100, b +0.000" in found.reason
    assert "(ii) = 0.5" in found.reason
    assert "change by none" in _chosen((trial(1.0, False, spared={}),), base, 1.0).reason
    at_limit = trial(1.0, False, ratio_pretrain=1.0, spared={"D_P": 0.0})
    assert "(ii) = 1," in _chosen((worse, at_limit), base, 1.0).reason


def test_a_trial_has_the_facts_of_its_map() -> None:
    harmful, pretrain = classification(2), regression()
    directions = directions_of((pretrain.x, pretrain.y), (harmful.x, harmful.y), (1e-2, 1e-2), 1e-2)
    found = choose(
        *(directions, harmful, {"D_P": pretrain}),
        gammas=(0.5,),
        budgets=(4,),
        sharpnesses=(2,),
        limit=40,
        score_steps=15,
    )
    (one,) = found.trials
    best = signal_map(sharpen(directions, 2.0), 4.0, 0.5)
    assert (one.gamma, one.budget, one.sharpness) == (0.5, 4.0, 2.0)
    assert (one.ratio_pretrain, one.ratio_harmful) == (best.ratio_pretrain, best.ratio_harmful)
    raw = baseline(harmful, 40, 15)
    assert found.harmful == raw
    assert one.harmful == cost(harmful, best.theta, raw.threshold, 40, 15)
    assert one.times == one.harmful.times(raw.cost)
    assert one.spared == {"D_P": descent(pretrain, best.theta, 15).last - descent(pretrain, None, 15).last}
    limits = (one.ratio_pretrain, -one.spared["D_P"])
    for ease, slack, fine in ((limits[0], 9.0, True), (limits[0] - 1e-9, 9.0, False), (9.0, limits[1] - 1e-9, False)):
        options: dict[str, Any] = {"gammas": (0.5,), "budgets": (4,), "sharpnesses": (2,), "limit": 40}
        again = choose(directions, harmful, {"D_P": pretrain}, score_steps=15, ease_limit=ease, slack=slack, **options)
        assert again.trials[0].feasible is fine
    for empty in ("gammas", "budgets", "sharpnesses"):
        with pytest.raises(ValueError, match="at least one"):
            choose(directions, harmful, {}, **{empty: ()})  # type: ignore[arg-type]
