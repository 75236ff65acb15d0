"""The closed form from rows: ρ and B chosen on rows it was not computed from; arrays in; bad input."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from immunize.spectrum import (
    SHRINKAGE_GRID,
    ClosedForm,
    choose_budget,
    choose_shrinkage,
    closed_form,
    generalized_spectrum,
    immunization_ratio,
    ledoit_wolf,
    spectrum_of,
)
from tests import reference as ref

D = 20


def population(seed: int, kappa: float = 30.0) -> Tensor:
    """Square root of a covariance with the given κ."""
    return torch.diag(kappa ** -torch.linspace(0, 0.5, D, dtype=torch.float64)) @ ref.orthogonal(D, seed)


def rows(n: int, which: int, seed: int) -> Tensor:
    return ref.gaussian(n, D, seed=seed) @ population(which)


def rir(theta: Tensor, x_p: Tensor, x_h: Tensor) -> float:
    return immunization_ratio(*(spectrum_of(x) for x in (x_p @ theta, x_h @ theta, x_p, x_h)), "ridge").rir


def test_arrays_and_tensors_of_any_precision_give_the_same_map_and_its_inverse() -> None:
    x_p, x_h = rows(80, 1, 1), rows(70, 2, 2)
    best = closed_form(x_p, x_h, budget=4.0, shrinkage=1e-2)
    assert isinstance(best, ClosedForm)
    assert best.theta.dtype == torch.float64
    assert best.shrinkage == (1e-2, 1e-2)
    other = closed_form(x_p.numpy(), x_h.numpy(), budget=4.0, shrinkage=1e-2)
    torch.testing.assert_close(other.theta, best.theta)
    single = closed_form(x_p.float(), x_h.numpy().astype(np.float32), budget=4.0, shrinkage=1e-2)
    torch.testing.assert_close(single.theta, best.theta, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(best.theta @ best.inverse, torch.eye(D, dtype=torch.float64), rtol=0, atol=1e-9)
    w = ref.gaussian(D, seed=5)
    torch.testing.assert_close((x_p @ best.theta) @ (best.inverse @ w), x_p @ w)


@pytest.mark.parametrize("seed", [1, 5, 9])
def test_auto_shrinkage_carries_over_where_samples_are_few(seed: int) -> None:
    x_p, x_h = rows(22, 1, seed), rows(400, 2, seed + 1)
    later = rows(4000, 1, 100), rows(4000, 2, 101)
    auto = closed_form(x_p, x_h, shrinkage="auto")
    tiny = closed_form(x_p, x_h, shrinkage=1e-8)
    assert rir(auto.theta, *later) > 1.3 * rir(tiny.theta, *later)
    choice = auto.shrinkage_choice
    assert choice is not None
    assert choice.how == "auto"
    assert auto.shrinkage == (choice.pretrain, choice.harmful)
    scores = dict(choice.scores)
    assert tuple(scores) == pytest.approx(SHRINKAGE_GRID)
    assert scores[choice.pretrain] == max(scores.values())
    # not far from the best ρ in hindsight
    hindsight = max(rir(closed_form(x_p, x_h, shrinkage=rho).theta, *later) for rho in SHRINKAGE_GRID)
    assert rir(auto.theta, *later) > 0.45 * hindsight


def test_auto_shrinkage_falls_with_the_number_of_samples() -> None:
    few, many = (choose_shrinkage(rows(n, 1, 1), rows(n, 2, 2)).pretrain for n in (24, 5000))
    assert many < few


@pytest.mark.parametrize("unseen", [0, 5])
def test_scores_are_those_of_rows_mapped_without_having_been_seen(unseen: int) -> None:
    n, folds, rho = 60, 4, 0.03
    x_p, x_h = (torch.cat([x, torch.zeros(n, unseen, dtype=x.dtype)], dim=1) for x in (rows(n, 1, 1), rows(n, 2, 2)))
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


def test_ledoit_wolf_is_scikit_learns_covariance_up_to_a_factor() -> None:
    from sklearn.covariance import LedoitWolf

    x_p, x_h = rows(30, 1, 1), rows(50, 2, 2)
    rho = ledoit_wolf(x_p)
    mine = ref.shrunk(x_p.T @ x_p, rho)
    theirs = torch.from_numpy(LedoitWolf(assume_centered=True).fit(x_p.numpy()).covariance_)
    torch.testing.assert_close(mine / mine.trace(), theirs / theirs.trace(), rtol=0, atol=1e-12)
    best = closed_form(x_p, x_h, shrinkage="ledoit_wolf")
    assert best.shrinkage == pytest.approx((rho, ledoit_wolf(x_h)))


# --- the budget ---------------------------------------------------------------------------------------------------


def test_auto_budget_is_the_largest_that_meets_both_conditions() -> None:
    x_p, x_h, *held = rows(400, 1, 1), rows(400, 2, 2), rows(400, 1, 3), rows(400, 2, 4)
    best = closed_form(x_p, x_h, budget="auto", validation=(held[0], held[1]))
    choice = best.budget_choice
    assert choice is not None
    assert choice.feasible
    assert best.budget == choice.budget > 1

    def ratios(budget: float) -> tuple[float, float]:
        theta = closed_form(x_p, x_h, budget=budget).theta
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
    x_p, x_h = rows(400, 1, 1), rows(400, 2, 2)
    best = closed_form(x_p, x_h, budget="auto", ease_limit=0.5, seed=3)
    assert best.budget_choice is not None
    assert best.budget_choice.feasible
    torch.testing.assert_close(best.theta, closed_form(x_p, x_h, budget=best.budget).theta)
    assert closed_form(x_p, x_h, budget="auto", ease_limit=0.5, seed=3).budget == best.budget
    assert best.budget < closed_form(x_p, x_h, budget="auto", seed=3).budget


def test_infeasible_budgets_are_explained() -> None:
    x_p, x_h = rows(400, 1, 1), rows(400, 2, 2)
    spectrum = generalized_spectrum(x_p.T @ x_p, x_h.T @ x_h, shrinkage=1e-3)
    hard = choose_budget(spectrum, x_p, x_h, harder_by=1e12)
    assert not hard.feasible
    assert "(a)" in hard.reason
    assert hard.budget == max((t for t in hard.trials if t.ratio_pretrain <= 1), key=lambda t: t.ratio_harmful).budget
    capped = choose_budget(spectrum, x_p, x_h, harder_by=1e4, estimator="ridge")
    assert "cannot exceed" in capped.reason
    easy = choose_budget(spectrum, x_p, x_h, ease_limit=1e-9)
    assert easy.budget == 1
    assert "(b)" in easy.reason


def test_identical_data_cannot_be_immunized() -> None:
    x = rows(100, 1, 1)
    best = closed_form(x, x, budget="auto", shrinkage="auto")
    assert best.harmful.aligned
    assert best.rir == pytest.approx(1, rel=1e-6)
    assert best.budget_choice is not None
    assert not best.budget_choice.feasible
    assert any("cannot be immunized" in note for note in best.notes)


def test_bad_input_is_refused_with_the_reason() -> None:
    x_p, x_h = rows(40, 1, 1), rows(40, 2, 2)
    nan = x_h.clone()
    nan[0, 0] = math.nan
    for bad, reason in [
        (x_h[:, :5], "x_harmful has 5 features .*one map serves both"),
        (nan, "NaN"),
        (0 * x_h, "zeros"),
        (x_h[0], "matrix"),
        (x_h[:0], "non-empty"),
    ]:
        with pytest.raises(ValueError, match=reason):
            closed_form(x_p, bad)
    for pair, name in (((nan, x_h), "x_pretrain"), ((x_p, nan), "x_harmful")):
        with pytest.raises(ValueError, match=f"^{name} contains NaN"):
            closed_form(*pair)
    with pytest.raises(ValueError, match=r"N = 10 samples .* set shrinkage"):
        closed_form(x_p, x_h[:10], shrinkage=0.0)
    with pytest.raises(ValueError, match="at least 1"):
        closed_form(x_p, x_h, budget=0.5)
    with pytest.raises(ValueError, match="auto"):
        closed_form(x_p, x_h, budget="most")
    with pytest.raises(ValueError, match="ledoit_wolf"):
        closed_form(x_p, x_h, shrinkage="some")
    with pytest.raises(ValueError, match="too few"):
        closed_form(x_p[:5], x_h, shrinkage="auto")
    with pytest.raises(ValueError, match="too few"):
        closed_form(x_p[:3], x_h, budget="auto")
    for fraction in (0.0, 1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            closed_form(x_p, x_h, budget="auto", validation_fraction=fraction)
    with pytest.raises(ValueError, match="one map serves both"):
        closed_form(x_p, x_h, budget="auto", validation=(x_p[:, :5], x_h))
    with pytest.raises(ValueError, match="at least 2 folds"):
        choose_shrinkage(x_p, x_h, grid=[])


@pytest.mark.data
def test_mnist_with_everything_automatic(data_root: Path) -> None:
    from immunize.data.mnist import Mnist

    p, h = (Mnist(data_root, [0, 1], role).load() for role in ("pretrain", "harmful"))
    assert p.held_out is not None
    assert h.held_out is not None
    best = closed_form(p.fit.x, h.fit.x, shrinkage="auto")
    assert 1e-2 <= best.shrinkage[0] <= 1
    assert rir(best.theta, p.held_out.x, h.held_out.x) > 20
