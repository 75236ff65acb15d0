"""Numerical rank, κ by three estimators and RIR, against spectra that are prescribed and against explicit H."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from immunize.spectrum.condition import (
    ESTIMATORS,
    Spectrum,
    ZeroMatrixError,
    all_finite,
    check_varying,
    condition_number,
    default_tolerance,
    immunization_ratio,
    spectrum_of,
    spectrum_of_gram,
)
from immunize.spectrum.erasing_choice import erase
from immunize.spectrum.ranges import compress_rows
from immunize.spectrum.regularizers import (
    gram_ends,
    kappa,
    kappa_of_features,
    r_ill,
    r_ill_of_features,
    r_well,
    r_well_of_features,
)
from immunize.spectrum.separability import in_sample_share
from immunize.spectrum.shrinkage import closed_form
from tests import reference as ref
from tests.spectrum.making import column, diagonal, properties


def ladder(k: int, kappa: float, top: float = 1.0) -> Tensor:
    """k eigenvalues from `top` down to `top`/κ, equally spaced in the logarithm."""
    return top * kappa ** -torch.linspace(0, 1, k, dtype=torch.float64)


@given(seed=st.integers(0, 10**6), exponent=st.floats(-12, 12), n=st.integers(1, 12), d=st.integers(1, 12))
@properties
def test_kappa_is_over_the_non_zero_spectrum_in_any_units_and_basis(seed: int, exponent: float, n: int, d: int) -> None:
    k = 1 + seed % min(n, d)
    features = ref.features_with_eigenvalues(ladder(k, 1e4), n, d, seed)
    moved = 10**exponent * ref.orthogonal(n, seed + 2) @ features @ ref.orthogonal(d, seed + 3)
    before, after = spectrum_of(features), spectrum_of(moved)
    torch.testing.assert_close(before.values[:k], ladder(k, 1e4), rtol=1e-11, atol=0)
    assert before.trace == pytest.approx(float(ladder(k, 1e4).sum()), rel=1e-13)
    for result in map(condition_number, (before, after)):
        assert (result.rank, result.n_samples, result.n_features) == (k, n, d)
        assert result.value == pytest.approx(1e4 if k > 1 else 1, rel=1e-11)
    ridge = [condition_number(spectrum, "ridge").value for spectrum in (before, after)]
    assert ridge[0] == pytest.approx(ridge[1], rel=1e-11)


@pytest.mark.parametrize("bottom", [3e-9, 3e-6, 1e-3, 1.0])
@pytest.mark.parametrize(("n", "d"), [(25, 6), (8, 20), (50, 20)])
def test_released_is_the_authors_arithmetic_and_ridge_counts_what_no_sample_has(n: int, d: int, bottom: float) -> None:
    features = ref.features_with_eigenvalues(ladder(6, 2.0 / bottom, top=2.0), n, d, seed=6)
    result, smallest = condition_number(spectrum_of(features), "released"), bottom if d == 6 else 0.0
    assert result.value == pytest.approx((2.0 + 1e-6) / (smallest + 1e-6), rel=1e-12)
    assert result.floor_hit == (smallest < 1e-6)
    # On the explicit matrix theirs has rounding noise over 1e-6.
    assert result.value == pytest.approx(ref.kappa_released(ref.hessian(features)), rel=1e-8)
    ridge = condition_number(spectrum_of(features), "ridge", rho=0.1)
    assert ridge.value == pytest.approx(ref.kappa_ridge(ref.hessian(features), 0.1), rel=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_validity_facts_travel_with_every_estimator(estimator: str) -> None:
    features = ref.features_with_eigenvalues([12.0, 6.0, 3.0, 1.0], 9, 7, seed=10)
    fact = condition_number(spectrum_of(features), estimator)  # type: ignore[arg-type]
    assert (fact.estimator, fact.n_samples, fact.n_features, fact.rank) == (estimator, 9, 7, 4)
    assert fact.tolerance == default_tolerance(9, 7) == 9 * 2**-52
    numbers = (fact.sigma_max, fact.sigma_min, fact.gap_top, fact.gap_bottom)
    assert numbers == pytest.approx((12, 1, 2, 3), rel=1e-12)
    assert fact.gap_cut > 1e20
    assert fact.floor_hit == (estimator != "spectrum")
    assert (fact.rho is None) == (estimator != "ridge")


def test_gaps_of_ties_of_rank_one_and_at_a_cut_where_the_rank_is_unclear() -> None:
    tied = condition_number(spectrum_of(ref.features_with_eigenvalues([4.0, 4.0, 1.0, 1.0], 6, 4, seed=11)))
    assert (tied.gap_top, tied.gap_bottom, tied.gap_cut) == (*[pytest.approx(1, rel=1e-12)] * 2, math.inf)
    one = condition_number(spectrum_of(ref.features_with_eigenvalues([4.0], 1, 3, seed=11)))
    assert (one.value, one.gap_top, one.gap_bottom, one.gap_cut) == (1.0, math.inf, math.inf, math.inf)
    spectrum = spectrum_of(ref.features_with_eigenvalues([1.0, 0.2, 0.05], 4, 3, seed=12), tolerance=0.1)
    unclear = condition_number(spectrum)
    assert (unclear.rank, unclear.tolerance) == (2, 0.1)
    assert (unclear.value, unclear.gap_cut) == pytest.approx((5, 4), rel=1e-12)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), d=st.integers(1, 9))
@properties
def test_gram_matrices_and_compressed_rows_have_the_spectrum_of_the_features(seed: int, n: int, d: int) -> None:
    k = 1 + seed % min(n, d)
    x, theta = ref.features_with_eigenvalues(ladder(k, 1e4, top=30.0), n, d, seed), ref.extractor(d, seed + 1)
    rows, direct = compress_rows(x), spectrum_of(x @ theta)
    assert rows.shape == (k, d)
    torch.testing.assert_close(rows.T @ rows, x.T @ x, rtol=0, atol=1e-13 * 30)
    gram, compressed = spectrum_of_gram(ref.hessian(x, theta), n), spectrum_of(rows @ theta, n_samples=n)
    assert len(gram.values) == len(direct.values)
    for found, rtol in ((gram, 1e-9), (compressed, 1e-10)):
        assert (found.rank, found.n_samples, found.n_features, found.tolerance) == (k, n, d, direct.tolerance)
        torch.testing.assert_close(found.values[:k], direct.values[:k], rtol=rtol, atol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_immunization_ratio_is_eq_15(estimator: str) -> None:
    x_p, x_h, theta = ref.gaussian(30, 6, seed=17), ref.gaussian(25, 6, seed=18), ref.extractor(6, seed=19)
    matrices = [x_p @ theta, x_h @ theta, x_p, x_h]
    spectra: Any = [spectrum_of(x) for x in matrices]
    ratio = immunization_ratio(*spectra, estimator, rho=0.05)
    k_p, k_h, k_p0, k_h0 = (ref.kappa_by(estimator, ref.hessian(x), len(x), 0.05) for x in matrices)
    expected = ref.immunization_ratio(k_h, k_p, k_h0, k_p0)
    assert (ratio.ratio_harmful, ratio.ratio_pretrain, ratio.rir) == pytest.approx(expected, rel=1e-9)
    parts = (ratio.kappa_pretrain, ratio.kappa_harmful, ratio.kappa_pretrain_baseline, ratio.kappa_harmful_baseline)
    assert [p.value for p in parts] == pytest.approx([k_p, k_h, k_p0, k_h0], rel=1e-9)
    assert {p.estimator for p in parts} == {ratio.estimator} == {estimator}
    assert immunization_ratio(*spectra) == immunization_ratio(*spectra, "spectrum")  # by default
    assert immunization_ratio(*spectra, "ridge") == immunization_ratio(*spectra, "ridge", rho=0.01)


CHECKED = {"features": spectrum_of, "x": compress_rows, "gram": lambda m: spectrum_of_gram(m, 3)}
CHECKED |= {"the matrix": r_well, "the features": r_well_of_features}


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (torch.ones(3, 3), TypeError, "float64"),
        *((column(1, one, 0, 1).view(2, 2), ValueError, "NaN or infinite") for one in (math.nan, math.inf, -math.inf)),
        *((torch.ones(shape).double(), ValueError, "non-empty") for shape in ((0, 3), (3, 0), (0, 0), (3,), (2, 3, 3))),
    ],
)
def test_what_is_no_matrix_of_finite_float64_is_refused(bad: Tensor, error: type[Exception], words: str) -> None:
    for called, function in CHECKED.items():
        with pytest.raises(error, match=f"^{called} must .*{words}"):
            function(bad)


@pytest.mark.parametrize("tolerance", [-1.0, -1e-300, 1.0, math.nan, math.inf])
def test_a_rank_cut_that_keeps_nothing_or_what_is_below_zero_is_refused(tolerance: float) -> None:
    x = torch.ones(4, 3, dtype=torch.float64)
    for function in (spectrum_of, r_well, r_ill, kappa, r_well_of_features, r_ill_of_features, kappa_of_features):
        with pytest.raises(ValueError, match="tolerance has to be at least 0 and below 1"):
            function(x, tolerance=tolerance)
    assert condition_number(spectrum_of(x, tolerance=0.999)).value == 1


@pytest.mark.filterwarnings("error")
def test_features_that_gradients_would_reach_have_the_same_spectrum_and_no_warning() -> None:
    features = ref.gaussian(6, 3, seed=0)
    assert condition_number(spectrum_of(features.clone().requires_grad_())) == condition_number(spectrum_of(features))


@pytest.mark.parametrize("size", [1e-170, 1e-160, 1e160])
def test_numbers_that_cannot_be_squared_are_told_from_zeros(size: float) -> None:
    x = size * ref.gaussian(40, 3, seed=0)
    y = torch.arange(40) % 2
    with pytest.raises(ZeroMatrixError, match=r"be squared|are beyond float64, or nearly"):
        condition_number(spectrum_of(x))
    for name, function in {
        "x_pretrain": lambda: closed_form(x, x),
        "x_harmful": lambda: erase(x / size, x, y),
        "features": lambda: in_sample_share(x, y),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: numbers of a size of .*squares float64 cannot hold; change"):
            function()


def test_zeros_unknown_estimators_and_a_rho_that_is_not_positive_are_refused() -> None:
    zeros, eye = (spectrum_of(of) for of in (torch.zeros(4, 3).double(), torch.eye(2).double()))
    assert zeros.rank == 0
    for spectrum, estimator, rho, words in (
        *((zeros, estimator, 0.01, "zeros") for estimator in ESTIMATORS),
        (eye, "exact", 0.01, "spectrum, released, ridge"),
        *((eye, "ridge", rho, "rho") for rho in (0.0, -1.0, math.nan, math.inf)),
    ):
        with pytest.raises(ValueError, match=words):
            condition_number(spectrum, estimator, rho=rho)  # type: ignore[arg-type]


# --- what stands exactly on a limit ---------------------------------------------------------------------------------


def test_a_sum_that_overflows_is_no_infinite_value() -> None:
    assert all_finite(torch.full((3,), 1e308, dtype=torch.float64))


def test_an_eigenvalue_at_the_cut_counts_as_zero() -> None:
    assert Spectrum(column(1.0, 0.1), 5, 2, 0.1).rank == 1
    assert Spectrum(column(1.0, 0.1), 5, 2, 0.09).rank == 2
    assert gram_ends(diagonal(1.0, 0.125), 0.125).rank == 1
    assert spectrum_of(diagonal(1.0, 0.5), tolerance=0.25).rank == 1
    for function in (r_well, kappa):
        s = diagonal(4.0, 2.0, 0.5)
        assert float(function(s, tolerance=0.125)) == pytest.approx({r_well: 8 - 20.25 / 6, kappa: 2.0}[function])


def test_a_known_rank_of_the_data_reaches_below_the_cut_and_not_below_rounding() -> None:
    values = column(1.0, 1e-20, 1e-40)
    assert Spectrum(values, 3, 3, 3 * ref.EPS).rank == 1
    assert Spectrum(values, 3, 3, 3 * ref.EPS, rank_of_data=3).rank == 2
    assert Spectrum(values, 3, 3, 3 * ref.EPS, rank_of_data=1).rank == 1
    limit = (7 * ref.EPS) ** 2
    assert Spectrum(column(2.0, 2 * limit), 7, 3, 7 * ref.EPS, rank_of_data=2).rank == 1
    assert Spectrum(column(2.0, 2.1 * limit), 7, 3, 7 * ref.EPS, rank_of_data=2).rank == 2
    features = ref.features_with_eigenvalues([3.0, 2.0, 1.0], 6, 3, seed=1)
    assert spectrum_of(features, rank_of_data=2).rank == 2
    assert condition_number(spectrum_of(features, rank_of_data=2)).numerical_rank == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_vary_where_they_do_by_more_than_rounding(dtype: torch.dtype) -> None:
    x, eps = torch.ones(5, 3, dtype=dtype), torch.finfo(dtype).eps
    for steps, varies in ((50, False), (200, True)):
        x[0, 0] = 1 + steps * eps
        with contextlib.nullcontext() if varies else pytest.raises(ValueError, match="one and the same"):
            check_varying(x, "D_P")


def test_an_eigenvalue_that_rounding_made_negative_counts_as_zero() -> None:
    assert float(spectrum_of_gram(diagonal(1.0, -1e-17), 4).values[-1]) == 0


def test_the_floor_is_hit_below_it_and_not_at_it() -> None:
    at = condition_number(Spectrum(column(1.0, 1e-6), 5, 2, 1e-12), "released")
    assert not at.floor_hit
    assert at.value == pytest.approx((1 + 1e-6) / 2e-6)
    ridge = condition_number(Spectrum(column(3.0, 1.0), 5, 2, 1e-12), "ridge", rho=0.5)  # α = 1
    assert (ridge.value, ridge.floor_hit) == (2.0, False)
    assert condition_number(Spectrum(column(3.0, 1.0), 5, 2, 1e-12), "ridge").rho == 0.01
