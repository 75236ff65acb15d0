"""The decompositions that attacks share: the thin SVD, and the principal axes of an attacker's training rows.

    X - 1mᵀ = UΣVᵀ,    m = 0 or the mean

What gradient descent from zero, L-BFGS, conjugate gradients, ridge regression and distances do does not depend on the
basis: they may see XV instead of X, whose k columns are fewer where the rows do not span all of R^D (575 of 784 for two
MNIST digits). Adam may not: it works column by column.

Divide and conquer (`gesdd`) fails to converge on some matrices with many equal singular values. That is what whitening
makes of any features: seen on 8,884 images of two MNIST digits, 552 singular values of 94.25. QR iteration (`gesvd`)
takes longer, and converges.

Shapes: N samples, D features, k axes.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg
import torch

from immunize.memoize import memoize

__all__ = ["Array", "Axes", "both_axes", "principal_axes", "thin_svd"]

Array = npt.NDArray[np.float64]

TALL = 2
"""From this many rows a column, X is made square by a QR decomposition first."""


@dataclass(frozen=True)
class Axes:
    """The principal axes of rows.

    Attributes:
        mean: (D,) m.
        sigma: (k,) the singular values above σ_1·max(N, D)·eps, descending; at least the first.
        basis: (D, k) V.
        seconds: what it took to compute them.
    """

    mean: Array
    sigma: Array
    basis: Array
    seconds: float

    def coordinates(self, x: Array) -> Array:
        """(M, D) to (M, k): (x - m)V."""
        return np.asarray((x - self.mean if self.mean.any() else x) @ self.basis)


def principal_axes(x: Array, *, centred: bool) -> Axes:
    """Of training rows; see :func:`both_axes`.

    Args:
        x: (N, D) finite.
        centred: m is the mean of the rows, not zero.

    Raises:
        ValueError: NaN or infinite values.
        numpy.linalg.LinAlgError: no convergence.
    """
    return both_axes(x)[centred]


@memoize(8)
def both_axes(x: Array) -> tuple[Axes, Axes]:
    """About zero and about the mean, by one QR decomposition, kept for the next attack on the same rows.

    Rows whose mean is zero up to rounding have one set of axes, which is then the same object twice.
    """
    started = time.perf_counter()
    n, d = x.shape
    mean = x.mean(axis=0)
    if n > TALL * d:
        # [1 X] = QR. The rows of R stand for those of X; all but the first, which is what X has in common with 1, for
        # those of X less its mean. Neither Q nor U with its N rows is ever formed.
        # PyTorch's takes half the time of NumPy's.
        r: Array = torch.linalg.qr(torch.from_numpy(np.column_stack([np.ones(n), x])), mode="r").R.numpy()
        plain, centred = r[:, 1:], r[1:, 1:]
    else:
        plain, centred = x, x - mean
    shared = time.perf_counter() - started
    tolerance = max(n, d) * np.finfo(np.float64).eps
    about_mean = _axes(centred, mean, tolerance, shared)
    if np.linalg.norm(mean) * math.sqrt(n) <= tolerance * about_mean.sigma[0]:
        return about_mean, about_mean
    return _axes(plain, np.zeros(d), tolerance, shared), about_mean


def _axes(rows: Array, mean: Array, tolerance: float, before: float) -> Axes:
    started = time.perf_counter()
    _, sigma, vt = thin_svd(rows)
    kept = sigma > tolerance * sigma[0]
    kept[0] = True
    return Axes(mean, sigma[kept], np.ascontiguousarray(vt[kept].T), before + time.perf_counter() - started)


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
