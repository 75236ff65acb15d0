"""Before any training: how far do D_P and D_H differ, and can a linear map tell them apart on rows it never saw?

Section 3.1 says that immunization depends on the relative angle between the singular vectors of K_P and K_H. Three
things are computed from the rows alone:

alignment   Σ_i |u_iᵀv_i| over the top k singular vectors of K_P and K_H, and the principal angles of the spans. The
            sum depends on the order of the vectors, the angles do not; neither bounds what can be reached
bound       κ_gen and RIR* of the covariances with shrinkage (:mod:`immunize.spectrum.optimum`), which no map exceeds on
            them; on the rows, without shrinkage, one may
held out    RIR, (i) and (ii) of the closed form, fitted on one part of the rows and measured on the other

`immunize.forecast` turns these numbers into words.

Shapes: N samples, D features, k leading singular vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.linalg import subspace_angles
from torch import Tensor

from immunize.spectrum.condition import (
    DEFAULT_RHO,
    ConditionNumber,
    Estimator,
    ImmunizationRatio,
    condition_number,
    immunization_ratio,
)
from immunize.spectrum.decompositions import eigh
from immunize.spectrum.erasing import same_data
from immunize.spectrum.pencil import GeneralizedSpectrum
from immunize.spectrum.ranges import compress_rows, spectrum_of_map, spectrum_of_rows
from immunize.spectrum.shrinkage import closed_form

MEASURED_BY: tuple[Estimator, ...] = ("ridge", "spectrum")
"""The estimators behind RIR; `released` hangs on the units of the features."""

TOP_K = 10  # leading singular vectors that are compared unless asked otherwise

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class DataSetFacts:
    """One data set on its own.

    Attributes:
        n_samples: N.
        n_features: D.
        rank: numerical rank of K.
        samples_per_feature: N/D.
        samples_per_direction: N/rank.
        whitening_limit: see :func:`whitening_limit`, for N and the rank.
        effective_ranks: of K, see :func:`effective_ranks`.
        kappa: κ(K) by `spectrum` and `ridge`.
        eigenvalues: (rank,) of K/N, descending.
    """

    n_samples: int
    n_features: int
    rank: int
    samples_per_feature: float
    samples_per_direction: float
    whitening_limit: float
    effective_ranks: dict[str, float]
    kappa: dict[Estimator, ConditionNumber]
    eigenvalues: Tensor


@dataclass(frozen=True)
class Alignment:
    """The top k singular vectors u_i of K_P against v_i of K_H.

    Attributes:
        top_k: k.
        cosines: (k,) |u_iᵀv_i|, in [0, 1].
        score: their sum, between 0 and k.
        normalized: score/k.
        chance: what `normalized` is on average for random directions, √(2/(πD)).
        angles: (k,) principal angles of the two spans, degrees, ascending.
        smallest_gap: the least λ_i/λ_{i+1}, i ≤ k, over both matrices. At 1 a vector is not unique, nor is `score`.
    """

    top_k: int
    cosines: Tensor
    score: float
    normalized: float
    chance: float
    angles: Tensor
    smallest_gap: float


@dataclass(frozen=True)
class MeasuredMap:
    """A closed-form map on some rows.

    Attributes:
        ratios: RIR with (i) and (ii), by `ridge` and `spectrum`.
        shrinkage: (ρ_P, ρ_H) of the map.
        fitted_on: (N_P, N_H), the rows it was computed from.
        measured_on: (N_P, N_H).
    """

    ratios: dict[Estimator, ImmunizationRatio]
    shrinkage: tuple[float, float]
    fitted_on: tuple[int, int]
    measured_on: tuple[int, int]


@dataclass(frozen=True)
class Forecast:
    """Everything that is known before training.

    Attributes:
        pretrain: D_P, all rows of its fit part.
        harmful: D_H, likewise.
        alignment: of the fit parts.
        spectrum: the generalized eigenvalues of the fit parts, with shrinkage.
        budget: B of the maps behind the next two.
        fit: the closed form on the rows it was computed from.
        held_out: the closed form on rows it never saw.
        identical: D_P and D_H are the same rows, those that are held out among them.
    """

    pretrain: DataSetFacts
    harmful: DataSetFacts
    alignment: Alignment
    spectrum: GeneralizedSpectrum
    budget: float
    fit: MeasuredMap
    held_out: MeasuredMap
    identical: bool


def effective_ranks(values: Tensor) -> dict[str, float]:
    """How many directions a spectrum has, counted by weight; p_i = λ_i/Σλ. Both numbers lie between 1 and the rank.

    Args:
        values: (r,) non-negative eigenvalues, not all zero; any positive multiple gives the same.

    Returns:
        "entropy", exp(-Σ p_i log p_i), and "participation", (Σλ)²/Σλ², at most that.
    """
    weights = values / values.sum()
    entropy = torch.special.entr(weights).sum().exp()  # entr(0) = 0
    return {"entropy": float(entropy), "participation": float(1 / weights.square().sum())}


def whitening_limit(n_samples: int, n_directions: int) -> float:
    """κ that remains of a Gaussian's covariance after whitening with that of N of its rows, for large N and k.

    Marchenko and Pastur (1967): S^{-1/2}ΣS^{-1/2} has κ = ((1 + √γ)/(1 - √γ))², γ = k/N; infinite for N ≤ k. It is that
    of very many new rows: N new ones have √(2γ - γ²) in place of √γ (Wachter 1980), and so 6.5 in place of 3.7 with
    N/k = 10, and 194 in place of 34 with 2.
    """
    root = math.sqrt(n_directions / n_samples)
    return ((1 + root) / (1 - root)) ** 2 if root < 1 else math.inf


def describe_rows(x: Tensor, *, rho: float = DEFAULT_RHO) -> DataSetFacts:
    """Facts about one data set.

    Args:
        x: (N, D) float64.
        rho: ρ of the `ridge` estimator.

    Raises:
        TypeError: not float64.
        ValueError: not a finite, non-zero matrix, or ρ ≤ 0.
    """
    n, d = x.shape
    spectrum = spectrum_of_rows(compress_rows(x), n)
    kappa = {estimator: condition_number(spectrum, estimator, rho=rho) for estimator in MEASURED_BY}
    return DataSetFacts(
        n_samples=n,
        n_features=d,
        rank=spectrum.rank,
        samples_per_feature=n / d,
        samples_per_direction=n / spectrum.rank,
        whitening_limit=whitening_limit(n, spectrum.rank),
        effective_ranks=effective_ranks(spectrum.values),
        kappa=kappa,
        eigenvalues=spectrum.values / n,
    )


def align(gram_pretrain: Tensor, gram_harmful: Tensor, top_k: int) -> Alignment:
    """Compare the leading singular vectors of two covariances.

    Args:
        gram_pretrain: (D, D) float64, symmetric, K_P or a positive multiple.
        gram_harmful: (D, D), K_H likewise.
        top_k: k, between 1 and D.

    Raises:
        ValueError: k outside that range.
    """
    size = len(gram_pretrain)
    if not 1 <= top_k <= size:
        raise ValueError(f"top_k={top_k} singular vectors were asked for, but there are D = {size}; choose 1 to {size}")
    values, vectors = zip(*(eigh(gram) for gram in (gram_pretrain, gram_harmful)), strict=True)
    u, v = (columns.flip(1)[:, :top_k] for columns in vectors)
    cosines = (u * v).sum(0).abs().clamp_max(1)
    angles = torch.rad2deg(torch.from_numpy(subspace_angles(u.numpy(), v.numpy()).copy())).flip(0)
    gaps = [_smallest_gap(one.flip(0), top_k) for one in values]
    return Alignment(
        top_k=top_k,
        cosines=cosines,
        score=float(cosines.sum()),
        normalized=float(cosines.mean()),
        chance=math.sqrt(2 / (math.pi * size)),
        angles=angles,
        smallest_gap=min(gaps),
    )


def measure(theta: Tensor, rows: Pair, *, rho: float = DEFAULT_RHO) -> dict[Estimator, ImmunizationRatio]:
    """RIR of a map against the identity, by `ridge` and `spectrum`.

    Args:
        theta: (D, D) float64, acts on rows.
        rows: (N_P, D) and (N_H, D) float64.
        rho: ρ of the `ridge` estimator.

    Raises:
        ValueError: features that are not finite or all zero, or ρ ≤ 0.
    """
    small = [compress_rows(x) for x in rows]  # as many as K has rank
    before = [spectrum_of_rows(r, len(x)) for r, x in zip(small, rows, strict=True)]
    after = [spectrum_of_map(r, theta, len(x)) for r, x in zip(small, rows, strict=True)]
    return {name: immunization_ratio(after[0], after[1], before[0], before[1], name, rho=rho) for name in MEASURED_BY}


def forecast(
    fit: Pair,
    held_out: tuple[Pair, Pair],
    *,
    top_k: int | None = None,
    shrinkage: float | str = 1e-3,
    budget: float = 1.0,
    rho: float = DEFAULT_RHO,
    seed: int = 0,
) -> Forecast:
    """Forecast the immunization of a pair of data sets.

    Args:
        fit: rows of D_P and D_H, (N_P, D) and (N_H, D) float64.
        held_out: the rows to compute the second map from (`fit` itself where there are held-out rows, a half where
            there are none), and the rows to measure it on; a pair each.
        top_k: k of :func:`align`; None is `TOP_K`, or a rank that is smaller: in null spaces no direction is meant.
        shrinkage: ρ of the closed form, or "auto" or "ledoit_wolf", chosen on the rows a map is computed from.
        budget: B of the maps; 1 is the one that attains RIR* by whitening D_P, a larger one buys (i) with (ii).
        rho: ρ of the `ridge` estimator.
        seed: of the folds of "auto".

    Raises:
        ValueError: rows without a covariance, k or a setting outside its range, or ρ = 0 where RIR has no maximum.
    """
    grams, facts = [x.T @ x for x in fit], [describe_rows(x, rho=rho) for x in fit]
    aligned = align(grams[0], grams[1], min(TOP_K, *(of.rank for of in facts)) if top_k is None else top_k)
    in_sample = closed_form(*fit, budget=budget, shrinkage=shrinkage, seed=seed, rho=rho)
    fitted, unseen = held_out
    again = in_sample if fitted is fit else closed_form(*fitted, budget=budget, shrinkage=shrinkage, seed=seed, rho=rho)
    maps = [
        MeasuredMap(
            ratios=measure(one.theta, rows, rho=rho),
            shrinkage=(one.shrinkage[0], one.shrinkage[1]),
            fitted_on=(len(source[0]), len(source[1])),
            measured_on=(len(rows[0]), len(rows[1])),
        )
        for one, source, rows in ((in_sample, fit, fit), (again, fitted, unseen))
    ]
    parts = [fit, unseen] if fitted is fit else [fit]
    identical = same_data(*([(part[at], torch.zeros(len(part[at]))) for part in parts] for at in (0, 1)))
    return Forecast(facts[0], facts[1], aligned, in_sample.spectrum, budget, maps[0], maps[1], identical)


def _smallest_gap(values: Tensor, top_k: int) -> float:
    """The least λ_i/λ_{i+1} for i ≤ k; infinite where λ_{i+1} is not positive, or there is none."""
    upper, lower = values[:top_k], values[1 : top_k + 1]
    positive = lower > 0
    return float((upper[: len(lower)] / lower)[positive].min()) if bool(positive.any()) else math.inf
