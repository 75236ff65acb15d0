"""The label-aware map and the sparing of third data: against the frontier, against slow references, and bad input."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from immunize.spectrum import (
    GeneralizedSpectrum,
    SignalDirections,
    centred_targets,
    frontier,
    generalized_spectrum,
    plain_directions,
    sharpen,
    signal_directions,
    signal_map,
    spare,
)
from tests import reference as ref
from tests.spectrum.making import gram

D, RHO = 7, 1e-2


def rows(seed: int, spread: float = 1.0) -> Tensor:
    return ref.gaussian(90, D, seed=seed) * torch.logspace(0, -spread, D, dtype=torch.float64)


def pencil(shrinkage: float = RHO) -> GeneralizedSpectrum:
    p, h = rows(1), rows(2).flip(1)
    return generalized_spectrum(p.T @ p, h.T @ h, n_samples=(90, 90), shrinkage=shrinkage)


def crosses() -> tuple[Tensor, Tensor]:
    """XᵀY of a regression on one direction of D_P, and of three classes of D_H."""
    p, h = rows(1), rows(2).flip(1)
    weights = ref.gaussian(D, 3, seed=5)
    return p.T @ centred_targets(p @ ref.gaussian(D, seed=4)), h.T @ centred_targets((h @ weights).argmax(1))


def directions() -> SignalDirections:
    return signal_directions(pencil(), *crosses())


def shrunk(x: Tensor) -> Tensor:
    return ref.shrunk(x.T @ x, RHO)


def kappa(k: Tensor, theta: Tensor) -> float:
    values = torch.linalg.eigvalsh(theta.T @ k @ theta)
    return float(values[-1] / values[0])


@pytest.mark.parametrize("budget", [1.0, 3.0, 200.0])
def test_without_labels_it_is_the_frontier(budget: float) -> None:
    best = frontier(pencil(), budget)
    for of in (directions(), plain_directions(pencil())):
        one = signal_map(of, budget, 0.0)
        assert torch.allclose(one.theta, best.theta, rtol=1e-8, atol=1e-12)
        assert torch.allclose(one.inverse, best.inverse, rtol=1e-8, atol=1e-12)
        assert one.kappa_pretrain == pytest.approx(budget, rel=1e-9)
        assert one.ratio_harmful / one.ratio_pretrain == pytest.approx(best.rir, rel=1e-8)


@pytest.mark.parametrize("gamma", [0.125, 0.5, 1.0])
@pytest.mark.parametrize("budget", [1.0, 20.0])
def test_condition_numbers_are_those_of_the_shrunk_covariances_and_within_the_bound(
    gamma: float, budget: float
) -> None:
    of = directions()
    one = signal_map(of, budget, gamma)
    assert one.kappa_pretrain == pytest.approx(kappa(shrunk(rows(1)), one.theta), rel=1e-6)
    assert one.kappa_harmful == pytest.approx(kappa(shrunk(rows(2).flip(1)), one.theta), rel=1e-6)
    assert one.kappa_pretrain <= budget * float(of.ratios[0] / of.ratios[-1]) ** (2 * gamma) * (1 + 1e-9)
    assert torch.allclose(one.theta @ one.inverse, torch.eye(D, dtype=torch.float64), atol=1e-8)


def test_at_budget_one_direction_j_is_scaled_by_its_ratio() -> None:
    of = directions()
    one = signal_map(of, 1.0, 0.5)
    gram = of.colourer @ one.theta @ one.theta.T @ of.colourer  # G
    assert torch.allclose(of.directions.T @ gram @ of.directions, torch.diag(of.ratios ** (-1.0)), rtol=1e-6, atol=1e-9)


def test_directions_are_generalized_eigenvectors_orthonormalized_in_descending_order() -> None:
    """The slow way: predictors by solving, eigenvalues of S_P⁻¹S_H, Gram-Schmidt by hand."""
    of = directions()
    p, h = shrunk(rows(1)), shrunk(rows(2).flip(1))
    cross_p, cross_h = crosses()
    values, vectors = torch.linalg.eigh(p)
    root = vectors @ torch.diag(values.sqrt()) @ vectors.T
    strengths = []
    for covariance, cross in ((h, cross_h), (p, cross_p)):
        predictor = root @ torch.linalg.solve(covariance, cross)
        outer = predictor @ predictor.T
        strengths.append(D * outer / outer.trace() + 1e-2 * torch.eye(D, dtype=torch.float64))
    ratios, columns = torch.linalg.eig(torch.linalg.solve(strengths[1], strengths[0]))
    order = ratios.real.argsort(descending=True)
    assert torch.allclose(of.ratios, ratios.real[order], rtol=1e-6)
    basis: list[Tensor] = []
    for j in order[: int((of.ratios > 1.5).sum())]:  # equal ratios have no order of their own
        column = columns.real[:, j]
        for before in basis:
            column = column - (before @ column) * before
        basis.append(column / column.norm())
    for j, column in enumerate(basis):
        assert abs(float(of.directions[:, j] @ column)) == pytest.approx(1, abs=1e-6)


def test_the_harmful_predictor_is_weakened_against_the_pretraining_one() -> None:
    """Along what the labels of D_H need, features shrink as γ grows; along what D_P's need, they grow."""
    of = directions()
    p, h = rows(1), rows(2).flip(1)
    sizes = []
    for gamma in (0.0, 0.25, 0.5):
        theta = signal_map(of, 1.0, gamma).theta
        theta = theta / (shrunk(p) @ theta @ theta.T).trace().sqrt()
        needs = [torch.linalg.solve(shrunk(x), cross)[:, :1] for x, cross in zip((p, h), crosses(), strict=True)]
        # ‖θ⁻¹w‖ is how far a probe has to go from zero to compute xᵀw
        sizes.append([float((torch.linalg.solve(theta, w)).norm()) for w in needs])
    pretrain, harmful = zip(*sizes, strict=True)
    assert harmful[0] < harmful[1] < harmful[2]
    assert pretrain[0] > pretrain[1]


