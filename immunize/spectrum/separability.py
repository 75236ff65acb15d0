"""How much of a task a ridge probe can learn from features: the in-sample share g and the cross-fitted correlation c.

A condition number says how fast gradient descent gets there; these two ask what is there to be had. With centred
features F and targets Y (one-hot for classes), and α = ρ·tr(FᵀF)/min(N, D),

    g(F, Y; ρ) = tr(Yᵀ F (FᵀF + αI)⁻¹ Fᵀ Y) / tr(YᵀY)            in sample, 0 to 1
    c(F, Y; ρ) = <F_B W_A, Y_B> / (‖F_B W_A‖ ‖Y_B‖)              W_A the probe of half A, judged on half B; -1 to 1

ρ → 0 is least squares and whitening, a large ρ an early-stopped gradient descent, and an attacker without a preferred
solver is the best case over ρ. Both are the same for any multiple, rotation or shift of the features and need no rank
cut. A task with nothing to tell apart (constant targets or features, up to rounding) has g = c = 0.

The D×D side FᵀF and the N×N side FFᵀ give the same numbers, and the smaller one is solved with; a kernel has only the
second. The gradient is that of the linear solve, so that equal eigenvalues are no special case.

Shapes: N samples, D features, C columns of targets, R values of ρ.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from immunize.memoize import memoize
from immunize.spectrum.condition import all_finite, binary_unit, check_matrix, check_squares

RHOS = (1e-3, 1e-2, 1e-1)
"""From a probe that is hardly regularized to one that is much; ours."""

Kernel = Literal["linear", "rbf"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
"""rbf: exp(-d²/2m), m the median of the squared distances d² between two of the rows that the probe is fitted on."""


Separability = dict[str, dict[str, float]]
"""Measure, "in_sample" or "cross_fitted", to ρ to its value."""

DECIMALS = 9
"""Of what a record keeps; what is smaller is rounding, and another one on another machine."""


def target_columns(y: Tensor) -> Tensor:
    """What a least-squares probe is to predict.

    Args:
        y: (N,) class numbers if its dtype is whole, otherwise the target of a regression, or (N, C) several.

    Returns:
        (N, C) float64: one column a class that occurs, or a target.

    Raises:
        ValueError: several columns of class numbers.
    """
    if y.is_floating_point():
        return y.double().reshape(len(y), -1)
    if y.ndim > 1:
        raise ValueError(f"class numbers are one for each row, not of shape {tuple(y.shape)}; targets are floats")
    return torch.nn.functional.one_hot(torch.unique(y, return_inverse=True)[1]).double()


def scaled_targets(y: Tensor) -> Tensor:
    """:func:`target_columns` in a unit of about their size, for what does not depend on it.

    Fourth powers of targets end at 1e±77.
    """
    columns = target_columns(y)
    return columns / binary_unit(float(columns.abs().max()))


def folds_of(y: Tensor, count: int, seed: int = 0) -> Tensor:
    """Random folds in which every class, or every range of a target, is as frequent as in the others.

    Args:
        y: (N,) class numbers or targets.
        count: of folds.
        seed: of the draw.

    Returns:
        (N,) int64, the fold of each row; a class that has fewer rows than there are folds is missing in some.
    """
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(operator.index(seed)))
    folds = torch.empty(len(y), dtype=torch.int64)
    folds[order[y[order].argsort(stable=True)]] = torch.arange(len(y)) % count
    return folds


def in_sample_share(features: Tensor, targets: Tensor, rhos: Sequence[float] = RHOS) -> Tensor:
    """g: the share of the targets' variance that the best ridge probe explains on the rows it is fitted on.

    Args:
        features: (N, D) float64.
        targets: class numbers or targets, as :func:`target_columns` takes them.
        rhos: ρ > 0, relative to the mean of the eigenvalues that can differ from zero.

    Returns:
        (R,) float64, falling in ρ; differentiable in the features.

    Raises:
        TypeError: features that are not float64.
        ValueError: not a finite matrix, or targets that are not finite.
    """
    _check(features, targets)
    columns = scaled_targets(targets)
    f, y = _centred(features), _centred(columns)
    if _constant(f, features) or _constant(y, columns):
        return _nothing(features, rhos)
    if f.shape[1] <= f.shape[0]:
        right = f.T @ y
        explained = (right * ridge_solutions(f.T @ f, right, rhos)).sum((1, 2))
    else:
        gram = f @ f.T
        explained = ((gram @ y) * ridge_solutions(gram, y, rhos)).sum((1, 2))
    return explained / y.square().sum()


def cross_fitted_correlation(
    features: Tensor,
    targets: Tensor,
    judged: Tensor,
    rhos: Sequence[float] = RHOS,
    *,
    kernel: Kernel = "linear",
) -> Tensor:
    """c: the correlation of the targets of some rows with what a ridge probe fitted on the others predicts for them.

    Args:
        features: (N, D) float64.
        targets: as for :func:`in_sample_share`.
        judged: (N,) bool, the rows of B; the probe is fitted on the others.
        rhos: ρ > 0.
        kernel: "linear" or "rbf".

    Returns:
        (R,) float64; near 0 or below it where nothing carries over. Differentiable in the features.

    Raises:
        TypeError: features that are not float64.
        ValueError: as for :func:`in_sample_share`, or no row to fit on or to judge.
    """
    _check(features, targets, judged)
    columns = scaled_targets(targets)
    fitted, other = features[~judged], features[judged]
    f, y, y_b = _centred(fitted), _centred(columns[~judged]), _centred(columns[judged])
    if _constant(f, fitted) or _constant(y, columns) or _constant(y_b, columns):
        return _nothing(features, rhos)
    if kernel == "linear":
        predicted = _predicted(f, y, other, rhos)
    else:
        gram, across = _rbf(fitted, other)
        predicted = across @ ridge_solutions(gram, y, rhos)
    predicted = predicted - predicted.mean(1, keepdim=True)
    inner, size = (predicted * y_b).sum((1, 2)), predicted.square().sum((1, 2))
    return correlation(inner, size, y_b.square().sum(), features)


def correlation(inner: Tensor, size: Tensor, scale: Tensor, rows: Tensor) -> Tensor:
    """Of predictions P and targets Y, both about their means, (R,); 0 where P is rounding, which points anywhere.

    Args:
        inner: the sum of PY, (R,).
        size: ‖P‖², (R,).
        scale: ‖Y‖² > 0, ().
        rows: features that the probes saw, (N, D).
    """
    found = size > (_rounding(rows) ** 2) * scale
    return torch.where(found, inner / (torch.where(found, size, scale) * scale).sqrt(), 0 * inner)


def probe_correlation(features: Tensor, targets: Tensor, rho: float = 1e-2) -> float:
    """One number for a curve: c with one half of the rows judged and the other fitted on.

    Args:
        features: (N, D) float64.
        targets: (N,) class numbers, or one target.
        rho: ρ > 0.

    Raises:
        TypeError: features that are not float64.
        ValueError: as for :func:`cross_fitted_correlation`.
    """
    return float(cross_fitted_correlation(features, targets, folds_of(targets, 2) == 0, (rho,)))


def cross_fitted_accuracy(features: Tensor, classes: Tensor, judged: Tensor, rhos: Sequence[float] = RHOS) -> Tensor:
    """The share of some rows that a ridge probe fitted on the others puts into their class.

    Args:
        features: (N, D) float64.
        classes: (N,) class numbers, of a whole dtype.
        judged: (N,) bool, the rows that are judged; the probe, with an intercept, is fitted on the others.
        rhos: ρ > 0.

    Returns:
        (R,) float64.

    Raises:
        TypeError: features that are not float64.
        ValueError: as for :func:`cross_fitted_correlation`.
    """
    _check(features, classes, judged)
    columns = target_columns(classes)
    fitted, known = features[~judged], columns[~judged]
    f, y = _centred(fitted), _centred(known)
    scores = known.mean(0).expand(len(rhos), int(judged.sum()), -1)
    if not (_constant(f, fitted) or _constant(y, known)):
        scores = scores + _predicted(f, y, features[judged] - fitted.mean(0), rhos)
    return share_right(scores, columns[judged].argmax(1))


def in_halves(
    measure: Callable[..., Tensor], features: Tensor, targets: Tensor, rhos: Sequence[float] = RHOS, seed: int = 0
) -> Tensor:
    """A measure with each half of the rows judged by a probe fitted on the other, averaged: (R,).

    Args:
        measure: :func:`cross_fitted_correlation` or :func:`cross_fitted_accuracy`.
        features: (N, D) float64.
        targets: (N,) class numbers, or one target.
        rhos: ρ > 0.
        seed: of the halves, which are the same in every run.
    """
    half = folds_of(targets, 2, seed) == 0
    one, other = (measure(features, targets, judged, rhos) for judged in (half, ~half))
    return (one + other) / 2


@memoize(8)  # θ_0 in a sweep; D_P beside each of several harmful data sets
def separability(x: Tensor, y: Tensor, theta: Tensor | None = None) -> Separability:
    """The in-sample share g, and the correlation c on each half of the rows of a probe fitted on the other, averaged.

    Args:
        x: (N, D), float32 or float64.
        y: (N,) class numbers if its dtype is whole, otherwise targets.
        theta: (D, D) of the type of x, which makes features x @ theta of it; None where x are the features.
    """
    if bool((y == y[0]).all()):  # nothing to tell apart, whatever the features
        found = dict.fromkeys(("in_sample", "cross_fitted"), torch.zeros(len(RHOS)))
    else:
        features = (x if theta is None else x @ theta).double()
        carried = in_halves(cross_fitted_correlation, features, y)
        found = {"in_sample": in_sample_share(features, y), "cross_fitted": carried}
    return {
        measure: {f"{rho:g}": round(value, DECIMALS) + 0.0 for rho, value in zip(RHOS, of.tolist(), strict=True)}
        for measure, of in found.items()
    }


@memoize(4)  # D_P raw, in a sweep
def probe_accuracy(x: Tensor, y: Tensor) -> float:
    """The accuracy on each half of the rows of a ridge probe fitted on the other, averaged, at the best of the three ρ.

    Args:
        x: (N, D) features, float32 or float64.
        y: (N,) class numbers, as whole numbers of any dtype.

    Returns:
        percent.
    """
    return 100 * float(in_halves(cross_fitted_accuracy, x.double(), y.long()).max())


def share_right(scores: Tensor, classes: Tensor) -> Tensor:
    """Accuracy: the share of rows whose own class has the largest score.

    Args:
        scores: (..., N, C).
        classes: (N,) class numbers.

    Returns:
        (...,) float64.
    """
    return (scores.argmax(-1) == classes).double().mean(-1)


def _predicted(f: Tensor, y: Tensor, other: Tensor, rhos: Sequence[float]) -> Tensor:
    """What probes of centred rows (f, y) say of other rows, (R, M, C), from the smaller side."""
    if f.shape[1] <= f.shape[0]:
        return other @ ridge_solutions(f.T @ f, f.T @ y, rhos)
    return (other @ f.T) @ ridge_solutions(f @ f.T, y, rhos)


def ridge_solutions(gram: Tensor, right: Tensor, rhos: Sequence[float]) -> Tensor:
    """(G + αI)⁻¹B for every ρ, (R, n, C), G (n, n).

    Autograd sees a second solve alone, for what the first leaves over: d(A⁻¹B) = A⁻¹(dB - dA·A⁻¹B).
    """
    mean = gram.trace() / len(gram)
    solved = []
    for rho in rhos:
        shift = max(rho, len(gram) * torch.finfo(gram.dtype).eps) * mean
        with torch.no_grad():
            root = torch.linalg.cholesky(gram + shift * torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
            found = torch.cholesky_solve(right, root)
        if gram.requires_grad:
            found = found + torch.cholesky_solve(right - gram @ found - shift * found, root)
        solved.append(found)
    return torch.stack(solved)


def _rbf(fitted: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel within A and of B with A, centred by A's mean in the space of the kernel."""
    within = _squared_distances(fitted, fitted)
    pairs = within[tuple(torch.triu_indices(len(fitted), len(fitted), offset=1))]
    middle = pairs.median()
    scale = 2 * torch.where(middle > 0, middle, pairs.mean())  # most rows may be copies of one another
    gram, across = (-within / scale).exp(), (-_squared_distances(other, fitted) / scale).exp()
    mean = gram.mean(0)
    across = across - across.mean(1, keepdim=True) - mean + mean.mean()
    return gram - mean - mean[:, None] + mean.mean(), across


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Each from a difference: ‖a‖² + ‖b‖² - 2a·b rounds by what one far row is, beside which the median may vanish."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def _constant(centred: Tensor, raw: Tensor) -> bool:
    """Whether nothing but rounding is left of a matrix without its mean."""
    return not float(centred.detach().norm()) > _rounding(raw) * float(raw.detach().norm())


def _rounding(rows: Tensor) -> float:
    return len(rows) * torch.finfo(torch.float64).eps


def _nothing(features: Tensor, rhos: Sequence[float]) -> Tensor:
    """Zeros, with a gradient of zeros."""
    return 0 * features.sum() + torch.zeros(len(rhos), dtype=features.dtype, device=features.device)


def _check(features: Tensor, targets: Tensor, judged: Tensor | None = None) -> None:
    check_matrix(features.detach(), "features")
    check_squares(features.detach(), "features")
    if not all_finite(targets):
        raise ValueError("targets must not contain NaN or infinite values; fill or drop them first")
    if judged is not None and not 0 < int(judged.sum()) < len(judged):
        raise ValueError("judged has to name some of the rows, and neither all nor none")
