"""What `closed_form` chooses on rows: its defaults, its options one by one, and what stands on a limit."""

from __future__ import annotations

import pytest
import torch

from immunize.spectrum import (
    SHRINKAGE_GRID,
    choose_budget,
    choose_shrinkage,
    closed_form,
    generalized_spectrum,
    ledoit_wolf,
)
from immunize.spectrum.shrinkage import _in_joint_range, kappa_of_gram
from tests import reference as ref
from tests.reference import rows
from tests.spectrum.making import column, diagonal


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


@pytest.mark.parametrize("harder_by", [200.0, 300.0])
def test_the_middle_budget_is_as_far_from_failing_a_as_b(harder_by: float) -> None:
    x_p, x_h = rows(1), rows(2)
    kappa_p, kappa_h = (ref.kappa(x.T @ x) for x in (x_p, x_h))
    spectra = generalized_spectrum(x_p.T @ x_p, x_h.T @ x_h, shrinkage=1e-3)
    least = harder_by * kappa_h / spectra.kappa_gen
    assert 1 < least < kappa_p
    best, told = (closed_form(x_p, x_h, budget=b, harder_by=harder_by) for b in ("middle", (least * kappa_p) ** 0.5))
    assert best.budget_choice is None
    torch.testing.assert_close(best.theta, told.theta)
    none = closed_form(x_p, x_h, budget="middle", harder_by=2 * kappa_p * spectra.kappa_gen / kappa_h)
    assert torch.equal(none.theta, closed_form(x_p, x_h, budget=1.0).theta)


@pytest.mark.parametrize("estimator", ["spectrum", "ridge"])
def test_every_option_of_the_budget_reaches_the_choice(estimator: str) -> None:
    x_p, x_h, held = rows(1), rows(2), (rows(3), rows(4))
    options = {"estimator": estimator, "rho": 0.05, "harder_by": 1.5, "ease_limit": 0.8}
    best = closed_form(x_p, x_h, budget="auto", validation=held, **options)  # type: ignore[arg-type]
    spectra = generalized_spectrum(x_p.T @ x_p, x_h.T @ x_h, shrinkage=1e-3)
    assert best.budget_choice == choose_budget(spectra, held[0], held[1], **options)  # type: ignore[arg-type]
    choice = best.budget_choice
    assert choice is not None
    assert choice.estimator == estimator
    budgets = [trial.budget for trial in choice.trials]
    assert budgets == sorted(budgets)
    assert (budgets[0], budgets[-1]) == (1.0, pytest.approx(spectra.kappa_pretrain))
    assert len(set(budgets)) >= 13


def test_a_choice_of_a_budget_says_what_it_measured() -> None:
    x_p, x_h = rows(1), rows(2)
    spectra = generalized_spectrum(x_p.T @ x_p, x_h.T @ x_h, shrinkage=1e-3)
    choice = choose_budget(spectra, x_p, x_h, harder_by=1.5)
    trial = next(trial for trial in choice.trials if trial.budget == choice.budget)
    assert f"(i) = {trial.ratio_harmful:.3g}, (ii) = {trial.ratio_pretrain:.3g} (spectrum)" in choice.reason
    assert choice.reason.startswith(f"B = {choice.budget:.3g} is the largest")
    # the largest at all: on the rows that K was computed from (b) holds up to κ(K_P)
    assert choice.budget == pytest.approx(spectra.kappa_pretrain, rel=0.06)
    capped = choose_budget(spectra, x_p, x_h, harder_by=1e4, estimator="ridge", rho=0.5)
    most = (1 + 6 / 0.5) / ref.kappa_ridge(x_h.T @ x_h, 0.5)
    assert f"(rho = 0.5) cannot exceed (i) = {most:.3g}" in capped.reason
    assert "cannot exceed" not in choose_budget(spectra, x_p, x_h, harder_by=1e4).reason
    assert "cannot exceed" not in choose_budget(spectra, x_p, x_h, harder_by=1.5, ease_limit=1e-9).reason


