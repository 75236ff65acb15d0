"""κ, RIR and the verdicts of Definition 3.1 on extractors for which they are known; the decomposition behind them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from immunize.data import ROLES, Part, Parts
from immunize.evaluation import evaluate_part
from immunize.evaluation.immunity import compress, decompose, least_squares_targets, norm_ratio_curve
from immunize.evaluation.numbers import spectrum_numbers
from immunize.evaluation.verdicts import verdicts_of
from immunize.spectrum.condition import ESTIMATORS, Spectrum
from tests import reference as ref

D = 6
STEPS_TO = (0.1, 0.01)


def data(n: int, rank: int = D, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = ref.features_with_eigenvalues(torch.logspace(2, 0, rank), n, D, seed)
    return x, ref.gaussian(n, seed=seed + 100)


def pair(n: int = 40) -> Parts:
    return {role: Part(*data(n, seed=seed)) for role, seed in zip(ROLES, (1, 2), strict=True)}


def evaluate(theta: Tensor, parts: Parts | None = None, **options: Any) -> dict[str, Any]:
    return evaluate_part(theta, parts or pair(), dict.fromkeys(ROLES, "regression"), probe_steps=50, **options)


@pytest.mark.parametrize("rho", [1e-2, 0.3])
@pytest.mark.parametrize("n", [40, D + 1])
def test_every_estimator_equals_its_definition(n: int, rho: float) -> None:
    parts, theta = pair(n), ref.extractor(D, seed=5)
    found = evaluate(theta, parts, rho=rho)
    assert set(found["metrics"]) == set(ESTIMATORS)
    for name, ratio in found["metrics"].items():
        for of, t in (("", theta), ("_baseline", None)):
            for role in ("pretrain", "harmful"):
                expected = ref.kappa_by(name, ref.hessian(parts[role].x, t), n, rho)
                assert ratio[f"kappa_{role}{of}"] == pytest.approx(expected, rel=1e-9)
    ratio, verdicts = found["metrics"]["spectrum"], found["verdicts"]
    told = [verdicts[name] for name in ("estimator", "ratio_harmful", "ratio_pretrain")]
    assert told == ["spectrum", ratio["ratio_harmful"], ratio["ratio_pretrain"]]
    for role, which in itertools.product(("pretrain", "harmful"), ("immunized", "identity")):
        part = parts[role]
        features = part.x @ theta if which == "immunized" else part.x
        values = ref.eigenvalues(ref.hessian(features))
        assert found["spectra"][role][which]["sigma"] == pytest.approx(values.tolist(), rel=1e-9)
        naive = ref.norm_ratio_curve(features, part.y, 50).tolist()
        curve = found["curves"][role][which]
        assert curve["ratio"] == pytest.approx([naive[step] for step in curve["steps"]], rel=1e-9)
        passed = {bound: next((step for step, value in enumerate(naive) if value <= bound), None) for bound in STEPS_TO}
        assert found["steps_to_norm_ratio"][role][which] == {str(bound): step for bound, step in passed.items()}


@pytest.mark.parametrize(
    ("harder", "easier", "drop", "passes"),
    [
        (1.999, 1 + 9e-10, 0.0, (False, True, True)),
        (2.0, 1 + 2e-9, 1.0, (True, False, True)),
        (2.0, 1.0, 1.001, (True, True, False)),
        (2.0, 1.0, -3.0, (True, True, True)),
    ],
)
def test_the_bounds_of_a_b_and_c(harder: float, easier: float, drop: float, passes: tuple[bool, ...]) -> None:
    accuracy = {"before": 64.0, "after": 64.0 - drop}
    v = verdicts_of({"ratio_harmful": harder, "ratio_pretrain": easier}, accuracy)
    assert (v.a, v.b, v.c) == passes


def test_singular_extractor_that_kills_a_needed_direction_fails_c() -> None:
    parts = pair()
    v = torch.linalg.svd(parts["pretrain"].x).Vh[2]
    needed = parts | {"pretrain": Part(parts["pretrain"].x, parts["pretrain"].x @ v)}
    found = evaluate(EYE - torch.outer(v, v), needed)["verdicts"]
    assert found["c"] is False
    assert found["loss_immunized"] == pytest.approx(found["loss_zero"], rel=1e-9)  # nothing of the target is left
    assert 0 <= found["loss_plain"] < 1e-12 * found["loss_zero"]
    other = torch.linalg.svd(parts["pretrain"].x).Vh[3]
    assert evaluate(EYE - torch.outer(other, other), needed)["verdicts"]["c"] is True


@pytest.mark.parametrize("rank", [1, 5, 20, 300])
def test_recorded_spectra_keep_both_ends_and_the_order(rank: int) -> None:
    values = torch.cat([torch.logspace(3, -3, rank, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)])
    of = spectrum_numbers(Spectrum(values, rank + 10, rank + 4, 1e-12), points=16)
    assert of["rank"] == rank
    assert of["index"] == sorted(set(of["index"]))
    assert of["sigma"] == [float(values[i - 1]) for i in of["index"]]
    ends = {*range(1, min(8, rank) + 1), *range(max(1, rank - 7), rank + 1)}
    assert ends <= set(of["index"]) <= set(range(1, rank + 1))
    assert len(of["index"]) <= 32


def test_nothing_to_learn_has_no_curve() -> None:
    parts = pair()
    idle = parts | {"pretrain": Part(parts["pretrain"].x, torch.zeros(40, dtype=torch.float64))}
    found = evaluate(ref.extractor(D, seed=6), idle)
    assert found["curves"]["pretrain"] == {"immunized": None, "identity": None}
    assert found["steps_to_norm_ratio"]["pretrain"] == {"immunized": {}, "identity": {}}
    assert found["curves"]["harmful"]["immunized"] is not None
    assert found["verdicts"]["c"] is True


def test_of_two_labels_a_probe_has_to_tell_them_apart_as_well_as_before() -> None:
    """An invertible θ leaves the optimal loss as it is, however little of it a probe with a penalty reaches."""
    assert least_squares_targets(torch.tensor([0.0, 1.0, 1.0]), "binary").tolist() == [-1, 1, 1]
    x, y = ref.gaussian(200, D, seed=3), (torch.arange(200) % 2).double()
    x[:, 0] += 4 * y
    labelled = pair() | {"pretrain": Part(x, y)}
    tasks = {"pretrain": "binary", "harmful": "regression"}
    crushed = torch.diag(torch.tensor([1e-4, *[1.0] * (D - 1)], dtype=torch.float64))
    for theta, kept in ((ref.orthogonal(D, seed=4), True), (crushed, False)):
        v = evaluate_part(theta, labelled, tasks, probe_steps=5)["verdicts"]
        assert v["loss_immunized"] == pytest.approx(v["loss_plain"], rel=1e-6)
        assert v["accuracy_before"] > 95
        assert v["c"] is (v["accuracy_before"] - v["accuracy_after"] <= 1) is kept
    found = evaluate_part(crushed, pair() | {"pretrain": Part(x, 0 * y)}, tasks, probe_steps=5)
    assert "accuracy_before" not in found["verdicts"]  # of one label
    assert found["verdicts"]["loss_zero"] == 1  # all targets are -1, and no 0,
    assert found["curves"]["pretrain"]["identity"] is not None  # so that there is something to learn
    assert "accuracy_after" not in evaluate(crushed)["verdicts"]  # a regression


EYE = torch.eye(D, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: evaluate(0 * EYE), "zeros"),
        (lambda: evaluate(torch.nan * EYE), "NaN or inf"),
        (lambda: evaluate(EYE.masked_fill(EYE == 1, torch.inf)), "NaN or inf"),  # of which no product is NaN
        (lambda: compress(torch.zeros(9, 4).double(), torch.ones(9).double()), "are all zero"),
        (lambda: least_squares_targets(torch.ones(3).double(), "ranking"), "task"),
    ],
)
def test_what_has_no_spectrum_or_nothing_to_learn_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


SHAPES = [(50, D), (50, 4), (D, D), (D + 1, D), (5, 5), (5, 3), (2, 1)]
"""(N, rank): tall, rank-deficient, square, one row more, wide, wide and deficient, tiny."""


CASES = [(*shape, kind) for shape in SHAPES for kind in ("raw", "invertible")]


@pytest.mark.parametrize(("n", "rank", "kind"), [*CASES, (50, D, "singular"), (50, 4, "singular"), (5, 5, "singular")])
def test_spectrum_optimum_and_loss(n: int, rank: int, kind: str) -> None:
    x, _ = data(n, rank)
    theta = None if kind == "raw" else ref.extractor(D, seed=3)
    if kind == "singular":  # takes a direction away that is so large in the data that its rounding stays
        gone = torch.outer(x[0], x[0]) / x[0].square().sum()
        x, theta, rank = x + 1e4 * x @ gone, (EYE - gone) @ theta, rank - 1
    features = x if theta is None else x @ theta
    _, sigma, vh = torch.linalg.svd(features, full_matrices=False)
    for y in (ref.gaussian(n, seed=9), ref.gaussian(n, 3, seed=9)):  # of several outputs a probe is one problem each
        found = decompose(compress(x, y), theta)
        assert found.spectrum.rank == len(found.optimum) == rank
        assert (found.spectrum.n_samples, found.spectrum.n_features) == (n, D)
        torch.testing.assert_close(found.spectrum.values[:rank], sigma[:rank] ** 2, rtol=1e-9, atol=0)
        targets = y.view(n, -1)
        w_star = torch.linalg.lstsq(features, targets, rcond=1e-10, driver="gelsd").solution  # of minimum norm
        coordinates = (vh[:rank] @ w_star).norm(dim=1)  # their signs are those of the singular vectors
        assert ref.error(found.optimum.abs(), coordinates) < 1e-9
        left = float((features @ w_star - targets).square().sum())
        assert found.loss * n == pytest.approx(left, rel=1e-9, abs=1e-12)
        assert found.energy * n == pytest.approx(float(y.square().sum()), rel=1e-12)


@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_kappa_is_over_as_many_singular_values_as_the_raw_data_have(factor: float) -> None:
    """θ pushes an eigenvalue of H across the cut max(N, D)·eps·σ_1, downwards or upwards: k stays that of K."""
    n = 50
    sigma = torch.tensor([1, 0.1, 0.01, 1e-3, 1e-9, 1e-17], dtype=torch.float64)
    x = ref.features_with_eigenvalues(sigma, n, D, 3)
    v = torch.linalg.svd(x, full_matrices=False).Vh.T
    scale = torch.ones(D, dtype=torch.float64)
    scale[4 if factor < 1 else 5] = factor**0.5
    whole = decompose(compress(x, ref.gaussian(n, seed=4)), v @ torch.diag(scale) @ v.T)
    found = whole.spectrum
    assert found.rank == len(whole.optimum) == 5
    assert found.numerical_rank == (4 if factor < 1 else 5)
    assert float(found.values[4] / found.values[0]) == pytest.approx(1e-9 * min(factor, 1.0), rel=1e-5)


# The probe in the eigenbasis against gradient descent simulated step by step.


@pytest.mark.parametrize(
    ("condition", "rank", "steps"), [(3, D, 8), (10, D, 30), (100, D, 200), (100, 3, 200), (1e3, D, 1000), (50, 2, 60)]
)
def test_curve_is_that_of_the_naive_simulation(condition: float, rank: int, steps: int) -> None:
    x = ref.features_with_eigenvalues(37 * torch.logspace(0, -math.log10(condition), rank), 30, D, 0)
    y = ref.gaussian(30, seed=50)
    found = decompose(compress(x, y))
    fast = norm_ratio_curve(found.spectrum.values[:rank], found.optimum, steps=steps).ratio
    naive = ref.norm_ratio_curve(x, y, steps).numpy()
    assert fast[0] == naive[0] == 1
    # Below this the naive w_t - w* is a difference of equal digits: it has lost what 1e-9 would need.
    trusted = naive > 1e-9
    assert trusted.sum() >= 5
    assert np.abs(fast[trusted[: len(fast)]] / naive[trusted] - 1).max() < 1e-9


def test_slowest_start_has_the_closed_form_of_the_textbook() -> None:
    """e_0 ∝ 1/λ is the worst case of exact line search: the error shrinks by (κ-1)/(κ+1) a step, no more."""
    kappa = 1000.0
    values = torch.tensor([1, 1 / kappa], dtype=torch.float64)
    optimum = torch.tensor([1, kappa], dtype=torch.float64)
    curve = norm_ratio_curve(values, optimum, steps=1000)
    expected = ((kappa - 1) / (kappa + 1)) ** (2 * np.arange(1001))
    assert np.abs(curve.ratio / expected - 1).max() < 1e-9
    assert curve.steps_to == {0.1: 576, 0.01: None}  # log(0.1) / (2 log(999/1001)) = 575.6


def test_equal_eigenvalues_are_solved_in_one_step_and_the_curve_ends() -> None:
    curve = norm_ratio_curve(torch.ones(4, dtype=torch.float64), ref.gaussian(4, seed=4), steps=100)
    assert curve.ratio.tolist() == [1.0, 0.0]
    assert curve.steps_to == {0.1: 1, 0.01: 1}
    assert curve.thinned() == ([0, 1], [1.0, 0.0])


@pytest.mark.parametrize(("steps", "points"), [(1, 120), (5, 120), (20_000, 120), (20_000, 7)])
def test_thinned_curve_keeps_ends_and_values(steps: int, points: int) -> None:
    curve = norm_ratio_curve(torch.logspace(0, -6, 9, dtype=torch.float64), ref.gaussian(9, seed=5), steps=steps)
    at, ratio = curve.thinned(points)
    assert (at[0], at[-1]) == (0, steps)
    assert at == sorted(set(at))
    assert len(at) <= points + 1
    assert ratio == [curve.ratio[step] for step in at]
