"""RIR_θ0 of features: over all rows of a split, and by the paper's 20 groups of 100 samples, with bootstrap intervals.

all rows   The Gram matrix H = FᵀF is added up in float64, in one pass and D² memory. For the bootstrap the rows are
           dealt at random into M blocks, and each block keeps its own sum: H is the sum of all, a resample a sum with
           each block as often as it was drawn. θ_I and θ_0 see the same rows in the same blocks, so that what both
           share cancels in the ratio. It is a bootstrap of N rows: with N below a few times D the smallest eigenvalue
           of a resample says little, and the interval is wide.
groups     The paper "randomly sampl[es] 20 groups of training data, each containing 100 samples, and report[s] the
           average values" (Eq. 17, §5.2). What is averaged is (i), (ii) and RIR, each a group's own:

               (i)  = mean_g κ(H_H,g(θ_I))/κ(H_H,g(θ_0))      RIR = mean_g (i)_g/(ii)_g

           not κ: the released code does so, and in Table 3 RIR is not the quotient of the two columns beside it (ViT on
           Cars: 7.945/0.323 = 24.6, but RIR = 34.5 ± 0.9). So neither is it here; the quotients of mean condition
           numbers stand beside them as `of_means`. θ_I and θ_0 see the same groups, and group g of D_H is paired with
           group g of D_P.
intervals  A ratio is positive and skewed, so intervals are on its logarithm. Replicates give the standard error,
           Student's t with one degree of freedom less than there are units (blocks or groups) the width, and the
           estimate the centre:

               exp( log r̂ ± t_{0.975, M-1} · √(M/(M-1)) · sd(log r*) )

           wider by √(G·n/(N - n)) where N is too small for groups without a row in common. Of 150 to
           1,635 rows it covered the mean over groups in 97 to 99 of 100 trials, without that factor in 43 to 94.
           An interval is of the spread alone. κ of N rows is biased, upwards the more the nearer the true κ is to 1
           and the smaller N/D is: there, as right after whitening, both ends may lie on one side of the truth.
           Percentiles of the replicates are not used: a resample has fewer distinct rows than the data, which pushes
           the smallest eigenvalue down, so that replicates are biased where their spread is not. On heavy-tailed rows
           with M = 32 units this interval covered the true ratio in 92 to 95 of 100 trials, the percentiles in 92 to
           93, the reversed ones in 74 to 79.

Shapes: N samples, D features, M blocks, G groups of n samples.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from immunize.evaluation.numbers import KAPPAS, RATIOS, ratio_numbers
from immunize.memoize import memoize
from immunize.spectrum.condition import (
    ESTIMATORS,
    ConditionNumber,
    Estimator,
    ImmunizationRatio,
    Spectrum,
    immunization_ratio,
    spectrum_of,
    spectrum_of_gram,
)

CONFIDENCE = 0.95
"""Of every interval in a record."""

Interval = tuple[float, float]


def generator(seed: int, *purpose: str) -> torch.Generator:
    """A generator of its own for each purpose, so that no two draws of a run are alike.

    Args:
        seed: of the run.
        purpose: what is drawn, for instance ("groups", "fit", "harmful").
    """
    digest = hashlib.sha256("/".join((str(seed), *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def bootstrap_counts(n_units: int, replicates: int, draws: torch.Generator) -> Tensor:
    """How often each unit is in each resample of as many units, drawn with replacement.

    Returns:
        (replicates, n_units) float64; each row sums to `n_units`.
    """
    drawn = torch.randint(n_units, (replicates, n_units), generator=draws)
    counts = torch.zeros(replicates, n_units, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


def log_interval(estimate: float, replicates: npt.ArrayLike, n_units: int, stretch: float = 1.0) -> Interval:
    """The interval of the module's note.

    Args:
        estimate: r̂, positive.
        replicates: (R,) positive values r* of the resamples.
        n_units: M; with one unit nothing is known, and the interval is (0, inf).
        stretch: factor of the standard error, see :func:`stretch_of`; infinite gives (0, inf).
    """
    from scipy.special import stdtrit  # 14 MiB, which a run of a linear model has no use for

    logs = np.log(np.asarray(replicates, dtype=np.float64))
    if n_units < 2 or len(logs) < 2 or not (0 < estimate < math.inf and stretch < math.inf and np.isfinite(logs).all()):
        return 0.0, math.inf
    error = stretch * float(logs.std(ddof=1)) * math.sqrt(n_units / (n_units - 1))
    # beyond exp(700) a float ends, and nothing is known either
    half = min(float(stdtrit(n_units - 1, (1 + CONFIDENCE) / 2)) * error, 700.0)
    return estimate * math.exp(-half), estimate * math.exp(half)


# --- all rows --------------------------------------------------------------------------------------------------------

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
    """
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
    *sides: BlockGrams, rho: float, replicates: int, draws: torch.Generator
) -> dict[Estimator, PooledRatio]:
    """Eq. (17) over all rows, by every estimator.

    Args:
        sides: four: of D_P's features under θ_I, of D_H's, then of D_P's and D_H's under θ_0, dealt as those.
        rho: ρ of the `ridge` estimator.
        replicates: of the bootstrap, 4 eigenvalue problems of size D each; fewer than 2 give no interval.
        draws: of the bootstrap.

    Raises:
        ValueError: features that are all zero or not finite.
    """
    sizes = [min(len(side.blocks), side.n_samples) for side in sides[:2]]
    units = min(sizes)
    counts = [bootstrap_counts(size, replicates if units > 1 else 0, draws) for size in sizes]
    spectra = [  # of the rows themselves, then of every resample
        [side.spectrum(), *_resampled(side.blocks, side.n_samples, drawn)]
        for side, drawn in zip(sides, counts * 2, strict=True)
    ]
    fours = list(zip(*spectra, strict=True))
    found: dict[Estimator, PooledRatio] = {}
    for estimator in ESTIMATORS:
        ratio, *again = (immunization_ratio(p, h, p_0, h_0, estimator, rho=rho) for p, h, p_0, h_0 in fours)
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


