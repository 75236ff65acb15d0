"""RIR_θ0 over all rows of a split: the Gram matrix H = FᵀF is added up in float64, in one pass and D² memory.

For the bootstrap the rows are dealt at random into M blocks, and each block keeps its own sum: H is the sum of all, a
resample a sum with each block as often as it was drawn. θ_I and θ_0 see the same rows in the same blocks, so that what
both share cancels in the ratio. It is a bootstrap of N rows: with N below a few times D the smallest eigenvalue of a
resample says little, and the interval is wide.

Shapes: N samples, D features, M blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from immunize.evaluation.numbers import RATIOS, ratio_numbers
from immunize.evaluation.resampling import Interval, bootstrap_counts, generator, log_interval
from immunize.memoize import memoize
from immunize.spectrum import (
    DEFAULT_RHO,
    ESTIMATORS,
    Estimator,
    ImmunizationRatio,
    Spectrum,
    immunization_ratio,
    spectrum_of_gram,
)

CHUNK = 4096
"""Rows that are in float64 at a time."""

_MOST_BLOCKS, _FEWEST_BLOCKS, _BYTES = 32, 8, 128 * 2**20


def blocks_for(n_features: int) -> int:
    """M: 32, fewer where their Gram matrices would take more than 128 MiB, but 8 at least."""
    return max(_FEWEST_BLOCKS, min(_MOST_BLOCKS, _BYTES // (8 * n_features**2)))


@dataclass(frozen=True)
class BlockGrams:
    """H of rows, by blocks.

    Attributes:
        blocks: (M, D, D) float64, where the rows lie.
        n_samples: N.
    """

    blocks: Tensor
    n_samples: int

    def spectrum(self) -> Spectrum:
        """Eigenvalues of H.

        Raises:
            ValueError: features that are not finite.
        """
        return spectrum_of_gram(self.blocks.sum(0).cpu(), self.n_samples)


@dataclass(frozen=True)
class PooledRatio:
    """Eq. (17) over all rows of a split.

    Attributes:
        ratio: under one estimator.
        intervals: 95 % bootstrap intervals of (i), (ii) and RIR; D_P and D_H are resampled apart.
    """

    ratio: ImmunizationRatio
    intervals: dict[str, Interval]

    def numbers(self) -> dict[str, Any]:
        """As records have it."""
        return ratio_numbers(self.ratio) | {"interval": {name: list(ends) for name, ends in self.intervals.items()}}


def gram(rows: Tensor) -> Tensor:
    """FᵀF (D, D) in float64 of rows (N, D) of any floating type, `CHUNK` of them at a time."""
    size = rows.shape[1]
    total = torch.zeros(size, size, dtype=torch.float64, device=rows.device)
    for start in range(0, len(rows), CHUNK):
        wide = rows[start : start + CHUNK].double()
        total.addmm_(wide.T, wide)
    return total


def block_grams(x: Tensor, *, seed: int) -> BlockGrams:
    """H of features; the same rows of two extractors are dealt alike with the same seed.

    Args:
        x: (N, D) features, float32 or float64.
        seed: of the dealing into blocks.

    Raises:
        ValueError: no rows.
    """
    if not len(x):
        raise ValueError("there are no rows to take a Gram matrix of")
    size, m, together = x.shape[1], blocks_for(x.shape[1]), 8 * CHUNK  # each part still large enough for a fast BLAS
    blocks = torch.zeros(m, size, size, dtype=torch.float64, device=x.device)
    draws = generator(seed, "blocks")
    for start in range(0, len(x), together):
        rows = x[start : start + together]
        order = torch.randperm(len(rows), generator=draws)
        for index in range(m):
            # dealt one after the other, from where the last rows ended: block sizes differ by one at most
            dealt = order[(index - start) % m :: m]
            if len(dealt):
                blocks[index] += gram(rows[dealt.to(rows.device)])
    return BlockGrams(blocks, len(x))


def pooled_ratios(
    pretrain: BlockGrams,
    harmful: BlockGrams,
    pretrain_baseline: BlockGrams,
    harmful_baseline: BlockGrams,
    *,
    rho: float = DEFAULT_RHO,
    replicates: int,
    draws: torch.Generator,
) -> dict[Estimator, PooledRatio]:
    """Eq. (17) over all rows, by every estimator.

    Args:
        pretrain: of D_P's features under θ_I.
        harmful: of D_H's under θ_I.
        pretrain_baseline: of D_P's under θ_0, dealt as `pretrain`.
        harmful_baseline: of D_H's under θ_0, dealt as `harmful`.
        rho: ρ of the `ridge` estimator.
        replicates: of the bootstrap, 4 eigenvalue problems of size D each; fewer than 2 give no interval.
        draws: of the bootstrap.

    Raises:
        ValueError: the rows of θ_I and θ_0 differ in number, or features that are all zero or not finite.
    """
    for one, other in ((pretrain, pretrain_baseline), (harmful, harmful_baseline)):
        if (one.n_samples, len(one.blocks)) != (other.n_samples, len(other.blocks)):
            raise ValueError(f"θ_I has {one.n_samples} rows and θ_0 {other.n_samples}; both have to see the same")
    units = min(len(pretrain.blocks), len(harmful.blocks), pretrain.n_samples, harmful.n_samples)
    counts = [
        bootstrap_counts(min(len(side.blocks), side.n_samples), replicates if units > 1 else 0, draws)
        for side in (pretrain, harmful)
    ]
    theta, theta_0 = (pretrain, harmful), (pretrain_baseline, harmful_baseline)
    exact = (pretrain.spectrum(), harmful.spectrum(), pretrain_baseline.spectrum(), harmful_baseline.spectrum())
    p, h, p_0, h_0 = (
        _resampled(side.blocks, side.n_samples, drawn)
        for two in (theta, theta_0)
        for side, drawn in zip(two, counts, strict=True)
    )
    resampled = list(zip(p, h, p_0, h_0, strict=True))
    found: dict[Estimator, PooledRatio] = {}
    for estimator in ESTIMATORS:
        ratio = immunization_ratio(*exact, estimator=estimator, rho=rho)
        again = [immunization_ratio(*four, estimator=estimator, rho=rho) for four in resampled]
        intervals = {
            name: log_interval(getattr(ratio, name), [getattr(one, name) for one in again], units) for name in RATIOS
        }
        found[estimator] = PooledRatio(ratio, intervals)
    return found


@memoize(64)  # θ_0's with three seeds, while a sweep runs other methods: eight a run, half a megabyte each
def _resampled(blocks: Tensor, n_samples: int, counts: Tensor) -> list[Spectrum]:
    """Eigenvalues of the H of every resample.

    Args:
        blocks: (M, D, D).
        n_samples: N.
        counts: (R, m), how often each of the first m blocks is in each resample; the others are not.
    """
    kept = blocks[: counts.shape[1]]
    return [spectrum_of_gram(torch.tensordot(one.to(kept), kept, 1).cpu(), n_samples) for one in counts]
