"""The largest and the smallest non-zero eigenpair of a Gram matrix, which is all that the regularizers need.

Small matrices are decomposed completely. For large ones ARPACK (through SciPy) finds the two ends: the largest by
Lanczos, the smallest by Lanczos on the inverse, from one Cholesky factor. That is only possible where the matrix has
full numerical rank, which the two ends themselves prove (σ_min above the cut); otherwise the complete decomposition
is computed after all. Rows compressed by :func:`~immunize.spectrum.compress_rows` give such matrices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import lapack
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

__all__ = ["FULL_DECOMPOSITION_SIZE", "Ends", "gram_ends"]

FULL_DECOMPOSITION_SIZE = 192
"""Up to this size a complete `eigh` is faster than finding the two ends (measured on two cores)."""

RESIDUAL = 1e-12
"""Largest entry of Gv - σv, relative to σ_1, that ARPACK's eigenpairs may leave; a cluster can leave more."""


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
    if gram.shape[0] > FULL_DECOMPOSITION_SIZE and gram.device.type == "cpu":
        ends = _iterative(gram, tolerance)
        if ends is not None:
            return ends
    values, vectors = torch.linalg.eigh(gram)
    k = int((values > tolerance * values[-1]).sum())
    if k == 0:
        raise ValueError("the spectrum of a matrix of zeros (or NaN) has no non-zero part to regularize")
    return Ends(k, values[-1].item(), values[-k].item(), vectors[:, [-1, -k]], values.dot(values).item())


def _iterative(gram: Tensor, tolerance: float) -> Ends | None:
    """None where the matrix is singular to working precision, or ARPACK does not converge to working precision."""
    size = gram.shape[0]
    trace = float(gram.trace())
    if not trace > 0:
        return None
    matrix = gram.numpy() / trace  # ARPACK's convergence test has an absolute floor, so units must not matter
    factor, info = lapack.dpotrf(matrix, lower=1)
    if info != 0:
        return None
    # A fixed start keeps the result a function of the matrix alone.
    start = np.random.default_rng(0).standard_normal(size)
    inverse = LinearOperator((size, size), matvec=lambda v: lapack.dpotrs(factor, v, lower=1)[0], dtype=np.float64)
    try:
        first, first_vector = eigsh(matrix, k=1, which="LA", v0=start)
        reciprocal, last_vector = eigsh(inverse, k=1, which="LA", v0=start)
    except ArpackError:
        return None
    last = 1 / reciprocal[0]
    if not last > tolerance * first[0]:
        return None
    vectors = np.concatenate([first_vector, last_vector], axis=1)
    residuals = matrix @ vectors - vectors * [first[0], last]
    if not np.abs(residuals).max() <= RESIDUAL * first[0]:
        return None
    norm = torch.linalg.vector_norm(gram).item()
    return Ends(size, trace * float(first[0]), trace * float(last), torch.from_numpy(vectors), norm * norm)
