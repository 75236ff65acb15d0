"""Numerical rank, condition number and relative immunization ratio (Eqs. 1, 9, 15, 17).

Everything is a function of the spectrum of H = FᵀF, where F holds the features of one data set. The non-zero
eigenvalues of the D×D matrix FᵀF are those of the N×N matrix FFᵀ, and both are the squared singular values of F,
so nothing here ever forms the larger of the two.

Shapes: N samples, D features, r = min(N, D) singular values, k numerical rank.

Three estimators of κ are kept apart by name, because they answer different questions:

==========  =========================================  ==========================================================
spectrum    σ_1 / σ_k over the numerical rank          Eq. (1), what the paper defines (default)
released    (σ_1 + 1e-6) / min{λ_i + 1e-6 > 1e-6}      what the authors' code computes; the published tables use it
ridge       (σ_1 + α) / (σ_D + α), α = ρ·tr(H)/D       fine-tuning with weight decay; finite for every matrix
==========  =========================================  ==========================================================

What Definition 3.1 asks of the ratios (i) and (ii) stands here as well. The paper gives no numbers; `immunize.report`,
which imports no other room, has its own in `naming`, and a test holds the two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from immunize.errors import LARGEST, unsquarable
from immunize.spectrum.decompositions import eigvalsh, svdvals

HARDER_BY = 2.0
"""(a) asks for κ(H_H(θ)) ≫ κ(H_H(I)); at least this factor counts as harder (ours)."""

EASE_SLACK = 1e-9
"""(b) asks for κ(H_P(θ)) ≤ κ(H_P(I)); relative slack for rounding, so that θ = I passes."""

ACCURACY_SLACK = 1.0
"""(c) asks for a competitive performance on D_P; an accuracy may fall by this many points (ours)."""


class ZeroMatrixError(ValueError):
    """A matrix of zeros, or of numbers that cannot be squared, has no spectrum to speak of."""


def check_matrix(matrix: Tensor, name: str) -> None:
    """Refuse what has no trustworthy spectrum.

    Args:
        matrix: to be a non-empty, finite float64 matrix.
        name: in messages.

    Raises:
        TypeError: not float64.
        ValueError: not a non-empty, finite matrix.
    """
    if not isinstance(matrix, Tensor):
        raise TypeError(f"{name} must be a torch tensor, see torch.from_numpy, not {type(matrix).__name__}")
    if matrix.dtype != torch.float64:
        raise TypeError(f"{name} must be float64 for a trustworthy spectrum, not {matrix.dtype}")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} must be a non-empty matrix (rows, columns), not of shape {tuple(matrix.shape)}")
    if not all_finite(matrix):
        raise ValueError(f"{name} must not contain NaN or infinite values; fill or drop them first")


def check_squares(matrix: Tensor, name: str) -> None:
    """Refuse numbers that are too large, or too small, to be squared; zeros are none.

    Args:
        matrix: not empty.
        name: in messages.

    Raises:
        ValueError: they are.
    """
    if told := unsquarable(float(torch.linalg.vector_norm(matrix, math.inf))):
        raise ValueError(f"{name}: numbers {told}")


def binary_unit(size: float) -> float:
    """The power of two at or below a size, by which numbers can be divided without a change of their digits."""
    return 2.0 ** (math.frexp(size)[1] - 1)


def check_varying(x: Tensor, name: str) -> None:
    """Refuse features that are the same for every sample, but for what batches of other sizes round.

    Args:
        x: (N, D) of any floating dtype.
        name: of the data set, in messages.

    Raises:
        ValueError: fewer than two rows, or all columns are constant.
    """
    if len(x) < 2:
        raise ValueError(f"{name} has too few rows: {len(x)}, and two are the least that can vary")
    rounding = min(100 * torch.finfo(x.dtype).eps, 1e-5)
    if float((x.amax(0) - x.amin(0)).max()) <= rounding * float(x.abs().max()):
        raise ValueError(
            f"all {x.shape[1]} columns of {name}'s features are constant: the {len(x):,} rows are one and the same, "
            f"which leaves nothing to immunize; check the inputs, and what makes features of them"
        )


def all_finite(x: Tensor) -> bool:
    """Whether x has neither NaN nor infinities: by its sum, which is 30 times faster, unless that is not finite."""
    return math.isfinite(x.sum().item()) or bool(torch.isfinite(x).all())


Estimator = Literal["spectrum", "released", "ridge"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)

RELEASED_FLOOR = 1e-6
"""The diagonal the released code adds to H, and its threshold for 'non-zero' (absolute, so it depends on units)."""

DEFAULT_RHO = 1e-2
"""Default ρ of the `ridge` estimator: weight decay of one percent of the mean eigenvalue."""


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of H = FᵀF that can be non-zero, and what is needed to cut them at the numerical rank.

    Attributes:
        values: (r,) float64, non-negative, descending; r = min(N, D).
        n_samples: N.
        n_features: D; H has D - r further eigenvalues, all exactly zero.
        tolerance: eigenvalues at or below ``tolerance * values[0]`` count as zero.
        rank_of_data: the rank of K where it is known and F = Xθ with an invertible θ, which changes no rank; only for
            values that come from singular values of F.
    """

    values: Tensor
    n_samples: int
    n_features: int
    tolerance: float
    rank_of_data: int | None = None

    @property
    def numerical_rank(self) -> int:
        """Eigenvalues above the cut; 0 for a matrix of zeros."""
        return int((self.values > self.tolerance * self.values[0]).sum())

    @property
    def rank(self) -> int:
        """The k of Eq. (1): the numerical rank, or the rank of the data where that is known.

        Without it, κ(H(θ)) and κ(H(I)) could divide by different singular values: a θ that makes H better conditioned
        lifts values over the cut, one that makes it worse pushes some below. Singular values of F resolve eigenvalues
        of H far below the cut, down to ``(max(N, D) * eps)² * values[0]``; what lies beneath that does not count.
        """
        if self.rank_of_data is None:
            return self.numerical_rank
        resolution = default_tolerance(self.n_samples, self.n_features) ** 2
        return min(self.rank_of_data, int((self.values > resolution * self.values[0]).sum()))

    @property
    def trace(self) -> float:
        """tr(H), the squared Frobenius norm of F."""
        return float(self.values.sum())


