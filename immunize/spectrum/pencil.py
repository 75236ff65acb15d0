"""The generalized symmetric eigenproblem (K_H, K_P): what two Gram matrices let a linear map do.

    WᵀK_PW = I,  WᵀK_HW = diag(μ)

Two contracts, kept apart:

=======  =============================================================================================================
ρ = 0    on range(K_P). Directions only D_P has (μ = 0) do not count, those no sample has are scaled as a whole; if D_H
         has directions that D_P lacks, the supremum of RIR is infinite, which is reported, and no θ attains it
ρ > 0    K + ρ·tr(K)/D·I for both, on all of R^D (D, not the rank: the α of the `ridge` estimator). Directions no sample
         has share one μ = α_H/α_P, so there too θ is a multiple of the identity. With ρ_P = ρ_H it is no extreme one;
         with others it may be, and then takes a part of B that no sample has a use for
=======  =============================================================================================================

Shapes: N samples, D features, r = D (ρ > 0) or rank(K_P) (ρ = 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from immunize.errors import LARGEST
from immunize.spectrum.condition import Spectrum, condition_number, spectrum_of_eigenvalues
from immunize.spectrum.decompositions import eigh, eigvalsh

ALIGNED = 1e-6
"""κ_gen within this of 1 counts as 1: the covariances are proportional, and what is left of μ is rounding."""


@dataclass(frozen=True)
class GeneralizedSpectrum:
    """The generalized eigenvalues of (K_H, K_P), the directions that belong to them, and the bounds they imply.

    Attributes:
        mu: (r,) float64, descending, non-negative; exact zeros where only D_P has samples (ρ = 0 only).
        directions: (D, D); the first r columns are W. For ρ = 0 the others span null(K_P), all of one length: the
            geometric mean of the singular values of W.
        duals: (D, D), the inverse of `directions`.
        frame: (D, D) orthogonal, such that ``directions @ frame.T`` is K_P^{-1/2} where K_P has a range.
        rank_pretrain: rank of K_P, without ρ.
        rank_harmful: rank of K_H, without ρ.
        pretrain_only: dimension of what only D_P has, rank(joint range) - rank(K_H).
        harmful_only: dimension of what only D_H has, rank(joint range) - rank(K_P).
        unseen: dimension of what no sample has, D - rank(joint range).
        shrinkage: (ρ_P, ρ_H).
        kappa_pretrain: κ(K_P), with its ρ; the `ridge` estimator for ρ > 0, `spectrum` for ρ = 0.
        kappa_harmful: κ(K_H), likewise.
    """

    mu: Tensor
    directions: Tensor
    duals: Tensor
    frame: Tensor
    rank_pretrain: int
    rank_harmful: int
    pretrain_only: int
    harmful_only: int
    unseen: int
    shrinkage: tuple[float, float]
    kappa_pretrain: float
    kappa_harmful: float

    @property
    def attainable(self) -> bool:
        """Whether some θ attains the bound: not where D_H has directions of its own and ρ = 0."""
        return self.harmful_only == 0 or self.shrinkage[0] > 0

    @property
    def kappa_gen(self) -> float:
        """μ_max/μ_min over the non-zero μ; infinite where the supremum is."""
        if self.rank_harmful == 1 and self.shrinkage[0] == 0:
            return 1.0  # κ of a matrix of rank one, whatever θ is
        if not self.attainable:
            return math.inf
        return float(self.mu[0] / self.mu[self.mu > 0][-1])

    @property
    def rir_star(self) -> float:
        """RIR* = κ_gen·κ(K_P)/κ(K_H), the largest RIR of any invertible linear map on the covariances with their ρ."""
        return self.kappa_gen * self.kappa_pretrain / self.kappa_harmful

    @property
    def aligned(self) -> bool:
        """K_H is a multiple of K_P (to `ALIGNED`) on what both have: every linear map moves both κ together."""
        return self.kappa_gen <= 1 + ALIGNED

    @property
    def exponents(self) -> Tensor:
        """(D,) t with d² = B^t on the frontier: log μ scaled to [0, 1] (see :func:`frontier`).

        0 for all where the covariances are aligned; for ρ = 0 the mean of the others on null(K_P).
        """
        t = torch.zeros(len(self.frame), dtype=torch.float64)
        if self.aligned or not self.attainable:
            return t
        bottom = self.mu[self.mu > 0][-1]
        t[: len(self.mu)] = (self.mu / bottom).clamp_min(1).log() / math.log(self.kappa_gen)
        t[len(self.mu) :] = t[: len(self.mu)].mean()
        return t.clamp(0, 1)


def generalized_spectrum(
    gram_pretrain: Tensor,
    gram_harmful: Tensor,
    *,
    n_samples: tuple[int, int] | None = None,
    shrinkage: float | tuple[float, float] = 0.0,
) -> GeneralizedSpectrum:
    """Solve the generalized symmetric eigenproblem (K_H, K_P) by whitening: two complete `eigh`, no SVD.

        K_P = E diag(λ) Eᵀ,  M = λ^{-1/2}EᵀK_HEλ^{-1/2} = U diag(μ) Uᵀ,  W = Eλ^{-1/2}U,  W⁻¹ = Uᵀλ^{1/2}Eᵀ

    Args:
        gram_pretrain: (D, D) float64, K_P; any positive multiple serves (a covariance).
        gram_harmful: (D, D) float64, K_H.
        n_samples: (N_P, N_H) the matrices were accumulated from; None counts both as large enough.
        shrinkage: ρ of K + ρ·tr(K)/D·I, one number or (ρ_P, ρ_H), both positive or both zero.

    Raises:
        ValueError: a matrix of zeros, entries too far apart for float64, negative ρ, or fewer samples than features
            with ρ = 0.
    """
    size = len(gram_pretrain)
    n_pretrain, n_harmful = (size, size) if n_samples is None else n_samples
    rho = _check_shrinkage(shrinkage, min(n_pretrain, n_harmful), size)

    values, vectors = eigh(gram_pretrain)
    values, vectors = values.flip(0), vectors.flip(1)
    pretrain = spectrum_of_eigenvalues(values, n_pretrain)
    harmful = spectrum_of_eigenvalues(eigvalsh(gram_harmful).flip(0), n_harmful)
    kappas = _kappa(pretrain, rho[0]), _kappa(harmful, rho[1])  # zeros have none
    if not 1 / LARGEST < (times := harmful.trace / pretrain.trace) < LARGEST:
        raise ValueError(f"K_H is {times:.0e} times K_P, so far apart that float64 loses one: change the unit of one")
    rank = pretrain.rank
    seen = _compress(gram_harmful, vectors[:, rank:])
    cut = harmful.tolerance * float(harmful.values[0])
    harmful_only = int((eigvalsh(seen) > cut).sum()) if rank < size else 0

    if rho[0] > 0:
        scale = (values.clamp_min(0) + rho[0] * pretrain.trace / size).sqrt()
        gram = gram_harmful + rho[1] * harmful.trace / size * torch.eye(size, dtype=torch.float64)
        mu, inner = _whitened(gram, vectors / scale)
        positive = size
    else:
        scale = values[:rank].sqrt()
        gram = gram_harmful if harmful_only == 0 else _schur_complement(gram_harmful, vectors[:, rank:], cut)
        mu, inner = _whitened(gram, vectors[:, :rank] / scale)
        # The number of non-zero μ is the rank of K_H on range(K_P) (Sylvester), which K_H's own rank cut decides.
        positive = min(harmful.rank - harmful_only, int((mu > 0).sum()))
        scale = torch.cat([scale, scale.log().mean().exp().expand(size - rank)])
        inner = torch.block_diag(inner, torch.eye(size - rank).double())  # type: ignore[no-untyped-call]
    mu[positive:] = 0
    return GeneralizedSpectrum(
        mu=mu,
        directions=(vectors / scale) @ inner,
        duals=inner.T @ (scale[:, None] * vectors.T),
        frame=vectors @ inner,
        rank_pretrain=rank,
        rank_harmful=harmful.rank,
        pretrain_only=rank + harmful_only - harmful.rank,
        harmful_only=harmful_only,
        unseen=size - rank - harmful_only,
        shrinkage=rho,
        kappa_pretrain=kappas[0],
        kappa_harmful=kappas[1],
    )


def _whitened(gram: Tensor, whitener: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, descending and not negative, and eigenvectors of WᵀKW."""
    values, vectors = eigh(_compress(gram, whitener))
    return values.flip(0).clamp_min(0), vectors.flip(1)


