"""The frontier's budget spent where D_H differs from a third data set too, and on few directions (docs/signal.md).

Every d that is monotone in μ with the right ends is optimal for RIR, and the one that `frontier` takes spreads the
budget over all directions. For gradient descent it matters which: its step is bounded by the largest eigenvalue, so
that one direction that D_H has and nobody else makes D_H slow at no one else's cost, whereas a direction that other
users' data have as well makes them just as slow. With M = AK_HA, M_S = AK_SA in the coordinates that whiten D_P, and
the generalized eigenvectors of

    (M, I + s·M_S),    eigenvalues ν_1 ≥ … ≥ ν_D,    orthonormalized in this order to the columns of V,

    T = V diag(t^q) Vᵀ,    t = log(ν/ν_D)/log(ν_1/ν_D),

which is `frontier`'s T for weight s = 0 and sharpness q = 1. For every s and q, θθᵀ = A·B^T·A has κ(H_P) = B exactly;
with s = 0 also κ(H_H) = κ_gen·B for every q. s > 0 gives some of that away for the spared data.

Shapes: D features.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from immunize.spectrum.pencil import ALIGNED
from immunize.spectrum.signal import SignalDirections

__all__ = ["sharpen", "spare"]


def sharpen(of: SignalDirections, sharpness: float) -> SignalDirections:
    """The same directions with exponents t^q: the budget goes to fewer of them.

    Args:
        of: directions.
        sharpness: q ≥ 1.

    Raises:
        ValueError: q below 1 or not finite.
    """
    _check_sharpness(sharpness)
    t, vectors = torch.linalg.eigh(of.exponents)
    return replace(of, exponents=(vectors * t.clamp(0, 1) ** sharpness) @ vectors.T)


def spare(of: SignalDirections, gram: Tensor, *, weight: float = 1.0, sharpness: float = 1.0) -> SignalDirections:
    """The same directions with the exponents of the module's note.

    Args:
        of: directions of D_P and D_H.
        gram: (D, D) float64, K_S of the data to be spared, scaled to as many samples as K_P has.
        weight: s ≥ 0.
        sharpness: q ≥ 1.

    Raises:
        ValueError: a matrix of another size or with values that are not finite, s negative, or q below 1.
    """
    _check_sharpness(sharpness)
    if not 0 <= weight < math.inf:
        raise ValueError(f"the weight of the spared data has to be a finite number, 0 or more; it is {weight}")
    if gram.shape != of.whitener.shape or not bool(torch.isfinite(gram).all()):
        raise ValueError(f"the spared data's Gram matrix has to be finite, {'×'.join(map(str, of.whitener.shape))}")
    reference = torch.eye(len(gram), dtype=torch.float64) + weight * (of.whitener @ gram @ of.whitener)
    factor = torch.linalg.cholesky((reference + reference.T) / 2)
    inner = torch.linalg.solve_triangular(factor, of.harmful, upper=False)
    inner = torch.linalg.solve_triangular(factor, inner.T, upper=False)
    values, vectors = torch.linalg.eigh((inner + inner.T) / 2)
    values = values.flip(0)
    ratio = float(values[0] / values[-1])
    if ratio <= 1 + ALIGNED:  # nothing tells them apart, and no budget is spent
        return replace(of, exponents=torch.zeros_like(of.exponents))
    columns = torch.linalg.solve_triangular(factor.T, vectors, upper=True).flip(1)
    directions, _ = torch.linalg.qr(columns)
    t = ((values / values[-1]).log() / math.log(ratio)).clamp(0, 1) ** sharpness
    return replace(of, exponents=(directions * t) @ directions.T)


def _check_sharpness(sharpness: float) -> None:
    if not 1 <= sharpness < math.inf:
        raise ValueError(f"the sharpness has to be at least 1 and finite, it is {sharpness}")
