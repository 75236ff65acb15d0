"""The best possible immunization of a linear extractor, in closed form, and the bound that no linear map exceeds.

With K_P, K_H the Gram matrices of D_P and D_H, both Hessians are one congruence, H(θ) = θᵀKθ, so every Rayleigh
quotient of the pair lies between the generalized eigenvalues μ of (K_H, K_P):

    WᵀK_PW = I,  WᵀK_HW = diag(μ)         (the generalized symmetric eigenproblem)
    κ(H_H(θ)) ≤ κ_gen · κ(H_P(θ))         κ_gen = μ_max/μ_min over the non-zero μ
    RIR(θ)    ≤ RIR* = κ_gen · κ(K_P)/κ(K_H)

for every invertible θ, with equality on the whole frontier θ = W·diag(d)·Q, d monotone in μ, where κ(H_P) = B and
κ(H_H) = κ_gen·B. The proof, with the singular cases, is in ``docs/closed_form.md``.

Shapes: D features, r the number of μ (see `spectrum.pencil`); θ (D, D) acts on rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from immunize.spectrum.condition import default_tolerance
from immunize.spectrum.pencil import GeneralizedSpectrum


@dataclass(frozen=True)
class Immunizer:
    """A map of the frontier, its inverse, and what the theory says about both data sets, with their ρ.

    Attributes:
        theta: (D, D) float64, acts on rows: features = x @ theta.
        inverse: (D, D), to be folded into the head: (x @ theta) @ (inverse @ w) = x @ w.
        budget: B, the κ(H_P) that was allowed.
        shrinkage: (ρ_P, ρ_H).
        kappa_pretrain: κ(H_P(θ)), at most B.
        kappa_pretrain_baseline: κ(K_P).
        ratio_pretrain: (ii), their ratio.
        kappa_harmful: κ(H_H(θ)).
        kappa_harmful_baseline: κ(K_H).
        ratio_harmful: (i), their ratio.
        rir: (i)/(ii).
        kappa_gen: μ_max/μ_min.
        rir_star: the bound on `rir` over all linear maps, which is attained.
        rank_pretrain: rank of K_P, without ρ.
        notes: what a user has to know, in plain words.
    """

    theta: Tensor
    inverse: Tensor
    budget: float
    shrinkage: tuple[float, float]
    kappa_pretrain: float
    kappa_pretrain_baseline: float
    ratio_pretrain: float
    kappa_harmful: float
    kappa_harmful_baseline: float
    ratio_harmful: float
    rir: float
    kappa_gen: float
    rir_star: float
    rank_pretrain: int
    notes: tuple[str, ...] = ()


def frontier(spectrum: GeneralizedSpectrum, budget: float = 1.0) -> Immunizer:
    """The map with the largest κ(H_H) among those with κ(H_P) ≤ B.

    θ = W·diag(d)·Q with d_i² = B^{t_i}, t_i = log(μ_i/μ_min)/log κ_gen. The bound is met for
    every d that is monotone in μ with d²_max/d²_min = B. Among these the power law is the one for which θθᵀ =
    K_P^{-1/2} M^p K_P^{-1/2}, p = log B/log κ_gen, is a smooth function of the two covariances, whatever the
    multiplicities of μ: no direction is singled out, so samples that were not in K meet a map that varies slowly.

    θQ has the same κ for every orthogonal Q. This θ is K_P^{-1/2} for B = 1, and for every B a multiple of the identity
    where no sample is.

    Args:
        spectrum: of D_H's and D_P's covariances.
        budget: B ≥ 1.

    Raises:
        ValueError: B < 1 or not finite, or the supremum is infinite.
    """
    if not (math.isfinite(budget) and budget >= 1):
        raise ValueError(f"the budget is a bound on κ(H_P), so at least 1 and finite; it is {budget}")
    check_attainable(spectrum)
    root = (0.5 * math.log(budget) * spectrum.exponents).exp()
    active, positive = len(spectrum.mu), int((spectrum.mu > 0).sum())
    kappa_pretrain = float((root[:active].max() / root[:active].min()) ** 2)
    values = (root[:active].square() * spectrum.mu)[:positive]  # both Hessians are diagonal here
    kappa_harmful = float(values.max() / values.min())
    ratio_pretrain, ratio_harmful = kappa_pretrain / spectrum.kappa_pretrain, kappa_harmful / spectrum.kappa_harmful
    return Immunizer(
        theta=(spectrum.directions * root) @ spectrum.frame.T,
        inverse=spectrum.frame @ (spectrum.duals / root[:, None]),
        budget=float(budget),
        shrinkage=spectrum.shrinkage,
        kappa_pretrain=kappa_pretrain,
        kappa_pretrain_baseline=spectrum.kappa_pretrain,
        ratio_pretrain=ratio_pretrain,
        kappa_harmful=kappa_harmful,
        kappa_harmful_baseline=spectrum.kappa_harmful,
        ratio_harmful=ratio_harmful,
        rir=ratio_harmful / ratio_pretrain,
        kappa_gen=spectrum.kappa_gen,
        rir_star=spectrum.rir_star,
        rank_pretrain=spectrum.rank_pretrain,
        notes=tuple(_notes(spectrum)),
    )


def check_attainable(spectrum: GeneralizedSpectrum) -> None:
    """That RIR has a maximum.

    Raises:
        ValueError: D_H has directions that D_P lacks, and nothing is shrunk.
    """
    if not spectrum.attainable:
        raise ValueError(
            f"D_H has {spectrum.harmful_only} directions that no sample of D_P has, so RIR has no maximum (its "
            f"supremum is infinite): set shrinkage to a positive number, such as 1e-3"
        )


def _notes(one: GeneralizedSpectrum) -> list[str]:
    notes = []
    if one.aligned:
        notes.append("D_H: its covariance is a multiple of D_P's, so it cannot be immunized (κ_gen = 1)")
    if one.harmful_only:
        notes.append(
            f"D_H has {one.harmful_only} directions that no sample of D_P has; without shrinkage the supremum "
            f"of RIR is infinite, and with it RIR* grows as 1/ρ"
        )
    if one.pretrain_only:
        notes.append(f"D_H lacks {one.pretrain_only} directions that D_P has")
    if one.unseen:
        end = ", and may take a part of the budget, as ρ_P and ρ_H differ" if len({*one.shrinkage}) > 1 else ""
        notes.append(f"no sample has {one.unseen} of the {len(one.frame)} directions; there the map is s·I{end}")
    if one.shrinkage[0] > 0 and float(one.mu[-1]) <= default_tolerance(1, len(one.mu)) * float(one.mu[0]):
        notes.append("with so little shrinkage κ_gen is beyond float64: it and RIR* are larger than told")
    return notes
