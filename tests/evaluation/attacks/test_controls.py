"""The controls of the grid: what has to come out right whatever is attacked, by the attacks of the YAMLs.

And a candidate that has nothing left to gain ends: when, and that neither scores nor verdicts notice.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from immunize.attack import entries_of
from immunize.data.digits import embedded_digits
from immunize.evaluation.attacks import AttackData, Budget, Cost, FirstOrder, GradientDescent, Rows, judging
from immunize.evaluation.attacks.curves import Point
from immunize.evaluation.attacks.grid import Entry, attack_all, in_tier
from immunize.evaluation.attacks.scoring import Meter
from tests.attacking import compose_attack
from tests.evaluation.attacks.making import classes, ill_conditioned, regression, rotation

BUDGET = Budget(200)
ONE_POINT = 0.01


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Tiers T0 to T3 and T5, with fewer learning rates; T4, stages and images need more than features."""
    need_more = ("~attack.attacks.stage_probes", "~attack.attacks.images_alone")
    cfg = compose_attack("attack=full", "tiers=[T0,T1,T2,T3,T5]", *need_more, "run=x")
    few = {"sgd": [0.1, 1.0], "adam": [0.01, 0.1], "adamw": [0.1]}
    few |= {"sgd_raw": [0.1], "adam_raw": [0.01], "batchnorm_head": [0.01], "mlp_head": [0.01]}
    for name, rates in few.items():
        cfg.attack.attacks[name].learning_rates = rates
    cfg.attack.attacks.whiten.floors = [1e-12]
    cfg.attack.attacks.mlp_head.hidden = 16
    return tuple(entries_of(cfg))


@functools.cache
def cells_of(kind: str) -> dict:
    return attack_all(classes(ill_conditioned(1e4) if kind == "planted" else None), entries(), BUDGET, 0)


def tuned_by_scikit_learn(data: AttackData) -> float:
    """Test accuracy of its logistic regression, with C chosen as the attackers choose: by the validation rows."""
    models = [LogisticRegression(C=10.0**k, max_iter=5000).fit(data.train.x, data.train.y) for k in range(-4, 4)]
    best = max(models, key=lambda model: model.score(data.validation.x, data.validation.y))
    return float(best.score(data.test.x, data.test.y))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["T0", "T1", "T2", "T3", "T5"])
def test_undefended_model_gives_every_tier_what_scikit_learn_gets(name: str) -> None:
    expected = tuned_by_scikit_learn(classes())
    assert 0.8 < expected < 0.95
    assert in_tier(cells_of("plain"), name).curve.best.test == pytest.approx(expected, abs=ONE_POINT)


@pytest.mark.slow
def test_planted_ill_conditioned_map_stops_t0_and_not_t2() -> None:
    both = (cells_of("planted"), cells_of("plain"))
    results = {name: judging.compare(*(in_tier(of, name) for of in both)) for name in ("T0", "T1", "T2", "T3", "T5")}
    assert results["T0"].held is True
    assert results["T0"].score < results["T0"].score_reference - 0.05
    for name in ("T2", "T3", "T5"):
        assert results[name].held is False, name
        assert results[name].score == pytest.approx(results[name].score_reference, abs=ONE_POINT)
    verdict = judging.judge({name: [result] for name, result in results.items()})
    assert verdict["unbroken_up_to"] in ("T0", "T1")
    assert verdict["first_broken"] in ("T1", "T2")


@pytest.mark.slow
def test_pure_rescale_changes_no_scale_free_score() -> None:
    free = {entry.name for entry in entries() if entry.attack.scale_free}
    assert free == {entry.name for entry in entries()} - {"sgd_raw", "adam_raw"}
    few = classes(sizes=(80, 200, 200))
    times = few.mapped(lambda x: 1024 * x)  # a power of two: no rounding
    plain, scaled = (attack_all(data, entries(), Budget(100), 0) for data in (few, times))
    for name in free:
        for key in ("steps", "validation", "test"):
            one, other = (cell[name]["curves"]["steps"][key] for cell in (plain, scaled))
            assert one == pytest.approx(other, abs=1e-12), name
    assert plain["sgd_raw"]["curves"]["steps"]["test"] != scaled["sgd_raw"]["curves"]["steps"]["test"]


def test_diverging_attack_is_not_a_success_of_the_defence() -> None:
    wild, tame = (
        Entry(name, GradientDescent(tier="T0", step="fixed", multipliers=(length,)), {})
        for name, length in (("wild", 9.0), ("tame", 1.0))
    )
    easy, hard = classes(), classes(ill_conditioned(1e4))

    def compared(data: AttackData, *entries: Entry) -> judging.TierResult:
        return judging.compare(*(in_tier(attack_all(*of, BUDGET, 0), "T0") for of in ((data, entries), (easy, [tame]))))

    alone = compared(hard, wild)
    assert (alone.held, "wild" in alone.reason) == (None, True)
    assert compared(hard, wild, tame).held is None  # it would have held, but one of the attacks failed by itself
    assert compared(easy, wild, tame).held is False  # one attack that succeeds is enough


@pytest.mark.slow
def test_of_20_random_rotations_at_most_one_holds_though_single_scores_would_hold_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """scikit-learn's digits 5 to 9, few rows: Adam hangs on the basis, and the scores on the accident of 40 rows."""
    x, y = (np.asarray(of) for of in embedded_digits())
    x, y = x[y >= 5].reshape(-1, 64).astype(np.float64), y[y >= 5] - 5
    attacks = [one for one in entries() if one.name in ("gd_logistic", "adam", "ridge", "nearest_neighbours")]
    pairs = []
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(x))
        parts = (order[:45], order[45:60], order[60:100])
        plain = AttackData(*(Rows(x[part], y[part]) for part in parts), 5)
        turned = plain.mapped(functools.partial(np.dot, b=rotation(seed, 64)))
        pairs.append([attack_all(data, attacks, Budget(60), seed) for data in (turned, plain)])

    def held(name: str) -> int:
        return sum(judging.compare(in_tier(turned, name), in_tier(plain, name)).held is True for turned, plain in pairs)

    assert [held(name) <= 1 for name in ("T0", "T1", "T2", "T3")] == [True] * 4
    monkeypatch.setattr(judging, "CONFIDENCE", -np.inf)  # the scores alone
    assert held("T1") > 1


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


def test_schedules_are_left_out_where_the_best_rate_is_settled() -> None:
    adam = functools.partial(torch.optim.Adam, fused=True)
    attack = FirstOrder(tier="T1", optimizer=adam, learning_rates=(0.01, 0.1), cosine=(1.0,))
    for validation, schedules in ((1000, 0), (999, 2)):
        drawn = classes(n_classes=2, sizes=(60, validation, 8)).parts.values()
        train, rows, test = (Rows(rows.x + 5 * rows.y[:, None], rows.y) for rows in drawn)
        labels = [trace.label for trace in attack.run(AttackData(train, rows, test, 2), Budget(1000), 0).traces]
        assert len([label for label in labels if "cosine" in label]) == schedules
