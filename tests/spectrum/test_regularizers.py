"""R_well, R_ill and κ: values and closed-form gradients against explicit sums, finite differences and Algorithm 1."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from immunize.spectrum import (
    condition_number,
    kappa,
    kappa_of_features,
    r_ill,
    r_ill_of_features,
    r_ill_of_spectrum,
    r_well,
    r_well_of_features,
    r_well_of_spectrum,
    spectrum_of,
)
from immunize.spectrum.regularizers import Ends, gram_ends
from tests import reference as ref
from tests.reference import error, gradient
from tests.spectrum.making import properties

MATRIX = {
    "well": (r_well, ref.r_well, ref.r_well_gradient),
    "ill": (r_ill, ref.r_ill, ref.r_ill_gradient),
    "kappa": (kappa, ref.kappa, ref.kappa_gradient),
}


FEATURES = {
    "well": (r_well_of_features, ref.r_well, ref.r_well_gradient),
    "ill": (r_ill_of_features, ref.r_ill, ref.r_ill_gradient),
    "kappa": (kappa_of_features, ref.kappa, ref.kappa_gradient),
}


SPECTRUM = {
    "well": r_well_of_spectrum,
    "ill": r_ill_of_spectrum,
    "kappa": lambda spectrum: condition_number(spectrum).value,
}


every_function = pytest.mark.parametrize("name", list(MATRIX))
every_shape = pytest.mark.parametrize(("rows", "columns"), [(4, 9), (9, 4), (6, 6)])


# --- against the reference ----------------------------------------------------------------------------------------


@every_function
@every_shape
@pytest.mark.parametrize("drop", [0, 2])
def test_matrix_value_and_gradient_are_the_reference(name: str, rows: int, columns: int, drop: int) -> None:
    function, value, slope = MATRIX[name]
    sigma = torch.logspace(1, -2, min(rows, columns) - drop, dtype=torch.float64)
    s = ref.matrix_with_singular_values(sigma, rows, columns, seed=1)
    assert float(function(s)) == pytest.approx(value(s), rel=1e-11)
    assert error(gradient(function, s), slope(s)) < 1e-11


@every_function
@every_shape
@pytest.mark.parametrize("drop", [0, 2])
def test_feature_value_and_gradient_are_those_of_the_explicit_hessian(
    name: str, rows: int, columns: int, drop: int
) -> None:
    function, value, slope = FEATURES[name]
    sigma = torch.logspace(2, -2, min(rows, columns) - drop, dtype=torch.float64)
    f = ref.features_with_eigenvalues(sigma, rows, columns, seed=2)
    h = f.T @ f
    assert float(function(f)) == pytest.approx(value(h), rel=1e-9)
    assert SPECTRUM[name](spectrum_of(f)) == pytest.approx(value(h), rel=1e-9)
    assert error(gradient(function, f), 2 * f @ slope(h)) < 1e-9


@every_function
@pytest.mark.parametrize(("size", "exponent"), [(5, -12), (5, 12), (200, -12), (200, 12)])
def test_value_and_gradient_scale_with_the_units(name: str, size: int, exponent: int) -> None:
    """At about 10^exponent·F."""
    function, scale = FEATURES[name][0], 2.0 ** (exponent * 10 // 3)  # a power of two scales without rounding
    degree = {"well": 4, "ill": -4, "kappa": 0}[name]
    f = ref.gaussian(size, size + 100, seed=37)
    assert error(function(scale * f) / scale**degree, function(f)) < 1e-9
    assert error(scale ** (1 - degree) * gradient(function, scale * f), gradient(function, f)) < 1e-9


@every_function
@pytest.mark.parametrize(("rows", "columns"), [(4, 9), (9, 4), (30, 9)])
def test_only_the_smaller_gram_matrix_is_decomposed(
    name: str, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def recording(gram: Tensor, tolerance: float) -> Ends:
        sizes.append(gram.shape)
        return gram_ends(gram, tolerance)

    monkeypatch.setattr("immunize.spectrum.regularizers.gram_ends", recording)
    gradient(FEATURES[name][0], ref.gaussian(rows, columns, seed=38))
    assert sizes == [(min(rows, columns), min(rows, columns))]


@pytest.mark.parametrize("name", ["ill", "kappa"])
def test_a_rank_cut_of_the_caller_is_kept(name: str) -> None:
    s = ref.matrix_with_singular_values([3.0, 2.0, 0.1], 3, 4, seed=39)
    matrix, reference, _ = MATRIX[name]
    assert float(matrix(s, tolerance=0.1)) == pytest.approx(reference(s, 0.1), rel=1e-12)
    assert float(FEATURES[name][0](s, tolerance=0.1)) == pytest.approx(reference(s.T @ s, 0.1), rel=1e-12)


@every_function
def test_upstream_gradient_multiplies(name: str) -> None:
    matrix, features = MATRIX[name][0], FEATURES[name][0]
    f, theta = ref.gaussian(5, 7, seed=9), ref.extractor(7, seed=10)
    for function, at in ((matrix, f), (features, f), (lambda t: features(f @ theta, t), theta)):
        plain, scaled = gradient(function, at), gradient(lambda t, function=function: -3 * function(t), at)
        assert error(scaled, -3 * plain) < 1e-14


# --- against finite differences -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["well", "ill", "kappa"])
def test_gradient_agrees_with_the_value_about_singular_values_below_the_cut(name: str) -> None:
    s = ref.matrix_with_singular_values([3.0, 2.0, 0.1], 3, 3, seed=20)
    matrix, features = MATRIX[name][0], FEATURES[name][0]
    expected = ref.finite_difference_gradient(lambda t: matrix(t, tolerance=0.1), s)
    assert error(gradient(lambda t: matrix(t, tolerance=0.1), s), expected) < 1e-8
    expected = ref.finite_difference_gradient(lambda t: features(t, tolerance=0.01), s)
    assert error(gradient(lambda t: features(t, tolerance=0.01), s), expected) < 1e-8


# --- ties, zeros, duplicates --------------------------------------------------------------------------------------


def duplicated(distance: float) -> Tensor:
    x = ref.gaussian(4, 7, seed=21)
    return torch.cat([x, x[:2] + distance * ref.gaussian(2, 7, seed=22)])


DEGENERATE = {
    "tied top": torch.diag(torch.tensor([3.0, 3.0, 2.0, 1.0], dtype=torch.float64)),
    "tied bottom": torch.diag(torch.tensor([3.0, 2.0, 1.0, 1.0], dtype=torch.float64)),
    "zeros": torch.diag(torch.tensor([3.0, 2.0, 0.0, 0.0], dtype=torch.float64)),
    "rotated tie": ref.features_with_eigenvalues([3.0, 3.0, 1.0, 1.0], 9, 5, seed=23),
    "duplicate rows": duplicated(0.0),
    "near-duplicate rows": duplicated(1e-10),
}


@pytest.mark.parametrize("case", DEGENERATE)
@every_function
def test_gradient_is_finite_and_moderate_where_the_spectrum_is_degenerate(case: str, name: str) -> None:
    s = DEGENERATE[case]
    for function, tolerance in ((MATRIX[name][0], 1e-8), (FEATURES[name][0], None)):
        value = function(s, tolerance=tolerance)
        slope = gradient(lambda t, f=function, tol=tolerance: f(t, tolerance=tol), s)
        assert torch.isfinite(value)
        assert torch.isfinite(slope).all()
        # Euler: φ is homogeneous in S (degree 2, -2, 0; twice that in features), so <∇φ, S> is known at ties too.
        degree = {"well": 2, "ill": -2, "kappa": 0}[name] * (1 if function is MATRIX[name][0] else 2)
        assert float((slope * s).sum()) == pytest.approx(degree * float(value), abs=1e-9 * float(value))
        assert float(slope.norm()) < 100 * float(value)


@pytest.mark.parametrize("case", ["tied top", "tied bottom", "rotated tie"])
def test_gradient_at_a_tie_uses_one_singular_pair(case: str) -> None:
    s = DEGENERATE[case]
    sigma = ref.compact_svd(s)[1]
    f = ref.ill_denominator(sigma)
    first, last = float(sigma[0]), float(sigma[-1])
    for slope, factor, level in (
        (gradient(r_well, s) + s / min(s.shape), 1, first),
        (gradient(r_well_of_features, s) + 2 * s @ (s.T @ s) / s.shape[1], 2 * first**2, first),
        (f**2 * gradient(r_ill, s) + s / len(sigma), 1, last),
    ):
        u, values, vh = torch.linalg.svd(slope)
        expected = torch.zeros_like(values)
        expected[0] = factor * level
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12 * factor)
        torch.testing.assert_close(s @ vh[0], level * u[:, 0], rtol=0, atol=1e-12)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), scale=st.floats(1e-3, 1e3))
@properties
def test_r_ill_at_kappa_one_is_infinite_up_to_rounding(seed: int, n: int, scale: float) -> None:
    # The exact value is +∞; rounding may leave any f within a few ulp of zero, never a moderate result.
    assert float(r_ill(scale * ref.orthogonal(n, seed))) > 1e13 / scale**2


# --- preconditioned: theta given ----------------------------------------------------------------------------------


@every_function
@pytest.mark.parametrize(("rows", "columns", "k"), [(12, 5, 5), (5, 5, 5), (4, 9, 4), (12, 7, 3), (4, 9, 2)])
def test_given_theta_the_gradient_is_2_theta_g(name: str, rows: int, columns: int, k: int) -> None:
    function, _, slope = FEATURES[name]
    x = ref.features_with_eigenvalues(torch.logspace(1, -1, k), rows, columns, seed=26)
    theta = ref.extractor(columns, seed=27)
    result = gradient(lambda t: function(x @ theta, t), theta)
    assert error(result, 2 * theta @ slope(ref.hessian(x, theta), tolerance=1e-12)) < 1e-9


@every_function
def test_given_theta_nothing_flows_into_the_features(name: str) -> None:
    f, theta = ref.gaussian(4, 6, seed=32).requires_grad_(), ref.extractor(6, seed=33).requires_grad_()
    FEATURES[name][0](f, theta).backward()
    assert f.grad is None
    assert theta.grad is not None


# --- contracts ----------------------------------------------------------------------------------------------------


@every_function
def test_second_derivatives_are_refused(name: str) -> None:
    s = ref.gaussian(4, 5, seed=34).requires_grad_()
    theta = ref.extractor(5, seed=35).requires_grad_()
    terms = ((MATRIX[name][0](s), s), (FEATURES[name][0](s), s), (FEATURES[name][0](s.detach() @ theta, theta), theta))
    for value, at in terms:
        (slope,) = torch.autograd.grad(value.square(), at, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            slope.sum().backward()


@every_function
@pytest.mark.parametrize("size", [3, 200])
def test_zeros_have_no_regularizer(name: str, size: int) -> None:
    for function in (MATRIX[name][0], FEATURES[name][0]):
        with pytest.raises(ValueError, match="zeros"):
            function(torch.zeros(size, size + 1, dtype=torch.float64))
