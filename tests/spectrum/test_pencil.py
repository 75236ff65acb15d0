"""The pair (K_P, K_H): shrinkage, ranks, signs of rounding; and every fact of the forecast that is made of it."""

from __future__ import annotations

import pytest
import torch

from immunize.spectrum import (
    frontier,
    generalized_spectrum,
)
from tests import reference as ref
from tests.spectrum.making import diagonal, gram


def test_each_data_set_has_its_own_shrinkage() -> None:
    from scipy.linalg import eigh

    k_p, k_h = gram(1), gram(2).flip(0, 1)
    s = generalized_spectrum(k_p, k_h, shrinkage=(1e-2, 0.3))
    expected = eigh(ref.shrunk(k_h, 0.3).numpy(), ref.shrunk(k_p, 1e-2).numpy(), eigvals_only=True)
    torch.testing.assert_close(s.mu, torch.from_numpy(expected.copy()).flip(0))
    assert s.kappa_pretrain == pytest.approx(ref.kappa(ref.shrunk(k_p, 1e-2)))
    assert s.kappa_harmful == pytest.approx(ref.kappa(ref.shrunk(k_h, 0.3)))
    assert s.shrinkage == (1e-2, 0.3)
    torch.testing.assert_close(s.directions @ s.duals, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-10)
    assert (s.rank_pretrain, s.rank_harmful, s.unseen) == (6, 6, 0)


def test_the_number_of_samples_limits_each_rank() -> None:
    x_p, x_h = ref.gaussian(3, 5, seed=1), ref.gaussian(4, 5, seed=2)
    k_p, k_h = x_p.T @ x_p, x_h.T @ x_h
    s = generalized_spectrum(k_p, k_h, n_samples=(3, 4), shrinkage=1e-3)
    assert (s.rank_pretrain, s.rank_harmful, s.harmful_only, s.pretrain_only, s.unseen) == (3, 4, 2, 1, 0)
    assert s.kappa_pretrain == pytest.approx(ref.kappa(ref.shrunk(k_p, 1e-3)), rel=1e-6)
    wide = generalized_spectrum(diagonal(1.0, 1e-3), diagonal(1.0, 0.5), tolerance=1e-2)
    assert (wide.rank_pretrain, wide.rank_harmful, wide.harmful_only) == (1, 2, 1)
    enough = generalized_spectrum(diagonal(2.0, 1.0), diagonal(1.0, 2.0), n_samples=(2, 2))
    assert enough.kappa_gen == pytest.approx(4)


def test_rank_one_harmful_data_can_be_made_harder_with_shrinkage_only() -> None:
    k_h = diagonal(1.0, 0.0, 0.0)
    assert generalized_spectrum(diagonal(3.0, 2.0, 1.0), k_h).kappa_gen == 1
    assert generalized_spectrum(diagonal(3.0, 2.0, 1.0), k_h, shrinkage=1e-2).kappa_gen > 50


def test_small_negative_eigenvalues_are_rounding_and_larger_ones_are_not() -> None:
    generalized_spectrum(diagonal(1.0, 0.5), diagonal(1.0, -5e-11), shrinkage=1e-2)
    with pytest.raises(ValueError, match="K_H has the negative eigenvalue"):
        generalized_spectrum(diagonal(1.0, 0.5), diagonal(1.0, -2e-10), shrinkage=1e-2)
    skew = diagonal(1.0, 0.5)
    skew[0, 1] = 5e-11
    generalized_spectrum(skew, diagonal(1.0, 0.5))
    skew[0, 1] = 2e-10
    with pytest.raises(ValueError, match="K_P is not symmetric"):
        generalized_spectrum(skew, diagonal(1.0, 0.5))


def test_a_multiple_is_aligned_and_what_can_be_told_apart_is_not() -> None:
    k_p = diagonal(1.0, 0.5)
    assert generalized_spectrum(k_p, 3 * k_p).aligned
    assert not generalized_spectrum(k_p, diagonal(1.0, 0.4)).aligned


@pytest.mark.parametrize("name", ["K_P", "K_H"])
def test_a_matrix_that_is_no_covariance_is_called_by_its_name(name: str) -> None:
    good = diagonal(1.0, 0.5)
    for bad in (good.float(), good[:1], good / 0, good.triu() + good.roll(1, 0).triu()):
        pair = (bad, good) if name == "K_P" else (good, bad)
        with pytest.raises((TypeError, ValueError), match=f"^{name} "):
            generalized_spectrum(*pair)


def test_a_forecast_has_every_fact_of_its_pair() -> None:
    k_p, k = gram(1), gram(2).flip(0, 1)
    s = generalized_spectrum(k_p, k, shrinkage=(1e-3, 1e-2))
    best, one = frontier(s, 7.0), frontier(s, 7.0).harmful
    assert best.shrinkage == (1e-3, 1e-2)
    assert (best.budget, best.rank_pretrain) == (7.0, 6)
    assert best.kappa_pretrain_baseline == pytest.approx(ref.kappa(ref.shrunk(k_p, 1e-3)))
    assert best.ratio_pretrain == pytest.approx(best.kappa_pretrain / best.kappa_pretrain_baseline)
    assert one.kappa_baseline == pytest.approx(ref.kappa(ref.shrunk(k, 1e-2)))
    assert one.ratio_harmful == pytest.approx(one.kappa / one.kappa_baseline)
    assert best.rir == one.rir == pytest.approx(one.ratio_harmful / best.ratio_pretrain)
    assert (one.kappa_gen, one.rir_star, one.aligned) == (s.kappa_gen, s.rir_star, False)
    assert (one.harmful_only, one.pretrain_only) == (0, 0)
    assert best.notes == ()
    assert best.with_notes("a", "b").with_notes("c").notes == ("a", "b", "c")


def test_notes_name_what_only_one_data_set_has() -> None:
    k_p, k_h = diagonal(3.0, 2.0, 0.0, 0.0), diagonal(0.0, 1.0, 1.0, 0.0)
    notes = frontier(generalized_spectrum(k_p, k_h, shrinkage=1e-2)).notes
    assert [note[:20] for note in notes] == ["D_H has 1 directions", "D_H lacks 1 directio", "no sample has 1 of t"]


def test_one_feature_is_a_pair_of_numbers() -> None:
    s = generalized_spectrum(diagonal(2.0), diagonal(3.0))
    assert (s.kappa_gen, s.kappa_pretrain, s.kappa_harmful, s.rank_pretrain) == (1, 1, 1, 1)
    assert frontier(s).theta.shape == (1, 1)
