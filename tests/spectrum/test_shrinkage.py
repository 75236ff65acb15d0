"""The closed form from rows: ρ and B chosen on rows it was not computed from; arrays in; bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf_shrinkage
from torch import Tensor

from immunize.spectrum.condition import immunization_ratio, spectrum_of
from immunize.spectrum.pencil import GeneralizedSpectrum, generalized_spectrum
from immunize.spectrum.shrinkage import (
    SHRINKAGE_GRID,
    _in_joint_range,
    choose_budget,
    choose_shrinkage,
    closed_form,
    kappa_of_gram,
    ledoit_wolf,
)
from tests import reference as ref
from tests.reference import rows
from tests.spectrum.making import column, diagonal

D = 20


def drawn(n: int, which: int, seed: int) -> Tensor:
    """Rows (n, D) of one of several populations, each with a covariance of κ = 30."""
    root = torch.diag(30 ** -torch.linspace(0, 0.5, D, dtype=torch.float64)) @ ref.orthogonal(D, which)
    return ref.gaussian(n, D, seed=seed) @ root


def pencil(x_p: Tensor, x_h: Tensor) -> GeneralizedSpectrum:
    """Of the Gram matrices, with the closed form's ρ."""
    return generalized_spectrum(x_p.T @ x_p, x_h.T @ x_h, shrinkage=1e-3)


X_P, X_H = rows(1), rows(2)
MANY = drawn(400, 1, 1), drawn(400, 2, 2)


@pytest.mark.parametrize(("unseen", "largest"), [(0, 1.0), (5, 1.0), (0, 1e8)])
def test_scores_are_those_of_rows_mapped_without_having_been_seen(unseen: int, largest: float) -> None:
    n, folds, rho = 60, 4, 0.03
    x_p, x_h = (torch.cat([x, torch.zeros(n, unseen, dtype=x.dtype)], dim=1) for x in (drawn(n, 1, 1), drawn(n, 2, 2)))
    x_p[3] *= largest
    mapped: list[list[Tensor]] = [[], []]
    orders = [torch.from_numpy(np.random.default_rng(7 + which).permutation(n)).chunk(folds) for which in (0, 1)]
    for fold in range(folds):
        others = torch.cat([x_p[rows] for index, rows in enumerate(orders[0]) if index != fold])
        theta = closed_form(others / others.norm(), x_h, shrinkage=rho).theta
        for which, x in enumerate((x_p, x_h)):
            mapped[which].append(x[orders[which][fold]] @ theta)
    spectra = [spectrum_of(x) for x in (torch.cat(mapped[0]), torch.cat(mapped[1]), x_p, x_h)]
    choice = choose_shrinkage(x_p, x_h, grid=[rho], folds=folds, seed=7)
    assert choice.scores[0] == (rho, pytest.approx(math.log(immunization_ratio(*spectra, "ridge").rir), rel=1e-8))


@pytest.mark.parametrize("power", [-480, -300, 0, 300, 480])
def test_ledoit_wolf_is_scikit_learns_penalty_and_the_same_in_every_unit(power: int) -> None:
    x = drawn(30, 1, 1)
    share = ledoit_wolf_shrinkage(x.numpy(), assume_centered=True)  # in a convex combination
    assert ledoit_wolf(x) == pytest.approx(share / (1 - share), rel=1e-12)
    assert ledoit_wolf(x * 2.0**power) == ledoit_wolf(x)


# --- the budget ---------------------------------------------------------------------------------------------------


def test_auto_budget_is_the_largest_that_meets_both_conditions() -> None:
    held = drawn(400, 1, 3), drawn(400, 2, 4)
    best = closed_form(*MANY, budget="auto", validation=held)
    choice = best.budget_choice
    assert choice.feasible
    assert best.budget == choice.budget > 1

    def ratios(budget: float) -> tuple[float, float]:
        theta = closed_form(*MANY, budget=budget).theta
        ratio = immunization_ratio(*(spectrum_of(x) for x in (held[0] @ theta, held[1] @ theta, held[0], held[1])))
        return ratio.ratio_harmful, ratio.ratio_pretrain

    harmful, pretrain = ratios(best.budget)
    assert harmful >= 2
    assert pretrain <= 1
    assert ratios(best.budget * 1.06)[1] > 1
    for trial in choice.trials:
        assert (trial.ratio_harmful, trial.ratio_pretrain) == pytest.approx(ratios(trial.budget), rel=1e-6)
    assert choice.reason in best.notes


