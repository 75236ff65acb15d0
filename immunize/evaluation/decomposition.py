"""One singular value decomposition a data set and extractor, from which every number of the evaluation follows.

With features F = Xθ = UΣVᵀ (rank k) and least-squares targets y:

    spectrum of H = FᵀF           σ_i(H) = Σ_ii²
    optimal probe (minimum norm)  w*_i = (u_iᵀy)/Σ_ii in the basis V
    its loss                      min_w ‖Fw - y‖²/N = (‖y‖² - Σ_{i≤k}(u_iᵀy)²)/N

The N rows are first reduced to D by X = QR: Rθ and Qᵀy give the same three.

Shapes: N samples, D features, r = min(N, D), k numerical rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from immunize.spectrum import Spectrum, default_tolerance

__all__ = ["Decomposition", "Rows", "compress", "decompose"]


@dataclass(frozen=True)
class Rows:
    """A data set reduced to at most D rows that have the same K = XᵀX and Xᵀy.

    Attributes:
        x: (r, D) float64.
        y: (r,) float64 least-squares targets in the same coordinates.
        n_samples: N.
        energy: ‖y‖² of the original targets.
    """

    x: Tensor
    y: Tensor
    n_samples: int
    energy: float


@dataclass(frozen=True)
class Decomposition:
    """Spectrum and least-squares facts of one data set under one extractor.

    Attributes:
        spectrum: eigenvalues of H.
        optimum: (k,) float64, w* in the eigenbasis of H, for the non-zero eigenvalues.
        loss: min_w ‖Fw - y‖²/N.
        energy: ‖y‖²/N, the loss of w = 0.
    """

    spectrum: Spectrum
    optimum: Tensor
    loss: float
    energy: float


def compress(x: Tensor, y: Tensor) -> Rows:
    """Reduce (X, y) by a QR decomposition of the augmented matrix; see the module's note.

    Args:
        x: (N, D) float64.
        y: (N,) float64.
    """
    n, d = x.shape
    energy = float(y.square().sum())
    if n <= d:
        return Rows(x, y, n, energy)
    r = torch.linalg.qr(torch.cat([x, y[:, None]], dim=1), mode="r").R
    return Rows(r[:d, :d], r[:d, d], n, energy)


def decompose(rows: Rows, theta: Tensor | None = None) -> Decomposition:
    """Decompose the features of `rows` under θ (the identity if None).

    Args:
        rows: from :func:`compress`.
        theta: (D, D) float64.

    Raises:
        ValueError: the features contain NaN or infinite values.
    """
    features = rows.x if theta is None else rows.x @ theta
    if not bool(torch.isfinite(features).all()):
        raise ValueError("features contain NaN or infinite values")
    u, sigma, _ = torch.linalg.svd(features, full_matrices=False)
    d = rows.x.shape[1]
    spectrum = Spectrum(sigma.square(), rows.n_samples, d, default_tolerance(rows.n_samples, d))
    k = spectrum.rank
    projected = (u.T @ rows.y)[:k]
    residual = max(rows.energy - float(projected.square().sum()), 0.0)
    return Decomposition(spectrum, projected / sigma[:k], residual / rows.n_samples, rows.energy / rows.n_samples)
