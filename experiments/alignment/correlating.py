"""Rank correlations for `experiments.alignment`: its points, what orders their RIR, and intervals by a bootstrap."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.reporting import verdict_of

METHODS = ("ours", "closed_form")
PARTS, ESTIMATORS = ("fit", "held_out"), ("ridge", "spectrum")
PREDICTORS = {"alignment": "alignment of the top 10", "rir_star": "RIR* on fit", "rir_star_held_out": "RIR* held out"}
EXPECTED = {"alignment": -1, "rir_star": 1, "rir_star_held_out": 1}
"""The sign of a rank correlation that speaks for the claim."""

RESAMPLES, BOOTSTRAP_SEED = 5000, 0
FEWEST = 5
"""Points below which no correlation is reported."""


@dataclass(frozen=True)
class Point:
    """One pair of data sets.

    Attributes:
        family: "mnist" or "synthetic".
        label: "3→8", or the angle and the seed of the data.
        cluster: what is drawn as a whole by the bootstrap.
        forecast: the predictors by name.
        reached: (method, part, estimator) to RIR; what is missing or not finite is left out.
    """

    family: str
    label: str
    cluster: str
    forecast: dict[str, float]
    reached: dict[tuple[str, str, str], float]


@dataclass(frozen=True)
class Correlation:
    """A rank correlation over one family.

    Attributes:
        family: see :class:`Point`.
        predictor: a key of `PREDICTORS`.
        method: whose RIR.
        part: of the data.
        estimator: of the RIR.
        points: how many.
        rho: Spearman's.
        low: lower end of the 95 % interval.
        high: upper end.
    """

    family: str
    predictor: str
    method: str
    part: str
    estimator: str
    points: int
    rho: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether the interval lies on the side that the claim expects."""
        return verdict_of(EXPECTED[self.predictor], self.low, self.high)


def correlations(points: Sequence[Point]) -> list[Correlation]:
    """Every predictor against every RIR of both methods, family by family; those of few points are left out."""
    found = []
    for family in dict.fromkeys(point.family for point in points):
        for predictor in PREDICTORS:
            for method in METHODS:
                for part in PARTS:
                    for estimator in ESTIMATORS:
                        key = (method, part, estimator)
                        known = [p for p in points if p.family == family and key in p.reached]
                        varied = len({p.forecast[predictor] for p in known}) > 1
                        if varied and len({p.cluster for p in known}) >= FEWEST:
                            rho, low, high = spearman(
                                [p.forecast[predictor] for p in known],
                                [p.reached[key] for p in known],
                                [p.cluster for p in known],
                            )
                            found.append(Correlation(family, predictor, *key, len(known), rho, low, high))
    return found


def spearman(x: Sequence[float], y: Sequence[float], clusters: Sequence[str]) -> tuple[float, float, float]:
    """Spearman's rank correlation and its 95 % interval, percentiles of a bootstrap that draws whole clusters.

    Args:
        x: one number a point.
        y: likewise.
        clusters: what each point belongs to.
    """
    import numpy as np
    from scipy.stats import DegenerateDataWarning, bootstrap, spearmanr

    first, second = np.asarray(x), np.asarray(y)
    members: dict[str, list[int]] = defaultdict(list)
    for index, cluster in enumerate(clusters):
        members[cluster].append(index)
    rows = [np.array(of) for of in members.values()]

    def of(drawn: Any) -> float:
        index = np.concatenate([rows[int(one)] for one in drawn])
        if np.ptp(first[index]) == 0 or np.ptp(second[index]) == 0:
            return math.nan  # a draw of one point alone has no ranks
        return float(spearmanr(first[index], second[index]).statistic)

    with warnings.catch_warnings():
        # Of its own interval, which draws without ranks make NaN; the one below leaves them out.
        warnings.simplefilter("ignore", DegenerateDataWarning)
        result = bootstrap(
            (np.arange(len(rows)),),
            of,
            n_resamples=RESAMPLES,
            vectorized=False,
            method="percentile",
            rng=np.random.default_rng(BOOTSTRAP_SEED),
        )
    drawn = result.bootstrap_distribution
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return of(range(len(rows))), float(low), float(high)