def test_auto_budget_without_validation_data_splits_some_off_and_refits_on_all() -> None:
    best = closed_form(*MANY, budget="auto", ease_limit=0.5, seed=3)
    assert best.budget_choice.feasible
    torch.testing.assert_close(best.theta, closed_form(*MANY, budget=best.budget).theta)
    assert closed_form(*MANY, budget="auto", ease_limit=0.5, seed=3).budget == best.budget
    default, zero, one = (closed_form(*MANY, budget="auto", **of).budget for of in ({}, {"seed": 0}, {"seed": 1}))
    assert default == zero != one
    assert best.budget < closed_form(*MANY, budget="auto", seed=3).budget


@pytest.mark.parametrize("largest", [1e5, 1e9])
def test_a_row_that_is_set_aside_leaves_no_rounding_behind(largest: float) -> None:
    sets = rows(1), rows(2)
    sets[0][7] *= largest
    fifth = len(sets[0]) // 5
    seed = next(n for n in range(20) if 7 in np.random.default_rng(n).permutation(len(sets[0]))[:fifth])
    kept, held = [], []
    for index, x in enumerate(sets):
        order = torch.from_numpy(np.random.default_rng(seed + index).permutation(len(x)))
        held.append(x[order[:fifth]])
        kept.append(x[order[fifth:]])
    known = choose_budget(pencil(*kept), *held)
    found = closed_form(*sets, budget="auto", seed=seed).budget_choice
    assert found is not None
    assert [trial.ratio_harmful for trial in found.trials] == pytest.approx([t.ratio_harmful for t in known.trials])


def test_infeasible_budgets_are_explained() -> None:
    hard = choose_budget(pencil(*MANY), *MANY, harder_by=1e12)
    assert not hard.feasible
    assert "(a)" in hard.reason
    assert hard.budget == max((t for t in hard.trials if t.ratio_pretrain <= 1), key=lambda t: t.ratio_harmful).budget
    easy = choose_budget(pencil(*MANY), *MANY, ease_limit=1e-9)
    assert easy.budget == 1
    assert "(b)" in easy.reason


