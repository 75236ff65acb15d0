"""The best possible immunization of a linear extractor, in closed form, and the bound that no linear map exceeds.

With K_P, K_H the Gram matrices of D_P and D_H, both Hessians are one congruence, H(θ) = θᵀKθ, so every Rayleigh
quotient of the pair lies between the generalized eigenvalues μ of (K_H, K_P):

    WᵀK_PW = I,  WᵀK_HW = diag(μ)         (the generalized symmetric eigenproblem)
    κ(H_H(θ)) ≤ κ_gen · κ(H_P(θ))         κ_gen = μ_max/μ_min over the non-zero μ
    RIR(θ)    ≤ RIR* = κ_gen · κ(K_P)/κ(K_H)

for every invertible θ, with equality on the whole frontier θ = W·diag(d)·Q, d monotone in μ, where κ(H_P) = B and
κ(H_H) = κ_gen·B. The proof, with the singular cases, is in ``docs/closed_form.md``.

Shapes: D features, r the number of μ (see `spectrum.pencil`), J harmful data sets; θ (D, D) acts on rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from immunize.spectrum.pencil import ALIGNED, GeneralizedSpectrum, with_identity

__all__ = ["HarmfulForecast", "Immunizer", "frontier", "frontier_coordinates"]

ORTHOGONAL = 1e-8
"""Largest entry of QᵀQ - I for which Q counts as orthogonal."""

GAME_ROUNDS = 400
GAME_GAP = 1e-3
"""Rounds, and relative duality gap at which to stop, of the game over several harmful data sets."""


@dataclass(frozen=True)
class HarmfulForecast:
    """What a map does to one harmful data set, for the covariances it was computed from (with their ρ).

    Attributes:
        kappa: κ(H_H(θ)).
        kappa_baseline: κ(K_H).
        ratio_harmful: (i), their ratio.
        rir: (i)/(ii).
        kappa_gen: μ_max/μ_min.
        rir_star: the bound on `rir` over all linear maps; equal to it for a single harmful data set.
        harmful_only: dimension of what D_H has and D_P has not.
        pretrain_only: dimension of what D_P has and D_H has not.
        aligned: K_H is a multiple of K_P: it cannot be immunized.
    """

    kappa: float
    kappa_baseline: float
    ratio_harmful: float
    rir: float
    kappa_gen: float
    rir_star: float
    harmful_only: int
    pretrain_only: int
    aligned: bool


@dataclass(frozen=True)
class Immunizer:
    """A map of the frontier, its inverse, and what the theory says about both data sets.

    Attributes:
        theta: (D, D) float64, acts on rows: features = x @ theta.
        inverse: (D, D), to be folded into the head: (x @ theta) @ (inverse @ w) = x @ w.
        budget: B, the κ(H_P) that was allowed.
        shrinkage: (ρ_P, ρ_H…), one for D_P and one for each harmful data set.
        kappa_pretrain: κ(H_P(θ)), at most B.
        kappa_pretrain_baseline: κ(K_P).
        ratio_pretrain: (ii), their ratio.
        harmful: one entry a harmful data set.
        rank_pretrain: rank of K_P, without ρ.
        notes: what a user has to know, in plain words.
    """

    theta: Tensor
    inverse: Tensor
    budget: float
    shrinkage: tuple[float, ...]
    kappa_pretrain: float
    kappa_pretrain_baseline: float
    ratio_pretrain: float
    harmful: tuple[HarmfulForecast, ...]
    rank_pretrain: int
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> HarmfulForecast:
        """The harmful data set with the smallest RIR."""
        return min(self.harmful, key=lambda forecast: forecast.rir)

    @property
    def rir(self) -> float:
        """The smallest RIR over the harmful data sets."""
        return self.worst.rir

    def with_notes(self, *notes: str) -> Immunizer:
        """The same map with further notes."""
        return replace(self, notes=(*self.notes, *notes))


def frontier(
    spectra: GeneralizedSpectrum | Sequence[GeneralizedSpectrum],
    budget: float = 1.0,
) -> Immunizer:
    """The map with the largest κ(H_H) among those with κ(H_P) ≤ B.

    One harmful data set: θ = W·diag(d)·Q with d_i² = B^{t_i}, t_i = log(μ_i/μ_min)/log κ_gen. The bound is met for
    every d that is monotone in μ with d²_max/d²_min = B. Among these the power law is the one for which θθᵀ =
    K_P^{-1/2} M^p K_P^{-1/2}, p = log B/log κ_gen, is a smooth function of the two covariances, whatever the
    multiplicities of μ: no direction is singled out, so samples that were not in K meet a map that varies slowly.

    Several: B = 1 attains RIR* of every one of them at once, since θ = K_P^{-1/2} does not depend on K_H. For B > 1
    they compete for the same directions. With θθᵀ = K_P^{-1/2} B^Π K_P^{-1/2}, 0 ≼ Π ≼ I, Jensen's inequality gives

        log RIR_j ≥ log RIR*_j - log B · (1 - u_jᵀΠu_j + v_jᵀΠv_j)

    where u_j, v_j are the extreme eigenvectors of M_j. Π maximizes the smallest of these bounds (a small semidefinite
    program, solved as a game). Guaranteed: κ(H_P) ≤ B, and these lower bounds. Not guaranteed: the exact maximum
    of the worst RIR where u_i and v_j are not orthogonal; compare `rir` with `rir_star`, which nothing exceeds.

    θQ has the same κ for every orthogonal Q. This θ is K_P^{-1/2} for B = 1, and for every B a multiple of the identity
    where no sample is.

    Args:
        spectra: one generalized spectrum, or several that share K_P and ρ_P.
        budget: B ≥ 1.

    Raises:
        ValueError: B < 1 or not finite, spectra of different K_P, or the supremum is infinite.
    """
    group = (spectra,) if isinstance(spectra, GeneralizedSpectrum) else tuple(spectra)
    if not (math.isfinite(budget) and budget >= 1):
        raise ValueError(f"the budget is a bound on κ(H_P), so at least 1 and finite; it is {budget}")
    directions, duals, frame, t = _family(group, budget)
    root = (0.5 * math.log(budget) * t).exp()
    first, active = group[0], len(group[0].mu)
    kappa_pretrain = float((root[:active].max() / root[:active].min()) ** 2)
    ratio_pretrain = kappa_pretrain / first.kappa_pretrain
    harmful = tuple(_forecast(one, _kappa_harmful(one, duals, root), ratio_pretrain) for one in group)
    return Immunizer(
        theta=(directions * root) @ frame.T,
        inverse=frame @ (duals / root[:, None]),
        budget=float(budget),
        shrinkage=(first.shrinkage[0], *(one.shrinkage[1] for one in group)),
        kappa_pretrain=kappa_pretrain,
        kappa_pretrain_baseline=first.kappa_pretrain,
        ratio_pretrain=ratio_pretrain,
        harmful=harmful,
        rank_pretrain=first.rank_pretrain,
        notes=tuple(_notes(group)),
    )


def frontier_coordinates(group: tuple[GeneralizedSpectrum, ...], budget: float) -> tuple[Tensor, Tensor]:
    """Directions W (D, D) and t (D,): up to an orthogonal factor the map of :func:`frontier` is W·diag(B^{t/2})."""
    directions, _, _, t = _family(group, budget)
    return directions, t


# --- the frontier's exponents -------------------------------------------------------------------------------------


def _family(group: tuple[GeneralizedSpectrum, ...], budget: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Directions W (D, D), their inverse, frame, and t (D,) in [0, 1] with θ = W·diag(B^{t/2})·frameᵀ."""
    if not group:
        raise ValueError("at least one harmful data set is needed")
    for one in group:
        if not one.attainable:
            raise ValueError(
                f"D_H has {one.harmful_only} directions that no sample of D_P has, so RIR has no maximum (its supremum "
                f"is infinite): set shrinkage to a positive number, such as 1e-3"
            )
    first = group[0]
    if len(group) == 1:
        return first.directions, first.duals, first.frame, first.exponents
    active = len(first.mu)
    turns = [_turn(first, one) for one in group]
    power = _agreed_power(group, turns, budget)
    t, vectors = torch.linalg.eigh(power)
    inner = with_identity(vectors, len(first.frame))
    t = torch.cat([t, t.mean().expand(len(first.frame) - active)]).clamp(0, 1)
    return first.directions @ inner, inner.T @ first.duals, first.frame @ inner, t


