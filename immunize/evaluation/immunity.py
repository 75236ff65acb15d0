"""Is θ immunized? RIR under every estimator, the three verdicts of Definition 3.1, and the probe's curves.

Everything is computed for one part of the data at a time: `fit`, which θ was immunized on (the paper's protocol), or
`held_out`, which it never saw.

Every number follows from one singular value decomposition a data set and extractor. With features F = Xθ = UΣVᵀ (rank
k) and least-squares targets y:

    spectrum of H = FᵀF           σ_i(H) = Σ_ii²
    optimal probe (minimum norm)  w*_i = (u_iᵀy)/Σ_ii in the basis V
    its loss                      min_w ‖Fw - y‖²/N = (‖y‖² - Σ_{i≤k}(u_iᵀy)²)/N

The N rows are first reduced to the k that X = UΣVᵀ leaves, Σ_kV_kᵀ with targets U_kᵀy: the same three, with K's
eigenvalues below the rank cut set to the zeros that they count as. So κ(H(θ)) is over k singular values for every
invertible θ, as κ(H(I)) is; for a θ that takes directions away, over those that it leaves.

The paper's attacker is a linear probe trained by gradient descent with exact line search (Eqs. 4 and 16, Fig. 1). For
L(w) = ‖Fw - y‖², H = FᵀF and the error e_t = w_t - w*, steepest descent with the step that minimizes the loss along the
gradient He:

    α_t = (eᵀH²e)/(eᵀH³e),   e_{t+1} = (I - α_t H) e_t

In the eigenbasis of H each coordinate is multiplied by (1 - α_t λ_i), so a step costs k multiplications instead of
a pass over the data, and the curve equals the naive simulation.

Shapes: N samples, D features, k numerical rank of the data, C columns of targets, T steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from immunize.data import ROLES, Parts
from immunize.evaluation.numbers import by_extractor, ratio_numbers, spectrum_numbers
from immunize.evaluation.verdicts import VERDICTS_BY, verdict_numbers, verdicts_of
from immunize.memoize import memoize
from immunize.spectrum.condition import (
    DEFAULT_RHO,
    ESTIMATORS,
    Spectrum,
    check_matrix,
    default_tolerance,
    immunization_ratio,
)
from immunize.spectrum.decompositions import svd
from immunize.spectrum.ranges import with_rank_of_map
from immunize.spectrum.separability import probe_accuracy, separability

THRESHOLDS = (0.1, 0.01)
"""Norm ratios whose first passage is reported."""


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
    if n > d:
        x, y = _triangle(x, y)
    u, sigma, vh = svd(x, full_matrices=False)
    spectrum = Spectrum(sigma.square(), n, d, default_tolerance(n, d))
    if not (k := spectrum.rank):
        raise ValueError("the rows of a data set are all zero, which has no spectrum")
    return Rows(sigma[:k, None] * vh[:k], u[:, :k].T @ y, spectrum, energy)


def _triangle(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A triangular factor in place of N > D rows, with the same K and Xᵀy; the rows are copied once."""
    n, d = x.shape
    targets = y.reshape(n, -1)
    both = x.new_empty(d + targets.shape[1], n).T  # as LAPACK writes into it
    both[:, :d], both[:, d:] = x, targets
    torch.geqrf(both, out=(both, x.new_empty(min(both.shape))))
    r = both[:d].T.tril().T
    return r[:, :d], r[:, d:].reshape(-1, *y.shape[1:])


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
        u, sigma, _ = svd(features, full_matrices=False)
        spectrum = Spectrum(sigma.square(), n, data.n_features, data.tolerance, rank_of_data=data.rank)
        spectrum = with_rank_of_map(spectrum, rows.x, theta)
        projected = u.T @ rows.y
    k = spectrum.rank
    projected = projected[:k]
    residual = max(energy - float(projected.square().sum()), 0.0)
    optimum = projected.norm(dim=1) if projected.ndim > 1 else projected
    return Decomposition(spectrum, optimum / spectrum.values[:k].sqrt(), residual / n, energy / n)


def evaluate_part(
    theta: Tensor,
    parts: Parts,
    tasks: Mapping[str, str],
    *,
    rho: float = DEFAULT_RHO,
    probe_steps: int,
) -> dict[str, Any]:
    """Evaluate θ against the identity on one pair of data sets.

    Args:
        theta: (D, D) float64, acting on rows.
        parts: D_P and D_H.
        tasks: "pretrain" and "harmful", each one of those that :func:`least_squares_targets` knows.
        rho: ρ of the `ridge` estimator.
        probe_steps: length of the norm-ratio curves.

    Returns:
        as a record holds them: "metrics", a ratio an estimator; "verdicts", Definition 3.1 by `VERDICTS_BY`; and by
        data set ("pretrain", "harmful") and extractor ("immunized", "identity") "separability", what a ridge probe can
        learn, "spectra" of H, "curves" and their "steps_to_norm_ratio".

    Raises:
        ValueError: features that are not finite, or all zero.
    """
    with torch.no_grad():
        baselines = {role: _baseline(of.x, of.y, tasks[role], probe_steps) for role, of in parts.items()}
        found = {
            role: {"immunized": decompose(rows, theta), "identity": plain}
            for role, (rows, plain, _) in baselines.items()
        }
        p, h, p_0, h_0 = (found[role][which].spectrum for which in ("immunized", "identity") for role in ROLES)
        ratios = {estimator: immunization_ratio(p, h, p_0, h_0, estimator, rho=rho) for estimator in ESTIMATORS}
        curves = {
            role: {"immunized": _curve(found[role]["immunized"], probe_steps), "identity": curve}
            for role, (*_, curve) in baselines.items()
        }
    x, y = parts["pretrain"].x, parts["pretrain"].y
    told_apart = tasks["pretrain"] != "regression" and bool((y != y[0]).any())
    accuracy = {"before": probe_accuracy(x, y), "after": probe_accuracy(x @ theta, y)} if told_apart else {}
    after, before = found["pretrain"].values()
    loss = (after.loss, before.loss, before.energy)
    return {
        "metrics": {estimator: ratio_numbers(ratio) for estimator, ratio in ratios.items()},
        "separability": {
            role: {"immunized": separability(of.x, of.y, theta), "identity": separability(of.x, of.y)}
            for role, of in parts.items()
        },
        "steps_to_norm_ratio": by_extractor(curves, _steps_to),
        "curves": by_extractor(curves, lambda of: of and dict(zip(("steps", "ratio"), of.thinned(), strict=True))),
        "spectra": by_extractor(found, lambda of: spectrum_numbers(of.spectrum)),
        "verdicts": verdicts_of(vars(ratios[VERDICTS_BY]), accuracy, loss).numbers(),
    }


