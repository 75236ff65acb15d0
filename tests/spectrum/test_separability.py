"""What a ridge probe can learn: against naive references, finite differences, and the cases whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from immunize.spectrum.separability import (
    KERNELS,
    RHOS,
    Kernel,
    cross_fitted_accuracy,
    cross_fitted_correlation,
    folds_of,
    in_sample_share,
    probe_correlation,
    separability,
)
from tests import reference as ref

TALL, WIDE = (40, 7), (18, 30)


def task(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features with a signal of three classes, the classes, and every second row."""
    y = torch.arange(n) % 3
    x = ref.gaussian(n, d, seed=seed) * torch.logspace(0.5, -0.5, d, dtype=torch.float64) + 4
    x[:, 0] += y
    return x, y, torch.arange(n) // 2 % 2 == 0


@pytest.mark.parametrize("shape", [TALL, WIDE])
def test_both_sides_agree_with_the_naive_reference(shape: tuple[int, int]) -> None:
    x, y, judged = task(*shape)
    target = ref.gaussian(len(x), seed=5)
    for labels, columns in ((y, ref.one_hot(y)), (target, target[:, None])):
        share, correlation = in_sample_share(x, labels), cross_fitted_correlation(x, labels, judged)
        for i, rho in enumerate(RHOS):
            assert float(share[i]) == pytest.approx(ref.in_sample_share(x, columns, rho), rel=1e-9)
            wanted = ref.cross_fitted_correlation(x, columns, judged, rho)
            assert float(correlation[i]) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("shape", [TALL, WIDE])
def test_accuracy_is_that_of_a_ridge_probe_with_an_intercept(shape: tuple[int, int]) -> None:
    x, y, judged = task(*shape)
    found = cross_fitted_accuracy(x, y, judged)
    unit = ref.ridge_scale(x[~judged] - x[~judged].mean(0))
    for rho, share in zip(RHOS, found.tolist(), strict=True):
        probe = Ridge(rho * unit).fit(x[~judged].numpy(), ref.one_hot(y[~judged]).numpy())
        right = probe.predict(x[judged].numpy()).argmax(1) == y[judged].numpy()
        assert share == pytest.approx(right.mean())
    assert 0.3 < min(found.tolist()) <= 1
    usual = int(torch.bincount(y[~judged]).argmax())  # of features that say nothing
    assert cross_fitted_accuracy(torch.ones_like(x), y, judged)[0] == (y[judged] == usual).double().mean()


def test_rbf_is_ridge_regression_in_the_kernels_own_features() -> None:
    x, y, judged = task(16, 3)
    values, vectors = torch.linalg.eigh(ref.rbf_feature_gram(x, x, x[~judged]))
    features = vectors * values.clamp_min(0).sqrt()  # N features whose products are the kernel
    found = cross_fitted_correlation(x, y, judged, kernel="rbf").tolist()
    wanted = [ref.cross_fitted_correlation(features, ref.one_hot(y), judged, rho) for rho in RHOS]
    assert found == pytest.approx(wanted, rel=1e-7)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("shape", [(14, 4), (10, 13)])
def test_gradients_are_those_of_finite_differences(shape: tuple[int, int], kernel: Kernel) -> None:
    x, y, judged = task(*shape)
    x.requires_grad_()
    assert kernel == "rbf" or torch.autograd.gradcheck(lambda f: in_sample_share(f, y), (x,))
    assert torch.autograd.gradcheck(lambda f: cross_fitted_correlation(f, y, judged, kernel=kernel), (x,))


def test_equal_eigenvalues_have_a_gradient() -> None:
    x = torch.cat([torch.eye(4, dtype=torch.float64), -torch.eye(4, dtype=torch.float64)]).requires_grad_()
    y = torch.tensor([0, 1, 1, 0, 1, 0, 0, 0])
    assert torch.autograd.gradcheck(lambda f: in_sample_share(f, y), (x,))


