"""R_well (Eq. 3), R_ill (Eq. 12) and κ (Eq. 1) with closed-form gradients (Eq. 13, Theorems 4.1, 4.2 and A.1).

All three are functions of singular values only, and their gradients share the singular vectors of the argument:

    ∇_S φ(S) = c·S + Σ_j b_j u_j v_jᵀ        with j in {1, k}

so one rule (value, c, b_1, b_k) a function serves a general matrix S and a Hessian H = FᵀF alike. Backpropagating
through eigenvectors instead divides by differences of eigenvalues, and through v = Fᵀu/√λ by eigenvalues: NaN where two
coincide or one is zero. Here no such division occurs. The gradients are for first-order methods: the backward pass is
not itself differentiable, and PyTorch treats second derivatives as zero or refuses them.

Subgradients: where σ_1 (R_well, κ) or σ_k (R_ill, κ) is not unique, the function is not differentiable and the
gradient returned is the one of the singular pair that LAPACK lists first (σ_1) or last above the rank cut (σ_k):
an element of the Clarke subdifferential. Singular values below the rank cut count as zeros that stay zeros.

All that is needed are the largest and the smallest non-zero eigenpair of a Gram matrix, taken from a complete
decomposition. Finding only the two ends (Lanczos, and Lanczos on the inverse through one Cholesky factor) is no faster
up to a size of about 1,000, where `eigh` uses the cores better, and at 2,048 less than twice as fast.

Step sizes under which one preconditioned step moves κ the promised way (Theorem 4.3) have corrected bounds: in the
eigenbasis of H the update θ' = θ - η·2θ∇R maps every eigenvalue exactly to σ_i' = σ_i(1 - 2ηg_i)², where g_i is the
eigenvalue of ∇_H R. The conditions printed in the paper admit steps that break its claim (part 1 allows σ_1' = 0, part
2 is dimensionally inconsistent); those here follow from the exact map.

Shapes: N samples, D features, k numerical rank; θ (D, D) acts on rows, F = Xθ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from immunize.spectrum.condition import Spectrum, check_matrix, cut_of
from immunize.spectrum.decompositions import eigh, svd


class Ends(NamedTuple):
    """σ_1 and σ_k of a Gram matrix with their eigenvectors.

    Attributes:
        rank: k.
        first: σ_1.
        last: σ_k.
        vectors: (side, 2), the unit eigenvectors of σ_1 and σ_k.
        square_sum: ‖H‖_F², over all eigenvalues.
    """

    rank: int
    first: float
    last: float
    vectors: Tensor
    square_sum: float


def gram_ends(gram: Tensor, tolerance: float) -> Ends:
    """Both ends of the non-zero spectrum.

    Args:
        gram: (side, side) float64, symmetric positive semi-definite up to rounding.
        tolerance: eigenvalues at or below ``tolerance * σ_1`` count as zero.

    Raises:
        ValueError: no eigenvalue lies above the cut (a matrix of zeros, or NaN).
    """
    values, vectors = eigh(gram)
    k = _rank(values, tolerance)
    return Ends(k, values[-1].item(), values[-k].item(), vectors[:, [-1, -k]], values.dot(values).item())


def _rank(values: Tensor, tolerance: float) -> int:
    k = int((values > tolerance * values.max()).sum())
    if k == 0:
        raise ValueError("the spectrum of a matrix of zeros (or NaN) has no non-zero part to regularize")
    return k


class _Rule(NamedTuple):  # plain floats, multiplied and not raised to powers: overflow is inf and no exception
    """φ and its gradient, ∇_S φ = scale·S + top·σ_1·u_1v_1ᵀ + bottom·σ_k·u_kv_kᵀ.

    `top` and `bottom` are given divided by σ_1 and σ_k: on the small side the rank-one terms appear as
    σ_j v_jv_jᵀ = Fᵀu_ju_jᵀF, so nothing has to be divided by a σ_j that may be tiny.
    """

    value: float
    scale: float
    top: float
    bottom: float


_RuleFunction = Callable[[Ends, int], _Rule]


def _well_rule(ends: Ends, divisor: int) -> _Rule:
    # R = σ_1²/2 - Σσ²/(2p);  ∇ = σ_1u_1v_1ᵀ - S/p
    return _Rule(0.5 * ends.first * ends.first - ends.square_sum / (2 * divisor), -1 / divisor, 1.0, 0.0)


def _ill_rule(ends: Ends, _divisor: int) -> _Rule:
    # R = 1/f, f = Σσ²/(2k) - σ_k²/2;  ∇ = (σ_ku_kv_kᵀ - S/k)/f²
    f = ends.square_sum / (2 * ends.rank) - 0.5 * ends.last * ends.last
    if not f > 0:  # κ = 1, or rounding there
        return _Rule(math.inf, math.nan, math.nan, math.nan)
    inverse = 1 / f
    return _Rule(inverse, -inverse * inverse / ends.rank, 0.0, inverse * inverse)


def _kappa_rule(ends: Ends, _divisor: int) -> _Rule:
    # κ = σ_1/σ_k;  ∇ = u_1v_1ᵀ/σ_k - (σ_1/σ_k²)u_kv_kᵀ
    value, inverse = ends.first / ends.last, 1 / ends.last
    return _Rule(value, 0.0, inverse / ends.first, -value * inverse * inverse)


def r_well(s: Tensor, *, tolerance: float | None = None) -> Tensor:
    """R_well(S) = ½‖S‖₂² - ‖S‖_F²/(2p), p = min(p_r, p_c) (Eq. 3, Nenov et al. 2024).

    Differentiable once; see the module's note for the subgradient taken when σ_1 is not unique.

    Args:
        s: (p_r, p_c) float64.
        tolerance: relative cut on singular values; default ``max(p_r, p_c) * eps``.

    Raises:
        TypeError: not float64.
        ValueError: S = 0 or not a matrix, or a tolerance outside [0, 1).
    """
    return _MatrixTerm.apply(s, _well_rule, tolerance)  # type: ignore[no-any-return]


def r_ill(s: Tensor, *, tolerance: float | None = None) -> Tensor:
    """R_ill(S) = 1/(‖S‖_F²/(2k) - (σ_k)²/2), k the numerical rank (Eq. 12).

    Where all k non-zero singular values are equal (κ = 1) it has a pole: the value is inf and the gradient NaN, since
    no subgradient exists, for rank 1 always; of higher ranks rounding mostly leaves a value of the order of
    1/(eps·σ_1²) and a gradient that says nothing. Differentiable once; see the module's note for the subgradient taken
    when σ_k is not unique. Arguments and errors as :func:`r_well`.
    """
    return _MatrixTerm.apply(s, _ill_rule, tolerance)  # type: ignore[no-any-return]


def kappa(s: Tensor, *, tolerance: float | None = None) -> Tensor:
    """κ(S) = σ_1/σ_k (Eq. 1) as a differentiable function. Arguments and errors as :func:`r_well`."""
    return _MatrixTerm.apply(s, _kappa_rule, tolerance)  # type: ignore[no-any-return]


def r_well_of_features(features: Tensor, theta: Tensor | None = None, *, tolerance: float | None = None) -> Tensor:
    """R_well(FᵀF), never forming the larger of FᵀF and FFᵀ.

    Args:
        features: (N, D) float64, F. Compressed rows serve as well, see
            :func:`~immunize.spectrum.ranges.compress_rows`.
        theta: None: the gradient flows into `features`, 2F·∇R (so into θ as ∇_θ R = 2Kθ∇R, Theorem 4.2).
            (D, D): the gradient flows into θ alone, and is the one that Algorithm 1 uses after its
            preconditioning, K⁻¹∇_θ R = 2θ∇R, for which K is not needed (exact for every invertible K; for a
            singular one it differs from K⁺∇_θ R only in directions that no sample has).
        tolerance: relative cut on the eigenvalues of H; default ``max(N, D) * eps``.

    Returns:
        Scalar float64. The divisor p of Eq. (3) is D, also where N < D.

    Raises:
        TypeError: not float64.
        ValueError: features are all zero, or not a matrix, or a tolerance outside [0, 1).
    """
    return _FeatureTerm.apply(features, theta, _well_rule, tolerance)  # type: ignore[no-any-return]


def r_ill_of_features(features: Tensor, theta: Tensor | None = None, *, tolerance: float | None = None) -> Tensor:
    """R_ill(FᵀF) with k the numerical rank of the features given. Arguments as :func:`r_well_of_features`."""
    return _FeatureTerm.apply(features, theta, _ill_rule, tolerance)  # type: ignore[no-any-return]


def kappa_of_features(features: Tensor, theta: Tensor | None = None, *, tolerance: float | None = None) -> Tensor:
    """κ(FᵀF) with its closed-form subgradient. Arguments as :func:`r_well_of_features`."""
    return _FeatureTerm.apply(features, theta, _kappa_rule, tolerance)  # type: ignore[no-any-return]


def r_well_of_spectrum(spectrum: Spectrum) -> float:
    """R_well(H) by the eigenvalues of H, of features that are not all zero."""
    return _well_rule(_ends_of(spectrum), spectrum.n_features).value


def r_ill_of_spectrum(spectrum: Spectrum) -> float:
    """R_ill(H), likewise, with k the numerical rank."""
    return _ill_rule(_ends_of(spectrum), spectrum.n_features).value


def _ends_of(spectrum: Spectrum) -> Ends:
    values, k = spectrum.values, spectrum.numerical_rank
    return Ends(k, float(values[0]), float(values[k - 1]), values.new_empty(0, 2), float(values.dot(values)))


class _MatrixTerm(torch.autograd.Function):
    """A spectral function of a general matrix, through one SVD."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, rule: _RuleFunction, tolerance: float | None) -> Tensor:
        check_matrix(s, "the matrix")
        u, sigma, vh = svd(s, full_matrices=False)
        k = _rank(sigma, cut_of(tolerance, *s.shape))
        first, last = sigma[0].item(), sigma[k - 1].item()
        ends = Ends(k, first, last, u[:, [0, k - 1]], sigma.dot(sigma).item())
        value, scale, top, bottom = rule(ends, min(s.shape))
        ctx.save_for_backward(
            scale * s
            + (top * first) * torch.outer(u[:, 0], vh[0])
            + (bottom * last) * torch.outer(u[:, k - 1], vh[k - 1])
        )
        return s.new_tensor(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return grad * gradient, None, None


class _FeatureTerm(torch.autograd.Function):
    """A spectral function of H = FᵀF, from the ends of the smaller of FᵀF and FFᵀ."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, theta: Tensor | None, rule: _RuleFunction, tolerance: float | None
    ) -> Tensor:
        check_matrix(features, "the features")
        n, d = features.shape
        ctx.wide = n < d
        gram = features @ features.T if ctx.wide else features.T @ features
        ends = gram_ends(gram, cut_of(tolerance, n, d))
        rule_out = rule(ends, d)
        ctx.rule, ctx.sigma = rule_out, (ends.first, ends.last)
        ctx.save_for_backward(features, theta, gram, ends.vectors)
        return features.new_tensor(rule_out.value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, theta, gram, ends = ctx.saved_tensors
        _, scale, top, bottom = ctx.rule
        weights = gram.new_tensor([top, bottom])
        scaled = gram.new_tensor([top * ctx.sigma[0], bottom * ctx.sigma[1]])
        if not ctx.wide:
            # G = scale·H + ends·diag(scaled)·endsᵀ
            left = features if theta is None else theta
            product = torch.addmm((left @ ends * scaled) @ ends.T, left, gram, alpha=scale)
        # G = Fᵀ C F with C = scale·I + ends·diag(weights)·endsᵀ, an N×N matrix that is never formed.
        elif theta is None:  # F·G = (FFᵀ) C F, and FFᵀ only scales its own eigenvectors
            product = torch.addmm((ends * scaled) @ (ends.T @ features), gram, features, alpha=scale)
        else:  # the factor goes into the narrow matrix: one pass less over the D×D one
            narrow = (theta @ features.T).mul_(2 * grad)
            return None, narrow @ torch.add((ends * weights) @ (ends.T @ features), features, alpha=scale), None, None
        product = product.mul_(2 * grad)
        return (product, None, None, None) if theta is None else (None, product, None, None)


def well_step_bound(sigma: Tensor, n_features: int) -> float:
    """An η below which a preconditioned R_well step strictly lowers κ(H); sigma (k,) descending.

    η < (√σ_1 - √σ_2) / (2[(1 - 1/D)σ_1^{3/2} + σ_2^{3/2}/D]): up to there σ_1 shrinks and stays the largest, while
    every other eigenvalue grows. Larger ones may lower κ too. Zero, no promise, when σ_1 is not unique; infinite for
    rank 1, where κ = 1 cannot fall.
    """
    if len(sigma) < 2:
        return math.inf
    first, second = float(sigma[0]), float(sigma[1])
    d = n_features
    root_1, root_2 = math.sqrt(first), math.sqrt(second)
    return (root_1 - root_2) / (2 * ((1 - 1 / d) * root_1**3 + root_2**3 / d))


def ill_step_bound(sigma: Tensor) -> float:
    """An η below which a preconditioned R_ill step strictly raises κ(H); sigma (k,) descending.

    η[(1 - 1/k)σ_k - σ_1/k] < f², f = ‖H‖_F²/(2k) - σ_k²/2; infinite when the bracket is not positive. Zero, no
    promise, when σ_k is not unique or k < 2. One step within the bound is special: at
    η = f²/(2(1 - 1/k)σ_k) the eigenvalue σ_k itself becomes 0, H loses a rank, and κ is that of what is left.
    """
    k = len(sigma)
    if k < 2 or float(sigma[-2]) <= float(sigma[-1]):
        return 0.0
    f = float(sigma.square().sum()) / (2 * k) - 0.5 * float(sigma[-1]) ** 2
    bracket = (1 - 1 / k) * float(sigma[-1]) - float(sigma[0]) / k
    return math.inf if bracket <= 0 else f**2 / bracket
