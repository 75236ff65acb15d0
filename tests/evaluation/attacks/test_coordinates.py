"""Principal axes, one column for two classes, one search for all k: the same numbers as plain attacks on plain rows."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SkRidge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from immunize.evaluation.attacks import (
    AttackData,
    Budget,
    ConjugateGradient,
    Cost,
    GradientDescent,
    Lbfgs,
    LinearMap,
    LogisticDescent,
    NearestNeighbours,
    Ridge,
    Rows,
    lbfgs,
)
from immunize.evaluation.attacks.coordinates import both_axes, feature_scale, principal, thin_svd
from immunize.evaluation.attacks.logistic import Logistic, answers
from immunize.evaluation.attacks.prepared import REPAIRS
from immunize.evaluation.attacks.scoring import target_matrix
from tests.evaluation.attacks.making import D, classes, ill_conditioned, regression, score
from tests.reference import gradient

SIZES = (90, 60, 70)
GD = GradientDescent(tier="T0", step="fixed", multipliers=(1.3,))


def widened(data: AttackData) -> AttackData:
    """In 11 columns: 7 dimensions away from the origin, two columns of zeros, and test rows that leave the range."""
    rng = np.random.default_rng(3)
    spread = np.hstack([rng.standard_normal((D, 7)) @ rng.standard_normal((7, 9)), np.zeros((D, 2))])
    inside = data.mapped(lambda x: x @ spread + spread[0])
    rows = inside.test.x + np.eye(11)[9] * rng.standard_normal((len(inside.test), 1))
    return AttackData(inside.train, inside.validation, Rows(rows, data.test.y), data.n_classes, reference=data)


TASKS = {
    "four classes": lambda: widened(classes(ill_conditioned(20), sizes=SIZES)),
    "two classes": lambda: widened(classes(ill_conditioned(20), sizes=SIZES, n_classes=2)),
    "fewer rows than columns": lambda: classes(ill_conditioned(20), sizes=(6, 60, 70), n_classes=2),
    "regression": lambda: widened(regression(ill_conditioned(20), sizes=SIZES)),
}
CLASSES = [name for name in TASKS if name != "regression"]


@pytest.mark.parametrize("shape", [(90, 12), (20, 12), (9, 12)])
@pytest.mark.parametrize("centred", [False, True])
def test_axes_are_those_of_the_singular_value_decomposition(shape: tuple[int, int], centred: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((shape[0], 5)) * np.geomspace(1, 1e-9, 5) @ rng.standard_normal((5, shape[1])) + 3
    axes = both_axes(x)[centred]
    mean = x.mean(axis=0) if centred else np.zeros(shape[1])
    _, sigma, _ = np.linalg.svd(x - mean, full_matrices=False)
    rank = 5 if centred else 6
    assert axes.basis.shape == (shape[1], rank)
    assert axes.sigma == pytest.approx(sigma[:rank], abs=1e-13 * sigma[0])
    assert axes.basis.T @ axes.basis == pytest.approx(np.eye(rank), abs=1e-12)
    coordinates = axes.coordinates(x)
    assert coordinates @ axes.basis.T + mean == pytest.approx(x, abs=1e-12 * sigma[0])
    assert np.linalg.norm(coordinates, axis=0) == pytest.approx(axes.sigma, abs=1e-13 * sigma[0])


def columns(data: AttackData, x: np.ndarray, intercept: bool) -> Tensor:
    """Rows in their own columns, with one of ones for the intercept; no principal axes."""
    rows = torch.from_numpy(x / feature_scale(data))
    return nn.functional.pad(rows, (0, 1), value=1.0) if intercept else rows


def plain_loss(data: AttackData, penalty: float, intercept: bool) -> Callable[[Tensor], Tensor]:
    """Of weights with a row a column and a column a class, as in the module's note."""
    x, y = columns(data, data.train.x, intercept), torch.from_numpy(data.train.y)
    return lambda w: nn.functional.cross_entropy(x @ w, y) + penalty / 2 * w[: data.n_features].square().sum()


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("cached", [2**19, 2**9])
def test_logistic_loss_is_that_of_plain_columns(
    name: str, intercept: bool, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("immunize.evaluation.attacks.logistic.CACHED", cached)  # bytes of a block of rows
    data = TASKS[name]()
    loss, plain = Logistic(data, penalty=0.02, intercept=intercept), plain_loss(data, 0.02, intercept)
    basis = principal(data).axes.basis

    def lifted(flat: np.ndarray) -> Tensor:
        """Weights in principal axes, back in the rows' columns and one column a class."""
        v = flat.reshape(loss.shape)
        w = torch.from_numpy(np.vstack([basis @ v[: basis.shape[1]], v[basis.shape[1] :]]))
        return torch.hstack([-w, w]) / 2**0.5 if w.shape[1] == 1 else w

    v, s = np.random.default_rng(1).standard_normal((2, loss.shape[0] * loss.shape[1]))
    questions = [(loss, v, None), (loss, v, s), (Logistic(data, penalty=10.0, intercept=intercept), s, None)]
    (found, reduced), curved, other = answers(questions)
    alone = [answers([one])[0] for one in questions]
    for together, apart in zip((found, reduced, curved, *other), (*alone[0], alone[1], *alone[2]), strict=True):
        assert np.array_equal(together, apart)  # to the last bit
    assert found == pytest.approx(float(plain(lifted(v))), rel=1e-12)
    torch.testing.assert_close(lifted(reduced), gradient(plain, lifted(v)), rtol=0, atol=1e-12)
    assert loss.gradients([v])[0] == pytest.approx(reduced, abs=1e-15)
    _, product = torch.autograd.functional.hvp(plain, lifted(v), lifted(s))
    torch.testing.assert_close(lifted(curved), product, rtol=0, atol=1e-12)
    outputs = loss.predictor(v)(loss.seen.validation.x)
    expected = columns(data, data.validation.x, intercept) @ lifted(v)
    assert outputs == pytest.approx(expected.numpy(), abs=1e-10)


@pytest.mark.parametrize("name", CLASSES)
def test_logistic_descent_is_the_plain_iteration_and_the_best_multiplier_runs_to_the_end(name: str) -> None:
    data = TASKS[name]()
    traces = LogisticDescent(tier="T0", multipliers=(0.01, 3.0)).run(data, Budget(60), 0).traces
    plain, measured = plain_loss(data, 0.0, False), (data.validation, data.test)
    best = max(traces, key=lambda trace: max(p.validation for p in trace.points if p.cost.steps <= 6))
    for trace, length in zip(traces, (0.02, 6.0), strict=True):
        steps = 60 if trace is best else 6  # a lap
        w, expected = torch.zeros(data.n_features, data.n_classes, dtype=torch.float64), {}
        for step in range(1, steps + 1):
            w = w - length * gradient(plain, w)
            expected[step] = [score(data, rows, (columns(data, rows.x, False) @ w).numpy()) for rows in measured]
        assert {p.cost.steps: [p.validation, p.test] for p in trace.points}.items() <= expected.items()
        assert trace.points[-1].cost.steps == trace.spent.steps == steps
        assert trace.spent.flops == steps * 4 * data.train.x.size * data.n_classes  # of who has all columns
        assert trace.spent.seconds > 0


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("step", ["fixed", "line_search"])
def test_gradient_descent_is_the_plain_iteration(name: str, step: str) -> None:
    data = TASKS[name]()
    (trace,) = GradientDescent(tier="T0", step=step, multipliers=(1.3,)).run(data, Budget(100), 0).traces
    x, y = data.train.x, target_matrix(data, data.train)
    largest, w, expected = np.linalg.norm(x, 2) ** 2, np.zeros((x.shape[1], y.shape[1])), {}
    for at in range(1, 101):
        gradient = x.T @ (x @ w - y)
        line = (gradient**2).sum() / ((x @ gradient) ** 2).sum()
        w = w - (1.3 / largest if step == "fixed" else line) * gradient
        expected[at] = score(data, data.test, data.test.x @ w)
    assert len(trace.points) > 10
    for point in trace.points:
        assert point.test == pytest.approx(expected[point.cost.steps], abs=1e-9)
    cost, passes = trace.points[-1].cost, trace.points[-1].cost.steps  # of passes over the rows
    assert (cost.samples, cost.flops) == (passes * len(x), passes * 4 * x.size * y.shape[1])
    assert cost.seconds > 0


def test_divergence_is_seen_at_the_look_where_it_happens() -> None:
    attack = GradientDescent(tier="T0", step="fixed", multipliers=(1.0, 2.5))
    outcome = attack.run(classes(sizes=SIZES), Budget(1000), 0)
    assert (outcome.status, [of.status for of in outcome.traces]) == ("finished", ["finished", "diverged"])
    wild = outcome.traces[1]
    assert 1.5 ** wild.points[-1].cost.steps < 1e6 <= 1.5**wild.spent.steps
    assert wild.spent.steps < 1000


def plain_ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> SkRidge:
    """With an intercept, and a penalty relative to the largest eigenvalue."""
    return SkRidge(penalty * np.linalg.norm(x - x.mean(axis=0), 2) ** 2).fit(x, y)


@pytest.mark.parametrize("name", TASKS)
def test_ridge_is_scikit_learns(name: str) -> None:
    data = TASKS[name]()
    traces = Ridge(tier="T2", penalties=(1e-1, 1e-3, 1e-6)).run(data, Budget(1), 0).traces
    for trace, penalty in zip(traces, (1e-1, 1e-3, 1e-6), strict=True):
        model = plain_ridge(data.train.x, target_matrix(data, data.train), penalty)
        outputs = model.predict(data.test.x).reshape(len(data.test), -1)
        assert trace.points[0].test == pytest.approx(score(data, data.test, outputs), abs=1e-8)
        assert trace.spent.seconds > 0  # also where the axes were known
        assert trace.spent.samples == len(data.train)


@pytest.mark.parametrize("name", TASKS)
def test_conjugate_gradients_are_the_plain_iteration_and_end_at_least_squares(name: str) -> None:
    data = TASKS[name]()
    (short,), (trace,) = (ConjugateGradient(tier="T2").run(data, Budget(steps), 0).traces for steps in (4, 500))
    mean, y = data.train.x.mean(axis=0), target_matrix(data, data.train)
    x, offset = data.train.x - mean, y.mean(axis=0)
    w, expected = np.zeros((x.shape[1], y.shape[1])), {}
    residual = direction = x.T @ (y - offset)
    for step in range(1, 5):
        before, length = (residual**2).sum(), (residual**2).sum() / ((x @ direction) ** 2).sum()
        w, residual = w + length * direction, residual - length * (x.T @ (x @ direction))
        direction = residual + (residual**2).sum() / before * direction
        expected[step] = score(data, data.test, (data.test.x - mean) @ w + offset)
    assert {p.cost.steps: p.test for p in short.points} == pytest.approx(expected, abs=1e-9)
    least_squares = plain_ridge(data.train.x, y, 1e-15).predict(data.test.x).reshape(len(data.test), -1)
    assert trace.points[-1].test == pytest.approx(score(data, data.test, least_squares), abs=1e-6)
    assert trace.spent.steps <= 12  # 8 dimensions at most, in exact arithmetic
    assert trace.spent.flops == trace.spent.steps * 4 * x.size * y.shape[1]


@pytest.mark.parametrize("name", TASKS)
def test_nearest_neighbours_are_scikit_learns(name: str) -> None:
    data, ks = TASKS[name](), (1, 4)
    traces = NearestNeighbours(tier="T3", neighbours=(*ks, 500)).run(data, Budget(1), 0).traces  # more than there are
    standardized = data.mapped(StandardScaler().fit(data.train.x).transform)
    kind = KNeighborsClassifier if data.n_classes else KNeighborsRegressor
    targets = data.train.y if data.n_classes else target_matrix(data, data.train)[:, 0]
    ways = itertools.product((data, standardized), ("euclidean", "cosine"), ks)
    for trace, (seen, metric, k) in zip(traces, ways, strict=True):
        model = kind(n_neighbors=k, metric=metric, algorithm="brute").fit(seen.train.x, targets)
        if data.n_classes:
            answers = np.zeros((len(data.test), data.n_classes))
            answers[:, model.classes_] = model.predict_proba(seen.test.x)
        else:
            answers = model.predict(seen.test.x)[:, None]
        assert trace.points[0].test == pytest.approx(score(data, data.test, answers), abs=1e-12), metric
        cost = Cost(1, trace.spent.seconds, len(data.train), 2 * len(data.test) * data.train.x.size)
        assert trace.spent == cost


@pytest.mark.parametrize("rows", [(None,), (40,)])
def test_linear_map_is_plain_ridge_regression(rows: tuple[int | None, ...]) -> None:
    data = TASKS["four classes"]()
    (trace,) = LinearMap(tier="T5", inner={"gd": GD}, rows=rows, penalty=1e-9).run(data, Budget(30), 0).traces
    chosen = np.random.default_rng(0).permutation(len(data.train))[: rows[0]]
    back = plain_ridge(data.train.x[chosen], data.reference.train.x[chosen], 1e-9)
    (plain,) = GD.run(data.mapped(back.predict), Budget(30), 0).traces
    assert [p.test for p in trace.points] == [p.test for p in plain.points]
    assert trace.points[0].cost.samples == len(chosen) + len(data.train)


@pytest.mark.parametrize("name", ["four classes", "regression", "fewer rows than columns"])
@pytest.mark.parametrize(("repair", "floor"), [("centre", 1e-12), ("whiten", 1e-3), ("whiten", 1e-12)])
def test_axes_of_repaired_rows_are_those_of_a_decomposition(name: str, repair: str, floor: float) -> None:
    repaired, _ = REPAIRS[repair](TASKS[name](), floor)
    x, (found, seen) = repaired.train.x, repaired.kept["axes"]
    computed = both_axes(x)[0]
    assert found.sigma == pytest.approx(computed.sigma, rel=1e-9)
    assert found.basis @ found.basis.T == pytest.approx(computed.basis @ computed.basis.T, abs=1e-9)
    assert not found.mean.any()
    assert seen.train.x == pytest.approx(x @ found.basis, abs=1e-9 * found.sigma[0])
    assert seen.train.x.T @ seen.train.x == pytest.approx(np.diag(found.sigma**2), abs=1e-9 * found.sigma[0] ** 2)


def test_where_divide_and_conquer_fails_another_algorithm_decomposes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((4, 9))
    failure, found = np.linalg.LinAlgError("SVD did not converge"), np.linalg.svd(x, full_matrices=False)
    monkeypatch.setattr(scipy.linalg, "svd", svd := Mock(side_effect=[failure, found]))
    assert thin_svd(x) is found
    assert svd.call_args.kwargs == {"full_matrices": False, "lapack_driver": "gesvd"}


# Logistic regression and its solvers side by side, of which none is left behind.


Ask = Callable[[Any], Any]


def test_questions_of_all_that_wait_are_answered_at_once() -> None:
    rounds = []

    def counting(first: int, last: int) -> Callable[[Ask], list[int]]:
        return lambda ask: [ask(number) for number in range(first, last)]

    def squares(questions: list[int]) -> list[int]:
        rounds.append(questions)
        return [number**2 for number in questions]

    found = lbfgs.together([counting(0, 3), counting(5, 6), counting(7, 7), counting(10, 12)], squares)
    assert found == [[0, 1, 4], [25], [], [100, 121]]
    assert rounds == [[0, 5, 10], [1, 11], [2]]
    assert lbfgs.together([], squares) == []


@pytest.mark.parametrize("step", [0, 2])
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
        lbfgs.together([patient, failing, patient], lambda questions: [None] * len(questions))
    assert ended == ["patient"] * (2 if step else 1)  # the last has not begun where the second fails at once
    ended.clear()
    with pytest.raises(ZeroDivisionError):
        lbfgs.together([patient], lambda questions: 1 / 0)  # type: ignore[arg-type]
    assert ended == ["patient"]
    assert threading.active_count() <= before + 1  # the last one may still be on its way out


def test_ctrl_c_while_a_solver_starts_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(queue.SimpleQueue[Any]):  # whoever was forgotten waits 5 s, and not for ever
        def get(self, block: bool = True, timeout: float | None = 5) -> Any:
            return super().get(block, timeout)

    class Pressed(ThreadPoolExecutor):
        def submit(self, *of: Any, **options: Any) -> Any:
            super().submit(*of, **options)
            raise KeyboardInterrupt

    def patient(ask: Ask) -> None:
        try:
            ask(None)
        except BaseException as error:
            ended.append(type(error))
            raise

    ended: list[type] = []
    monkeypatch.setattr(lbfgs, "SimpleQueue", Impatient)
    monkeypatch.setattr(lbfgs, "ThreadPoolExecutor", Pressed)
    with pytest.raises(KeyboardInterrupt):
        lbfgs.together([patient], lambda questions: [None] * len(questions))
    assert ended == [lbfgs._StoppedError]


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