def test_two_columns_of_zeros_and_ones_are_one_target() -> None:
    x, y, judged = task(*TALL)
    labels = (y > 0).long()
    torch.testing.assert_close(*(in_sample_share(x, of) for of in (labels, labels.double())))
    torch.testing.assert_close(*(cross_fitted_correlation(x, of, judged) for of in (labels, labels.double())))


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("shape", [TALL, WIDE])
def test_where_nothing_can_be_told_apart_both_and_their_gradients_are_0(shape: tuple[int, int], kernel: Kernel) -> None:
    x, y, judged = task(*shape)
    cases = {
        "one class": (x, torch.full_like(y, 2)),
        "a constant target": (x, torch.full((len(x),), 0.3, dtype=torch.float64)),
        "constant features": (torch.full_like(x, 0.1), y),
        "zeros": (torch.zeros_like(x), y),
    }
    for what, (features, labels) in cases.items():
        f = features.clone().requires_grad_()
        carried = cross_fitted_correlation(f, labels, judged, kernel=kernel)
        found = torch.cat([in_sample_share(f, labels), carried])
        assert found.tolist() == [0] * 2 * len(RHOS), what
        found.sum().backward()
        assert not bool(f.grad.any()), what
    one_a_side = torch.where(judged, 1, 0)
    assert cross_fitted_correlation(x, one_a_side, judged, kernel=kernel).tolist() == [0, 0, 0]


def test_copies_of_one_row_leave_the_kernel_a_scale() -> None:
    x = torch.zeros(24, 2, dtype=torch.float64)
    x[::4] = 1
    y, judged = x[:, 0].long(), torch.arange(24) < 12
    assert float(cross_fitted_correlation(x, y, judged, (1e-9,), kernel="rbf")) == pytest.approx(1, abs=1e-6)


def test_one_number_is_that_of_one_half_judged() -> None:
    x, y, _ = task(*TALL)
    half = folds_of(y, 2) == 0
    for rho in (1e-2, 1.0):
        assert probe_correlation(x, y, rho) == float(cross_fitted_correlation(x, y, half, (rho,)))
    assert probe_correlation(x, y) == probe_correlation(x, y, 1e-2)


@pytest.mark.parametrize("power", [-600, -300, 300, 600])
def test_targets_have_the_same_numbers_in_every_unit(power: int) -> None:
    x, _, judged = task(*TALL)
    both = ref.gaussian(len(x), seed=5), ref.gaussian(len(x), seed=5) * 2.0**power
    assert torch.equal(*(in_sample_share(x, y) for y in both))
    for kernel in KERNELS:
        assert torch.equal(*(cross_fitted_correlation(x, y, judged, kernel=kernel) for y in both))


def test_rows_that_are_all_the_same_have_no_correlation() -> None:
    x, y, judged = task(*TALL)
    for row in (torch.ones(TALL[1], dtype=x.dtype), x[~judged].mean(0)):
        assert not cross_fitted_correlation(torch.where(judged[:, None], row, x), y, judged).any()


def test_bad_input_is_refused() -> None:
    x, y, judged = task(*TALL)
    for given, words in (
        ((x.float(), y), "float64"),
        ((x * math.nan, y), "^features must not contain NaN"),
        ((x, torch.ones(len(y), 1, dtype=torch.int64)), "one for each row"),
        *(((x, torch.where(y > 1, wrong, 0.0)), "^targets must not contain NaN") for wrong in (math.nan, -math.inf)),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            in_sample_share(*given)
    for number in (1, len(y) - 1):  # one row is judged, or fitted on
        assert cross_fitted_accuracy(x, y, torch.arange(len(y)) < number).shape == (3,)
    for rows in (torch.zeros_like(judged), torch.ones_like(judged)):
        for function in (cross_fitted_correlation, cross_fitted_accuracy):
            with pytest.raises(ValueError, match="judged"):
                function(x, y, rows)


def test_every_row_is_judged_once_and_each_half_has_its_share_of_every_class() -> None:
    y = torch.tensor([0] * 30 + [1] * 9 + [2] * 2)
    x = ref.gaussian(41, 5, seed=1)
    x[:, 0] += y
    found = separability(x, y)
    assert found["in_sample"]["0.01"] == pytest.approx(ref.in_sample_share(x, ref.one_hot(y), 0.01), abs=1e-8)
    half = folds_of(y, 2) == 0
    assert torch.bincount(y[half]).tolist() in ([15, 5, 1], [15, 4, 1])
    wanted = [ref.cross_fitted_correlation(x, ref.one_hot(y), judged, 0.1) for judged in (half, ~half)]
    assert found["cross_fitted"]["0.1"] == pytest.approx(sum(wanted) / 2, abs=1e-8)


def test_a_target_is_split_by_its_values() -> None:
    y = ref.gaussian(101, seed=3)
    x = torch.stack([y, ref.gaussian(101, seed=4)], 1)
    assert separability(x, y)["cross_fitted"]["0.001"] > 0.999
