"""Every equation of the paper the slow, obvious way: explicit D×D matrices, full decompositions, loops over sums.

Nothing here is fast, and nothing here imports the package: it is what the package is compared with. Equation and
theorem numbers are the paper's. θ acts on rows (features = Xθ), so `torch.nn.Linear.weight` would be θᵀ.

Shapes: N samples, D features, k numerical rank, p = min(rows, columns); X (N, D), θ (D, D), K = XᵀX and H (D, D).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps
RELEASED_FLOOR = 1e-6


# --- matrices with prescribed spectra -----------------------------------------------------------------------------


def generator(seed: int) -> torch.Generator:
    """A CPU generator with the given seed."""
    return torch.Generator().manual_seed(seed)


def gaussian(*shape: int, seed: int) -> Tensor:
    """Standard normal float64 numbers."""
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def rows(seed: int, count: int = 60, width: int = 6) -> Tensor:
    """Rows whose columns fall to a tenth in scale; they rise where the seed is even, as if from other data."""
    scale = torch.logspace(0, -1, width, dtype=torch.float64)
    return gaussian(count, width, seed=seed) * (scale if seed % 2 else scale.flip(0))


def orthogonal(n: int, seed: int | torch.Generator) -> Tensor:
    """A random n×n orthogonal matrix."""
    source = generator(seed) if isinstance(seed, int) else seed
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=source)).Q


def matrix_with_singular_values(sigma: Sequence[float] | Tensor, rows: int, columns: int, seed: int) -> Tensor:
    """U·Diag(σ)·Vᵀ (rows, columns) with random orthogonal U and V; missing singular values are zeros."""
    sigma = torch.as_tensor(sigma, dtype=torch.float64)
    middle = torch.zeros(rows, columns, dtype=torch.float64)
    middle.diagonal()[: len(sigma)] = sigma
    source = generator(seed)  # one source for both, so that other seeds share no singular vectors
    return orthogonal(rows, source) @ middle @ orthogonal(columns, source).T


def features_with_eigenvalues(sigma: Sequence[float] | Tensor, n_samples: int, n_features: int, seed: int) -> Tensor:
    """F (N, D) whose H = FᵀF has the non-zero eigenvalues σ."""
    sigma = torch.as_tensor(sigma, dtype=torch.float64)
    return matrix_with_singular_values(sigma.sqrt(), n_samples, n_features, seed)


def extractor(n_features: int, seed: int) -> Tensor:
    """An invertible θ (D, D) with singular values between 0.5 and 2, not symmetric, not orthogonal."""
    return matrix_with_singular_values(torch.linspace(2.0, 0.5, n_features), n_features, n_features, seed)


# --- Hessian, rank, condition number, RIR -------------------------------------------------------------------------


def hessian(x: Tensor, theta: Tensor | None = None) -> Tensor:
    """H(θ) = θᵀKθ with K = XᵀX, Eq. (9); θ = I if None."""
    k = x.T @ x
    return k if theta is None else theta.T @ k @ theta


def shrunk(k: Tensor, rho: float) -> Tensor:
    """K + αI, α = ρ·tr(K)/D."""
    return k + rho * k.trace() / len(k) * torch.eye(len(k), dtype=torch.float64)


def eigenvalues(h: Tensor) -> Tensor:
    """All D eigenvalues of H, descending."""
    return torch.linalg.eigvalsh(h).flip(0)


def rank(h: Tensor, n_samples: int) -> int:
    """Number of eigenvalues of H above max(N, D)·eps·σ_1."""
    return int(torch.linalg.matrix_rank(h, hermitian=True, rtol=max(n_samples, len(h)) * EPS))


def kappa_spectrum(h: Tensor, n_samples: int) -> float:
    """κ(H) = ‖H‖₂‖H⁺‖₂ = σ_1/σ_k, Eq. (1), over the numerically non-zero spectrum."""
    values = eigenvalues(h)
    return float(values[0] / values[rank(h, n_samples) - 1])


def kappa_released(h: Tensor) -> float:
    """κ as the released code computes it: eigenvalues of H + 1e-6·I, the smallest above 1e-6 in the denominator."""
    values = torch.linalg.eigvalsh(h + RELEASED_FLOOR * torch.eye(len(h), dtype=torch.float64))
    return float(values.max() / values[values > RELEASED_FLOOR].min())


def kappa_ridge(h: Tensor, rho: float) -> float:
    """κ(H + αI), α = ρ·tr(H)/D: the Hessian of probing with weight decay."""
    values = torch.linalg.eigvalsh(shrunk(h, rho))
    return float(values.max() / values.min())


def kappa_by(estimator: str, h: Tensor, n_samples: int, rho: float) -> float:
    """κ by the name of its estimator. Of a rank-deficient H the released code divides by 1e-6 and rounding noise."""
    if estimator == "released" and n_samples < len(h):
        return (float(eigenvalues(h)[0]) + RELEASED_FLOOR) / RELEASED_FLOOR
    if estimator == "released":
        return kappa_released(h)
    return kappa_spectrum(h, n_samples) if estimator == "spectrum" else kappa_ridge(h, rho)


def immunization_ratio(kappa_h: float, kappa_p: float, kappa_h0: float, kappa_p0: float) -> tuple[float, float, float]:
    """(i), (ii) and RIR of Eqs. (15) and (17)."""
    ratio_harmful = kappa_h / kappa_h0
    ratio_pretrain = kappa_p / kappa_p0
    return ratio_harmful, ratio_pretrain, ratio_harmful / ratio_pretrain


# --- regularizers of a general matrix -----------------------------------------------------------------------------


def compact_svd(s: Tensor, tolerance: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """U (p_r, k), σ (k,), V (p_c, k) of S, from the full SVD; k counts σ_i > tolerance·σ_1."""
    u, sigma, vh = torch.linalg.svd(s, full_matrices=True)
    cut = max(s.shape) * EPS if tolerance is None else tolerance
    k = sum(float(value) > cut * float(sigma[0]) for value in sigma)
    return u[:, :k], sigma[:k], vh[:k].T


def r_well(s: Tensor) -> float:
    """Eq. (3): ½‖S‖₂² - ‖S‖_F²/(2p), p = min(rows, columns)."""
    _, sigma, _ = compact_svd(s)
    return 0.5 * float(sigma[0]) ** 2 - math.fsum(float(v) ** 2 for v in sigma) / (2 * min(s.shape))


def r_ill(s: Tensor, tolerance: float | None = None) -> float:
    """Eq. (12): 1/(‖S‖_F²/(2k) - σ_k²/2); a tolerance decides k, the norm is that of the whole of S."""
    sigma = compact_svd(s, tolerance)[1]
    return 1 / (math.fsum(float(v) ** 2 for v in s.flatten()) / (2 * len(sigma)) - 0.5 * float(sigma[-1]) ** 2)


def ill_denominator(sigma: Tensor) -> float:
    """f = Σσ²/(2k) - σ_k²/2, the denominator of Eq. (12), from the k non-zero singular values."""
    return math.fsum(float(v) ** 2 for v in sigma) / (2 * len(sigma)) - 0.5 * float(sigma[-1]) ** 2


def kappa(s: Tensor, tolerance: float | None = None) -> float:
    """Eq. (1) for a general matrix."""
    _, sigma, _ = compact_svd(s, tolerance)
    return float(sigma[0] / sigma[-1])


def r_well_gradient(s: Tensor, tolerance: float | None = None) -> Tensor:
    """Theorem A.1 (3): σ_1 u_1v_1ᵀ - S/p, of S as far as it is above the tolerance."""
    u, sigma, v = compact_svd(s, tolerance)
    return sigma[0] * torch.outer(u[:, 0], v[:, 0]) - u @ sigma.diag() @ v.T / min(s.shape)


def r_ill_gradient(s: Tensor, tolerance: float | None = None) -> Tensor:
    """Eq. (13): (σ_k u_kv_kᵀ - S/k)/(‖S‖_F²/(2k) - σ_k²/2)²; as above."""
    u, sigma, v = compact_svd(s, tolerance)
    last = sigma[-1] * torch.outer(u[:, -1], v[:, -1])
    return (last - u @ sigma.diag() @ v.T / len(sigma)) / ill_denominator(sigma) ** 2


def kappa_gradient(s: Tensor, tolerance: float | None = None) -> Tensor:
    """u_1v_1ᵀ/σ_k - (σ_1/σ_k²)u_kv_kᵀ."""
    u, sigma, v = compact_svd(s, tolerance)
    first, last = (torch.outer(u[:, i], v[:, i]) for i in (0, -1))
    return first / sigma[-1] - sigma[0] / sigma[-1] ** 2 * last


# --- regularizers of H(θ), Algorithm 1, Figure 4 ------------------------------------------------------------------

MatrixGradient = Callable[[Tensor], Tensor]


def theta_gradient(x: Tensor, theta: Tensor, gradient: MatrixGradient) -> Tensor:
    """Theorem 4.2: ∇_θ R(H(θ)) = 2Kθ·∇_H R, with K and H explicit."""
    k = x.T @ x
    return 2 * k @ theta @ gradient(theta.T @ k @ theta)


def algorithm_1_direction(x: Tensor, theta: Tensor, gradient: MatrixGradient) -> Tensor:
    """K⁻¹∇_θ R(H(θ)), with the inverse of K formed. Line 6 of Algorithm 1: θ - η(∇L + λ_P of R_well + λ_H of R_ill)."""
    return torch.linalg.inv(x.T @ x) @ theta_gradient(x, theta, gradient)


def figure_4_weight_gradient(x: Tensor, grad_output: Tensor, lambda_reg: float) -> Tensor:
    """The backward pass of Figure 4 as printed, for `weight` = θᵀ: solve(XᵀX + λI, grad_outputᵀ X)."""
    base_grad_weight = grad_output.T @ x
    xtx_reg = x.T @ x + lambda_reg * torch.eye(x.shape[1], dtype=torch.float64)
    return torch.linalg.solve(xtx_reg, base_grad_weight)


# --- linear probing -----------------------------------------------------------------------------------------------


def minimum_norm_solution(x: Tensor, y: Tensor) -> Tensor:
    """w* = X⁺y, the least-squares solution of smallest norm."""
    return torch.linalg.pinv(x) @ y


def task_gradients(x: Tensor, y: Tensor, theta: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the mean of (Xθω - y)² by θ and by ω (D, 1)."""
    residual = 2 * (x @ theta @ head - y[:, None]) / len(y)
    return x.T @ residual @ head.T, (x @ theta).T @ residual