def _compress(gram: Tensor, basis: Tensor) -> Tensor:
    """BᵀKB, symmetric to the last bit."""
    product = basis.T @ gram @ basis
    symmetric: Tensor = (product + product.T) / 2
    return symmetric


def _schur_complement(gram: Tensor, null: Tensor, cut: float) -> Tensor:
    """K_H less what its part outside range(K_P) explains: its quadratic form minimized over that part."""
    values, vectors = eigh(_compress(gram, null))
    own = null @ vectors[:, values > cut]
    cross = gram @ own
    complement: Tensor = gram - (cross / values[values > cut]) @ cross.T
    return complement


def _kappa(spectrum: Spectrum, rho: float) -> float:
    """κ(K + ρ·tr(K)/D·I): the `ridge` estimator, or `spectrum` for ρ = 0."""
    return condition_number(spectrum, "ridge", rho=rho).value if rho > 0 else condition_number(spectrum).value


def _check_shrinkage(shrinkage: float | tuple[float, float], n_samples: int, size: int) -> tuple[float, float]:
    rho = shrinkage if isinstance(shrinkage, tuple) else (float(shrinkage), float(shrinkage))
    if not all(math.isfinite(value) and value >= 0 for value in rho):
        raise ValueError(f"shrinkage is a finite number, 0 or more; it is {shrinkage}")
    if rho[0] == 0 and n_samples < size:
        raise ValueError(
            f"N = {n_samples} samples cannot determine a covariance of D = {size} features: set shrinkage to a "
            f'positive number (such as 1e-3), "auto" or "ledoit_wolf"'
        )
    return rho