def part_numbers(parts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Everything that a record holds of these parts of the data, of which the first is "fit", for `record.update`."""
    numbers = {name: {part: of[name] for part, of in parts.items()} for name in parts["fit"]}
    return {**numbers, "curves": {"norm_ratio": numbers["curves"]}, "verdicts": verdict_numbers(numbers["verdicts"])}


def _steps_to(curve: NormRatioCurve | None) -> dict[str, int | None]:
    return {} if curve is None else {f"{threshold:g}": step for threshold, step in curve.steps_to.items()}


def least_squares_targets(y: Tensor, task: str) -> Tensor:
    """Targets of the ℓ2 probe of §3.

    "regression": `y`; "binary": ±1 for the labels 0/1; "classification": one-hot less 1/C, (N, C).

    The sign matters: with the single-digit data sets of the paper's MNIST pairs all labels of D_P are 0, and
    regressing on 0 has the trivial optimum w* = 0.

    Raises:
        ValueError: unknown task.
    """
    if task == "regression":
        return y
    if task == "binary":
        return 2 * y - 1
    if task == "classification":
        columns = torch.nn.functional.one_hot(y)
        return columns.double() - 1 / columns.shape[1]
    raise ValueError(f"unknown task {task!r}")


@memoize(4)  # two data sets, two parts
def _baseline(x: Tensor, y: Tensor, task: str, probe_steps: int) -> tuple[Rows, Decomposition, NormRatioCurve | None]:
    """What does not depend on θ: the rows, and what the identity makes of them."""
    rows = compress(x, least_squares_targets(y, task))
    decomposition = decompose(rows)
    return rows, decomposition, _curve(decomposition, probe_steps)


def _curve(decomposition: Decomposition, steps: int) -> NormRatioCurve | None:
    """None where nothing is to be learned (all-zero targets)."""
    spectrum = decomposition.spectrum
    if not bool(decomposition.optimum.any()):
        return None
    return norm_ratio_curve(spectrum.values[: spectrum.rank], decomposition.optimum, steps=steps)


# --- the probe of Eq. (16) --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormRatioCurve:
    """‖w_t - w*‖²/‖w_0 - w*‖² for t = 0…T (Eq. 16), with w_0 = 0.

    Attributes:
        ratio: (T+1,) float64; ratio[0] = 1. Shorter than asked for if the error reached zero.
        steps_to: threshold to the first step at which the ratio is at or below it; None if that never happened.
    """

    ratio: npt.NDArray[np.float64]
    steps_to: dict[float, int | None]

    def thinned(self, points: int = 120) -> tuple[list[int], list[float]]:
        """About `points` log-spaced steps and their ratios, for records and figures."""
        last = len(self.ratio) - 1
        spaced = np.unique(np.geomspace(1, max(last, 1), points).round().astype(int))
        steps = [0, *(int(step) for step in spaced if step <= last)]
        return steps, [float(self.ratio[step]) for step in steps]


def norm_ratio_curve(eigenvalues: Tensor, optimum: Tensor, *, steps: int) -> NormRatioCurve:
    """Simulate the probe in the eigenbasis of H.

    Args:
        eigenvalues: (k,) the non-zero eigenvalues of H; any scale.
        optimum: (k,) w* in the basis of the same eigenvectors (minimum norm, so zero in the null space of H); not 0,
            of which Eq. (16) is 0/0.
        steps: T.
    """
    values = (eigenvalues / eigenvalues.max()).cpu().numpy().astype(np.float64)
    error = optimum.square().cpu().numpy().astype(np.float64)  # squared coordinates of e_t
    error /= error.sum()
    squared, cubed = values**2, values**3
    factor = np.empty_like(values)
    ratio = np.empty(steps + 1)
    ratio[0] = 1.0
    for step in range(1, steps + 1):  # 20,000 of them a curve: nothing is allocated, no wrapper is called
        curvature = cubed.dot(error)
        if not curvature > 0:  # converged to the last bit
            ratio = ratio[:step]
            break
        np.multiply(values, squared.dot(error) / curvature, out=factor)
        np.subtract(1.0, factor, out=factor)
        np.multiply(factor, factor, out=factor)
        np.multiply(error, factor, out=error)
        ratio[step] = np.add.reduce(error)
    passed = {t: np.flatnonzero(ratio <= t) for t in THRESHOLDS}
    return NormRatioCurve(ratio, {t: int(hit[0]) if len(hit) else None for t, hit in passed.items()})