def test_harder_is_strictly_harder_whatever_the_factor() -> None:
    """Identical data: (i) = (ii) for every B, so that no B has (i) > 1 and (ii) ≤ 1."""
    x = rows(1)
    spectra = generalized_spectrum(x.T @ x, x.T @ x, shrinkage=1e-3)
    choice = choose_budget(spectra, x, x, harder_by=0.0)
    assert not choice.feasible
    assert choice.reason.endswith("is used (spectrum)")


def test_shrinkage_is_chosen_in_ten_folds_below_five_samples_a_feature() -> None:
    grid = (1e-3, 1e-1)
    for count, folds in ((29, 10), (30, 3)):
        x_p, x_h = rows(1, count), rows(2, 40)
        default = choose_shrinkage(x_p, x_h, grid=grid)
        assert default == choose_shrinkage(x_p, x_h, grid=grid, folds=folds, seed=0, rho=0.01)
        assert default != choose_shrinkage(x_p, x_h, grid=grid, folds=folds + 1)
        assert default != choose_shrinkage(x_p, x_h, grid=grid, seed=1)
        assert default != choose_shrinkage(x_p, x_h, grid=grid, rho=0.1)
        assert default.how == "auto"
        assert default.harmful == default.pretrain
    assert [rho for rho, _ in choose_shrinkage(rows(1), rows(2)).scores] == list(SHRINKAGE_GRID)
    for folds, values in ((1, grid), (2, ()), (2, (1e-2, 0.0))):
        with pytest.raises(ValueError, match="cross-validation needs"):
            choose_shrinkage(rows(1), rows(2), grid=values, folds=folds)
    assert choose_shrinkage(rows(1, 4), rows(2, 4), grid=grid, folds=2).pretrain in grid
    with pytest.raises(ValueError, match="3 rows are too few for 2 folds"):
        choose_shrinkage(rows(1), rows(2, 3), grid=grid, folds=2)


def test_automatic_shrinkage_takes_the_seed_and_rho_of_the_closed_form() -> None:
    x_p, x_h = rows(1), rows(2)
    choice = closed_form(x_p, x_h, shrinkage="auto", seed=5, rho=0.2).shrinkage_choice
    assert choice == choose_shrinkage(x_p, x_h, seed=5, rho=0.2)
    wolf = closed_form(x_p, x_h, shrinkage="ledoit_wolf").shrinkage_choice
    assert wolf is not None
    assert (wolf.pretrain, wolf.harmful, wolf.how) == (ledoit_wolf(x_p), ledoit_wolf(x_h), "ledoit_wolf")


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


def test_kappa_of_a_gram_matrix_in_coordinates_of_a_subspace_counts_all_features() -> None:
    k = diagonal(4.0, 1.0)
    k[0, 1] = 1e-12  # symmetric up to rounding
    alpha = 0.1 * 5 / 10
    assert kappa_of_gram(k, 9, "ridge", 0.1, size=10) == pytest.approx((4 + alpha) / alpha)
    assert kappa_of_gram(k, 9, "ridge", 0.1) == pytest.approx(4.25 / 1.25)
    assert kappa_of_gram(k, 9, "spectrum", 0.1) == pytest.approx(4)


def test_the_rows_that_are_left_after_some_are_set_aside_are_what_is_counted() -> None:
    x_p, x_h = ref.rows(1, 8), ref.rows(2)
    with pytest.raises(ValueError, match=r"N = 4 samples .* D = 6"):
        closed_form(x_p, x_h, budget="auto", validation_fraction=0.5, shrinkage=0.0)
    closed_form(x_p, x_h, shrinkage=0.0)  # all 8 are enough


def test_the_joint_range_leaves_out_what_is_rounding_beside_the_largest() -> None:
    scale = column(1.0, 0.8, 0.6, 3e-8, 3e-8, 3e-8)  # squared 1e-15, the cut is 120·eps ≈ 3e-14
    sets = [ref.gaussian(60, 6, seed=seed) * scale for seed in (1, 2)]
    inner = _in_joint_range([torch.stack([x.T @ x]) for x in sets], sets)
    assert [part.shape for part in inner] == [(1, 3, 3)] * 2
    for part, x in zip(inner, sets, strict=True):
        torch.testing.assert_close(torch.linalg.eigvalsh(part[0]), torch.linalg.eigvalsh(x[:, :3].T @ x[:, :3]))
