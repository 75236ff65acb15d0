"""What stands exactly on a limit, what a default is, and every fact of a result: where a theorem has nothing to say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from immunize.spectrum import (
    SHRINKAGE_GRID,
    Spectrum,
    choose_budget,
    choose_shrinkage,
    closed_form,
    compress_rows,
    condition_number,
    frontier,
    generalized_spectrum,
    ill_step_bound,
    immunization_ratio,
    joint_basis,
    kappa,
    kappa_of_features,
    ledoit_wolf,
    lift_map,
    plain_directions,
    r_ill,
    r_well,
    r_well_of_features,
    restrict_map,
    sharpen,
    signal_map,
    spare,
    spectrum_of,
    spectrum_of_gram,
    well_step_bound,
)
from immunize.spectrum.budget import kappa_of_gram
from immunize.spectrum.checks import all_finite
from immunize.spectrum.extremes import gram_ends
from tests import reference as ref

EPS = 2**-52


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def diagonal(*values: float) -> Tensor:
    return torch.diag(column(*values))


def shrunk(k: Tensor, rho: float) -> Tensor:
    return k + rho * k.trace() / len(k) * torch.eye(len(k), dtype=torch.float64)


def gram(seed: int, size: int = 6) -> Tensor:
    x = ref.gaussian(3 * size, size, seed=seed) * torch.logspace(0, -1, size, dtype=torch.float64)
    return x.T @ x


# --- condition numbers --------------------------------------------------------------------------------------------


def test_a_sum_that_overflows_is_no_infinite_value() -> None:
    assert all_finite(torch.full((3,), 1e308, dtype=torch.float64))
    assert not all_finite(column(1.0, math.nan))
    assert not all_finite(column(math.inf, -math.inf))


def test_an_eigenvalue_at_the_cut_counts_as_zero() -> None:
    assert Spectrum(column(1.0, 0.1), 5, 2, 0.1).rank == 1
    assert Spectrum(column(1.0, 0.1), 5, 2, 0.09).rank == 2
    assert gram_ends(diagonal(1.0, 0.125), 0.125).rank == 1
    assert spectrum_of_gram(diagonal(1.0, 0.125), 9, tolerance=0.125).rank == 1
    assert spectrum_of(diagonal(1.0, 0.5), tolerance=0.25).rank == 1
    for function in (r_well, kappa):
        s = diagonal(4.0, 2.0, 0.5)
        assert float(function(s, tolerance=0.125)) == pytest.approx({r_well: 8 - 20.25 / 6, kappa: 2.0}[function])


def test_a_known_rank_of_the_data_reaches_below_the_cut_and_not_below_rounding() -> None:
    values = column(1.0, 1e-20, 1e-40)
    assert Spectrum(values, 3, 3, 3 * EPS).rank == 1
    assert Spectrum(values, 3, 3, 3 * EPS, rank_of_data=3).rank == 2
    assert Spectrum(values, 3, 3, 3 * EPS, rank_of_data=1).rank == 1
    limit = (7 * EPS) ** 2
    assert Spectrum(column(2.0, 2 * limit), 7, 3, 7 * EPS, rank_of_data=2).rank == 1
    assert Spectrum(column(2.0, 2.1 * limit), 7, 3, 7 * EPS, rank_of_data=2).rank == 2
    features = ref.features_with_eigenvalues([3.0, 2.0, 1.0], 6, 3, seed=1)
    assert spectrum_of(features, rank_of_data=2).rank == 2
    assert condition_number(spectrum_of(features, rank_of_data=2)).numerical_rank == 3


def test_a_gram_matrix_may_be_asymmetric_by_rounding_only() -> None:
    k = diagonal(1.0, 1.0)
    k[0, 1] = 5e-10
    assert spectrum_of_gram(k, 1).n_samples == 1
    k[0, 1] = 2e-9
    with pytest.raises(ValueError, match="symmetric"):
        spectrum_of_gram(k, 1)
    with pytest.raises(ValueError, match="at least one sample"):
        spectrum_of_gram(diagonal(1.0, 1.0), 0)
    assert float(spectrum_of_gram(diagonal(1.0, -1e-17), 4).values[-1]) == 0


def test_the_floor_is_hit_below_it_and_not_at_it() -> None:
    at = condition_number(Spectrum(column(1.0, 1e-6), 5, 2, 1e-12), "released")
    assert not at.floor_hit
    assert at.value == pytest.approx((1 + 1e-6) / 2e-6)
    ridge = condition_number(Spectrum(column(3.0, 1.0), 5, 2, 1e-12), "ridge", rho=0.5)  # α = 1
    assert (ridge.value, ridge.floor_hit) == (2.0, False)
    assert condition_number(Spectrum(column(3.0, 1.0), 5, 2, 1e-12), "ridge").rho == 0.01


def test_a_ratio_uses_the_rho_of_its_estimator_and_spectrum_by_default() -> None:
    one, two = (Spectrum(column(*v), 5, 2, 1e-12) for v in ((4.0, 1.0), (9.0, 1.0)))
    assert immunization_ratio(one, two, one, one).rir == pytest.approx(9 / 4)
    assert immunization_ratio(one, two, one, one).estimator == "spectrum"
    by_default = immunization_ratio(one, two, one, one, "ridge")
    assert by_default.rir == immunization_ratio(one, two, one, one, "ridge", rho=0.01).rir
    assert by_default.kappa_harmful.rho == 0.01


def test_kappa_of_a_gram_matrix_in_coordinates_of_a_subspace_counts_all_features() -> None:
    k = diagonal(4.0, 1.0)
    k[0, 1] = 1e-12  # symmetric up to rounding
    alpha = 0.1 * 5 / 10
    assert kappa_of_gram(k, 9, "ridge", 0.1, size=10) == pytest.approx((4 + alpha) / alpha)
    assert kappa_of_gram(k, 9, "ridge", 0.1) == pytest.approx(4.25 / 1.25)
    assert kappa_of_gram(k, 9, "spectrum", 0.1) == pytest.approx(4)


def test_step_bounds_where_there_is_nothing_to_move() -> None:
    assert well_step_bound(column(3.0), 5) == math.inf
    assert well_step_bound(column(3.0, 3.0), 5) == 0
    assert ill_step_bound(column(3.0)) == 0
    assert ill_step_bound(column(3.0, 3.0)) == 0
    assert ill_step_bound(column(3.0, 2.0, 2.0)) == 0
    assert well_step_bound(column(4.0, 1.0), 2) == pytest.approx(1 / (2 * (0.5 * 8 + 0.5)))
    # (1 - 1/k)σ_k - σ_1/k: positive, zero and negative
    assert ill_step_bound(column(2.0, 1.5)) == math.inf
    assert ill_step_bound(column(3.0, 3.0, 3.0, 1.0)) == math.inf
    k, sigma = 4, column(2.0, 2.0, 2.0, 1.0)
    f = 13 / (2 * k) - 0.5
    assert ill_step_bound(sigma) == pytest.approx(f**2 / (0.75 - 0.5))


def test_regularizers_say_what_has_no_spectrum() -> None:
    zeros = torch.zeros(3, 2, dtype=torch.float64)
    for function in (r_well, r_ill, kappa, r_well_of_features, kappa_of_features):
        with pytest.raises(ValueError, match="zeros"):
            function(zeros)
        with pytest.raises(TypeError, match="float64"):
            function(zeros.float())


# --- the range of data sets ---------------------------------------------------------------------------------------


def test_zeros_compress_to_no_rows_and_add_nothing_to_a_joint_range() -> None:
    zeros, x = torch.zeros(4, 3, dtype=torch.float64), ref.gaussian(2, 3, seed=1)
    assert compress_rows(zeros).shape == (0, 3)
    assert joint_basis(zeros, x).shape == (3, 2)
    assert joint_basis(0.5 * x).shape == (3, 2)  # small, and still rows
    with pytest.raises(ValueError, match="span nothing"):
        joint_basis(zeros, zeros)


@pytest.mark.parametrize("rows", [2, 3, 6, 7, 30])
def test_tall_and_wide_rows_compress_alike(rows: int) -> None:
    x = ref.gaussian(rows, 3, seed=2)
    small, basis = compress_rows(x), joint_basis(x)
    assert small.shape == (min(rows, 3), 3)
    torch.testing.assert_close(small.T @ small, x.T @ x, rtol=0, atol=1e-12)
    torch.testing.assert_close(x @ basis @ basis.T, x, rtol=0, atol=1e-12)
    assert basis.is_contiguous()


def test_a_lifted_map_scales_the_rest_by_the_geometric_mean_and_a_restricted_one_is_triangular() -> None:
    basis = joint_basis(ref.gaussian(2, 4, seed=3))
    lifted = lift_map(diagonal(8.0, 2.0), basis)
    sigma = torch.linalg.svdvals(lifted)
    torch.testing.assert_close(sigma, column(8.0, 4.0, 4.0, 2.0))
    theta = ref.gaussian(4, 4, seed=4)
    lower = restrict_map(theta, basis)
    torch.testing.assert_close(lower @ lower.T, basis.T @ theta @ theta.T @ basis)
    assert float(lower[0, 1]) == 0
    assert lower.is_contiguous()
    huge = lift_map(1e200 * torch.eye(2, dtype=torch.float64), basis)
    assert bool(torch.isfinite(huge).all())


# --- the pencil and its frontier ----------------------------------------------------------------------------------


def test_each_data_set_has_its_own_shrinkage() -> None:
    from scipy.linalg import eigh

    k_p, k_h = gram(1), gram(2).flip(0, 1)
    s = generalized_spectrum(k_p, k_h, shrinkage=(1e-2, 0.3))
    expected = eigh(shrunk(k_h, 0.3).numpy(), shrunk(k_p, 1e-2).numpy(), eigvals_only=True)
    torch.testing.assert_close(s.mu, torch.from_numpy(expected.copy()).flip(0))
    assert s.kappa_pretrain == pytest.approx(ref.kappa(shrunk(k_p, 1e-2)))
    assert s.kappa_harmful == pytest.approx(ref.kappa(shrunk(k_h, 0.3)))
    assert s.shrinkage == (1e-2, 0.3)
    torch.testing.assert_close(s.directions @ s.duals, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-10)
    assert (s.rank_pretrain, s.rank_harmful, s.unseen) == (6, 6, 0)


def test_the_number_of_samples_limits_each_rank() -> None:
    x_p, x_h = ref.gaussian(3, 5, seed=1), ref.gaussian(4, 5, seed=2)
    k_p, k_h = x_p.T @ x_p, x_h.T @ x_h
    s = generalized_spectrum(k_p, k_h, n_samples=(3, 4), shrinkage=1e-3)
    assert (s.rank_pretrain, s.rank_harmful, s.harmful_only, s.pretrain_only, s.unseen) == (3, 4, 2, 1, 0)
    assert s.kappa_pretrain == pytest.approx(ref.kappa(shrunk(k_p, 1e-3)), rel=1e-6)
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


def test_a_forecast_has_every_fact_of_its_pair() -> None:
    k_p, harmful = gram(1), [gram(2).flip(0, 1), gram(3)]
    pairs = [generalized_spectrum(k_p, k, shrinkage=(1e-3, rho)) for k, rho in zip(harmful, (1e-2, 1e-1), strict=True)]
    best = frontier(pairs, 7.0)
    assert best.shrinkage == (1e-3, 1e-2, 1e-1)
    assert (best.budget, best.rank_pretrain) == (7.0, 6)
    assert best.kappa_pretrain_baseline == pytest.approx(ref.kappa(shrunk(k_p, 1e-3)))
    assert best.ratio_pretrain == pytest.approx(best.kappa_pretrain / best.kappa_pretrain_baseline)
    for one, s, k, rho in zip(best.harmful, pairs, harmful, (1e-2, 1e-1), strict=True):
        assert one.kappa_baseline == pytest.approx(ref.kappa(shrunk(k, rho)))
        assert one.ratio_harmful == pytest.approx(one.kappa / one.kappa_baseline)
        assert one.rir == pytest.approx(one.ratio_harmful / best.ratio_pretrain)
        assert (one.kappa_gen, one.rir_star, one.aligned) == (s.kappa_gen, s.rir_star, False)
        assert (one.harmful_only, one.pretrain_only) == (0, 0)
    assert best.worst is min(best.harmful, key=lambda one: one.rir)
    assert best.rir == best.worst.rir
    assert best.notes == ()
    assert best.with_notes("a", "b").with_notes("c").notes == ("a", "b", "c")


def test_notes_name_what_only_one_data_set_has() -> None:
    k_p, k_h = diagonal(3.0, 2.0, 0.0, 0.0), diagonal(0.0, 1.0, 1.0, 0.0)
    notes = frontier(generalized_spectrum(k_p, k_h, shrinkage=1e-2)).notes
    assert [note[:20] for note in notes] == ["D_H has 1 directions", "D_H lacks 1 directio", "no sample has 1 of t"]
    other = generalized_spectrum(k_p, diagonal(1.0, 1.0, 0.0, 0.0), shrinkage=1e-2)
    several = frontier([generalized_spectrum(k_p, k_h, shrinkage=1e-2), other]).notes
    assert [note.partition(" directions")[0] for note in several] == [
        "harmful data set 0 has 1",
        "harmful data set 0 lacks 1",
    ]


def test_a_rotation_has_the_right_size_and_precision() -> None:
    s = generalized_spectrum(gram(1), gram(2))
    turn = ref.orthogonal(6, 3)
    almost = turn.clone()
    almost[0] *= 1 + 1e-9  # orthogonal to 2e-9
    assert frontier(s, rotation=almost).theta.shape == (6, 6)
    with pytest.raises(ValueError, match="float64"):
        frontier(s, rotation=turn.float())
    with pytest.raises(ValueError, match="not orthogonal"):
        frontier(s, rotation=turn * math.nan)
    assert frontier(s).budget == 1


@pytest.mark.parametrize("budget", [1.0, 1.001])
def test_data_sets_that_are_nearly_alike_share_a_map(budget: float) -> None:
    """Their weights in the game move by differences of log RIR*, however small these are against log RIR* itself."""
    k_p, k_h = 1e-2 * gram(1) + diagonal(1e6, 1.0, 1.0, 1.0, 1.0, 1e-3), gram(2)
    spectra = [generalized_spectrum(k_p, k_h + nearly * diagonal(1, 2, 3, 4, 5, 6)) for nearly in (0.0, 1e-8)]
    best = frontier(spectra, budget)
    for one, s in zip(best.harmful, spectra, strict=True):
        assert one.rir == pytest.approx(s.rir_star, rel=1e-3)


# --- what is chosen on rows ---------------------------------------------------------------------------------------


def rows(seed: int, count: int = 60) -> Tensor:
    scale = torch.logspace(0, -1, 6, dtype=torch.float64)
    return ref.gaussian(count, 6, seed=seed) * (scale if seed % 2 else scale.flip(0))


def test_the_closed_forms_defaults() -> None:
    x_p, x_h = rows(1), rows(2)
    best, told = closed_form(x_p, x_h), closed_form(x_p, x_h, budget=1.0, shrinkage=1e-3)
    assert torch.equal(best.theta, told.theta)
    assert best.shrinkage_choice is not None
    assert (best.shrinkage_choice.how, best.shrinkage_choice.scores, best.budget_choice) == ("given", (), None)
    auto = closed_form(x_p, x_h, budget="auto").budget_choice
    same = closed_form(
        *(x_p, x_h),
        budget="auto",
        validation_fraction=0.2,
        seed=0,
        estimator="spectrum",
        harder_by=2.0,
        ease_limit=1.0,
    ).budget_choice
    assert auto == same
    assert auto is not None
    assert auto.estimator == "spectrum"
    other = closed_form(x_p, x_h, budget="auto", seed=1).budget_choice
    assert other is not None
    assert other.trials != auto.trials


@pytest.mark.parametrize("estimator", ["spectrum", "ridge"])
def test_every_option_of_the_budget_reaches_the_choice(estimator: str) -> None:
    x_p, x_h, held = rows(1), rows(2), (rows(3), rows(4))
    options = {"estimator": estimator, "rho": 0.05, "harder_by": 1.5, "ease_limit": 0.8}
    best = closed_form(x_p, x_h, budget="auto", validation=held, largest_budget=9.0, **options)  # type: ignore[arg-type]
    spectra = generalized_spectrum(x_p.T @ x_p, x_h.T @ x_h, shrinkage=1e-3)
    assert best.budget_choice == choose_budget(spectra, held[0], [held[1]], largest=9.0, **options)  # type: ignore[arg-type]
    choice = best.budget_choice
    assert choice is not None
    assert choice.estimator == estimator
    budgets = [trial.budget for trial in choice.trials]
    assert budgets == sorted(budgets)
    assert (budgets[0], budgets[-1]) == (1.0, pytest.approx(9.0))
    assert len(set(budgets)) >= 13


def test_a_choice_of_a_budget_says_what_it_measured() -> None:
    x_p, x_h = rows(1), rows(2)
    spectra = generalized_spectrum(x_p.T @ x_p, x_h.T @ x_h, shrinkage=1e-3)
    choice = choose_budget([spectra], x_p, [x_h], harder_by=1.5)
    trial = next(trial for trial in choice.trials if trial.budget == choice.budget)
    assert f"(i) = {trial.ratio_harmful:.3g}, (ii) = {trial.ratio_pretrain:.3g} (spectrum)" in choice.reason
    assert choice.reason.startswith(f"B = {choice.budget:.3g} is the largest")
    # the largest at all: on the rows that K was computed from (b) holds up to κ(K_P)
    assert choice.budget == pytest.approx(spectra.kappa_pretrain, rel=0.06)
    capped = choose_budget(spectra, x_p, [x_h], harder_by=1e4, estimator="ridge", rho=0.5)
    most = (1 + 6 / 0.5) / ref.kappa_ridge(x_h.T @ x_h, 0.5)
    assert f"(rho = 0.5) cannot exceed (i) = {most:.3g}" in capped.reason
    assert "cannot exceed" not in choose_budget(spectra, x_p, [x_h], harder_by=1e4).reason
    assert "cannot exceed" not in choose_budget(spectra, x_p, [x_h], harder_by=1.5, ease_limit=1e-9).reason
    assert choose_budget(spectra, x_p, [x_h], largest=1.0, harder_by=0.0).budget == 1
    for largest in (math.nan, math.inf, 0.99):
        with pytest.raises(ValueError, match="at least 1 and finite"):
            choose_budget(spectra, x_p, [x_h], largest=largest)


def test_harder_is_strictly_harder_whatever_the_factor() -> None:
    """Identical data: (i) = (ii) for every B, so that no B has (i) > 1 and (ii) ≤ 1."""
    x = rows(1)
    spectra = generalized_spectrum(x.T @ x, x.T @ x, shrinkage=1e-3)
    choice = choose_budget(spectra, x, [x], harder_by=0.0)
    assert not choice.feasible
    assert choice.reason.endswith("is used (spectrum)")


def test_shrinkage_is_chosen_in_ten_folds_below_five_samples_a_feature() -> None:
    grid = (1e-3, 1e-1)
    for count, folds in ((29, 10), (30, 3)):
        x_p, x_h = rows(1, count), rows(2, 40)
        default = choose_shrinkage(x_p, [x_h], grid=grid)
        assert default == choose_shrinkage(x_p, [x_h], grid=grid, folds=folds, seed=0, rho=0.01)
        assert default != choose_shrinkage(x_p, [x_h], grid=grid, folds=folds + 1)
        assert default != choose_shrinkage(x_p, [x_h], grid=grid, seed=1)
        assert default != choose_shrinkage(x_p, [x_h], grid=grid, rho=0.1)
        assert default.how == "auto"
        assert default.harmful == (default.pretrain,)
    assert [rho for rho, _ in choose_shrinkage(rows(1), [rows(2)]).scores] == list(SHRINKAGE_GRID)
    for folds, values in ((1, grid), (2, ()), (2, (1e-2, 0.0))):
        with pytest.raises(ValueError, match="cross-validation needs"):
            choose_shrinkage(rows(1), [rows(2)], grid=values, folds=folds)
    assert choose_shrinkage(rows(1, 4), [rows(2, 4)], grid=grid, folds=2).pretrain in grid
    with pytest.raises(ValueError, match="3 rows are too few for 2 folds"):
        choose_shrinkage(rows(1), [rows(2, 3)], grid=grid, folds=2)


def test_automatic_shrinkage_takes_the_seed_and_rho_of_the_closed_form() -> None:
    x_p, x_h = rows(1), [rows(2), rows(4)]
    choice = closed_form(x_p, x_h, shrinkage="auto", seed=5, rho=0.2).shrinkage_choice
    assert choice == choose_shrinkage(x_p, x_h, seed=5, rho=0.2)
    assert choice is not None
    assert len(choice.harmful) == 2
    wolf = closed_form(x_p, x_h, shrinkage="ledoit_wolf").shrinkage_choice
    assert wolf is not None
    assert (wolf.pretrain, wolf.harmful, wolf.how) == (
        ledoit_wolf(x_p),
        tuple(ledoit_wolf(x) for x in x_h),
        "ledoit_wolf",
    )


def test_ledoit_wolf_stays_between_the_smallest_of_the_grid_and_its_largest() -> None:
    same = column(1.0, -1.0)[:, None] * torch.ones(2, 3, dtype=torch.float64)
    assert ledoit_wolf(same) == SHRINKAGE_GRID[0] == 1e-4
    assert ledoit_wolf(ref.gaussian(12, 6, seed=0)) == 1e3  # nothing but noise: δ = 1


def test_rows_that_are_split_off_are_a_fraction_and_at_least_two() -> None:
    x_p, x_h = rows(1), rows(2)
    few = closed_form(x_p[:12], x_h, budget="auto", validation_fraction=0.01, shrinkage=1e-2)
    assert few.budget_choice is not None
    with pytest.raises(ValueError, match="too few to split"):
        closed_form(x_p[:3], x_h, budget="auto", shrinkage=1e-2)
    closed_form(x_p[:4], x_h, budget="auto", shrinkage=1e-2)
    trials = [
        closed_form(x_p, x_h, budget="auto", validation_fraction=share).budget_choice.trials  # type: ignore[union-attr]
        for share in (0.2, 0.5)
    ]
    assert trials[0] != trials[1]


def test_rows_keep_no_gradient_and_single_precision_is_read_exactly() -> None:
    x_p, x_h = rows(1).float().requires_grad_(), rows(2)
    best = closed_form(x_p, x_h.numpy())
    assert not best.theta.requires_grad
    assert torch.equal(best.theta, closed_form(x_p.detach().double(), x_h).theta)
    assert torch.equal(best.theta, closed_form(x_p, (x_h,)).theta)


# --- the label-aware family ---------------------------------------------------------------------------------------


def test_a_map_keeps_its_settings_and_its_ratios() -> None:
    of = plain_directions(generalized_spectrum(gram(1), gram(2).flip(0, 1), shrinkage=1e-2))
    one = signal_map(of, 5, 0)
    assert (one.budget, one.gamma) == (5.0, 0.0)
    assert one.ratio_pretrain == pytest.approx(one.kappa_pretrain / of.kappa_pretrain)
    assert one.ratio_harmful == pytest.approx(one.kappa_harmful / of.kappa_harmful)
    assert one.kappa_pretrain == pytest.approx(5)
    assert signal_map(of, 1, 0.0).kappa_pretrain == pytest.approx(1)
    torch.testing.assert_close(sharpen(of, 1.0).exponents, of.exponents)
    third = gram(3)
    torch.testing.assert_close(spare(of, third).exponents, spare(of, third, weight=1.0, sharpness=1.0).exponents)
    assert not torch.allclose(spare(of, third).exponents, spare(of, third, weight=2.0).exponents)
    values = torch.linalg.eigvalsh(spare(of, third, sharpness=3.0).exponents)
    assert float(values[0]) == pytest.approx(0, abs=1e-12)
    assert float(values[-1]) == pytest.approx(1)
