"""T3 and T5: what a repair does to the features, what it costs, and that a lost map is found again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.kernel_ridge import KernelRidge as SkKernelRidge
from sklearn.preprocessing import Normalizer, StandardScaler

from immunize.errors import UserError
from immunize.evaluation.attacks import (
    Attack,
    AttackData,
    Budget,
    FirstOrder,
    FullFinetune,
    GradientDescent,
    ImagesAlone,
    KernelRidge,
    LastBlock,
    Lbfgs,
    LinearMap,
    Lora,
    NearestNeighbours,
    PublicReference,
    Repaired,
    Ridge,
    Rows,
    StageProbes,
)
from immunize.evaluation.attacks.prepared import REPAIRS
from immunize.evaluation.attacks.scoring import target_matrix
from tests.evaluation.attacks.making import C, D, classes, ill_conditioned, regression, score

GD = GradientDescent(tier="T3", step="fixed", multipliers=(1.0,))
PUBLIC = PublicReference(tier="T5", inner={"gd": GD})
PLANTED = ill_conditioned(1e4)


def test_repairs_are_scikit_learns_from_the_training_rows_alone() -> None:
    x, fresh = (classes(ill_conditioned(100), seed=seed).train.x + 3 for seed in (0, 1))
    data = AttackData(Rows(x, labels := np.arange(len(x)) % 2), Rows(fresh, labels), Rows(x[:1], labels[:1]), 2)
    centre, standardize = StandardScaler(with_std=False), StandardScaler()
    models = {"centre": centre, "standardize": standardize, "normalize": Normalizer(), "whiten": PCA(whiten=True)}
    for name, repair in REPAIRS.items():
        expected = models[name].fit(x).transform(fresh) * (np.sqrt(len(x) / (len(x) - 1)) if name == "whiten" else 1)
        assert np.abs(repair(data, 1e-12)[0].validation.x) == pytest.approx(np.abs(expected), rel=1e-8, abs=1e-8)


def test_degenerate_features_are_not_blown_up() -> None:
    x = np.column_stack([np.arange(5.0), np.full(5, 7.0), np.zeros(5)])
    x[2] = 0
    rows = Rows(x, np.arange(5) % 2)
    for repair in REPAIRS.values():
        assert np.abs(repair(AttackData(rows, rows, rows, 2), 1e-12)[0].train.x).max() < 10


def test_rows_of_zeros_teach_nothing_and_end_no_grid() -> None:
    data, ridge = classes(np.zeros((D, D))), {"ridge": Ridge(tier="T2", penalties=(1e-6,))}
    attacks = (Repaired(tier="T3", repair="whiten", inner=ridge), LinearMap(tier="T5", inner=ridge))
    traces = [attack.run(data, Budget(1), 0).traces[0] for attack in attacks]
    assert [trace.points[-1].test for trace in traces] == pytest.approx([1 / C, 1 / C], abs=0.01)


def test_whitening_floor_leaves_components_out_and_a_decomposition_is_paid_for() -> None:
    data = classes(PLANTED)
    n = len(data.train)
    whole, cost = REPAIRS["whiten"](data, 1e-12)
    assert whole.n_features == D
    assert (cost.steps, cost.samples, cost.flops) == (1, n, 4 * n * D**2 + 8 * D**3 + 2 * n * D * D)
    assert 1 < REPAIRS["whiten"](data, 1e-3)[0].n_features < D


def test_repair_is_paid_for_before_the_first_step() -> None:
    data = classes(PLANTED)
    bare = GD.run(data, Budget(10), 0).traces[0]
    whole = Repaired(tier="T3", repair="centre", inner={"gd": GD}).run(data, Budget(10), 0).traces[0]
    first = whole.points[0].cost
    for after, before in ((first, bare.points[0].cost), (whole.spent, bare.spent)):
        paid = (after.steps - before.steps, after.samples - before.samples, after.flops - before.flops)
        assert paid == (1, len(data.train), 2 * data.train.x.size)
    assert whole.label == "centre, gd: step 1/σ₁"


def test_inner_attacks_that_cannot_solve_the_task_are_left_out() -> None:
    attack = Repaired(tier="T3", repair="centre", inner={"gd": GD, "lbfgs": Lbfgs(tier="T3", strengths=(1.0,))})
    assert [t.label.split(":")[0] for t in attack.run(regression(), Budget(5), 0).traces] == ["centre, gd"]


def test_public_reference_costs_nothing_but_the_probe() -> None:
    data = classes(PLANTED)
    (used,) = PUBLIC.run(data, Budget(30), 0).traces
    (plain,) = GD.run(data.reference, Budget(30), 0).traces
    assert [(p.cost.steps, p.test) for p in used.points] == [(p.cost.steps, p.test) for p in plain.points]


def by_scikit_learn(data: AttackData, width: float, penalty: float) -> float:
    """The test score of its kernel ridge regression."""
    x, y = data.train.x, target_matrix(data, data.train)
    gamma = 1 / (width * np.median(((x[:, None] - x) ** 2).sum(-1)))
    model = SkKernelRidge(alpha=penalty, kernel="rbf", gamma=gamma).fit(x, y - y.mean(axis=0))
    return score(data, data.test, model.predict(data.test.x) + y.mean(axis=0))


def test_kernel_ridge_sees_how_far_a_row_is_from_the_span_of_fewer_training_rows() -> None:
    rng = np.random.default_rng(1)
    data = AttackData(*(Rows(rng.standard_normal((n, 30)), rng.standard_normal(n)) for n in (12, 8, 40)), 0)
    found = KernelRidge(tier="T3", widths=(0.5,), penalties=(0.1,)).run(data, Budget(1), 0).traces[0].points[0].test
    assert found == pytest.approx(by_scikit_learn(data, 0.5, 0.1), abs=1e-9)


def test_kernel_ridge_does_not_see_how_far_all_rows_are_from_zero() -> None:
    data = classes()
    attack = KernelRidge(tier="T3", widths=(1.0,), penalties=(1e-3,))
    near, far = (attack.run(of, Budget(1), 0).traces for of in (data, data.mapped(lambda x: x + 1e9)))
    assert [trace.points[0].test for trace in far] == [trace.points[0].test for trace in near]


def test_kernel_ridge_is_that_of_scikit_learn_and_tells_classes_of_equal_means_apart() -> None:
    rng = np.random.default_rng(0)

    def drawn(n: int) -> Rows:
        y = np.arange(n) % 2
        return Rows(rng.standard_normal((n, 3)) * np.where(y, 3.0, 1.0)[:, None], y)

    data = AttackData(drawn(200), drawn(50), drawn(300), 2)
    attack = KernelRidge(tier="T3", widths=(0.5, 2.0), penalties=(0.1, 1.0))
    traces = attack.run(data, Budget(1), 0).traces
    assert len(traces) == 2 * 2 * 2
    expected = [by_scikit_learn(data, width, penalty) for width in (0.5, 2.0) for penalty in (0.1, 1.0)]
    assert [trace.points[0].test for trace in traces[:4]] == pytest.approx(expected)
    assert traces[3].label == "width 2, λ 1, features"
    linear = Ridge(tier="T2", penalties=(1e-6,)).run(data, Budget(1), 0).traces[0].points[0].test
    assert linear < 0.65
    assert max(traces, key=lambda trace: trace.points[0].validation).points[0].test > 0.75
    few = KernelRidge(tier="T3", widths=(2.0,), penalties=(1.0,), max_rows=20).run(data, Budget(1), 0).traces[0]
    assert few.spent.samples == 20
    raced = replace(attack, first_rows=60, keep=3).run(data, Budget(1), 0).traces
    assert [trace.spent.samples for trace in raced] == [60] * len(traces) + [200] * 3
    assert raced[0].label == "width 0.5, λ 0.1, features of 60 rows"
    leading = sorted(raced[: len(traces)], key=lambda trace: -trace.points[0].validation)[:3]
    assert {trace.label for trace in raced[-3:]} == {trace.label.removesuffix(" of 60 rows") for trace in leading}
    whole = {trace.label: trace.points[0].test for trace in traces}
    assert all(trace.points[0].test == whole[trace.label] for trace in raced[-3:])
    numbers = attack.run(regression(sizes=(400, 100, 100)), Budget(1), 0)
    assert max(trace.points[0].test for trace in numbers.traces) > 0.6


INNER, TRAINED = {"inner": {"gd": GD}}, {"optimizer": torch.optim.SGD, "learning_rates": (0.1,)}
FIRST_ORDER = [{"head": "cnn"}, {"precision": "float16"}, {"learning_rates": ()}, {"cosine": (2.0,)}, {"batch_size": 1}]
FINE_TUNING = [{"learning_rates": ()}, {"shift": 1.0}, {"steps": 0}, {"batch_size": 1}, {"flops": 0.0}]
KERNELS = [{"widths": ()}, {"penalties": (0.0,)}, {"max_rows": 1}, {"first_rows": 1}, {"keep": 0}]
SETTINGS: dict[type[Attack], tuple[dict[str, Any], list[dict[str, Any]]]] = {
    Repaired: (INNER | {"repair": "centre"}, [{"repair": "pray"}, {"inner": {}}, {"inner": {"deep": PUBLIC}}]),
    LinearMap: (INNER, [{"rows": (1,)}]),
    NearestNeighbours: ({"neighbours": (1,)}, [{"neighbours": (0,)}]),
    KernelRidge: ({"widths": (1.0,), "penalties": (1.0,)}, KERNELS),
    StageProbes: (INNER, [{"inner": {}}]),
    ImagesAlone: (INNER, [{"side": 0}]),
    GradientDescent: ({"step": "fixed"}, [{"tier": "T9"}, {"step": "newton"}, {"multipliers": ()}]),
    Ridge: ({"penalties": (0.1,)}, [{"penalties": (0.1, float("nan"))}]),
    FirstOrder: (TRAINED, [*FIRST_ORDER, {"optimizer": torch.optim.LBFGS}]),  # which takes no groups
    FullFinetune: (TRAINED, FINE_TUNING),
    LastBlock: (TRAINED, [{"tuning_steps": 0}, {"shift": 0.1}, {"flip": True}]),  # its trunk sees an image once
    Lora: (TRAINED | {"ranks": (1,)}, [{"ranks": ()}, {"ranks": (0,)}, {"batch_statistics": True}]),
}
"""Of each attack some that are fine, and changes that are not."""


@pytest.mark.parametrize(("kind", "bad"), [(kind, bad) for kind, (_, several) in SETTINGS.items() for bad in several])
def test_bad_settings_are_refused(kind: type[Attack], bad: dict[str, Any]) -> None:
    good = {"tier": "T0"} | SETTINGS[kind][0]
    kind(**good)
    ((name, _),) = bad.items()
    with pytest.raises(UserError, match=rf"(?i){name.replace('_', '.')[:6]}|kernel ridge"):  # it is named
        kind(**good | bad)
