"""Confidence intervals of ratios of condition numbers by the bootstrap, and the seeds of everything that is drawn.

A ratio is positive and skewed, so intervals are on its logarithm. Replicates give the standard error, Student's t with
one degree of freedom less than there are units the width, and the estimate the centre:

    exp( log r̂ ± t_{0.975, M-1} · √(M/(M-1)) · sd(log r*) )

Percentiles of the replicates are not used: a resample has fewer distinct rows than the data, which pushes the smallest
eigenvalue down, so that replicates are biased where their spread is not. On heavy-tailed rows with M = 32 units this
interval covered the true ratio in 92 to 95 of 100 trials, the percentiles in 92 to 93, the reversed ones in 74 to 79.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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


def log_interval(estimate: float, replicates: npt.ArrayLike, n_units: int) -> Interval:
    """The interval of the module's note.

    Args:
        estimate: r̂, positive.
        replicates: (R,) positive values r* of the resamples.
        n_units: M; with one unit nothing is known, and the interval is (0, inf).
    """
    from scipy.special import stdtrit  # 14 MiB, which a run of a linear model has no use for

    logs = np.log(np.asarray(replicates, dtype=np.float64))
    if n_units < 2 or len(logs) < 2 or not (0 < estimate < math.inf and np.isfinite(logs).all()):
        return 0.0, math.inf
    error = float(logs.std(ddof=1)) * math.sqrt(n_units / (n_units - 1))
    # beyond exp(700) a float ends, and nothing is known either
    half = min(float(stdtrit(n_units - 1, (1 + CONFIDENCE) / 2)) * error, 700.0)
    return estimate * math.exp(-half), estimate * math.exp(half)
