"""The thin singular value decomposition that attacks take, also where LAPACK's fast one gives up.

Divide and conquer (`gesdd`) fails to converge on some matrices with many equal singular values. That is what whitening
makes of any features: seen on 8,884 images of two MNIST digits, 552 singular values of 94.25. QR iteration (`gesvd`)
takes longer, and converges.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from immunize.evaluation.attacks.protocol import Array

__all__ = ["thin_svd"]


def thin_svd(x: Array) -> tuple[Array, Array, Array]:
    """U (N, k), σ (k,) descending, Vᵀ (k, D) with k = min(N, D).

    Args:
        x: (N, D) float64, finite.

    Raises:
        ValueError: NaN or infinite values.
        numpy.linalg.LinAlgError: neither algorithm converges.
    """
    try:
        u, sigma, vt = scipy.linalg.svd(x, full_matrices=False)
    except np.linalg.LinAlgError:
        u, sigma, vt = scipy.linalg.svd(x, full_matrices=False, lapack_driver="gesvd")
    return u, sigma, vt
