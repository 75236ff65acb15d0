"""Step sizes under which one preconditioned step moves κ the promised way (Theorem 4.3, with corrected bounds).

In the eigenbasis of H the update θ' = θ - η·2θ∇R maps every eigenvalue exactly to σ_i' = σ_i(1 - 2ηg_i)², where
g_i is the eigenvalue of ∇_H R. The conditions printed in the paper's Theorem 4.3 admit steps that break its claim
(part 1 allows σ_1' = 0, part 2 is dimensionally inconsistent); those below follow from the exact map.

Shapes: sigma (k,) holds the non-zero eigenvalues of H, descending; D features.
"""

from __future__ import annotations

import math

from torch import Tensor

__all__ = ["ill_step_bound", "well_step_bound"]


def well_step_bound(sigma: Tensor, n_features: int) -> float:
    """Largest η for which a preconditioned R_well step strictly lowers κ(H) (exclusive).

    η < (√σ_1 - √σ_2) / (2[(1 - 1/D)σ_1^{3/2} + σ_2^{3/2}/D]): up to there σ_1 shrinks and stays the largest, while
    every other eigenvalue grows. Zero when σ_1 is not unique; infinite for rank 1, where κ = 1 cannot fall.
    """
    if len(sigma) < 2:
        return math.inf
    first, second = float(sigma[0]), float(sigma[1])
    d = n_features
    root_1, root_2 = math.sqrt(first), math.sqrt(second)
    return (root_1 - root_2) / (2 * ((1 - 1 / d) * root_1**3 + root_2**3 / d))


def ill_step_bound(sigma: Tensor) -> float:
    """Largest η for which a preconditioned R_ill step strictly raises κ(H) (exclusive).

    η[(1 - 1/k)σ_k - σ_1/k] < f², f = ‖H‖_F²/(2k) - σ_k²/2; infinite when the bracket is not positive. Zero when σ_k
    is not unique (then another eigenvalue becomes the smallest) or k < 2. One step within the bound is special: at
    η = f²/(2(1 - 1/k)σ_k) the eigenvalue σ_k itself becomes 0, H loses a rank, and κ is that of what is left.
    """
    k = len(sigma)
    if k < 2 or float(sigma[-2]) <= float(sigma[-1]):
        return 0.0
    f = float(sigma.square().sum()) / (2 * k) - 0.5 * float(sigma[-1]) ** 2
    bracket = (1 - 1 / k) * float(sigma[-1]) - float(sigma[0]) / k
    return math.inf if bracket <= 0 else f**2 / bracket