@dataclass(frozen=True)
class ConditionNumber:
    """A condition number with the facts that say whether it can be trusted.

    Attributes:
        value: κ, at least 1.
        estimator: which definition produced it.
        n_samples: N.
        n_features: D.
        rank: k, see :attr:`Spectrum.rank`.
        numerical_rank: eigenvalues above the cut; less than k where θ pushed some of the data's below it.
        tolerance: the relative cut on the eigenvalues of H.
        sigma_max: σ_1.
        sigma_min: σ_k, the smallest eigenvalue that counts.
        gap_top: σ_1/σ_2; 1 means that the largest eigenvalue is not unique (inf if k = 1).
        gap_bottom: σ_{k-1}/σ_k; 1 means that the smallest is not unique (inf if k = 1).
        gap_cut: σ_k/σ_{k+1}, how clear the rank cut is (inf if nothing lies below it, or only zeros).
        floor_hit: the denominator of the estimator was its floor (1e-6, or α) rather than a feature of the data.
        rho: ρ of the `ridge` estimator, None for the others.
    """

    value: float
    estimator: Estimator
    n_samples: int
    n_features: int
    rank: int
    numerical_rank: int
    tolerance: float
    sigma_max: float
    sigma_min: float
    gap_top: float
    gap_bottom: float
    gap_cut: float
    floor_hit: bool
    rho: float | None = None


