"""Gram matrices that are added up, against the whole matrix at once; bootstrap intervals against known truths."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from immunize.evaluation import pooled
from immunize.evaluation.pooled import (
    CHUNK,
    PooledRatio,
    _resampled,
    block_grams,
    blocks_for,
    gram,
    pooled_ratios,
)
from immunize.spectrum import ESTIMATORS, Estimator, Spectrum, spectrum_of_gram
from tests import reference as ref

RHO = 0.01
D = 6


def ratios(
    x: tuple[Tensor, Tensor, Tensor, Tensor], replicates: int = 0, seed: int = 0
) -> dict[Estimator, PooledRatio]:
    """Of features of D_P and D_H under θ_I, then under θ_0."""
    p, h, p0, h0 = (block_grams(one, seed=seed) for one in x)
    return pooled_ratios(p, h, p0, h0, rho=RHO, replicates=replicates, draws=ref.generator(seed + 1))


# Sums.


@pytest.mark.parametrize("n", [1, 2, 31, 100, 999])
def test_blocks_add_up_to_the_whole_and_differ_by_a_row_at_most(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled, "CHUNK", 5)  # rows are dealt 40 at a time
    x = ref.gaussian(n, D, seed=n)
    sums = block_grams(x, seed=0)
    assert sums.n_samples == n
    assert (sums.blocks.sum(0) - x.T @ x).abs().max() < 1e-11
    # rows of length 1 make the trace a count
    counts = block_grams(x / x.norm(dim=1, keepdim=True), seed=0).blocks.diagonal(dim1=1, dim2=2).sum(1)
    assert (counts - counts.round()).abs().max() < 1e-9
    assert set(counts.round().int().tolist()) <= {n // 32, -(-n // 32)}


def test_rows_longer_than_a_chunk() -> None:
    x = ref.gaussian(2 * CHUNK + 17, 3, seed=2)
    assert (gram(x) / (x.T @ x) - 1).abs().max() < 1e-9
    assert gram(x.float()).dtype == torch.float64
    assert (gram(x.float()) - x.float().double().T @ x.float().double()).abs().max() < 1e-9


def test_rows_are_dealt_at_random() -> None:
    """A sorted data set: each block has rows of the whole range."""
    x = torch.arange(2560, dtype=torch.float64)[:, None].sqrt()
    means = block_grams(x, seed=0).blocks.flatten() / 80
    assert means.std() / means.mean() < 0.2
    assert not torch.equal(means, block_grams(x, seed=1).blocks.flatten() / 80)


@pytest.mark.parametrize(("d", "expected"), [(64, 32), (512, 32), (768, 28), (1024, 16), (2048, 8)])
def test_blocks_stay_below_their_memory(d: int, expected: int) -> None:
    assert blocks_for(d) == expected


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        block_grams(torch.empty(0, D), seed=0)


# Condition numbers.


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("n", [4, 40, 700])  # fewer rows than features, and more
def test_ratios_are_those_of_the_whole_matrices(n: int, estimator: Estimator) -> None:
    theta = ref.matrix_with_singular_values(torch.logspace(0, -1, D), D, D, 0)
    x_p, x_h = ref.gaussian(n, D, seed=5) + 1, ref.gaussian(n + 3, D, seed=6)
    x = (x_p @ theta, x_h @ theta, x_p, x_h)
    p, h, p0, h0 = (ref.kappa_by(estimator, ref.hessian(one), len(one), RHO) for one in x)
    assert ratios(x)[estimator].intervals["rir"] == (0, math.inf)  # nothing is known without replicates
    found = ratios(x)[estimator].ratio
    expected = ref.immunization_ratio(h, p, h0, p0)
    assert (found.ratio_harmful, found.ratio_pretrain, found.rir) == pytest.approx(expected, rel=1e-6)
    assert found.kappa_harmful.n_samples == n + 3


def test_different_rows_are_refused() -> None:
    x, shorter = ref.gaussian(30, D, seed=1), ref.gaussian(29, D, seed=1)
    with pytest.raises(ValueError, match="30 rows and θ_0 29"):
        ratios((x, x, shorter, x))


# Intervals.


def test_a_resample_is_the_matrix_with_repeated_rows() -> None:
    x = ref.gaussian(32, D, seed=10)
    sums = block_grams(x, seed=0)  # one row a block
    rows = [int((sums.blocks[i] - torch.einsum("ni,nj->nij", x, x)).abs().sum((1, 2)).argmin()) for i in range(32)]
    assert sorted(rows) == list(range(32))
    counts = torch.tensor([3, 0, 2] + [1] * 27 + [0, 0], dtype=torch.float64)
    repeated = torch.cat([x[row].repeat(int(count), 1) for row, count in zip(rows, counts, strict=True)])
    expected = torch.linalg.svdvals(repeated).square()
    (resample,) = _resampled(sums.blocks, sums.n_samples, counts[None])
    assert (resample.values / expected - 1).abs().max() < 1e-9


def test_resamples_of_theta_0_are_decomposed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x_p, x_h = ref.gaussian(90, D, seed=31), ref.gaussian(80, D, seed=32)
    decomposed: list[int] = []

    def counted(gram: torch.Tensor, n_samples: int) -> Spectrum:
        decomposed.append(n_samples)
        return spectrum_of_gram(gram, n_samples)

    monkeypatch.setattr("immunize.evaluation.pooled.spectrum_of_gram", counted)
    first = ratios((x_p @ ref.extractor(D, 33), x_h, x_p, x_h), replicates=5)
    assert len(decomposed) == 4 + 3 * 5  # θ_I's D_H is θ_0's here
    second = ratios((x_p, x_h @ ref.extractor(D, 34), x_p, x_h), replicates=5)
    assert len(decomposed) == 2 * 4 + 4 * 5
    assert first["spectrum"].intervals["ratio_harmful"] == (1, 1)
    assert second["spectrum"].intervals["ratio_pretrain"] == (1, 1)


def test_fewer_rows_than_blocks() -> None:
    x, theta = ref.gaussian(9, 3, seed=13), ref.extractor(3, 1)
    low, high = ratios((x @ theta, x @ theta, x, x), replicates=30)["spectrum"].intervals["ratio_harmful"]
    assert 0 < low < high < math.inf


def test_intervals_cover_the_ratio_of_the_distribution() -> None:
    """Rows with independent columns of known variance under θ_0, mixed by θ_I: both κ of the distribution are known."""
    d, n, trials = 4, 400, 100
    deviations = torch.logspace(0, -0.5, d, dtype=torch.float64)
    theta = ref.matrix_with_singular_values(torch.logspace(0, -0.6, d), d, d, 3)
    true_0 = float((deviations[0] / deviations[-1]) ** 2)
    values = torch.linalg.svdvals(deviations[:, None] * theta).square()
    truth = float(values[0] / values[-1]) / true_0
    plain = ref.gaussian(40, d, seed=0)
    hits, widths = 0, []
    for trial in range(trials):
        # Laplace: heavier tails than a Gaussian's
        uniform = torch.rand(n, d, generator=ref.generator(trial), dtype=torch.float64) - 0.5
        x = -uniform.sign() * torch.log1p(-2 * uniform.abs()) / math.sqrt(2) * deviations
        found = ratios((plain, x @ theta, plain, x), replicates=40, seed=trial)["spectrum"]
        low, high = found.intervals["ratio_harmful"]
        hits += low <= truth <= high
        widths.append(math.log(high / low))
        assert low < found.ratio.ratio_harmful < high
    assert 0.88 <= hits / trials <= 0.99
    assert sum(widths) / trials < 1  # and they say something
