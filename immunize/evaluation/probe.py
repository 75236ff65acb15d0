"""The paper's attacker: a linear probe trained by gradient descent with exact line search (Eqs. 4 and 16, Fig. 1).

For L(w) = ‖Fw - y‖², H = FᵀF and the error e_t = w_t - w*, steepest descent with the step that minimizes the loss
along the gradient Hλ-weights e:

    α_t = (eᵀH²e)/(eᵀH³e),   e_{t+1} = (I - α_t H) e_t

In the eigenbasis of H each coordinate is multiplied by (1 - α_t λ_i), so a step costs k multiplications instead of
a pass over the data, and the curve equals the naive simulation.

Shapes: k non-zero eigenvalues, T steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

DEFAULT_STEPS = 20_000
THRESHOLDS = (0.1, 0.01)
"""Norm ratios whose first passage is reported."""


@dataclass(frozen=True)
class NormRatioCurve:
    """‖w_t - w*‖²/‖w_0 - w*‖² for t = 0…T (Eq. 16), with w_0 = 0.

    Attributes:
        ratio: (T+1,) float64; ratio[0] = 1. Shorter than asked for if the error reached zero.
        steps_to: threshold to the first step at which the ratio is at or below it; None if that never happened.
    """

    ratio: npt.NDArray[np.float64]
    steps_to: dict[float, int | None]

    def thinned(self, points: int = 120) -> tuple[list[int], list[float]]:
        """About `points` log-spaced steps and their ratios, for records and figures."""
        last = len(self.ratio) - 1
        spaced = np.unique(np.geomspace(1, max(last, 1), points).round().astype(int))
        steps = [0, *(int(step) for step in spaced if step <= last)]
        return steps, [float(self.ratio[step]) for step in steps]


def norm_ratio_curve(eigenvalues: Tensor, optimum: Tensor, *, steps: int = DEFAULT_STEPS) -> NormRatioCurve:
    """Simulate the probe in the eigenbasis of H.

    Args:
        eigenvalues: (k,) the non-zero eigenvalues of H; any scale.
        optimum: (k,) w* in the basis of the same eigenvectors (minimum norm, so zero in the null space of H).
        steps: T.

    Raises:
        ValueError: w* = 0 (nothing to learn, so Eq. (16) is 0/0), or shapes that differ.
    """
    if eigenvalues.shape != optimum.shape or eigenvalues.ndim != 1:
        raise ValueError(f"one eigenvalue a coordinate is needed, got {eigenvalues.shape} and {optimum.shape}")
    values = (eigenvalues / eigenvalues.max()).cpu().numpy().astype(np.float64)
    error = optimum.square().cpu().numpy().astype(np.float64)  # squared coordinates of e_t
    start = error.sum()
    if not start > 0:
        raise ValueError("the optimal probe is zero, the norm ratio of Eq. (16) is undefined")
    error /= start
    squared, cubed = values**2, values**3
    factor = np.empty_like(values)
    ratio = np.empty(steps + 1)
    ratio[0] = 1.0
    for step in range(1, steps + 1):  # 20,000 of them a curve: nothing is allocated, no wrapper is called
        curvature = cubed.dot(error)
        if not curvature > 0:  # converged to the last bit
            ratio = ratio[:step]
            break
        np.multiply(values, squared.dot(error) / curvature, out=factor)
        np.subtract(1.0, factor, out=factor)
        np.multiply(factor, factor, out=factor)
        np.multiply(error, factor, out=error)
        ratio[step] = np.add.reduce(error)
    passed = {t: np.flatnonzero(ratio <= t) for t in THRESHOLDS}
    return NormRatioCurve(ratio, {t: int(hit[0]) if len(hit) else None for t, hit in passed.items()})
