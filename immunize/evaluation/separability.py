"""What a ridge probe can learn of a task, as a record holds it: `spectrum.separability` on the rows of one data set.

Shapes: N samples, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from immunize.memoize import memoize
from immunize.spectrum.separability import (
    RHOS,
    cross_fitted_accuracy,
    cross_fitted_correlation,
    folds_of,
    in_sample_share,
)

Separability = dict[str, dict[str, float]]
"""Measure, "in_sample" or "cross_fitted", to ρ to its value."""

DECIMALS = 9
"""Kept of a number; what is smaller is rounding, and another one on another machine."""


@memoize(8)  # θ_0 in a sweep; D_P beside each of several harmful data sets
def separability(x: Tensor, y: Tensor, theta: Tensor | None = None) -> Separability:
    """The in-sample share g, and the correlation c on each half of the rows of a probe fitted on the other, averaged.

    Args:
        x: (N, D), float32 or float64.
        y: (N,) class numbers if its dtype is whole, otherwise targets.
        theta: (D, D) of the type of x, which makes features x @ theta of it; None where x are the features.
    """
    if bool((y == y[0]).all()):  # nothing to tell apart, whatever the features
        found = dict.fromkeys(("in_sample", "cross_fitted"), torch.zeros(len(RHOS)))
    else:
        features, half = (x if theta is None else x @ theta).double(), folds_of(y, 2) == 0  # the same rows in every run
        both = [cross_fitted_correlation(features, y, judged) for judged in (half, ~half)]
        found = {"in_sample": in_sample_share(features, y), "cross_fitted": (both[0] + both[1]) / 2}
    return {
        measure: {f"{rho:g}": round(value, DECIMALS) + 0.0 for rho, value in zip(RHOS, of.tolist(), strict=True)}
        for measure, of in found.items()
    }


@memoize(4)  # D_P raw, in a sweep
def probe_accuracy(x: Tensor, y: Tensor) -> float:
    """The accuracy on each half of the rows of a ridge probe fitted on the other, averaged, at the best of the three ρ.

    Args:
        x: (N, D) features, float32 or float64.
        y: (N,) class numbers, as whole numbers of any dtype.

    Returns:
        percent.
    """
    features, classes = x.double(), y.long()
    half = folds_of(classes, 2) == 0
    both = [cross_fitted_accuracy(features, classes, judged) for judged in (half, ~half)]
    return 100 * float((both[0] + both[1]).max()) / 2
