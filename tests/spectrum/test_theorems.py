"""Theorems A.1, 4.1, 4.2 and 4.3 on random spectra, full-rank and rank-deficient; Proposition 3.2; Figure 4 as printed.

Every matrix has a prescribed spectrum, so that κ before a step is known and the rank after it is not a matter of a cut.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from immunize.features.linear import preconditioned_linear
from immunize.spectrum.condition import condition_number, spectrum_of
from immunize.spectrum.regularizers import (
    ill_step_bound,
    r_ill,
    r_ill_of_features,
    r_well,
    r_well_of_features,
    well_step_bound,
)
from tests import reference as ref
from tests.reference import gradient
from tests.spectrum.making import column, properties

TRIALS = 100
many = settings(properties, max_examples=TRIALS)


def kappa(matrix: Tensor, k: int) -> float:
    """σ_1/σ_k with the rank k given."""
    sigma = torch.linalg.svdvals(matrix)
    return float(sigma[0] / sigma[k - 1])


# --- Theorems A.1 and 4.1: a general matrix -----------------------------------------------------------------------


@st.composite
def spectra(draw: st.DrawFn, least: int = 1) -> Tensor:
    """κ up to 2.5 or up to 1e3, in several units; ties happen, and are what shrinking looks for."""
    logs = draw(st.lists(st.integers(0, draw(st.sampled_from([4, 30]))), min_size=least, max_size=6))
    return 10 ** (torch.tensor(sorted(logs, reverse=True), dtype=torch.float64) / 10 + draw(st.integers(-4, 2)))


seeds, more = st.integers(0, 10**6), st.integers(0, 3)
TOP_APART = spectra(2).filter(lambda sigma: bool(sigma[0] > sigma[1]))
END_APART = spectra(2).filter(lambda sigma: bool(sigma[-2] > sigma[-1]))
NOT_ALL_TIED = spectra(2).filter(lambda sigma: bool(sigma[0] > sigma[-1]))


Case = tuple[Tensor, Tensor]
"""S (rows, columns) and its k singular values, descending; p = min(rows, columns)."""


def matrices(of: st.SearchStrategy[Tensor]) -> st.SearchStrategy[Case]:
    def made(sigma: Tensor, rows: int, columns: int, seed: int) -> Case:
        shape = len(sigma) + rows, len(sigma) + columns
        return ref.matrix_with_singular_values(sigma, *shape, seed), sigma

    return st.builds(made, of, more, more, seeds)


@given(matrices(spectra()))
@properties
def test_a1_1_and_2_r_well_is_zero_only_for_full_rank_and_kappa_one_and_bounds_log_kappa(case: Case) -> None:
    s, sigma = case
    value, top, end, p = float(r_well(s)), float(sigma[0]), float(sigma[-1]), min(s.shape)
    smallest = end if len(sigma) == p else 0.0
    if smallest == top:
        assert abs(value) < 1e-13 * top**2
    else:
        # one singular value below σ_1 (or absent) contributes (σ_1² - σ_i²)/(2p)
        assert value >= (top**2 - smallest**2) / (2 * p) - 1e-13 * top**2
        assert value > 1e-3 * top**2
    assert math.log(top / end) <= p * value / end**2 + 1e-9


@given(matrices(TOP_APART), st.floats(0.02, 0.98))
@properties
def test_a1_4_a_step_below_the_bound_lowers_kappa(case: Case, fraction: float) -> None:
    (s, sigma), p = case, min(case[0].shape)
    before = float(sigma[0] / sigma[-1])
    eta = fraction * (before - 1) / ((1 - 1 / p) * before + 1 / p)
    assert kappa(s - eta * gradient(r_well, s), len(sigma)) < before


@given(matrices(NOT_ALL_TIED))
@properties
def test_41_1_and_2_r_ill_is_positive_vanishes_as_kappa_grows_and_bounds_1_over_log_kappa(case: Case) -> None:
    sigma, k, value = case[1], len(case[1]), float(r_ill(case[0]))
    # The two bounds of the proof: 2k/(k-1) ≤ R_ill·(κ² - 1)σ_k² ≤ 2k
    scaled = value * float(sigma[0] ** 2 - sigma[-1] ** 2)
    assert 2 * k / (k - 1) * (1 - 1e-9) <= scaled <= 2 * k * (1 + 1e-9)
    assert 1 / math.log(float(sigma[0] / sigma[-1])) <= float(sigma[0]) ** 2 * value


@given(matrices(END_APART), st.floats(0.02, 0.98))
@properties
def test_41_4_a_step_below_the_bound_raises_kappa(case: Case, fraction: float) -> None:
    (s, sigma), k = case, len(case[1])
    eta = fraction * k / (k - 1) * ref.ill_denominator(sigma) ** 2
    assert kappa(s - eta * gradient(r_ill, s), k) > float(sigma[0] / sigma[-1])


# --- Theorems 4.2 and 4.3: H(θ) -----------------------------------------------------------------------------------


class Trial(NamedTuple):
    """X and θ with the prescribed non-zero eigenvalues of H(θ)."""

    x: Tensor
    theta: Tensor
    sigma: Tensor

    def kappa_after(self, step: Tensor) -> float:
        return kappa(self.x @ (self.theta - step), len(self.sigma)) ** 2

    @property
    def kappa_before(self) -> float:
        return float(self.sigma[0] / self.sigma[-1])


def trial(sigma: Tensor, n: int, d: int) -> Trial:
    theta = ref.extractor(d, seed=3)
    return Trial(ref.features_with_eigenvalues(sigma, n, d, seed=4) @ torch.linalg.inv(theta), theta, sigma)


def trials(of: st.SearchStrategy[Tensor]) -> st.SearchStrategy[Trial]:
    return st.builds(lambda sigma, n, d: trial(sigma, len(sigma) + n, len(sigma) + d), of, more, more)


REGULARIZERS = {"well": (r_well_of_features, ref.r_well_gradient), "ill": (r_ill_of_features, ref.r_ill_gradient)}


def direction(name: str, case: Trial) -> Tensor:
    """K⁻¹∇_θ R by the package, without an inverse."""
    return gradient(lambda t: REGULARIZERS[name][0](case.x @ case.theta, t), case.theta)


@given(trials(TOP_APART), st.floats(0.01, 0.99))
@many
def test_43_1_a_well_step_below_the_bound_lowers_kappa(case: Trial, fraction: float) -> None:
    eta = fraction * well_step_bound(case.sigma, len(case.theta))
    assert case.kappa_after(eta * direction("well", case)) < case.kappa_before


@given(trials(END_APART), st.floats(0.01, 0.99))
@many
def test_43_2_an_ill_step_below_the_bound_raises_kappa(case: Trial, fraction: float) -> None:
    eta = fraction * ill_step_bound(case.sigma)
    if math.isinf(eta):
        eta = 10 ** (5 * fraction - 3) * ref.ill_denominator(case.sigma) ** 2 / float(case.sigma[0])
    assert case.kappa_after(eta * direction("ill", case)) > case.kappa_before


@given(trials(NOT_ALL_TIED), st.floats(0.01, 0.99))
@properties
def test_exact_maps_give_the_eigenvalues_of_the_updated_hessian(case: Trial, fraction: float) -> None:
    eta, d = fraction / float(case.sigma[0]), len(case.theta)
    eta_ill = eta * ref.ill_denominator(case.sigma) ** 2
    for step, mapped in (
        (eta * direction("well", case), ref.eigenvalues_after_well_step(case.sigma, d, eta)),
        (eta_ill * direction("ill", case), ref.eigenvalues_after_ill_step(case.sigma, eta_ill)),
    ):
        expected = torch.cat([mapped.sort(descending=True).values, torch.zeros(d - len(mapped), dtype=torch.float64)])
        actual = ref.eigenvalues(ref.hessian(case.x, case.theta - step))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10 * float(case.sigma[0]))


def test_well_bound_is_sharp() -> None:
    # At the bound σ_1' = σ_2'; just below it σ_1' is still the largest.
    sigma = column(9.0, 4.0, 1.0)
    bound = well_step_bound(sigma, 3)
    at = ref.eigenvalues_after_well_step(sigma, 3, bound)
    assert float(at[0]) == pytest.approx(float(at[1]), rel=1e-13)
    below = ref.eigenvalues_after_well_step(sigma, 3, 0.999 * bound)
    assert below[0] > below[1] > below[2]


def test_ill_bound_is_sharp_where_only_sigma_k_is_far_from_the_rest() -> None:
    # κ is unchanged at the bound and lower beyond it.
    sigma = column(1.21, 1.2, 1.0)
    bound = ill_step_bound(sigma)
    assert math.isfinite(bound)
    for fraction, sign in ((0.999, 1), (1.0, 0), (1.001, -1)):
        after = ref.eigenvalues_after_ill_step(sigma, fraction * bound)
        change = float(after.max() / after.min()) / 1.21 - 1
        assert change == pytest.approx(0, abs=1e-12) if sign == 0 else change * sign > 1e-4


# --- what the paper prints ----------------------------------------------------------------------------------------


def test_printed_bound_of_part_1_admits_the_step_that_sends_sigma_1_to_zero() -> None:
    sigma, d = column(10.0, 1.0, 0.5), 3
    printed = min(1 / ((1 - 1 / d) * 10), (math.sqrt(10) - 1) / (2 / d))
    eta = 1 / (2 * (1 - 1 / d) * 10)
    assert well_step_bound(sigma, d) < eta < printed
    case = trial(sigma, 5, 3)
    step = eta * direction("well", case)
    assert float(ref.eigenvalues(ref.hessian(case.x, case.theta - step))[-1]) < 1e-13
    assert case.kappa_after(0.9999 * step) > 1e6  # a hair beside it, where κ was 20


def test_printed_bound_of_part_2_admits_a_step_that_lowers_kappa() -> None:
    """In other units (σ/1.2) it would forbid this very step: 1 - 2σ_k/k is dimensionally inconsistent."""
    sigma = 1.2 * column(1.21, 1.2, 1.0)
    printed, in_units = (ref.ill_denominator(s) ** 2 / (1 - 2 * float(s[-1]) / 3) for s in (sigma, sigma / 1.2))
    eta = 1.1 * ill_step_bound(sigma)
    assert in_units * 1.2**3 < eta < printed
    case = trial(sigma, 5, 3)
    assert case.kappa_after(eta * direction("ill", case)) < 0.99 * 1.21


def test_literal_figure_4_moves_kappa_the_wrong_way_and_algorithm_1_never() -> None:
    wrong = {(side, name): 0 for side in ("input", "output") for name in REGULARIZERS}
    for seed in range(TRIALS):
        source = ref.generator(seed)
        x = torch.randn(12, 6, dtype=torch.float64, generator=source)
        theta = torch.randn(6, 6, dtype=torch.float64, generator=source)
        before = kappa(x @ theta, 6)
        for side, name in wrong:
            step = gradient(
                lambda t, s=side, n=name, x=x: REGULARIZERS[n][0](preconditioned_linear(x, t, side=s)),  # type: ignore[arg-type]
                theta,
            )
            after = kappa(x @ (theta - 1e-5 * step * theta.norm() / step.norm()), 6)
            wrong[side, name] += after >= before if name == "well" else after <= before
    assert wrong["input", "well"] == wrong["input", "ill"] == 0
    assert min(wrong["output", "well"], wrong["output", "ill"]) > 5


# --- Proposition 3.2 ----------------------------------------------------------------------------------------------


def equation_10(theta: Tensor, k: Tensor) -> Tensor:
    """The right-hand side, largest first, an entry for each singular value σ_i of θ: Σ_j (σ_i u_iᵀq_j √γ_j)²."""
    u, sigma, _ = torch.linalg.svd(theta)
    gamma, q = torch.linalg.eigh(k)
    return (sigma[:, None] * (u.T @ q) * gamma.sqrt()).square().sum(1).sort(descending=True).values


def test_32_eq_10_has_the_eigenvalues_of_h_where_theta_and_k_share_singular_vectors_and_else_a_smaller_kappa() -> None:
    x, theta = ref.gaussian(8, 5, seed=0), ref.extractor(5, seed=100)
    k = x.T @ x
    q = torch.linalg.eigh(k).eigenvectors
    shared = q @ torch.diag(column(5, 4, 3, 2, 1)) @ q.T
    torch.testing.assert_close(spectrum_of(x @ shared).values, equation_10(shared, k), rtol=1e-12, atol=0)
    actual, diagonal = spectrum_of(x @ theta), equation_10(theta, k)
    assert float(diagonal.sum()) == pytest.approx(actual.trace, rel=1e-12)
    assert float(diagonal[0] / diagonal[-1]) < 0.99 * condition_number(actual).value


def test_step_bounds_where_there_is_nothing_to_move() -> None:
    assert well_step_bound(column(3.0), 5) == math.inf
    assert well_step_bound(column(3.0, 3.0), 5) == 0
    assert ill_step_bound(column(3.0)) == 0
    assert ill_step_bound(column(3.0, 3.0)) == 0
    assert ill_step_bound(column(3.0, 2.0, 2.0)) == 0
    # (1 - 1/k)σ_k - σ_1/k: negative and zero
    assert ill_step_bound(column(2.0, 1.5)) == math.inf
    assert ill_step_bound(column(3.0, 3.0, 3.0, 1.0)) == math.inf