def norm_ratio_curve(x: Tensor, y: Tensor, steps: int) -> Tensor:
    """‖w_t - w*‖²/‖w_0 - w*‖², Eq. (16), t = 0 … steps, of gradient descent on ‖Xw - y‖² simulated step by step.

    w_0 = 0 and w* is the minimum-norm solution. The step size is the exact line search's, α = gᵀg/(2‖Xg‖²), which
    minimizes the loss along the gradient g = 2Xᵀ(Xw - y). Once the gradient is exactly zero, w stays. In NumPy's long
    doubles: w_t - w* is a difference, and float64 would lose the digits that the end of the curve is compared by.
    """
    a, b = x.numpy().astype(np.longdouble), y.numpy().astype(np.longdouble)
    w_star = minimum_norm_solution(x, y).numpy().astype(np.longdouble)
    for _ in range(2):  # what float64 left of the residual
        w_star = w_star + minimum_norm_solution(x, torch.from_numpy((b - a @ w_star).astype(np.float64))).numpy()
    w = np.zeros_like(w_star)
    start = np.square(w - w_star).sum()
    curve = []
    for _ in range(steps + 1):
        curve.append(float(np.square(w - w_star).sum() / start))
        gradient = 2 * a.T @ (a @ w - b)
        curvature = np.square(a @ gradient).sum()
        if curvature > 0:
            w = w - np.square(gradient).sum() / (2 * curvature) * gradient
    return torch.tensor(curve, dtype=torch.float64)