def test_targets_are_centred_one_hot_or_a_column() -> None:
    classes = centred_targets(torch.tensor([3, 3, 9, 5]))
    assert classes.shape == (4, 3)
    assert torch.allclose(classes.sum(0), torch.zeros(3, dtype=torch.float64), atol=1e-15)
    assert torch.equal(classes[0], torch.tensor([0.5, -0.25, -0.25], dtype=torch.float64))
    assert torch.equal(centred_targets(torch.tensor([1.0, 3.0])), torch.tensor([[-1.0], [1.0]], dtype=torch.float64))


@pytest.mark.parametrize("y", [torch.ones(5), torch.full((5,), 4), torch.zeros(3), torch.full((6,), 0.1)])
def test_equal_targets_are_refused(y: Tensor) -> None:
    with pytest.raises(ValueError, match="the same"):
        centred_targets(y)


@pytest.mark.parametrize("sharpness", [1.0, 4.0, 16.0])
def test_sharpness_keeps_both_condition_numbers(sharpness: float) -> None:
    one = signal_map(sharpen(plain_directions(pencil()), sharpness), 50.0, 0.0)
    assert one.kappa_pretrain == pytest.approx(50, rel=1e-8)
    assert one.kappa_harmful == pytest.approx(50 * pencil().kappa_gen, rel=1e-6)


def test_sparing_nothing_is_the_frontier() -> None:
    of = plain_directions(pencil())
    third = rows(3).T @ rows(3)
    assert torch.allclose(spare(of, third, weight=0.0).exponents, of.exponents, atol=1e-9)
    assert torch.allclose(spare(of, 0 * third, sharpness=3.0).exponents, sharpen(of, 3.0).exponents, atol=1e-9)


@pytest.mark.parametrize("weight", [0.3, 1.0, 30.0])
def test_sparing_keeps_the_budget_and_amplifies_the_spared_data_less(weight: float) -> None:
    of = plain_directions(pencil())
    third = rows(3).flip(1).T @ rows(3).flip(1)  # its large directions are D_H's
    third = third * float(of.harmful.trace() / (of.whitener @ third @ of.whitener).trace())
    plain, spared = (
        signal_map(one, 40.0, 0.0) for one in (sharpen(of, 2.0), spare(of, third, weight=weight, sharpness=2))
    )
    assert spared.kappa_pretrain == pytest.approx(40, rel=1e-6)
    harmful = of.colourer @ of.harmful @ of.colourer

    def share(theta: Tensor) -> float:
        """Largest variance of D_H's features over the spared data's."""
        tops = [float(torch.linalg.eigvalsh(theta.T @ k @ theta)[-1]) for k in (harmful, third)]
        return tops[0] / tops[1]

    assert share(spared.theta) >= share(plain.theta) * (1 - 1e-9)


def test_sparing_the_harmful_data_itself_spends_nothing() -> None:
    of = plain_directions(pencil())
    same = replace(of, harmful=torch.eye(D, dtype=torch.float64))
    spared = spare(same, of.colourer @ of.colourer, weight=1.0)
    assert not bool(spared.exponents.any())


def test_refusals_say_what_to_do() -> None:
    of = directions()
    with pytest.raises(ValueError, match="shrinkage"):
        plain_directions(pencil(shrinkage=0.0))
    with pytest.raises(ValueError, match="shrinkage"):
        signal_directions(pencil(shrinkage=0.0), *crosses())
    with pytest.raises(ValueError, match="floor"):
        signal_directions(pencil(), *crosses(), floor=0.0)
    with pytest.raises(ValueError, match="D_H"):
        signal_directions(pencil(), crosses()[0], torch.zeros(D, 1, dtype=torch.float64))
    for budget, gamma, words in (
        (0.5, 0.0, "budget"),
        (math.nan, 0.0, "budget"),
        (1.0, -1.0, "γ"),
        (1.0, math.inf, "γ"),
    ):
        with pytest.raises(ValueError, match=words):
            signal_map(of, budget, gamma)
    for sharpness in (0.5, math.inf, math.nan):
        with pytest.raises(ValueError, match="sharpness"):
            sharpen(of, sharpness)
    third = torch.eye(D, dtype=torch.float64)
    with pytest.raises(ValueError, match="weight"):
        spare(of, third, weight=-1.0)
    with pytest.raises(ValueError, match="7×7"):
        spare(of, third[:3, :3])
    with pytest.raises(ValueError, match="7×7"):
        spare(of, third * math.nan)


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
