"""The largest and the smallest non-zero eigenpair of a Gram matrix, which is all that the regularizers need.

They are taken from a complete decomposition. Finding only the two ends (Lanczos, and Lanczos on the inverse through one
Cholesky factor) is no faster up to a size of about 1,000, where `eigh` uses the cores better, and at 2,048 less than
twice as fast.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Ends", "gram_ends"]


class Ends(NamedTuple):
    """σ_1 and σ_k of a Gram matrix with their eigenvectors.

    Attributes:
        rank: k.
        first: σ_1.
        last: σ_k.
        vectors: (side, 2), the unit eigenvectors of σ_1 and σ_k.
        square_sum: ‖H‖_F², over all eigenvalues.
    """

    rank: int
    first: float
    last: float
    vectors: Tensor
    square_sum: float


def gram_ends(gram: Tensor, tolerance: float) -> Ends:
    """Both ends of the non-zero spectrum.

    Args:
        gram: (side, side) float64, symmetric positive semi-definite up to rounding.
        tolerance: eigenvalues at or below ``tolerance * σ_1`` count as zero.

    Raises:
        ValueError: no eigenvalue lies above the cut (a matrix of zeros, or NaN).
    """
    values, vectors = torch.linalg.eigh(gram)
    k = int((values > tolerance * values[-1]).sum())
    if k == 0:
        raise ValueError("the spectrum of a matrix of zeros (or NaN) has no non-zero part to regularize")
    return Ends(k, values[-1].item(), values[-k].item(), vectors[:, [-1, -k]], values.dot(values).item())