# --- gradients and differences -----------------------------------------------------------------------------------


def gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """By autograd."""
    at = at.clone().requires_grad_()
    (out,) = torch.autograd.grad(function(at), at)
    return out


def error(value: Tensor, expected: Tensor) -> float:
    """Relative, in the Frobenius norm."""
    return float((value - expected).norm() / expected.norm())


def finite_difference_gradient(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences of a scalar function, one entry after the other, extrapolated once (error O(step⁴))."""

    def slope(direction: Tensor, h: float) -> Tensor:
        return (function(at + h * direction) - function(at - h * direction)) / (2 * h)

    directions = torch.eye(at.numel(), dtype=at.dtype).view(-1, *at.shape)
    return torch.stack([(4 * slope(one, step) - slope(one, 2 * step)) / 3 for one in directions]).view_as(at)


def eigenvalues_after_well_step(sigma: Tensor, n_features: int, eta: float) -> Tensor:
    """Exact eigenvalues after θ' = θ - 2ηθ∇R_well(H), in the order of `sigma`."""
    gradient = -sigma / n_features
    gradient[0] += sigma[0]
    return sigma * (1 - 2 * eta * gradient) ** 2


def eigenvalues_after_ill_step(sigma: Tensor, eta: float) -> Tensor:
    """Exact eigenvalues after θ' = θ - 2ηθ∇R_ill(H), in the order of `sigma`."""
    gradient = -sigma / len(sigma)
    gradient[-1] += sigma[-1]
    return sigma * (1 - 2 * eta * gradient / ill_denominator(sigma) ** 2) ** 2


# --- what a ridge probe can learn ---------------------------------------------------------------------------------


def one_hot(y: Tensor) -> Tensor:
    """A column for each class."""
    return (y[:, None] == y.unique()).double()


def ridge_scale(f: Tensor) -> float:
    """The mean of the min(N, D) eigenvalues of FᵀF that can differ from zero."""
    return float(sum(s * s for s in torch.linalg.svdvals(f).tolist())) / min(f.shape)


def in_sample_share(f: Tensor, y: Tensor, rho: float) -> float:
    """tr(Yᵀ F (FᵀF + αI)⁻¹ Fᵀ Y)/tr(YᵀY), y (N, C)."""
    f, y = f - f.mean(0), y - y.mean(0)
    hat = f @ torch.linalg.inv(f.T @ f + rho * ridge_scale(f) * torch.eye(f.shape[1], dtype=torch.float64)) @ f.T
    return float((y.T @ hat @ y).trace() / (y.T @ y).trace())


def cross_fitted_correlation(f: Tensor, y: Tensor, judged: Tensor, rho: float) -> float:
    """Pearson's correlation, over all entries, of predictions and targets of the judged rows, columns centred."""
    f_a, y_a = f[~judged] - f[~judged].mean(0), y[~judged] - y[~judged].mean(0)
    alpha = rho * ridge_scale(f_a)
    probe = torch.linalg.inv(f_a.T @ f_a + alpha * torch.eye(f.shape[1], dtype=torch.float64)) @ f_a.T @ y_a
    predicted = f[judged] @ probe
    predicted, wanted = predicted - predicted.mean(0), y[judged] - y[judged].mean(0)
    return float((predicted * wanted).sum() / (predicted.norm() * wanted.norm()))


def rbf_feature_gram(a: Tensor, b: Tensor, fitted: Tensor) -> Tensor:
    """exp(-d²/2m), m the median squared distance between two different fitted rows, the lower of two middle ones."""
    middle = torch.pdist(fitted).square().median()  # of PyTorch, which is the lower one
    return torch.exp((a[:, None] - b).square().sum(2) / (-2 * middle))


# --- erasing what a linear probe can learn --------------------------------------------------------------------------


def class_means(x: Tensor, y: Tensor) -> Tensor:
    """(C, D), the mean of each class less that of all rows."""
    return torch.stack([x[y == label].mean(0) - x.mean(0) for label in sorted(set(y.tolist()))])


def covariance(x: Tensor) -> Tensor:
    """Of the rows, divided by N."""
    return (x - x.mean(0)).T @ (x - x.mean(0)) / len(x)


def leace(x: Tensor, y: Tensor) -> Tensor:
    """Theorem 4.3 of Belrose et al. (2023): x - W⁺PW(x - E x), W = Σ^{-1/2}, P onto the columns of WΣ_xz."""
    values, vectors = torch.linalg.eigh(covariance(x))
    w = vectors @ torch.diag(values.rsqrt()) @ vectors.T
    z = one_hot(y)
    a = w @ ((x - x.mean(0)).T @ (z - z.mean(0)) / len(x))
    projection = a @ torch.linalg.pinv(a)
    return torch.stack([row - torch.linalg.inv(w) @ projection @ w @ (row - x.mean(0)) for row in x])
