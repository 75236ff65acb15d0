"""One singular value decomposition a data set and extractor, from which every number of the evaluation follows.

With features F = Xθ = UΣVᵀ (rank k) and least-squares targets y:

    spectrum of H = FᵀF           σ_i(H) = Σ_ii²
    optimal probe (minimum norm)  w*_i = (u_iᵀy)/Σ_ii in the basis V
    its loss                      min_w ‖Fw - y‖²/N = (‖y‖² - Σ_{i≤k}(u_iᵀy)²)/N

The N rows are first reduced to the k that X = UΣVᵀ leaves, Σ_kV_kᵀ with targets U_kᵀy: the same three, with K's
eigenvalues below the rank cut set to the zeros that they count as. So κ(H(θ)) is over k singular values for every
invertible θ, as κ(H(I)) is; for a θ that takes directions away, over those that it leaves.

Shapes: N samples, D features, k numerical rank of the data, C columns of targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from immunize.spectrum import Spectrum, default_tolerance, rank_of_map
from immunize.spectrum.condition import check_matrix

__all__ = ["Decomposition", "Rows", "compress", "decompose"]


@dataclass(frozen=True)
class Rows:
    """A data set reduced to k linearly independent rows that have the same K = XᵀX and Xᵀy.

    Attributes:
        x: (k, D) float64, Σ_kV_kᵀ.
        y: (k,) float64, or (k, C) of several outputs, least-squares targets in the same coordinates.
        spectrum: eigenvalues of K, also those below the rank cut.
        energy: ‖y‖² of the original targets.
    """

    x: Tensor
    y: Tensor
    spectrum: Spectrum
    energy: float


@dataclass(frozen=True)
class Decomposition:
    """Spectrum and least-squares facts of one data set under one extractor.

    Attributes:
        spectrum: eigenvalues of H.
        optimum: (k,) float64, w* in the eigenbasis of H, for the non-zero eigenvalues; of several outputs the length of
            its rows, which is all that steepest descent sees of them.
        loss: min_w ‖Fw - y‖²/N.
        energy: ‖y‖²/N, the loss of w = 0.
    """

    spectrum: Spectrum
    optimum: Tensor
    loss: float
    energy: float


def compress(x: Tensor, y: Tensor) -> Rows:
    """Reduce (X, y) to the range of K; see the module's note.

    Args:
        x: (N, D) float64.
        y: (N,) float64, or (N, C).

    Raises:
        ValueError: rows that are all zero, or contain NaN or infinite values.
    """
    n, d = x.shape
    check_matrix(x, "the rows of a data set")
    energy = float(y.square().sum())
    if n > d:  # a triangular factor with the same K and Xᵀy first
        r = torch.linalg.qr(torch.cat([x, y.reshape(n, -1)], dim=1), mode="r").R
        x, y = r[:d, :d], r[:d, d:].reshape(-1, *y.shape[1:])
    u, sigma, vh = torch.linalg.svd(x, full_matrices=False)
    spectrum = Spectrum(sigma.square(), n, d, default_tolerance(n, d))
    k = spectrum.rank
    return Rows(sigma[:k, None] * vh[:k], u[:, :k].T @ y, spectrum, energy)


def decompose(rows: Rows, theta: Tensor | None = None) -> Decomposition:
    """Decompose the features of `rows` under θ (the identity if None).

    Args:
        rows: from :func:`compress`.
        theta: (D, D) float64.

    Raises:
        ValueError: the features contain NaN or infinite values.
    """
    data = rows.spectrum
    n, energy = data.n_samples, rows.energy
    if theta is None:  # the rows are ΣVᵀ already
        spectrum, projected = data, rows.y
    else:
        features = rows.x @ theta
        if not bool(torch.isfinite(features).all()):
            raise ValueError("features contain NaN or infinite values")
        u, sigma, _ = torch.linalg.svd(features, full_matrices=False)
        spectrum = Spectrum(sigma.square(), n, data.n_features, data.tolerance, rank_of_data=data.rank)
        if spectrum.numerical_rank < data.rank:  # a θ that is badly conditioned, or has no inverse
            spectrum = replace(spectrum, rank_of_data=rank_of_map(rows.x, theta))
        projected = u.T @ rows.y
    k = spectrum.rank
    projected = projected[:k]
    residual = max(energy - float(projected.square().sum()), 0.0)
    optimum = projected.norm(dim=1) if projected.ndim > 1 else projected
    return Decomposition(spectrum, optimum / spectrum.values[:k].sqrt(), residual / n, energy / n)
