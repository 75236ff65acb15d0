"""The grid: cells are kept by what they depend on, verdicts follow from numbers."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

from immunize.errors import DataError, UserError
from immunize.evaluation.attacks import (
    AttackData,
    Budget,
    Cost,
    GradientDescent,
    ImagesAlone,
    KernelRidge,
    LinearMap,
    PublicReference,
    Rows,
)
from immunize.evaluation.attacks.curves import RESOURCES, Curve, Point, Trace, best_so_far, horizon_of, look_steps
from immunize.evaluation.attacks.grid import Entry, attack_all, check_tiers, in_tier, version_of
from immunize.evaluation.attacks.judging import Attacked, Estimate, TierResult, compare, judge
from immunize.evaluation.attacks.scoring import shares, target_matrix
from tests.evaluation.attacks.making import Memory, classes, ill_conditioned, regression

SMALL = (60, 40, 50)
GD = Entry("gd", GradientDescent(tier="T0", step="fixed", multipliers=(1.0,)), {"multipliers": [1.0]})


def test_key_holds_everything_that_changes_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    store, plain, once = Memory(), classes(sizes=SMALL), (1.0,)
    shifted = AttackData(plain.train, plain.validation, Rows(plain.test.x + 1e-9, plain.test.y), 4)

    def kept(data=plain, *, lengths=once, budget=Budget(20), seed=0, name="a name") -> int:  # noqa: B008
        attack_all(data, [Entry(name, GD.attack, {"multipliers": lengths})], budget, seed, store=store)
        return len(store)

    assert [kept(of) for of in (plain, classes(ill_conditioned(2), sizes=SMALL), shifted)] == [1, 2, 3]
    assert [kept(lengths=(2.0,)), kept(budget=Budget(21)), kept(budget=Budget(20, 1e9)), kept(seed=1)] == [4, 5, 6, 7]
    assert kept(name="another name") == 7
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)  # sums are rounded otherwise
    assert kept() == 8


def test_reference_is_part_of_the_key_of_attacks_that_use_it_and_all_of_that_of_attacks_on_theta_0_alone() -> None:
    store, data = Memory(), classes(ill_conditioned(3), sizes=SMALL)
    back = Entry("map", LinearMap(tier="T5", inner={"gd": GD.attack}), {})
    public = Entry("public", PublicReference(tier="T5", inner={"gd": GD.attack}), {})
    other, ours = classes(seed=1, sizes=SMALL), (data.train, data.validation, data.test, 4)
    changed = AttackData(*ours, reference=classes(ill_conditioned(9), sizes=SMALL))
    found = []
    for rows, number in ((data, 3), (changed, 5), (classes(sizes=SMALL), 7), (other, 10)):
        found.append(attack_all(rows, [GD, back, public], Budget(20), 0, store=store)["public"])
        assert len(store) == number
    assert found[0] == found[2] != found[1]  # the same θ_0


def test_attack_without_what_it_needs_is_skipped_with_the_reason() -> None:
    data, inner = classes(sizes=SMALL), {"gd": GD.attack}
    bare = AttackData(data.train, data.validation, data.test, 4)
    for attack, words in ((ImagesAlone(tier="T4", inner=inner), "weights"), (LinearMap(tier="T5", inner=inner), "θ_0")):
        cell = attack_all(bare, [Entry("lora", attack, {})], Budget(5), 0)["lora"]
        assert (cell["status"], words in cell["reason"]) == ("skipped", True)


def test_tiers() -> None:
    assert check_tiers(["T2", "T0"]) == ["T0", "T2"]
    with pytest.raises(UserError, match="unknown tier 'T7'; there are T0"):
        check_tiers(["T0", "T7"])
    with pytest.raises(UserError, match="no tier"):
        check_tiers([])


# Data that do not go together.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: (d.train, Rows(d.validation.x[:, :3], d.validation.y), d.test), "another model"),
        (lambda d: (d.train, d.validation, Rows(d.test.x, d.test.y + 1)), "label sets that do not match"),
        (lambda d: (d.train, d.validation, Rows(d.test.x * np.nan, d.test.y)), "NaN"),
        (lambda d: (Rows(d.train.x, d.train.y * 0), d.validation, d.test), "nothing to learn"),
        (lambda d: (Rows(d.train.x[1:], d.train.y), d.validation, d.test), "targets"),
        (lambda d: (d.train, d.validation, Rows(d.test.x[1:], d.test.y[1:])), "not those of the extractor"),
    ],
)
def test_data_that_cannot_be_used_are_refused(change, words: str) -> None:
    data = classes(sizes=SMALL)
    with pytest.raises(DataError, match=words):
        AttackData(*change(data), 4, reference=data)


# Verdicts.


def attacked(*points: tuple[int, float | np.ndarray], constant: np.ndarray | float = 0.1) -> Attacked:
    """What had been reached by these steps: a score, or what each test row adds to it."""
    made = tuple(
        Point(Cost(s, s / 10, 5 * s, 100.0 * s), float(np.mean(of)), float(np.mean(of)), of if np.ndim(of) else None)
        for s, of in points
    )
    return Attacked({by: Curve(made, ("x",) * len(made), by) for by in RESOURCES}, (), (), np.atleast_1d(constant))


THETA_0 = [(1, 0.3), (10, 0.75), (100, 0.80)]  # 90 % of 0.80 is 0.72: after 10 steps
EASY = [(1, 0.9)]  # of which twice, next to nothing, is no protection


@pytest.mark.parametrize(
    ("points", "theta_0", "held", "costlier"),
    [
        ([(1, 0.3), (19, 0.74), (100, 0.79)], THETA_0, False, 1.9),
        ([(1, 0.3), (20, 0.74), (100, 0.79)], THETA_0, True, 2.0),  # twice as many, and ten more
        ([(1, 0.3), (9, 0.75), (100, 0.75)], THETA_0, True, 0.9),  # exactly 5 points less, in spite of rounding
        ([(1, 0.3), (9, 0.75), (100, 0.7501)], THETA_0, False, 0.9),
        ([(1, 0.3), (100, 0.71)], THETA_0, True, np.inf),  # never gets there
        ([(1, 0.9)], THETA_0, False, 0.1),
        ([(1, 0.3), (19, 0.72)], THETA_0, True, 1.9),  # reached, although 0.9 · 0.8 rounds up
        *(([(1, 0.2), (steps, 0.9)], EASY, held, steps) for steps, held in ((2, False), (10, False), (11, True))),
    ],
)
def test_tier_is_held_by_cost_or_by_accuracy(points: list, theta_0: list, held: bool, costlier: float) -> None:
    result = compare(attacked(*points), attacked(*theta_0))
    assert result.held is held
    assert result.costlier == pytest.approx(costlier)


def test_a_task_that_theta_0_hardly_learns_holds_nobody() -> None:
    for score, held in ((0.15, False), (0.149, None)):  # 0.1 + 0.05 rounds up
        found = compare(attacked((1, score)), attacked((1, score)))
        assert (found.held, "does not learn" in found.reason) == (held, held is None)


def test_versions_of_attacks_within_an_attack_are_part_of_its_own() -> None:
    inner = {"gd": GD.attack, "kernel": KernelRidge(tier="T3", widths=(1.0,), penalties=(1.0,))}
    whole = version_of(ImagesAlone(tier="T5", inner=inner))
    assert whole[-1] == [KernelRidge.version]
    assert version_of(ImagesAlone(tier="T5", inner={"gd": GD.attack})) == whole[:-1]


def right(count: int, wrong_before: int = 0, n: int = 100) -> np.ndarray:
    """So many rows of N told right, the first few of them not."""
    return (np.arange(n) >= wrong_before) & (np.arange(n) < wrong_before + count)


def test_difference_is_paired_and_counts_only_beyond_the_accident_of_the_rows() -> None:
    reference = attacked((1, right(80)))
    same_rows = compare(attacked((1, right(74))), reference)  # six rows lost, none won
    assert same_rows.difference.value == pytest.approx(0.06)
    assert same_rows.difference.error == pytest.approx(np.sqrt(0.06 * 0.94 / 100))
    assert same_rows.held is True
    others = compare(attacked((1, right(74, wrong_before=20))), reference)  # 20 lost, 14 won: 6 of 34 are noise
    assert others.difference.value == pytest.approx(0.06)
    assert others.difference.error == pytest.approx(np.sqrt(0.34 - 0.06**2) / 10)
    assert others.held is False
    unlike = compare(attacked((1, right(37, n=50))), reference)  # rows of its own
    assert unlike.difference.error == pytest.approx(np.sqrt(0.16 / 100 + 0.74 * 0.26 / 50))


def test_costlier_counts_only_where_the_target_is_missed_by_more_than_the_accident_of_the_rows() -> None:
    reference = attacked((1, right(80)))  # target 0.72 after one step, so that eleven are dear
    slow = attacked((1, right(60)), (11, right(80)))
    assert compare(slow, reference).held is True
    just = attacked((10, right(70, wrong_before=15)), (11, right(80)))
    assert compare(just, reference).held is False  # 0.70 of other rows may as well be 0.72
    silent = attacked((12, right(80)))  # nothing at all before the twelfth step
    assert compare(silent, reference).held is True


def test_retention_is_what_is_left_above_chance() -> None:
    constant = right(20, wrong_before=40)  # the rows that the most frequent class is right about
    half, whole, little, nothing = (
        attacked((1, rows), constant=constant) for rows in (right(50), right(80), right(24), constant)
    )
    found = compare(half, whole)
    assert found.retention.value == pytest.approx(0.5)
    draws = np.random.default_rng(1).integers(0, 100, (4000, 100))
    ratios = [(right(count)[draws].mean(1) - constant[draws].mean(1)) for count in (50, 80)]
    assert found.retention.error == pytest.approx((ratios[0] / ratios[1]).std(), rel=0.1)  # the bootstrap over rows
    assert compare(nothing, whole).retention == Estimate(0.0, 0.0)  # on other rows too a constant answer has nothing
    assert compare(little, little).retention is None  # θ_0 learns nothing


def test_errors_of_a_regression_are_those_of_a_ratio_of_means() -> None:
    """R² has (y - ȳ)² below, whose mean over the test rows is as much of an accident as that above it."""
    rng, found = np.random.default_rng(0), []
    train = Rows(np.zeros((4, 1)), np.array([-1.0, 1, -1, 1]))  # of mean 0 and deviation 1, as y is
    for _ in range(400):
        test = Rows(np.zeros((150, 1)), rng.standard_normal(150))
        data = AttackData(train, train, test, 0)
        y = target_matrix(data, test)
        outputs = {"all": 0.7 * y, "some": y - 0.3 * rng.standard_normal(y.shape), "nothing": 0 * y}
        of = {name: attacked((1, shares(data, test, out)), constant=np.zeros(150)) for name, out in outputs.items()}
        same = compare(of["nothing"], of["all"]).difference  # in every draw of rows
        assert (same.value, same.error) == (pytest.approx(0.91), pytest.approx(0, abs=1e-9))
        found.append(compare(of["nothing"], of["some"]).difference)
    assert np.std([of.value for of in found]) == pytest.approx(np.mean([of.error for of in found]), rel=0.1)


def test_a_score_whose_squares_overflow_is_the_worst_and_no_nan() -> None:
    data = regression(sizes=SMALL)
    of = shares(data, data.test, np.full((len(data.test), 1), 1e160))
    assert np.mean(of) == -np.inf


def result(held: bool | None) -> TierResult:
    return TierResult(0.5, 0.9, None, None, held)


@pytest.mark.parametrize(
    ("tiers", "highest", "unbroken", "broken"),
    [
        ({"T0": [True, True], "T1": [True, False], "T2": [False, False]}, "T0", "T0", "T1"),
        ({"T0": [False], "T1": [True]}, "T1", None, "T0"),
        ({"T2": [True], "T0": [True], "T1": [None]}, "T2", "T0", None),
        ({"T0": [True, None]}, None, None, None),
        ({"T0": [True, None, False]}, None, None, "T0"),
        ({"T0": [True], "T1": [True]}, "T1", "T1", None),
        ({"T4": [True]}, "T4", None, None),  # nobody tried what is below
        ({"T0": [True], "T1": [True], "T3": [True]}, "T3", "T1", None),
        ({"T0": [True], "T1": [True], "T2": [True], "T3": [True], "T5": [True]}, "T5", "T3", None),
    ],
)
def test_verdict_follows_from_the_tiers(
    tiers: dict, highest: str | None, unbroken: str | None, broken: str | None
) -> None:
    results = {tier: [result(held) for held in seeds] for tier, seeds in tiers.items()}
    verdict = judge(results)
    assert judge(results, impossible={"T4"})["unbroken_up_to"] == ("T5" if "T5" in tiers else unbroken)  # of no network
    names = ("highest_tier", "unbroken_up_to", "first_broken")
    assert [verdict[name] for name in names] == [highest, unbroken, broken]


# Curves: best so far is what an attacker that tunes on validation rows has in its hands.


def point(steps: int, validation: float, test: float, flops: float = 1.0) -> Point:
    return Point(Cost(steps, 0.5 * steps, 10 * steps, flops * steps), validation, test)


def test_choice_is_by_validation_and_value_is_test_and_of_equals_the_cheaper_counts() -> None:
    slow = [point(1, 0.2, 0.9), point(4, 0.8, 0.7), point(9, 0.7, 1.0)]
    fast = [point(1, 0.5, 0.4), point(2, 0.6, 0.5)]
    curve = best_so_far([("slow", slow), ("fast", fast)])
    assert curve.points == (*fast, slow[1])  # not its last point, whose test score nobody would have known
    assert curve.labels == ("fast", "fast", "slow")
    assert (curve.best, curve.cost_of(0.5), curve.cost_of(0.71)) == (slow[1], 2, None)
    dear, cheap = [point(3, 0.5, 0.1, flops=9)], [point(3, 0.5, 0.2), point(7, 0.5, 0.9)]
    assert best_so_far([("dear", dear), ("cheap", cheap)]).points == (cheap[0],)
    assert best_so_far([]).best is None


def test_every_resource_has_its_own_cheapest_way() -> None:
    factored = [point(1, 0.9, 0.9, flops=1000.0)]  # one step with a dear factorization
    plain = [point(1, 0.3, 0.3), point(20, 0.9, 0.91)]
    curves = {by: best_so_far([("factored", factored), ("plain", plain)], by) for by in RESOURCES}
    assert [curve.cost_of(0.8) for curve in curves.values()] == [1, 0.5, 10, 20.0]  # steps, seconds, samples, FLOPs
    assert curves["flops"].labels == ("plain", "plain")


def test_curves_survive_the_cell_and_that_against_steps_with_its_rows() -> None:
    data = regression(sizes=SMALL)
    cells = json.loads(json.dumps(attack_all(data, [GD], Budget(20), 0)))
    (trace,) = GD.attack.run(data, Budget(20), 0).traces
    for by, found in in_tier(cells, "T0").curves.items():
        expected = best_so_far([("gd: step 1/σ₁", trace.points)], by)
        assert (found.labels, found.by) == (expected.labels, expected.by)
        assert [(p.test, p.cost.flops) for p in found.points] == [(p.test, p.cost.flops) for p in expected.points]
        assert all((p.rows is None) is (by != "steps") for p in found.points)
    best = in_tier(cells, "T0").curve.best
    assert len(best.rows) == SMALL[2]
    assert best.rows.mean() == pytest.approx(best.test, abs=1e-6)


def test_setup_is_paid_before_the_first_step() -> None:
    trace = Trace("inner", (point(2, 0.5, 0.5),), "finished", Cost(3, 1.5, 30, 3.0)).after(Cost(1, 2.0, 7, 100.0))
    assert (trace.points[0].cost, trace.spent) == (Cost(3, 3.0, 27, 102.0), Cost(4, 3.5, 37, 103.0))


@pytest.mark.parametrize("last", [1, 2, 9, 10, 37, 3000, 10_000])
def test_looks_are_dense_enough_for_a_factor_of_two(last: int) -> None:
    looks = look_steps(last)
    assert looks[0] == 1
    assert looks[-1] == last
    assert looks == sorted(set(looks))
    assert all(b <= max(a + 1, 1.34 * a) for a, b in itertools.pairwise(looks))
    assert len(looks) < 60


TO_MEASURE_BY = attacked((1, 0.3), (10, 0.6)).curve


@pytest.mark.parametrize(
    ("points", "last", "numbers", "steps"),
    [
        ([(1, 0.6)], 1000, (1, 1, 0), (1, 1)),  # θ_0 at once
        ([(1, 0.1)], 1000, (0, 0, 5 / 6), (None, None)),
        ([(10, 0.3), (100, 0.5)], 1000, ((0 + 0.4 + 0.8) / 3, 0.8, 1 / 6), (100, None)),  # the mean over decades
        ([(10, 0.3), (1000, 0.9)], 100, (0.4 / 2, 0.4, 0.5), (None, None)),  # what comes after the last does not count
    ],
)
def test_numbers_of_a_horizon(points: list, last: int, numbers: tuple, steps: tuple) -> None:
    found = horizon_of(attacked(*points).curve, TO_MEASURE_BY, 0.1, last)
    assert (found["area"], found["end"], found["deviation"]) == pytest.approx(numbers)
    assert (found["steps"], found["curve"]) == (steps, tuple(of for of in points if of[0] <= last))


def test_where_theta_0_learns_nothing_or_there_is_no_point_there_is_no_number() -> None:
    late, nothing = attacked((1000, 0.9)).curve, [attacked((1, 0.1)).curve, attacked().curve]
    for curve, theta_0 in ((late, TO_MEASURE_BY), *((TO_MEASURE_BY, of) for of in nothing)):
        assert horizon_of(curve, theta_0, 0.1, 100) is None