def _turn(first: GeneralizedSpectrum, one: GeneralizedSpectrum) -> Tensor:
    """(r, r) orthogonal C with W_one = W_first·C: both whiten the same K_P."""
    active = len(first.mu)
    if len(one.mu) == active and len(one.frame) == len(first.frame):
        turn = first.duals[:active] @ one.directions[:, :active]
        if float((turn.T @ turn - torch.eye(active, dtype=torch.float64)).abs().max()) < ALIGNED:
            return turn
    raise ValueError("several harmful data sets share one pre-training data set: K_P and its shrinkage have to agree")


def _agreed_power(group: tuple[GeneralizedSpectrum, ...], turns: list[Tensor], budget: float) -> Tensor:
    """Π (r, r), 0 ≼ Π ≼ I: the game's solution on the span Z of all u_j, v_j, the mean of the powers t(M_j) elsewhere.

    A block-diagonal Π keeps both blocks' eigenvalues in [0, 1]; for one data set it is t(M) itself.
    """
    active = len(group[0].mu)
    usable = [(one, turn) for one, turn in zip(group, turns, strict=True) if not one.aligned]
    if not usable:
        return torch.zeros(active, active, dtype=torch.float64)
    mean = torch.stack([(turn * one.exponents[:active]) @ turn.T for one, turn in usable]).mean(0)
    ends = torch.stack([turn[:, [0, int((one.mu > 0).sum()) - 1]] for one, turn in usable])  # (J, r, 2)
    u, sigma, _ = torch.linalg.svd(ends.transpose(0, 1).reshape(active, -1), full_matrices=False)
    z = u[:, sigma > ORTHOGONAL * sigma[0]]
    tops, bottoms = (ends[:, :, which] @ z for which in (0, 1))
    payoffs = tops[:, :, None] * tops[:, None, :] - bottoms[:, :, None] * bottoms[:, None, :]
    offsets = torch.tensor([math.log(one.rir_star) for one, _ in usable], dtype=torch.float64)
    inside = z @ _solve_game(payoffs, offsets, math.log(budget)) @ z.T
    rest = mean - z @ (z.T @ mean)
    power: Tensor = inside + rest - (rest @ z) @ z.T
    return power


