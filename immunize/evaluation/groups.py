"""RIR_θ0 by the paper's protocol: 20 groups of 100 samples (Eq. 17, §5.2).

The paper "randomly sampl[es] 20 groups of training data, each containing 100 samples, and report[s] the average
values". What is averaged is (i), (ii) and RIR, each a group's own:

    (i)  = mean_g κ(H_H,g(θ_I))/κ(H_H,g(θ_0))      RIR = mean_g (i)_g/(ii)_g

not κ: the released code does so, and in Table 3 RIR is not the quotient of the two columns beside it (ViT on Cars:
7.945/0.323 = 24.6, but RIR = 34.5 ± 0.9). So neither is it here; the quotients of mean condition numbers stand beside
them as `of_means`. θ_I and θ_0 see the same groups, and group g of D_H is paired with group g of D_P.

Shapes: N samples, D features, G groups of n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from immunize.evaluation.numbers import KAPPAS, RATIOS
from immunize.evaluation.pooled import PooledRatio
from immunize.evaluation.resampling import bootstrap_counts, log_interval
from immunize.spectrum import (
    DEFAULT_RHO,
    ConditionNumber,
    Estimator,
    ImmunizationRatio,
    Spectrum,
    immunization_ratio,
    spectrum_of,
)

N_GROUPS, GROUP_SIZE = 20, 100
"""Of the paper, §5.2."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GroupRatio(PooledRatio):
    """Eq. (17) averaged over groups.

    Attributes:
        ratio: (i), (ii) and RIR are means over groups of each group's own; a κ is the mean over groups, its rank, gaps
            and floor those of the group where they are least favourable.
        intervals: 95 % bootstrap intervals of the three means, groups resampled as (D_P, D_H, θ_I, θ_0) together.
        of_means: (i), (ii) and RIR of the mean condition numbers.
        spread: standard deviation (n - 1) of (i), (ii) and RIR over groups; None for a single group.
        n_groups: G.
        group_size: n.
    """

    of_means: dict[str, float]
    spread: dict[str, float] | None
    n_groups: int
    group_size: int

    def numbers(self) -> dict[str, Any]:
        """As records have it: the keys of a pooled one and the rest."""
        own = ("of_means", "spread", "n_groups", "group_size")
        return super().numbers() | {name: getattr(self, name) for name in own}


def draw_groups(
    n_samples: int, draws: torch.Generator, *, n_groups: int = N_GROUPS, group_size: int = GROUP_SIZE
) -> Tensor:
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


def group_spectra(x: Tensor, groups: Tensor) -> list[Spectrum]:
    """Eigenvalues of H of every group, in float64.

    Args:
        x: (N, D) features, float32 or float64.
        groups: (G, n) from :func:`draw_groups`.

    Raises:
        ValueError: features that are not finite.
    """
    return [spectrum_of(x[rows.to(x.device)].double()) for rows in groups]


def group_ratio(
    pretrain: Sequence[Spectrum],
    harmful: Sequence[Spectrum],
    pretrain_baseline: Sequence[Spectrum],
    harmful_baseline: Sequence[Spectrum],
    estimator: Estimator = "spectrum",
    *,
    rho: float = DEFAULT_RHO,
    replicates: int,
    draws: torch.Generator,
) -> GroupRatio:
    """Average Eq. (17) over groups.

    Args:
        pretrain: of H_P(θ_I), one a group.
        harmful: of H_H(θ_I).
        pretrain_baseline: of H_P(θ_0), of the same rows as `pretrain`.
        harmful_baseline: of H_H(θ_0), of the same rows as `harmful`.
        estimator: one for all.
        rho: ρ of the `ridge` estimator.
        replicates: of the bootstrap.
        draws: of the bootstrap.

    Raises:
        ValueError: different numbers of groups, features that are all zero in a group, an unknown estimator, ρ ≤ 0.
    """
    sides = zip(pretrain, harmful, pretrain_baseline, harmful_baseline, strict=True)
    ratios = [immunization_ratio(*four, estimator=estimator, rho=rho) for four in sides]
    own = {name: np.array([getattr(ratio, name) for ratio in ratios]) for name in RATIOS}
    counts = bootstrap_counts(len(ratios), replicates, draws).numpy()
    means = {name: float(values.mean()) for name, values in own.items()}
    kappa_p, kappa_h, base_p, base_h = (_mean([getattr(ratio, name) for ratio in ratios]) for name in KAPPAS)
    harder, easier = kappa_h.value / base_h.value, kappa_p.value / base_p.value
    return GroupRatio(
        ratio=ImmunizationRatio(estimator, kappa_p, kappa_h, base_p, base_h, *(means[name] for name in RATIOS)),
        of_means=dict(zip(RATIOS, (harder, easier, harder / easier), strict=True)),
        spread={name: float(v.std(ddof=1)) for name, v in own.items()} if len(ratios) > 1 else None,
        intervals={name: log_interval(means[name], counts @ v / len(v), len(v)) for name, v in own.items()},
        n_groups=len(ratios),
        group_size=kappa_h.n_samples,
    )


def _mean(kappas: Sequence[ConditionNumber]) -> ConditionNumber:
    """The mean κ, σ_1 and σ_k of the groups, with the least favourable of their facts."""

    def of(name: str, how: Callable[[list[Any]], Any]) -> Any:
        return how([getattr(kappa, name) for kappa in kappas])

    means = {name: of(name, lambda v: float(np.mean(v))) for name in ("value", "sigma_max", "sigma_min")}
    least = {name: of(name, min) for name in ("rank", "numerical_rank", "gap_top", "gap_bottom", "gap_cut")}
    return replace(kappas[0], **means, **least, floor_hit=of("floor_hit", any))