@pytest.mark.parametrize(
    ("x_p", "x_h", "options", "words"),
    [
        (X_P, X_H[:, :5], {}, "x_harmful has 5 features .*one map serves both"),
        (X_P, 0 * X_H, {}, "zeros"),
        (X_P, X_H[0], {}, "^x_harmful must be a non-empty matrix"),
        *((X_P, of, {}, "^x_harmful holds complex numbers") for of in (X_H * 1j, (X_H * 1j).numpy())),
        (X_P, X_H[:5], {"shrinkage": 0.0}, r"N = 5 samples .* set shrinkage"),
        (X_P, X_H, {"budget": "most"}, "auto"),
        (X_P, X_H, {"shrinkage": "some"}, "ledoit_wolf"),
        (X_P[:5], X_H, {"shrinkage": "auto"}, "too few"),
        (X_P * (torch.arange(60) == 3)[:, None], X_H, {"shrinkage": "auto"}, "zeros in one fold alone: give shrinkage"),
        (X_P[:3], X_H, {"budget": "auto"}, "too few to split"),
        (X_P, X_H, {"budget": "auto", "validation_fraction": 0.95, "shrinkage": 0.0}, r"N = 3 samples .* D = 6"),
        *((X_P, X_H, {"budget": "auto", "validation_fraction": of}, "between 0 and 1") for of in (0.0, 1.0)),
        (X_P, X_H, {"budget": "auto", "validation": (X_P[:, :5], X_H)}, "one map serves both"),
        (X_P, X_H, {"budget": "auto", "validation": (X_P,)}, "a pair"),
    ],
)
def test_bad_input_is_refused_with_the_reason(x_p: Tensor, x_h: Tensor, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        closed_form(x_p, x_h, **options)


@pytest.mark.parametrize("harder_by", [200.0, 300.0])
def test_the_middle_budget_is_as_far_from_failing_a_as_b(harder_by: float) -> None:
    kappa_p, kappa_h = (ref.kappa(x.T @ x) for x in (X_P, X_H))
    kappa_gen = pencil(X_P, X_H).kappa_gen
    least = harder_by * kappa_h / kappa_gen
    assert 1 < least < kappa_p
    best, told = (closed_form(X_P, X_H, budget=b, harder_by=harder_by) for b in ("middle", (least * kappa_p) ** 0.5))
    assert best.budget_choice is None
    torch.testing.assert_close(best.theta, told.theta)
    none = closed_form(X_P, X_H, budget="middle", harder_by=2 * kappa_p * kappa_gen / kappa_h)
    assert torch.equal(none.theta, closed_form(X_P, X_H, budget=1.0).theta)


@pytest.mark.parametrize("estimator", ["spectrum", "ridge"])
def test_every_option_of_the_budget_reaches_the_choice(estimator: str) -> None:
    held, spectra = (rows(3), rows(4)), pencil(X_P, X_H)
    options: Any = {"estimator": estimator, "rho": 0.05, "harder_by": 1.5, "ease_limit": 0.8}
    choice = closed_form(X_P, X_H, budget="auto", validation=held, **options).budget_choice
    assert choice == choose_budget(spectra, *held, **options)
    assert choice.estimator == estimator
    budgets = [trial.budget for trial in choice.trials]
    assert budgets == sorted(budgets)
    assert (budgets[0], budgets[-1]) == (1.0, pytest.approx(spectra.kappa_pretrain))
    assert len(set(budgets)) >= 13


def test_a_choice_of_a_budget_goes_to_its_limit_and_says_where_the_estimator_has_one() -> None:
    spectra = pencil(X_P, X_H)
    choice = choose_budget(spectra, X_P, X_H, harder_by=1.5)
    (trial,) = (trial for trial in choice.trials if trial.budget == choice.budget)
    assert choice.reason.startswith(f"B = {choice.budget:.3g} is the largest")
    assert choice.reason.endswith(f"(i) = {trial.ratio_harmful:.3g}, (ii) = {trial.ratio_pretrain:.3g} (spectrum)")
    # the largest at all: on the rows that K was computed from (b) holds up to κ(K_P)
    assert choice.budget == pytest.approx(spectra.kappa_pretrain, rel=0.06)
    capped = choose_budget(spectra, X_P, X_H, harder_by=1e4, estimator="ridge", rho=0.5)
    most = (1 + 6 / 0.5) / ref.kappa_ridge(X_H.T @ X_H, 0.5)
    assert f"(rho = 0.5) cannot exceed (i) = {most:.3g}" in capped.reason
    for limits in ({"harder_by": 1e4}, {"harder_by": 1.5, "ease_limit": 1e-9}):
        assert "cannot exceed" not in choose_budget(spectra, X_P, X_H, **limits).reason


def test_harder_is_strictly_harder_whatever_the_factor() -> None:
    """Identical data: (i) = (ii) for every B, so that no B has (i) > 1 and (ii) ≤ 1."""
    choice = choose_budget(pencil(X_P, X_P), X_P, X_P, harder_by=0.0)
    assert not choice.feasible
    assert choice.reason.endswith(f"B = {choice.budget:.3g} is used (spectrum)")


def test_shrinkage_is_chosen_in_ten_folds_below_five_samples_a_feature() -> None:
    grid = (1e-3, 1e-1)
    for count, folds in ((29, 10), (30, 3)):
        x_p, x_h = rows(1, count), rows(2, 40)
        default = choose_shrinkage(x_p, x_h, grid=grid)
        assert default == choose_shrinkage(x_p, x_h, grid=grid, folds=folds, seed=0, rho=0.01)
        for other in ({"folds": folds + 1}, {"seed": 1}, {"rho": 0.1}):
            assert default != choose_shrinkage(x_p, x_h, grid=grid, **other)
        assert default.how == "auto"
        assert default.harmful == default.pretrain
        assert dict(default.scores)[default.pretrain] == max(score for _, score in default.scores)
    assert [rho for rho, _ in choose_shrinkage(X_P, X_H).scores] == list(SHRINKAGE_GRID)
    assert choose_shrinkage(X_P[:4], X_H[:4], grid=grid, folds=2).pretrain in grid
    with pytest.raises(ValueError, match="3 rows are too few for 2 folds"):
        choose_shrinkage(X_P, X_H[:3], grid=grid, folds=2)


def test_a_map_that_lifts_directions_without_rows_leaves_a_gram_matrix() -> None:
    """Its rounding there is beyond what an accumulated one has."""
    q = ref.orthogonal(40, seed=0)
    theta, gram = q @ torch.logspace(0, 6, 40).double().diag() @ q.T, q[:, :5] @ q[:, :5].T
    mapped = theta.T @ gram @ theta
    assert float(torch.linalg.eigvalsh(mapped)[0]) < -1e-9 * float(mapped.abs().max())
    assert kappa_of_gram(mapped, 100, "ridge", 1e-2) > 1


def test_automatic_shrinkage_takes_the_seed_and_rho_of_the_closed_form() -> None:
    auto, choice = closed_form(X_P, X_H, shrinkage="auto", seed=5, rho=0.2), choose_shrinkage(X_P, X_H, seed=5, rho=0.2)
    assert auto.shrinkage_choice == choice
    assert auto.shrinkage == (choice.pretrain, choice.harmful)
    wolf = closed_form(X_P, X_H, shrinkage="ledoit_wolf").shrinkage_choice
    assert (wolf.pretrain, wolf.harmful, wolf.how) == (ledoit_wolf(X_P), ledoit_wolf(X_H), "ledoit_wolf")
    given = closed_form(X_P, X_H, shrinkage=0.1).shrinkage_choice
    assert (given.pretrain, given.harmful, given.how) == (0.1, 0.1, "given")


def test_ledoit_wolf_stays_between_the_smallest_of_the_grid_and_its_largest() -> None:
    same = column(1.0, -1.0)[:, None] * torch.ones(2, 3, dtype=torch.float64)
    assert ledoit_wolf(same) == SHRINKAGE_GRID[0] == 1e-4
    assert ledoit_wolf(ref.gaussian(12, 6, seed=0)) == 1e3  # nothing but noise: δ = 1


def test_rows_that_are_split_off_are_a_fraction_and_at_least_two() -> None:
    trials = [
        closed_form(X_P[:n], X_H, budget="auto", validation_fraction=share, shrinkage=1e-2).budget_choice.trials  # type: ignore[union-attr]
        for n, share in ((12, 0.01), (4, 0.2), (60, 0.2), (60, 0.5))
    ]
    assert trials[2] != trials[3]


def test_rows_keep_no_gradient_and_single_precision_is_read_exactly() -> None:
    x_p, x_h = X_P.float().requires_grad_(), X_H.float()
    best = closed_form(x_p, x_h.numpy(), shrinkage=1e-2)
    assert not best.theta.requires_grad
    assert (best.theta.dtype, best.shrinkage) == (torch.float64, (1e-2, 1e-2))
    assert torch.equal(best.theta, closed_form(x_p.detach().double(), x_h.double(), shrinkage=1e-2).theta)


def test_kappa_of_a_gram_matrix_in_coordinates_of_a_subspace_counts_all_features() -> None:
    k = diagonal(4.0, 1.0)
    k[0, 1] = 1e-12  # symmetric up to rounding
    alpha = 0.1 * 5 / 10
    assert kappa_of_gram(k, 9, "ridge", 0.1, size=10) == pytest.approx((4 + alpha) / alpha)
    assert kappa_of_gram(k, 9, "ridge", 0.1) == pytest.approx(4.25 / 1.25)
    assert kappa_of_gram(k, 9, "spectrum", 0.1) == pytest.approx(4)


def test_the_joint_range_leaves_out_what_is_rounding_beside_the_largest() -> None:
    scale = column(1.0, 0.8, 0.6, 3e-8, 3e-8, 3e-8)  # squared 1e-15, the cut is 120·eps ≈ 3e-14
    sets = [ref.gaussian(60, 6, seed=seed) * scale for seed in (1, 2)]
    inner = _in_joint_range([torch.stack([x.T @ x]) for x in sets], sets)
    assert [part.shape for part in inner] == [(1, 3, 3)] * 2
    for part, x in zip(inner, sets, strict=True):
        torch.testing.assert_close(torch.linalg.eigvalsh(part[0]), torch.linalg.eigvalsh(x[:, :3].T @ x[:, :3]))
