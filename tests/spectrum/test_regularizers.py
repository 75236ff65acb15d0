"""R_well, R_ill and κ: values and closed-form gradients against explicit sums, finite differences and Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from immunize.spectrum.condition import Spectrum, condition_number, spectrum_of
from immunize.spectrum.regularizers import (
    gram_ends,
    kappa,
    kappa_of_features,
    r_ill,
    r_ill_of_features,
    r_ill_of_spectrum,
    r_well,
    r_well_of_features,
    r_well_of_spectrum,
)
from tests import reference as ref
from tests.reference import error, gradient
from tests.spectrum.making import properties


class Term(NamedTuple):
    """One regularizer: of a matrix, of features (its H = FᵀF), of a spectrum; as the reference has it; its degree."""

    matrix: Callable[..., Tensor]
    features: Callable[..., Tensor]
    spectrum: Callable[[Spectrum], float]
    value: Callable[..., float]
    slope: Callable[..., Tensor]
    degree: int


WELL = Term(r_well, r_well_of_features, r_well_of_spectrum, ref.r_well, ref.r_well_gradient, 2)
ILL = Term(r_ill, r_ill_of_features, r_ill_of_spectrum, ref.r_ill, ref.r_ill_gradient, -2)
KAPPA = Term(kappa, kappa_of_features, lambda of: condition_number(of).value, ref.kappa, ref.kappa_gradient, 0)

every_term = pytest.mark.parametrize("term", [WELL, ILL, KAPPA], ids=["well", "ill", "kappa"])


# --- against the reference ----------------------------------------------------------------------------------------


@every_term
@pytest.mark.parametrize(("rows", "columns"), [(4, 9), (9, 4), (6, 6)])
@pytest.mark.parametrize("drop", [0, 2])
def test_values_and_gradients_are_those_of_explicit_sums(term: Term, rows: int, columns: int, drop: int) -> None:
    k = min(rows, columns) - drop
    s = ref.matrix_with_singular_values(torch.logspace(1, -2, k, dtype=torch.float64), rows, columns, seed=1)
    assert float(term.matrix(s)) == pytest.approx(term.value(s), rel=1e-11)
    assert error(gradient(term.matrix, s), term.slope(s)) < 1e-11
    f = ref.features_with_eigenvalues(torch.logspace(2, -2, k, dtype=torch.float64), rows, columns, seed=2)
    h = f.T @ f
    assert float(term.features(f)) == pytest.approx(term.value(h), rel=1e-9)
    assert term.spectrum(spectrum_of(f)) == pytest.approx(term.value(h), rel=1e-9)
    assert error(gradient(term.features, f), 2 * f @ term.slope(h)) < 1e-9


@every_term
@pytest.mark.parametrize(("size", "exponent"), [(5, -12), (5, 12), (200, -12), (200, 12)])
def test_value_and_gradient_scale_with_the_units(term: Term, size: int, exponent: int) -> None:
    """At about 10^exponent·F."""
    scale, degree = 2.0 ** (exponent * 10 // 3), 2 * term.degree  # a power of two scales without rounding
    f = ref.gaussian(size, size + 100, seed=37)
    assert error(term.features(scale * f) / scale**degree, term.features(f)) < 1e-9
    assert error(scale ** (1 - degree) * gradient(term.features, scale * f), gradient(term.features, f)) < 1e-9


@every_term
@pytest.mark.parametrize(("rows", "columns"), [(4, 9), (9, 4), (30, 9)])
def test_only_the_smaller_gram_matrix_is_decomposed(term: Term, rows: int, columns: int) -> None:
    with mock.patch("immunize.spectrum.regularizers.gram_ends", wraps=gram_ends) as watched:
        gradient(term.features, ref.gaussian(rows, columns, seed=38))
    assert [call.args[0].shape for call in watched.call_args_list] == [(min(rows, columns), min(rows, columns))]


@every_term
def test_a_rank_cut_of_the_caller_counts_in_values_and_gradients(term: Term) -> None:
    s = ref.matrix_with_singular_values([3.0, 2.0, 0.1], 3, 3, seed=20)
    for function, tolerance, of in ((term.matrix, 0.1, s), (term.features, 0.01, s.T @ s)):
        cut = partial(function, tolerance=tolerance)
        if term is not WELL:  # which has no k
            assert float(cut(s)) == pytest.approx(term.value(of, tolerance), rel=1e-12)
        assert error(gradient(cut, s), ref.finite_difference_gradient(cut, s)) < 1e-8


@every_term
def test_upstream_gradient_multiplies(term: Term) -> None:
    f, theta = ref.gaussian(5, 7, seed=9), ref.extractor(7, seed=10)
    for function, at in ((term.matrix, f), (term.features, f), (lambda t: term.features(f @ theta, t), theta)):
        plain, scaled = gradient(function, at), gradient(lambda t, function=function: -3 * function(t), at)
        assert error(scaled, -3 * plain) < 1e-14


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
@every_term
def test_gradient_is_finite_and_moderate_where_the_spectrum_is_degenerate(case: str, term: Term) -> None:
    s = DEGENERATE[case]
    # Euler: φ is homogeneous in S (degree 2, -2, 0; twice that in features), so <∇φ, S> is known at ties too.
    for function, tolerance, degree in ((term.matrix, 1e-8, term.degree), (term.features, None, 2 * term.degree)):
        value = function(s, tolerance=tolerance)
        slope = gradient(lambda t, f=function, tol=tolerance: f(t, tolerance=tol), s)
        assert torch.isfinite(value)
        assert torch.isfinite(slope).all()
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


@every_term
@pytest.mark.parametrize(("rows", "columns", "k"), [(12, 5, 5), (5, 5, 5), (4, 9, 4), (12, 7, 3), (4, 9, 2)])
def test_given_theta_the_gradient_is_2_theta_g(term: Term, rows: int, columns: int, k: int) -> None:
    x = ref.features_with_eigenvalues(torch.logspace(1, -1, k), rows, columns, seed=26)
    theta = ref.extractor(columns, seed=27)
    f, at = (x @ theta).requires_grad_(), theta.clone().requires_grad_()
    term.features(f, at).backward()
    assert error(at.grad, 2 * theta @ term.slope(ref.hessian(x, theta), tolerance=1e-12)) < 1e-9
    assert f.grad is None  # nothing flows into the features


# --- contracts ----------------------------------------------------------------------------------------------------


@every_term
def test_second_derivatives_are_refused(term: Term) -> None:
    s = ref.gaussian(4, 5, seed=34).requires_grad_()
    theta = ref.extractor(5, seed=35).requires_grad_()
    at_theta = term.features(s.detach() @ theta, theta)
    for value, at in ((term.matrix(s), s), (term.features(s), s), (at_theta, theta)):
        (slope,) = torch.autograd.grad(value.square(), at, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            slope.sum().backward()


@every_term
@pytest.mark.parametrize("size", [3, 200])
def test_zeros_have_no_regularizer(term: Term, size: int) -> None:
    for function in (term.matrix, term.features):
        with pytest.raises(ValueError, match="zeros"):
            function(torch.zeros(size, size + 1, dtype=torch.float64))