def _solve_game(payoffs: Tensor, offsets: Tensor, log_budget: float) -> Tensor:
    """Maximize min_j offset_j + log B·⟨Π, A_j⟩ over 0 ≼ Π ≼ I by multiplicative weights on j.

    Against weights w the best Π is the projector on the positive eigenspace of Σw_jA_j; the mean of these answers
    converges to the maximin, and the values of the two sides bracket it.

    Args:
        payoffs: (J, m, m) symmetric A_j.
        offsets: (J,).
        log_budget: log B.
    """
    weights = torch.full_like(offsets, 1 / len(offsets))
    total = torch.zeros_like(payoffs[0])
    best, upper = total, math.inf
    lower = -math.inf
    span = 2 * log_budget + float(offsets.max() - offsets.min()) + ALIGNED
    for step in range(1, GAME_ROUNDS + 1):
        values, vectors = torch.linalg.eigh(torch.einsum("j,jab->ab", weights, payoffs))
        positive = vectors[:, values > 0]
        answer = positive @ positive.T
        total = total + answer
        gains = offsets + log_budget * torch.einsum("ab,jab->j", answer, payoffs)
        upper = min(upper, float(weights @ gains))
        average = total / step
        value = float((offsets + log_budget * torch.einsum("ab,jab->j", average, payoffs)).min())
        if value > lower:
            lower, best = value, average
        if upper - lower <= GAME_GAP * span:
            break
        weights = weights * ((gains.min() - gains) / (span * math.sqrt(step))).exp()
        weights = weights / weights.sum()
    return best


def _kappa_harmful(one: GeneralizedSpectrum, duals: Tensor, root: Tensor) -> float:
    """κ(H_H(θ)) of one data set, in the coordinates in which H_P = diag(root²)."""
    active, positive = len(one.mu), int((one.mu > 0).sum())
    if duals is one.duals:  # one harmful data set: both Hessians are diagonal
        values = (root[:active].square() * one.mu)[:positive]
        return float(values.max() / values.min())
    factor = root[:active, None] * (duals[:active] @ one.directions[:, :active]) * one.mu.sqrt()
    sigma = torch.linalg.svdvals(factor)
    return float((sigma[0] / sigma[positive - 1]) ** 2)


def _forecast(one: GeneralizedSpectrum, kappa: float, ratio_pretrain: float) -> HarmfulForecast:
    ratio = kappa / one.kappa_harmful
    return HarmfulForecast(
        kappa=kappa,
        kappa_baseline=one.kappa_harmful,
        ratio_harmful=ratio,
        rir=ratio / ratio_pretrain,
        kappa_gen=one.kappa_gen,
        rir_star=one.rir_star,
        harmful_only=one.harmful_only,
        pretrain_only=one.pretrain_only,
        aligned=one.aligned,
    )


def _notes(group: tuple[GeneralizedSpectrum, ...]) -> list[str]:
    notes = []
    for index, one in enumerate(group):
        name = "D_H" if len(group) == 1 else f"harmful data set {index}"
        if one.aligned:
            notes.append(f"{name}: its covariance is a multiple of D_P's, so it cannot be immunized (κ_gen = 1)")
        if one.harmful_only:
            notes.append(
                f"{name} has {one.harmful_only} directions that no sample of D_P has; without shrinkage the supremum "
                f"of RIR is infinite, and with it RIR* grows as 1/ρ"
            )
        if one.pretrain_only:
            notes.append(f"{name} lacks {one.pretrain_only} directions that D_P has")
    if group[0].unseen and len(group) == 1:
        notes.append(f"no sample has {group[0].unseen} of the {len(group[0].frame)} directions; there the map is s·I")
    return notes
