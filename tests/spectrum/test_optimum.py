"""The pair (K_P, K_H): RIR* is a bound and is attained; the frontier; singular pairs; ranks and signs of rounding."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from immunize.spectrum.condition import condition_number, immunization_ratio, spectrum_of
from immunize.spectrum.optimum import Immunizer, frontier
from immunize.spectrum.pencil import GeneralizedSpectrum, generalized_spectrum
from tests import reference as ref
from tests.spectrum.making import diagonal


def gram(sigma: Tensor, size: int, seed: int) -> Tensor:
    """A Gram matrix (size, size) with the given non-zero eigenvalues."""
    x = ref.features_with_eigenvalues(sigma, max(len(sigma), size), size, seed)
    return x.T @ x


def random_gram(size: int, seed: int) -> Tensor:
    """Full rank, κ up to 1e3."""
    logs = torch.rand(size, dtype=torch.float64, generator=ref.generator(seed))
    return gram(10 ** (3 * logs), size, seed + 1)


def kappa(k: Tensor, rank: int | None = None) -> float:
    values = torch.linalg.eigvalsh(k)
    return float(values[-1] / values[-(len(k) if rank is None else rank)])


def after(theta: Tensor, k: Tensor, rank: int | None = None) -> float:
    return kappa(theta.T @ k @ theta, rank)


def assert_inverse(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one @ other, torch.eye(len(one), dtype=torch.float64), rtol=0, atol=1e-9)


def assert_spends(budget: float, s: GeneralizedSpectrum, k_p: Tensor, k_h: Tensor, *ranks: int) -> Immunizer:
    """The map of the frontier has κ(H_P) = B and κ(H_H) = κ_gen·B, over so many singular values."""
    best = frontier(s, budget)
    rank_p, rank_h = ranks or (None, None)
    assert after(best.theta, k_p, rank_p) == pytest.approx(budget, rel=1e-8)
    assert after(best.theta, k_h, rank_h) == pytest.approx(s.kappa_gen * budget, rel=1e-8 * max(1, budget / 1e3))
    assert_inverse(best.theta, best.inverse)
    return best


# --- the theorem --------------------------------------------------------------------------------------------------


def test_no_theta_exceeds_kappa_gen_and_the_closed_form_attains_it() -> None:
    closest = 0.0
    for seed in range(200):
        source = ref.generator(seed)
        d = int(torch.randint(2, 31, (1,), generator=source))
        k_p, k_h = random_gram(d, 10 * seed + 1), random_gram(d, 10 * seed + 5)
        s = generalized_spectrum(k_p, k_h)
        best, theta = frontier(s).theta, torch.randn(d, d, dtype=torch.float64, generator=source)
        if seed % 2:  # half of them near the optimum, where the bound is tight
            theta = best + 10.0 ** -(seed % 7) * theta
        found, attained = (after(of, k_h) / after(of, k_p) for of in (theta, best))
        assert found <= s.kappa_gen * (1 + 1e-8)
        closest = max(closest, found / s.kappa_gen)
        assert attained == pytest.approx(s.kappa_gen, rel=1e-6)
    assert closest > 0.99


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rho", [(0.0, 0.0), (1e-2, 0.3)])
def test_generalized_eigenvalues_agree_with_scipy(seed: int, rho: tuple[float, float]) -> None:
    from scipy.linalg import eigh

    k_p, k_h = random_gram(12, seed), random_gram(12, seed + 50)
    s = generalized_spectrum(k_p, k_h, shrinkage=rho)
    assert (s.shrinkage, s.rank_pretrain, s.rank_harmful, s.unseen) == (rho, 12, 12, 0)
    k_p, k_h = ref.shrunk(k_p, rho[0]), ref.shrunk(k_h, rho[1])
    expected = torch.from_numpy(eigh(k_h.numpy(), k_p.numpy(), eigvals_only=True)).flip(0)
    torch.testing.assert_close(s.mu, expected, rtol=1e-9, atol=0)
    w, whitening = s.directions, frontier(s).theta
    torch.testing.assert_close(whitening, whitening.T, rtol=0, atol=1e-12)
    for root in (w, whitening):
        torch.testing.assert_close(root.T @ k_p @ root, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(w.T @ k_h @ w, torch.diag(s.mu), rtol=0, atol=1e-10 * float(s.mu[0]))
    assert_inverse(w, s.duals)
    assert (s.kappa_pretrain, s.kappa_harmful) == pytest.approx((kappa(k_p), kappa(k_h)))
    assert s.rir_star == pytest.approx(float(s.mu[0] / s.mu[-1]) * kappa(k_p) / kappa(k_h))


@pytest.mark.parametrize("budget", [1.0, 1.7, 10.0, 1e3, 1e5])
@pytest.mark.parametrize("rho", [(0.0, 0.0), (1e-3, 1e-2)])
def test_frontier_spends_the_budget_and_has_every_fact_of_its_pair(budget: float, rho: tuple[float, float]) -> None:
    k_p, k_h = gram(torch.logspace(2, 0, 15), 15, 1), gram(torch.logspace(1, 0, 15), 15, 2)
    s = generalized_spectrum(k_p, k_h, shrinkage=rho)
    k_p, k_h = ref.shrunk(k_p, rho[0]), ref.shrunk(k_h, rho[1])
    best = assert_spends(budget, s, k_p, k_h)
    assert (best.budget, best.shrinkage, best.rank_pretrain, best.notes) == (budget, rho, 15, ())
    assert (best.kappa_pretrain, best.kappa_harmful) == pytest.approx((budget, s.kappa_gen * budget), rel=1e-12)
    baseline = best.kappa_pretrain_baseline, best.kappa_harmful_baseline
    assert baseline == pytest.approx((kappa(k_p), kappa(k_h)))
    wanted = best.kappa_pretrain / baseline[0], best.kappa_harmful / baseline[1]
    assert (best.ratio_pretrain, best.ratio_harmful) == pytest.approx(wanted)
    assert best.rir == pytest.approx(s.rir_star, rel=1e-12)
    assert (best.kappa_gen, best.rir_star) == (s.kappa_gen, s.rir_star)


def test_exponents_are_logarithms_of_mu_between_its_ends() -> None:
    found = generalized_spectrum(diagonal(1.0, 1.0, 1.0), diagonal(100.0, 10.0, 1.0)).exponents
    torch.testing.assert_close(found, torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-8, 1e6])
def test_units_do_not_matter(scale: float) -> None:
    k_p, k_h = random_gram(8, 1), random_gram(8, 2)
    for rho in (0.0, 1e-3):
        one, other = (generalized_spectrum(of * k_p, k_h / of, shrinkage=rho) for of in (1.0, scale))
        assert other.rir_star == pytest.approx(one.rir_star, rel=1e-9)
        torch.testing.assert_close(other.exponents, one.exponents, rtol=0, atol=1e-9)


# --- singular pairs -----------------------------------------------------------------------------------------------


def embedded(inner: Tensor, basis: Tensor) -> Tensor:
    return basis @ inner @ basis.T


def test_directions_no_sample_has_are_scaled_as_a_whole() -> None:
    basis = ref.orthogonal(10, 1)
    seen, unseen = basis[:, :7], basis[:, 7:]
    k_p, k_h = embedded(random_gram(7, 2), seen), embedded(random_gram(7, 4), seen)
    s = generalized_spectrum(k_p, k_h)
    assert (s.rank_pretrain, s.rank_harmful, s.unseen, s.pretrain_only, s.harmful_only) == (7, 7, 3, 0, 0)
    inner = generalized_spectrum(random_gram(7, 2), random_gram(7, 4))
    assert s.rir_star == pytest.approx(inner.rir_star, rel=1e-9)
    for rho, budget in [(0.0, 1.0), (0.0, 20.0), (1e-3, 1.0), (1e-3, 20.0)]:
        best = frontier(generalized_spectrum(k_p, k_h, shrinkage=rho), budget)
        image = best.theta @ unseen
        factor = float((unseen.T @ image).trace()) / 3
        torch.testing.assert_close(image, factor * unseen, rtol=0, atol=1e-9 * factor)
        assert_inverse(best.theta, best.inverse)
        sigma = torch.linalg.svdvals(best.theta)
        assert float(sigma[-1]) * (1 - 1e-9) <= factor <= float(sigma[0]) * (1 + 1e-9)
    for budget in (1.0, 20.0):
        assert_spends(budget, s, k_p, k_h, 7, 7)


def test_directions_only_the_pretraining_data_have_do_not_count() -> None:
    k_p = random_gram(10, 1)
    k_h = gram(torch.logspace(2, 0, 6), 10, 2)
    s = generalized_spectrum(k_p, k_h)
    assert (s.pretrain_only, s.harmful_only, s.unseen) == (4, 0, 0)
    assert int((s.mu > 0).sum()) == 6
    for seed in range(50):
        theta = ref.gaussian(10, 10, seed=seed)
        assert after(theta, k_h, 6) <= s.kappa_gen * after(theta, k_p) * (1 + 1e-8)
    for budget in (1.0, 50.0):
        assert_spends(budget, s, k_p, k_h, 10, 6)


def test_directions_only_the_harmful_data_have_make_the_supremum_infinite() -> None:
    basis = ref.orthogonal(10, 1)
    k_p, k_h = embedded(random_gram(6, 2), basis[:, :6]), embedded(random_gram(7, 4), basis[:, 2:9])
    s = generalized_spectrum(k_p, k_h)
    assert (s.rank_pretrain, s.rank_harmful, s.pretrain_only, s.harmful_only, s.unseen) == (6, 7, 2, 3, 1)
    assert s.rir_star == math.inf
    assert not s.attainable
    with pytest.raises(ValueError, match=r"3 directions .* set shrinkage"):
        frontier(s)

    ridge = generalized_spectrum(k_p, k_h, shrinkage=1e-3)
    assert ridge.attainable
    assert (ridge.pretrain_only, ridge.harmful_only, ridge.unseen) == (2, 3, 1)
    smaller = generalized_spectrum(k_p, k_h, shrinkage=1e-5)
    assert smaller.kappa_gen > 50 * ridge.kappa_gen


@pytest.mark.parametrize("rank", [3, 4])
def test_the_finite_mu_of_a_singular_pair_are_those_of_the_schur_complement(rank: int) -> None:
    k_p, k_h = torch.zeros(5, 5, dtype=torch.float64), random_gram(5, 3)
    k_p[:rank, :rank] = random_gram(rank, 1)
    s = generalized_spectrum(k_p, k_h)
    schur = k_h[:rank, :rank] - k_h[:rank, rank:] @ torch.linalg.solve(k_h[rank:, rank:], k_h[rank:, :rank])
    torch.testing.assert_close(s.mu, generalized_spectrum(k_p[:rank, :rank], schur).mu, rtol=1e-8, atol=0)


@pytest.mark.parametrize("rho", [0.0, 1e-3])
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_identical_data_give_a_verdict_and_no_crash(rho: float, factor: float) -> None:
    k = random_gram(8, 1)
    best = frontier(generalized_spectrum(k, factor * k, shrinkage=rho), 10.0)
    assert best.kappa_gen <= 1 + 1e-6
    assert best.rir == pytest.approx(1, rel=1e-9)
    assert best.kappa_pretrain == 1
    assert any("cannot be immunized" in note for note in best.notes)
    assert_inverse(best.theta, best.inverse)


# --- bad input ----------------------------------------------------------------------------------------------------


K, OTHER = random_gram(4, 1), random_gram(4, 2)


@pytest.mark.parametrize(
    ("k_p", "k_h", "options", "words"),
    [
        *((K, OTHER, {"shrinkage": rho}, "shrinkage is a finite") for rho in (-1e-3, math.nan, math.inf)),
        *((*both, {}, "matrix of zeros") for both in ((0 * K, K), (K, 0 * K))),
        (K, OTHER, {"n_samples": (3, 10)}, r"N = 3 samples .* set shrinkage"),
        *((K / apart, OTHER * apart, {}, "float64 loses one: change the unit") for apart in (1e-80, 1e80)),
    ],
)
def test_bad_input_is_refused(k_p: Tensor, k_h: Tensor, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        generalized_spectrum(k_p, k_h, **options)


@pytest.mark.parametrize("budget", [0.5, -1.0, math.nan, math.inf])
def test_budgets_below_1_or_without_end_are_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="budget"):
        frontier(generalized_spectrum(K, OTHER), budget)


def test_the_number_of_samples_limits_each_rank() -> None:
    x_p, x_h = ref.gaussian(3, 5, seed=1), ref.gaussian(4, 5, seed=2)
    k_p, k_h = x_p.T @ x_p, x_h.T @ x_h
    s = generalized_spectrum(k_p, k_h, n_samples=(3, 4), shrinkage=1e-3)
    assert (s.rank_pretrain, s.rank_harmful, s.harmful_only, s.pretrain_only, s.unseen) == (3, 4, 2, 1, 0)
    assert s.kappa_pretrain == pytest.approx(ref.kappa(ref.shrunk(k_p, 1e-3)), rel=1e-6)
    enough = generalized_spectrum(diagonal(2.0, 1.0), diagonal(1.0, 2.0), n_samples=(2, 2))
    assert enough.kappa_gen == pytest.approx(4)


def test_rank_one_harmful_data_can_be_made_harder_with_shrinkage_only_and_one_feature_not_at_all() -> None:
    k_p, k_h = diagonal(3.0, 2.0, 1.0), diagonal(1.0, 0.0, 0.0)
    assert generalized_spectrum(k_p, k_h).kappa_gen == 1
    assert generalized_spectrum(k_p, k_h, shrinkage=1e-2).kappa_gen > 50
    s = generalized_spectrum(diagonal(2.0), diagonal(3.0))
    assert (s.kappa_gen, s.kappa_pretrain, s.kappa_harmful, s.rank_pretrain) == (1, 1, 1, 1)
    assert frontier(s).theta.shape == (1, 1)


def test_small_negative_eigenvalues_and_small_asymmetries_are_rounding() -> None:
    nearly = diagonal(1.0, -5e-11)
    nearly[0, 1] = 5e-11
    assert generalized_spectrum(diagonal(1.0, 0.5), nearly, shrinkage=1e-2).rank_harmful == 1


def test_notes_name_what_only_one_data_set_has() -> None:
    k_p, k_h = diagonal(3.0, 2.0, 0.0, 0.0), diagonal(0.0, 1.0, 1.0, 0.0)
    notes = frontier(generalized_spectrum(k_p, k_h, shrinkage=1e-2)).notes
    assert [note[:20] for note in notes] == ["D_H has 1 directions", "D_H lacks 1 directio", "no sample has 1 of t"]
    others = frontier(generalized_spectrum(k_p, k_h, shrinkage=(1e-2, 1e-3))).notes
    assert others[-1].endswith("may take a part of the budget, as ρ_P and ρ_H differ")
    assert "beyond float64" in frontier(generalized_spectrum(k_p, k_h, shrinkage=1e-9)).notes[-1]


# --- real data ----------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_house_prices_on_all_rows(data_root: Path) -> None:
    from immunize.data.housing import Housing

    x_p, x_h = (Housing(data_root, role).load().fit.x for role in ("pretrain", "harmful"))
    s = generalized_spectrum(x_p.T @ x_p, x_h.T @ x_h, n_samples=(len(x_p), len(x_h)), shrinkage=1e-3)
    assert (s.rank_pretrain, s.rank_harmful) == (74, 76)
    best = frontier(s)
    spectra = [spectrum_of(x) for x in (x_p @ best.theta, x_h @ best.theta, x_p, x_h)]
    ratio = immunization_ratio(*spectra)
    assert (x_p.shape, x_h.shape) == ((309, 79), (1151, 79))
    assert ratio.kappa_pretrain_baseline.value == pytest.approx(254.13, abs=0.005)
    assert ratio.kappa_harmful_baseline.value == pytest.approx(209.04, abs=0.005)
    assert ratio.kappa_pretrain.value == pytest.approx(1.03, abs=0.01)
    assert ratio.kappa_harmful.value == pytest.approx(9214, rel=0.01)
    assert ratio.rir > 10_000
    spent = frontier(s, 5.0)
    kappas = [condition_number(spectrum_of(x @ spent.theta)).value for x in (x_p, x_h)]
    assert kappas[0] <= 5
    assert kappas[1] / ratio.kappa_harmful_baseline.value > 100


@pytest.mark.data
def test_mnist_carries_over_to_test_images(data_root: Path) -> None:
    from immunize.data.mnist import Mnist

    p, h = (Mnist(data_root, [0, 1], role).load() for role in ("pretrain", "harmful"))
    k_p, k_h = p.fit.x.T @ p.fit.x, h.fit.x.T @ h.fit.x
    theta = frontier(generalized_spectrum(k_p, k_h, shrinkage=1e-2)).theta
    rows = [p.held_out.x @ theta, h.held_out.x @ theta, p.held_out.x, h.held_out.x]
    assert immunization_ratio(*(spectrum_of(x) for x in rows), "ridge").rir == pytest.approx(23, rel=0.05)
