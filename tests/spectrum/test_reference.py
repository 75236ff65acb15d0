"""The reference itself, where the answer is known without it."""

from __future__ import annotations

import pytest
import torch

from tests import reference as ref


def test_prescribed_spectra_are_exact() -> None:
    s = ref.matrix_with_singular_values([5.0, 2.0], 4, 3, seed=1)
    torch.testing.assert_close(torch.linalg.svdvals(s), torch.tensor([5.0, 2.0, 0.0]).double(), rtol=1e-14, atol=1e-14)
    f = ref.features_with_eigenvalues([5.0, 2.0], 3, 4, seed=1)
    torch.testing.assert_close(ref.eigenvalues(f.T @ f)[:2], torch.tensor([5.0, 2.0]).double(), rtol=1e-14, atol=0)


def test_finite_differences_of_a_cubic_are_exact() -> None:
    at = ref.gaussian(3, 2, seed=2)
    slope = ref.finite_difference_gradient(lambda t: (t**3).sum(), at)
    torch.testing.assert_close(slope, 3 * at**2, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("k", [4, 2])
def test_norm_ratio_is_one_step_where_kappa_is_one(k: int) -> None:
    x, y = ref.features_with_eigenvalues([3.0] * k, 9, 4, seed=3), ref.gaussian(9, seed=4)
    curve = ref.norm_ratio_curve(x, y, 3)
    assert curve.shape == (4,)
    assert float(curve[0]) == 1
    assert float(curve[1]) < 1e-28


@pytest.mark.parametrize("kappa", [3.0, 30.0])
def test_norm_ratio_obeys_kantorovich_and_reaches_it_from_the_worst_start(kappa: float) -> None:
    # Exact line search shrinks the loss gap by ((κ-1)/(κ+1))² a step, with equality for w* ∝ (1, κ) in the eigenbasis.
    x = torch.diag(torch.tensor([kappa, 1.0], dtype=torch.float64).sqrt())
    y = x @ torch.tensor([1.0, kappa], dtype=torch.float64)
    curve = ref.norm_ratio_curve(x, y, 6)
    expected = ((kappa - 1) / (kappa + 1)) ** (2 * torch.arange(0, 7, 2, dtype=torch.float64))
    torch.testing.assert_close(curve[::2], expected, rtol=1e-12, atol=0)


def test_optimal_loss_is_the_part_of_y_outside_the_range() -> None:
    x, y = ref.gaussian(9, 3, seed=5), ref.gaussian(9, seed=6)
    q = torch.linalg.qr(x).Q
    outside = float((y - q @ (q.T @ y)).square().sum())
    assert ref.optimal_least_squares_loss(x, y) == pytest.approx(outside, rel=1e-12)
    assert ref.optimal_least_squares_loss(x @ ref.extractor(3, seed=7), y) == pytest.approx(outside, rel=1e-12)