@dataclass(frozen=True)
class ImmunizationRatio:
    """Eq. (15), and Eq. (17) when the baseline is θ_0 instead of the identity.

    Attributes:
        estimator: the estimator behind all four condition numbers.
        kappa_pretrain: κ(H_P(θ)).
        kappa_harmful: κ(H_H(θ)).
        kappa_pretrain_baseline: κ(H_P) of the baseline extractor.
        kappa_harmful_baseline: κ(H_H) of the baseline extractor.
        ratio_harmful: (i), to be large.
        ratio_pretrain: (ii), to be at most 1.
        rir: (i)/(ii).
    """

    estimator: Estimator
    kappa_pretrain: ConditionNumber
    kappa_harmful: ConditionNumber
    kappa_pretrain_baseline: ConditionNumber
    kappa_harmful_baseline: ConditionNumber
    ratio_harmful: float
    ratio_pretrain: float
    rir: float


def default_tolerance(n_samples: int, n_features: int) -> float:
    """Relative cut for the eigenvalues of a Gram matrix: ``max(N, D) * eps(float64)``.

    An eigenvalue of H below this times σ_1 is not distinguishable from rounding when H is formed from N rows.
    """
    return max(n_samples, n_features) * torch.finfo(torch.float64).eps


def cut_of(tolerance: float | None, n_samples: int, n_features: int) -> float:
    """A relative rank cut that was asked for; None: :func:`default_tolerance`.

    Raises:
        ValueError: a cut that keeps nothing, or what is below zero.
    """
    if tolerance is None:
        return default_tolerance(n_samples, n_features)
    if not 0 <= tolerance < 1:
        raise ValueError(
            f"tolerance has to be at least 0 and below 1, relative to the largest value; it is {tolerance}"
        )
    return tolerance


def spectrum_of(
    features: Tensor, *, tolerance: float | None = None, n_samples: int | None = None, rank_of_data: int | None = None
) -> Spectrum:
    """Eigenvalues of H = FᵀF from the singular values of F, which keeps twice the digits that H itself would.

    Args:
        features: (N, D) float64.
        tolerance: relative cut on the eigenvalues of H; default :func:`default_tolerance`.
        n_samples: N to report and to use for the default tolerance, when `features` are compressed rows.
        rank_of_data: the rank of K, where the features are Xθ with an invertible θ; see :attr:`Spectrum.rank`.

    Raises:
        TypeError: `features` are not float64.
        ValueError: not a non-empty, finite matrix, or a tolerance outside [0, 1).
    """
    check_matrix(features, "features")
    rows, n_features = features.shape
    n_samples = rows if n_samples is None else n_samples
    # A tall matrix is reduced to its triangular factor first: same singular values, and D³ instead of N·D² work.
    reduced = torch.linalg.qr(features, mode="r").R if rows > 2 * n_features else features
    values = svdvals(reduced.detach()).square()
    return Spectrum(values, n_samples, n_features, cut_of(tolerance, n_samples, n_features), rank_of_data)


def spectrum_of_gram(gram: Tensor, n_samples: int) -> Spectrum:
    """Eigenvalues of a D×D matrix H that was accumulated elsewhere (streaming, several processes).

    Args:
        gram: (D, D) float64, symmetric positive semi-definite up to rounding.
        n_samples: N, the number of rows it was accumulated from.

    Raises:
        TypeError: `gram` is not float64.
        ValueError: not a finite matrix.
    """
    check_matrix(gram, "gram")
    return spectrum_of_eigenvalues(eigvalsh(gram).flip(0), n_samples)


def spectrum_of_eigenvalues(values: Tensor, n_samples: int) -> Spectrum:
    """Spectrum of a Gram matrix from its eigenvalues.

    Args:
        values: (D,) float64, descending; what rounding made negative counts as zero.
        n_samples: N.
    """
    size = len(values)
    return Spectrum(values.clamp_min(0)[: min(n_samples, size)], n_samples, size, default_tolerance(n_samples, size))


