"""The probe in the eigenbasis against gradient descent simulated step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from immunize.evaluation import norm_ratio_curve
from immunize.evaluation.immunity import compress, decompose
from tests import reference as ref

D = 6


def both(condition: float, rank: int, steps: int, seed: int = 0, n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    sigma = torch.logspace(0, -float(np.log10(condition)), rank) * 37
    x = ref.features_with_eigenvalues(sigma, n, D, seed)
    y = ref.gaussian(n, seed=seed + 50)
    found = decompose(compress(x, y))
    curve = norm_ratio_curve(found.spectrum.values[:rank], found.optimum, steps=steps)
    return curve.ratio, ref.norm_ratio_curve(x, y, steps).numpy()


@pytest.mark.parametrize(
    ("condition", "rank", "steps"), [(3, D, 8), (10, D, 30), (100, D, 200), (100, 3, 200), (1e3, D, 1000), (50, 2, 60)]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_curve_is_that_of_the_naive_simulation(condition: float, rank: int, steps: int, seed: int) -> None:
    fast, naive = both(condition, rank, steps, seed)
    assert fast[0] == naive[0] == 1
    # Below this the naive w_t - w* is a difference of equal digits: it has lost what 1e-9 would need.
    trusted = naive > 1e-9
    assert trusted.sum() >= 5
    assert np.abs(fast[trusted[: len(fast)]] / naive[trusted] - 1).max() < 1e-9


def test_scale_does_not_matter() -> None:
    values, optimum = torch.logspace(0, -2, 5, dtype=torch.float64), ref.gaussian(5, seed=1)
    one = norm_ratio_curve(values, optimum, steps=100).ratio
    assert np.abs(norm_ratio_curve(values * 1e12, optimum * 1e-7, steps=100).ratio / one - 1).max() < 1e-9


def test_slowest_start_has_the_closed_form_of_the_textbook() -> None:
    """e_0 ∝ 1/λ is the worst case of exact line search: the error shrinks by (κ-1)/(κ+1) a step, no more."""
    kappa = 1000.0
    values = torch.tensor([1, 1 / kappa], dtype=torch.float64)
    optimum = torch.tensor([1, kappa], dtype=torch.float64)
    curve = norm_ratio_curve(values, optimum, steps=50)
    expected = ((kappa - 1) / (kappa + 1)) ** (2 * np.arange(51))
    assert np.abs(curve.ratio / expected - 1).max() < 1e-9
    assert curve.steps_to == {0.1: None, 0.01: None}
    steps_to = norm_ratio_curve(values, optimum, steps=2000).steps_to
    assert steps_to == {0.1: 576, 0.01: 1152}  # log(0.1) / (2 log(999/1001)) = 575.6


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


def test_nothing_to_learn_is_refused() -> None:
    with pytest.raises(ValueError, match="zero"):
        norm_ratio_curve(torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("optimum", [torch.ones(4), torch.ones(3, 1), torch.ones(2)])
def test_shapes_that_differ_are_refused(optimum: Tensor) -> None:
    with pytest.raises(ValueError, match="eigenvalue"):
        norm_ratio_curve(torch.ones(3, dtype=torch.float64), optimum.double())