# --- groups ----------------------------------------------------------------------------------------------------------


def draw_groups(n_samples: int, draws: torch.Generator, *, n_groups: int, group_size: int) -> Tensor:
    """Indices of random groups: no sample twice in a group, and in no two groups as long as there are enough samples.

    A permutation of the samples is cut into groups; where fewer are left than a group needs, the next one begins.

    Args:
        n_samples: N, as many as a group at least (:func:`immunize.evaluation.check_group_size`).
        draws: of the permutations.
        n_groups: G, 1 or more.
        group_size: n, 1 or more.

    Returns:
        (G, n) int64.
    """
    rounds = -(-n_groups // (n_samples // group_size))
    whole = n_samples // group_size * group_size
    cut = [torch.randperm(n_samples, generator=draws)[:whole].view(-1, group_size) for _ in range(rounds)]
    return torch.cat(cut)[:n_groups]


def stretch_of(n_samples: int, n_groups: int, group_size: int) -> float:
    """√(G·n/(N - n)) where N samples do not suffice for G groups of their own, else 1; infinite for N = n.

    Groups that share samples differ less from each other than from those of other samples: of a mean over samples the
    variance within N is (1 - n/N) times that of a group, and the error of the mean over all groups n/N times.
    """
    if n_samples >= n_groups * group_size:
        return 1.0
    return math.sqrt(n_groups * group_size / (n_samples - group_size)) if n_samples > group_size else math.inf


def group_spectra(x: Tensor, groups: Tensor) -> list[Spectrum]:
    """Eigenvalues of H of every group, in float64.

    Args:
        x: (N, D) features, float32 or float64.
        groups: (G, n) from :func:`draw_groups`.

    Raises:
        ValueError: features that are not finite.
    """
    return [spectrum_of(x[rows.to(x.device)].double()) for rows in groups]


def group_numbers(
    *sides: Sequence[Spectrum],
    estimator: Estimator,
    n_samples: tuple[int, int],
    rho: float,
    replicates: int,
    draws: torch.Generator,
) -> dict[str, Any]:
    """Eq. (17) averaged over groups, as records have it.

    Args:
        sides: four: of H_P(θ_I), one a group, of H_H(θ_I), then of H_P(θ_0) and H_H(θ_0), of the same rows as those.
        estimator: one for all.
        n_samples: (N_P, N_H), of which the groups were drawn.
        rho: ρ of the `ridge` estimator.
        replicates: of the bootstrap.
        draws: of the bootstrap.

    Returns:
        the keys of a pooled one: (i), (ii) and RIR are means over groups of each group's own; a κ is the mean over
        groups, its rank, gaps and floor those of the group where they are least favourable; "interval" has 95 %
        bootstrap intervals of the three means, groups resampled as (D_P, D_H, θ_I, θ_0) together. Beside them
        "of_means", (i), (ii) and RIR of the mean condition numbers; "spread", standard deviation (n - 1) of the three
        over groups, None for a single group; "n_groups", G; "group_size", n.

    Raises:
        ValueError: different numbers of groups, features that are all zero in a group, an unknown estimator, ρ ≤ 0.
    """
    fours = zip(*sides, strict=True)
    ratios = [immunization_ratio(p, h, p_0, h_0, estimator, rho=rho) for p, h, p_0, h_0 in fours]
    own = {name: np.array([getattr(ratio, name) for ratio in ratios]) for name in RATIOS}
    counts = bootstrap_counts(len(ratios), replicates, draws).numpy()
    means = {name: float(values.mean()) for name, values in own.items()}
    kappa_p, kappa_h, base_p, base_h = (_mean([getattr(ratio, name) for ratio in ratios]) for name in KAPPAS)
    harder, easier = kappa_h.value / base_h.value, kappa_p.value / base_p.value
    ratio = ImmunizationRatio(estimator, kappa_p, kappa_h, base_p, base_h, *(means[name] for name in RATIOS))
    sizes = {"n_groups": len(ratios), "group_size": kappa_h.n_samples}
    n = {"ratio_harmful": n_samples[1], "ratio_pretrain": n_samples[0]}
    intervals = {
        name: log_interval(means[name], counts @ v / len(v), len(v), stretch_of(n.get(name, min(n_samples)), **sizes))
        for name, v in own.items()
    }
    return PooledRatio(ratio, intervals).numbers() | {
        "of_means": dict(zip(RATIOS, (harder, easier, harder / easier), strict=True)),
        "spread": {name: float(v.std(ddof=1)) for name, v in own.items()} if len(ratios) > 1 else None,
        **sizes,
    }


def _mean(kappas: Sequence[ConditionNumber]) -> ConditionNumber:
    """The mean κ, σ_1 and σ_k of the groups, with the least favourable of their facts."""

    def of(name: str, how: Callable[[list[Any]], Any]) -> Any:
        return how([getattr(kappa, name) for kappa in kappas])

    means = {name: of(name, lambda v: float(np.mean(v))) for name in ("value", "sigma_max", "sigma_min")}
    least = {name: of(name, min) for name in ("rank", "numerical_rank", "gap_top", "gap_bottom", "gap_cut")}
    return replace(kappas[0], **means, **least, floor_hit=of("floor_hit", any))
