"""A task in the principal axes of its training rows, for attacks whose result does not depend on the basis.

    X - 1mᵀ = UΣVᵀ,    m = 0 or the mean

What gradient descent from zero, L-BFGS, conjugate gradients, ridge regression and distances do does not depend on the
basis: they may see XV instead of X, whose k columns are fewer where the rows do not span all of R^D (575 of 784 for two
MNIST digits). Adam may not: it works column by column. Axes and rows are kept with the task, so that the attacks on it
share them.

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
import scipy.linalg
import torch

from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.protocol import Array, AttackData
from immunize.evaluation.attacks.scoring import target_matrix
from immunize.memoize import memoize

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


@memoize(8)
def both_axes(x: Array) -> tuple[Axes, Axes]:
    """About zero and about the mean, by one QR decomposition, kept for the next attack on the same rows.

    Rows whose mean is zero up to rounding have one set of axes, which is then the same object twice.

    Args:
        x: (N, D) finite.

    Raises:
        ValueError: NaN or infinite values.
        numpy.linalg.LinAlgError: no convergence.
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
        return scipy.linalg.svd(x, full_matrices=False)  # type: ignore[no-any-return]
    except np.linalg.LinAlgError:
        return scipy.linalg.svd(x, full_matrices=False, lapack_driver="gesvd")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Principal:
    """A task in other coordinates.

    Attributes:
        axes: principal axes of its training rows, (x - m)V = UΣ.
        data: the task with rows (x - m)V, (·, k).
        targets: (k, C) UᵀY, of the training targets less `offset`.
        offset: (C,) their mean if m is that of the rows, else zeros.
        seconds: what the products (x - m)V took.
    """

    axes: Axes
    data: AttackData
    targets: Array
    offset: Array
    seconds: float


def principal(data: AttackData, *, centred: bool = False) -> Principal:
    """The task in the principal axes of its training rows, about zero or about their mean.

    What has made rows of mean zero, and knows their axes by that, leaves these and the task in them in
    `data.kept["axes"]`.
    """
    kept: dict[bool, Principal] = data.kept.setdefault("principal", {})
    if centred not in kept:
        seconds, other = 0.0, kept.get(not centred)
        if "axes" in data.kept:
            axes, seen = data.kept["axes"]
        else:
            if "both axes" not in data.kept:
                data.kept["both axes"] = both_axes(data.train.x)  # whose key is a digest of all rows
            axes = data.kept["both axes"][centred]
            if other and other.axes is axes:
                seen, seconds = other.data, other.seconds
            else:
                started = time.perf_counter()
                seen = data.mapped(axes.coordinates)
                seconds = time.perf_counter() - started
        y = target_matrix(data, data.train)
        offset = y.mean(axis=0) if centred else np.zeros(y.shape[1])
        with np.errstate(invalid="ignore"):  # rows of zeros
            targets = seen.train.x.T @ (y - offset) / axes.sigma[:, None]
        kept[centred] = Principal(axes, seen, targets, offset, seconds)
    return kept[centred]


def svd_flops(shape: tuple[int, ...]) -> float:
    """Of the thin decomposition: Golub and Van Loan's 4·N·D² + 8·D³ for an N×D matrix, N ≥ D; or of its transpose."""
    long, short = max(shape), min(shape)
    return 4.0 * long * short**2 + 8.0 * short**3


def feature_scale(data: AttackData) -> float:
    """σ_1(X)/√N of the training rows, which multiplies with the features; 1 for rows of zeros."""
    return float(principal(data).axes.sigma[0]) / math.sqrt(len(data.train)) or 1.0


def pass_over(data: AttackData) -> Cost:
    """One step of an attacker who takes a gradient over all rows, as they are: rows, FLOPs, the shortest time of three.

    What attacks in principal axes charge for a step, which is quicker for us than for an attacker without them.
    """
    if "pass" not in data.kept:
        x, w, seconds = data.train.x, np.zeros((data.n_features, data.n_outputs)), []
        for _ in range(3):
            started = time.perf_counter()
            x.T @ (x @ w)
            seconds.append(time.perf_counter() - started)
        data.kept["pass"] = Cost(1, min(seconds), len(x), 4.0 * x.size * data.n_outputs)
    cost: Cost = data.kept["pass"]
    return cost