def condition_number(
    spectrum: Spectrum, estimator: Estimator = "spectrum", *, rho: float = DEFAULT_RHO
) -> ConditionNumber:
    """κ(H) by one of the named estimators, with its validity facts.

    The `released` estimator adds 1e-6 to every eigenvalue and takes the smallest that exceeds 1e-6. On a
    rank-deficient H the computed zero eigenvalues are rounding noise of either sign, and one positive among them
    decides the result; here zero eigenvalues count as infinitesimally positive, so that the value is the
    (σ_1 + 1e-6)/1e-6 which that code returns all but always, and does not depend on the noise.

    Args:
        spectrum: eigenvalues of H.
        estimator: "spectrum", "released" or "ridge".
        rho: ρ of the `ridge` estimator, relative to the mean eigenvalue tr(H)/D; positive.

    Raises:
        ValueError: unknown estimator, ρ ≤ 0; or H = 0, or of numbers that float64 cannot hold, which has no
            condition number (`ZeroMatrixError`).
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"unknown estimator {estimator!r}; there are {', '.join(ESTIMATORS)}")
    k, top = spectrum.rank, float(spectrum.values[0])
    if top and not LARGEST**-2 < top < math.inf:
        raise ZeroMatrixError(f"eigenvalues of a size of {top:.0e} are beyond float64, or nearly; change the unit")
    if k == 0:
        raise ZeroMatrixError("a matrix of zeros, or of numbers too small to be squared, has no condition number")
    bottom = float(spectrum.values[k - 1])
    if estimator == "ridge" and not 0 < rho < math.inf:
        raise ValueError(f"rho has to be positive and finite, it is {rho}")
    if estimator == "spectrum":
        value, floor_hit = top / bottom, False
    else:
        floor = RELEASED_FLOOR if estimator == "released" else rho * spectrum.trace / spectrum.n_features
        smallest = 0.0 if k < spectrum.n_features else bottom
        value, floor_hit = (top + floor) / (smallest + floor), smallest < floor
    return ConditionNumber(
        value=value,
        estimator=estimator,
        n_samples=spectrum.n_samples,
        n_features=spectrum.n_features,
        rank=k,
        numerical_rank=spectrum.numerical_rank,
        tolerance=spectrum.tolerance,
        sigma_max=top,
        sigma_min=bottom,
        gap_top=_ratio(spectrum.values, 0, 1, k),
        gap_bottom=_ratio(spectrum.values, k - 2, k - 1, k),
        gap_cut=_ratio(spectrum.values, k - 1, k, len(spectrum.values)),
        floor_hit=floor_hit,
        rho=rho if estimator == "ridge" else None,
    )


def immunization_ratio(
    pretrain: Spectrum,
    harmful: Spectrum,
    pretrain_baseline: Spectrum,
    harmful_baseline: Spectrum,
    estimator: Estimator = "spectrum",
    *,
    rho: float = DEFAULT_RHO,
) -> ImmunizationRatio:
    """RIR = [κ(H_H(θ))/κ(H_H(θ_0))] / [κ(H_P(θ))/κ(H_P(θ_0))], Eqs. (15) and (17).

    Args:
        pretrain: spectrum of H_P(θ).
        harmful: spectrum of H_H(θ).
        pretrain_baseline: spectrum of H_P of the baseline: the identity in Eq. (15), θ_0 in Eq. (17).
        harmful_baseline: spectrum of H_H of the same baseline.
        estimator: one estimator for all four.
        rho: ρ of the `ridge` estimator.

    Raises:
        ValueError: as :func:`condition_number`.
    """
    kappa_p, kappa_h, base_p, base_h = (
        condition_number(s, estimator, rho=rho) for s in (pretrain, harmful, pretrain_baseline, harmful_baseline)
    )
    ratio_harmful, ratio_pretrain = kappa_h.value / base_h.value, kappa_p.value / base_p.value
    return ImmunizationRatio(
        estimator, kappa_p, kappa_h, base_p, base_h, ratio_harmful, ratio_pretrain, ratio_harmful / ratio_pretrain
    )


def _ratio(values: Tensor, upper: int, lower: int, end: int) -> float:
    """values[upper]/values[lower], or inf when one of the two lies outside values[:end] or the lower is zero."""
    if upper < 0 or lower >= end or float(values[lower]) == 0.0:
        return math.inf
    return float(values[upper] / values[lower])
