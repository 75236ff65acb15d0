"""κ, RIR and the verdicts of Definition 3.1 on extractors for which they are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from immunize.data import Part
from immunize.data.pair import PairParts
from immunize.evaluation import PartEvaluation, evaluate_part, least_squares_targets
from immunize.evaluation.numbers import spectrum_numbers
from immunize.spectrum import ESTIMATORS, Spectrum
from tests import reference as ref

D = 6
TASKS = {"pretrain": "regression", "harmful": "regression"}


def pair(n: int = 40, rank: int = D) -> PairParts:
    sigma = torch.logspace(1, -1, rank)
    parts = []
    for seed in (1, 2):
        x = ref.features_with_eigenvalues(sigma * n, n, D, seed)
        parts.append(Part(x, x @ ref.gaussian(D, seed=seed + 10) + 0.1 * ref.gaussian(n, seed=seed + 20)))
    return PairParts(*parts)


def evaluate(theta: Tensor, parts: PairParts | None = None, **options: Any) -> PartEvaluation:
    return evaluate_part(theta, parts or pair(), TASKS, probe_steps=50, **options)


def verdicts(theta: Tensor, parts: PairParts | None = None) -> tuple[bool, bool, bool]:
    v = evaluate(theta, parts).verdicts
    return v.a, v.b, v.c


@pytest.mark.parametrize("rho", [1e-2, 0.3])
@pytest.mark.parametrize("n", [40, D + 1])
def test_every_estimator_equals_its_definition(n: int, rho: float) -> None:
    parts, theta = pair(n), ref.extractor(D, seed=5)
    found = evaluate(theta, parts, rho=rho)
    assert set(found.ratios) == set(ESTIMATORS)
    for name, ratio in found.ratios.items():
        p, h, p0, h0 = (
            ref.kappa_by(name, ref.hessian(part.x, t), n, rho)
            for t in (theta, None)
            for part in (parts.pretrain, parts.harmful)
        )
        i, ii, rir = ref.immunization_ratio(h, p, h0, p0)
        assert ratio.estimator == name
        assert ratio.kappa_pretrain.value == pytest.approx(p, rel=1e-9)
        assert ratio.kappa_harmful.value == pytest.approx(h, rel=1e-9)
        assert ratio.kappa_pretrain_baseline.value == pytest.approx(p0, rel=1e-9)
        assert ratio.kappa_harmful_baseline.value == pytest.approx(h0, rel=1e-9)
        assert ratio.ratio_harmful == pytest.approx(i, rel=1e-9)
        assert ratio.ratio_pretrain == pytest.approx(ii, rel=1e-9)
        assert ratio.rir == pytest.approx(rir, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e5])
def test_rotations_and_scalings_neither(seed: int, scale: float) -> None:
    found = evaluate(scale * ref.orthogonal(D, seed))
    v = found.verdicts
    assert (v.a, v.b, v.c) == (False, True, True)
    assert found.ratios["spectrum"].ratio_harmful == pytest.approx(1, rel=1e-9)
    assert found.ratios["spectrum"].ratio_pretrain == pytest.approx(1, rel=1e-9)


def whitening(parts: PairParts) -> Tensor:
    values, vectors = torch.linalg.eigh(ref.hessian(parts.pretrain.x))
    return vectors @ torch.diag(values.rsqrt()) @ vectors.T


def test_closed_form_satisfies_all_three() -> None:
    """numerics.md §6: θ = K_P^(-1/2) has κ(H_P) = 1 and κ(H_H) = κ_gen."""
    parts = pair()
    theta = whitening(parts)
    found = evaluate(theta, parts)
    spectrum = found.ratios["spectrum"]
    k_p, k_h = ref.hessian(parts.pretrain.x), ref.hessian(parts.harmful.x)
    mu = torch.linalg.eigvals(torch.linalg.solve(k_p, k_h)).real
    kappa_gen = float(mu.max() / mu.min())
    assert spectrum.kappa_pretrain.value == pytest.approx(1, rel=1e-9)
    assert spectrum.kappa_harmful.value == pytest.approx(kappa_gen, rel=1e-9)
    assert kappa_gen > 2 * spectrum.kappa_harmful_baseline.value
    assert verdicts(theta, parts) == (True, True, True)


def test_a_harder_pretraining_task_fails_b_alone() -> None:
    parts = pair()
    values, vectors = torch.linalg.eigh(ref.hessian(parts.pretrain.x))
    theta = vectors @ torch.diag(values.sqrt()) @ vectors.T  # squares κ(H_P), and spreads D_H as well
    v = evaluate(theta, parts).verdicts
    assert v.ratio_pretrain == pytest.approx(100, rel=1e-9)
    assert (v.b, v.c) == (False, True)
    assert v.a == (v.ratio_harmful >= 2)


def test_the_bound_of_a_is_a_factor_of_two() -> None:
    parts = pair()
    vectors = torch.linalg.svd(parts.harmful.x).Vh.T
    for factor, harder in ((1.9, False), (2.1, True)):
        stretch = torch.ones(D, dtype=torch.float64)
        stretch[0] = factor**0.5
        v = evaluate(vectors @ torch.diag(stretch) @ vectors.T, parts).verdicts
        assert v.ratio_harmful == pytest.approx(factor, rel=1e-9)
        assert v.a is harder


def test_the_bound_of_b_forgives_rounding_and_no_more() -> None:
    parts = pair()
    vectors = torch.linalg.svd(parts.pretrain.x).Vh.T
    for rise, eased in ((3e-10, True), (3e-9, False)):
        stretch = torch.ones(D, dtype=torch.float64)
        stretch[0] = (1 + rise) ** 0.5
        v = evaluate(vectors @ torch.diag(stretch) @ vectors.T, parts).verdicts
        assert v.ratio_pretrain - 1 == pytest.approx(rise, rel=1e-3)
        assert v.b is eased


def test_singular_extractor_that_kills_a_needed_direction_fails_c() -> None:
    parts = pair()
    v = torch.linalg.svd(parts.pretrain.x).Vh[2]
    needed = PairParts(Part(parts.pretrain.x, parts.pretrain.x @ v), parts.harmful)
    projection = torch.eye(D, dtype=torch.float64) - torch.outer(v, v)
    found = evaluate(projection, needed).verdicts
    assert found.c is False
    assert found.loss_immunized == pytest.approx(found.loss_zero, rel=1e-9)  # nothing of the target is left
    assert found.loss_plain < 1e-12 * found.loss_zero
    other = torch.linalg.svd(parts.pretrain.x).Vh[3]
    assert evaluate(torch.eye(D, dtype=torch.float64) - torch.outer(other, other), needed).verdicts.c is True


def test_spectra_are_those_of_the_hessians() -> None:
    parts, theta = pair(), ref.extractor(D, seed=6)
    found = evaluate(theta, parts)
    for name, part in (("pretrain", parts.pretrain), ("harmful", parts.harmful)):
        for which, x in (("immunized", part.x @ theta), ("identity", part.x)):
            values = torch.linalg.svdvals(ref.hessian(x))
            assert torch.allclose(found.spectra[name][which].values, values, rtol=1e-9, atol=0)


@pytest.mark.parametrize("rank", [1, 5, 20, 300])
def test_recorded_spectra_keep_both_ends_and_the_order(rank: int) -> None:
    values = torch.cat([torch.logspace(3, -3, rank, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)])
    of = spectrum_numbers(Spectrum(values, rank + 10, rank + 4, 1e-12), points=16)
    assert of["rank"] == rank
    assert of["index"] == sorted(set(of["index"]))
    assert of["sigma"] == [float(values[i - 1]) for i in of["index"]]
    ends = {*range(1, min(8, rank) + 1), *range(max(1, rank - 7), rank + 1)}
    assert ends <= set(of["index"]) <= set(range(1, rank + 1))
    assert len(of["index"]) <= 32


def test_nothing_to_learn_has_no_curve() -> None:
    parts = pair()
    idle = PairParts(Part(parts.pretrain.x, torch.zeros(40, dtype=torch.float64)), parts.harmful)
    found = evaluate(ref.extractor(D, seed=6), idle)
    assert found.curves["pretrain"]["immunized"] is None
    assert found.curves["pretrain"]["identity"] is None
    assert found.curves["harmful"]["immunized"] is not None
    assert found.verdicts.c is True


def test_binary_labels_are_regressed_on_as_plus_and_minus_one() -> None:
    assert least_squares_targets(torch.tensor([0.0, 1.0, 1.0]), "binary").tolist() == [-1, 1, 1]
    y = torch.tensor([0.3, -2.0])
    assert least_squares_targets(y, "regression") is y
    with pytest.raises(ValueError, match="task"):
        least_squares_targets(y, "ranking")
    parts = pair()
    labels = PairParts(Part(parts.pretrain.x, torch.zeros(40, dtype=torch.float64)), parts.harmful)
    found = evaluate_part(
        torch.eye(D, dtype=torch.float64), labels, {"pretrain": "binary", "harmful": "regression"}, probe_steps=5
    )
    assert found.verdicts.loss_zero == 1  # all labels 0, that is all targets -1
    assert found.curves["pretrain"]["identity"] is not None


def test_of_two_labels_a_probe_has_to_tell_them_apart_as_well_as_before() -> None:
    """An invertible θ leaves the optimal loss as it is, however little of it a probe with a penalty reaches."""
    x, y = ref.gaussian(200, D, seed=3), (torch.arange(200) % 2).double()
    x[:, 0] += 4 * y
    labelled = PairParts(Part(x, y), pair().harmful)
    tasks = {"pretrain": "binary", "harmful": "regression"}
    crushed = torch.diag(torch.tensor([1e-4, *[1.0] * (D - 1)], dtype=torch.float64))
    for theta, kept in ((ref.orthogonal(D, seed=4), True), (crushed, False)):
        v = evaluate_part(theta, labelled, tasks, probe_steps=5).verdicts
        assert v.loss_immunized == pytest.approx(v.loss_plain, rel=1e-6)
        assert v.accuracy_before is not None
        assert v.accuracy_after is not None
        assert v.accuracy_before > 95
        assert v.c is (v.accuracy_before - v.accuracy_after <= 1) is kept
    one_label = PairParts(Part(x, torch.ones_like(y)), pair().harmful)
    assert evaluate_part(crushed, one_label, tasks, probe_steps=5).verdicts.accuracy_before is None
    assert evaluate(crushed).verdicts.accuracy_after is None  # a regression


def test_zero_and_non_finite_extractors_are_refused() -> None:
    with pytest.raises(ValueError, match="zeros"):
        evaluate(torch.zeros(D, D, dtype=torch.float64))
    with pytest.raises(ValueError, match="NaN or infinite"):
        evaluate(torch.full((D, D), torch.nan, dtype=torch.float64))
