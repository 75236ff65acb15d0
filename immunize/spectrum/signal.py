"""The label-aware map: the frontier of `spectrum.optimum`, bent away from where the labels of D_H lie (docs/signal.md).

The closed form knows the features of D_H and not what is to be learned from them. With targets Y as well, in the
coordinates that whiten D_P (A = K_P^{-1/2}, M = AK_HA, both K with their ρ), the ridge predictors are

    W_P = AX_PᵀY_P,    W_H = M⁻¹AX_HᵀY_H

and S = D·WWᵀ/tr(WWᵀ) + εI says how much of a task lies in each direction. The generalized eigenvectors of (S_H, S_P),
orthonormalized in descending order of their eigenvalues r, are the columns of V: first what the harmful task needs
and D_P's own does not, last the opposite. Both ideas meet in the logarithm,

    θθᵀ = A·G·A,    log G = log B·T - 2γ·V diag(log r) Vᵀ,    T = the frontier's exponents, a function of M

so that γ = 0 is the frontier with budget B exactly, and B = 1 the scaling of direction j by r_j^{-γ} alone. Because
the largest eigenvalue of a sum is at most the sum of the largest,

    κ(H_P(θ)) = κ(G) ≤ B·(r_1/r_D)^{2γ}.

Shapes: N samples, D features, C outputs; θ (D, D) acts on rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from immunize.spectrum.pencil import GeneralizedSpectrum
from immunize.spectrum.separability import target_columns

__all__ = [
    "SIGNAL_FLOOR",
    "SignalDirections",
    "SignalMap",
    "centred_targets",
    "plain_directions",
    "signal_directions",
    "signal_map",
]

SIGNAL_FLOOR = 1e-2
"""ε, relative to the mean eigenvalue: a direction with no signal at all differs from the mean by this (ours)."""

NO_SIGNAL = 1e-12
"""Targets whose variance is below this share of their mean square are constant up to rounding."""


@dataclass(frozen=True)
class SignalDirections:
    """What a pair of labelled data sets says about every direction; serves all γ and B.

    Attributes:
        whitener: (D, D) float64, A, symmetric.
        colourer: (D, D), A⁻¹.
        exponents: (D, D) symmetric, T, with eigenvalues in [0, 1].
        harmful: (D, D) symmetric, M.
        directions: (D, D) orthogonal, V.
        ratios: (D,) r, descending.
        kappa_pretrain: κ(K_P), with its ρ.
        kappa_harmful: κ(K_H), likewise.
    """

    whitener: Tensor
    colourer: Tensor
    exponents: Tensor
    harmful: Tensor
    directions: Tensor
    ratios: Tensor
    kappa_pretrain: float
    kappa_harmful: float


@dataclass(frozen=True)
class SignalMap:
    """One map of the family; its κ are those of the covariances it was computed from, with their ρ.

    Attributes:
        theta: (D, D) float64, acts on rows.
        inverse: (D, D), θ⁻¹.
        budget: B.
        gamma: γ.
        kappa_pretrain: κ(H_P(θ)).
        kappa_harmful: κ(H_H(θ)).
        ratio_pretrain: (ii).
        ratio_harmful: (i).
    """

    theta: Tensor
    inverse: Tensor
    budget: float
    gamma: float
    kappa_pretrain: float
    kappa_harmful: float
    ratio_pretrain: float
    ratio_harmful: float


def centred_targets(y: Tensor) -> Tensor:
    """Least-squares targets with mean zero, in which only a difference between samples is left.

    Args:
        y: (N,) class numbers if its dtype is whole, otherwise the target of a regression.

    Returns:
        (N, C) float64: one column a class that occurs, or (N, 1).

    Raises:
        ValueError: every sample has the same target, so that there is no signal.
    """
    columns = target_columns(y)
    centred = columns - columns.mean(0)
    if not float(centred.square().sum()) > NO_SIGNAL * float(columns.square().sum()):
        raise ValueError("all targets are the same, so the labels say nothing about any direction")
    return centred


def plain_directions(spectrum: GeneralizedSpectrum) -> SignalDirections:
    """The directions of two data sets without labels: V = I and r = 1, so that γ changes nothing.

    Args:
        spectrum: of the two covariances, with ρ > 0.

    Raises:
        ValueError: ρ = 0.
    """
    if not spectrum.shrinkage[0] > 0:
        raise ValueError("this map needs shrinkage above 0: set it to a number such as 1e-2, or to auto")
    frame = spectrum.frame
    return SignalDirections(
        whitener=_symmetric(spectrum.directions @ frame.T),
        colourer=_symmetric(frame @ spectrum.duals),
        exponents=_symmetric((frame * spectrum.exponents) @ frame.T),
        harmful=_symmetric((frame * spectrum.mu) @ frame.T),
        directions=torch.eye(len(frame), dtype=torch.float64),
        ratios=torch.ones(len(frame), dtype=torch.float64),
        kappa_pretrain=spectrum.kappa_pretrain,
        kappa_harmful=spectrum.kappa_harmful,
    )


def signal_directions(
    spectrum: GeneralizedSpectrum,
    cross_pretrain: Tensor,
    cross_harmful: Tensor,
    *,
    floor: float = SIGNAL_FLOOR,
) -> SignalDirections:
    """Order all directions by what the harmful task needs against what D_P's own task needs.

    Args:
        spectrum: of the two covariances, with ρ > 0.
        cross_pretrain: (D, C_P) float64, X_PᵀY_P of :func:`centred_targets`; any positive multiple serves.
        cross_harmful: (D, C_H), X_HᵀY_H.
        floor: ε.

    Raises:
        ValueError: ρ = 0 (the predictors of a singular covariance are not determined), ε not positive, or features
            that no target goes with.
    """
    plain = plain_directions(spectrum)
    if not 0 < floor < math.inf:
        raise ValueError(f"the floor of the signal has to be positive and finite, it is {floor}")
    frame, whitener = spectrum.frame, plain.whitener
    harmful_predictor = (frame / spectrum.mu) @ (frame.T @ (whitener @ cross_harmful))
    strengths = [
        _strength(predictor, floor, name)
        for predictor, name in ((harmful_predictor, "D_H"), (whitener @ cross_pretrain, "D_P"))
    ]
    # Generalized eigenvectors by whitening S_P, which is at least ε.
    values, vectors = torch.linalg.eigh(strengths[1])
    root = vectors / values.sqrt()
    ratios, inner = torch.linalg.eigh(_symmetric(root.T @ strengths[0] @ root))
    directions, _ = torch.linalg.qr((root @ inner).flip(1))
    return replace(plain, directions=directions, ratios=ratios.flip(0))


def signal_map(of: SignalDirections, budget: float, gamma: float) -> SignalMap:
    """The map for one B and one γ: θ = A·G^{1/2}; see the module's note.

    Raises:
        ValueError: B below 1, or γ negative, or either not finite.
    """
    if not 1 <= budget < math.inf:
        raise ValueError(f"the budget has to be at least 1 and finite, it is {budget}")
    if not 0 <= gamma < math.inf:
        raise ValueError(f"γ has to be a finite number, 0 or more; it is {gamma}")
    bend = (of.directions * of.ratios.log()) @ of.directions.T
    logs, vectors = torch.linalg.eigh(_symmetric(math.log(budget) * of.exponents - 2 * gamma * bend))
    root, unroot = (_symmetric((vectors * (sign * logs / 2).exp()) @ vectors.T) for sign in (1, -1))
    kappa_pretrain = float((logs[-1] - logs[0]).exp())
    values = torch.linalg.eigvalsh(_symmetric(root @ of.harmful @ root))
    kappa_harmful = float(values[-1] / values[0]) if float(values[0]) > 0 else math.inf
    return SignalMap(
        theta=of.whitener @ root,
        inverse=unroot @ of.colourer,
        budget=float(budget),
        gamma=float(gamma),
        kappa_pretrain=kappa_pretrain,
        kappa_harmful=kappa_harmful,
        ratio_pretrain=kappa_pretrain / of.kappa_pretrain,
        ratio_harmful=kappa_harmful / of.kappa_harmful,
    )


def _strength(predictor: Tensor, floor: float, name: str) -> Tensor:
    """S = D·WWᵀ/tr(WWᵀ) + εI."""
    gram = predictor @ predictor.T
    trace = gram.trace()
    if not float(trace) > 0:
        raise ValueError(f"no feature of {name} goes with its targets, so its labels say nothing about any direction")
    size = len(gram)
    strength: Tensor = gram * (size / trace) + floor * torch.eye(size, dtype=torch.float64)
    return strength


def _symmetric(matrix: Tensor) -> Tensor:
    """Symmetric to the last bit."""
    half: Tensor = (matrix + matrix.T) / 2
    return half
