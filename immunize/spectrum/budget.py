"""How much of κ(H_P) to spend: the largest budget B for which Definition 3.1 holds on rows the map was not fitted on.

Shapes: N samples, D features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from immunize.spectrum.condition import DEFAULT_RHO, Estimator, condition_number, spectrum_of_gram
from immunize.spectrum.definition import HARDER_BY
from immunize.spectrum.optimum import check_attainable
from immunize.spectrum.pencil import GeneralizedSpectrum

__all__ = ["BudgetChoice", "BudgetTrial", "choose_budget", "kappa_of_gram", "middle_budget"]

BUDGET_POINTS = 13
"""Budgets between 1 and κ(K_P), equally spaced in the logarithm, that are tried before bisection (ours)."""

BUDGET_PRECISION = 1.05
"""Bisection ends when the largest budget that holds is known to this factor (ours)."""


@dataclass(frozen=True)
class BudgetTrial:
    """One budget, measured on validation rows.

    Attributes:
        budget: B.
        ratio_harmful: (i).
        ratio_pretrain: (ii).
    """

    budget: float
    ratio_harmful: float
    ratio_pretrain: float


@dataclass(frozen=True)
class BudgetChoice:
    """How B was chosen.

    Attributes:
        budget: B.
        feasible: (a) and (b) hold at B on the validation rows. Otherwise B is the largest at which (b) does, or 1.
        estimator: the estimator behind (i) and (ii).
        trials: everything that was measured, in ascending order of B.
        reason: in plain words.
    """

    budget: float
    feasible: bool
    estimator: Estimator
    trials: tuple[BudgetTrial, ...]
    reason: str


def middle_budget(
    spectrum: GeneralizedSpectrum, grams: Sequence[Tensor], counts: Sequence[int], harder_by: float = HARDER_BY
) -> float:
    """The middle (of logarithms) of the budgets for which (a) and (b) hold in theory, as far from failing (a) as (b).

    Args:
        spectrum: of D_H's and D_P's covariances.
        grams: K_P and K_H; their κ is that of their own rank, with which (i) and (ii) are measured.
        counts: N of each.
        harder_by: (a) holds where (i) is at least this.

    Returns:
        B; 1, which is the farthest from failing (b), where no budget holds.
    """
    high, harmful = (kappa_of_gram(k, n, "spectrum", DEFAULT_RHO) for k, n in zip(grams, counts, strict=True))
    low = max(1.0, harder_by * harmful / spectrum.kappa_gen)
    return math.sqrt(low * high) if low <= high else 1.0


def choose_budget(
    spectrum: GeneralizedSpectrum,
    x_pretrain: Tensor,
    x_harmful: Tensor,
    *,
    estimator: Estimator = "spectrum",
    rho: float = DEFAULT_RHO,
    harder_by: float = 2.0,
    ease_limit: float = 1.0,
) -> BudgetChoice:
    """The largest B with (a) (i) ≥ `harder_by` and (i) > 1, and (b) (ii) ≤ `ease_limit`, on these rows.

    On the rows that K was computed from, with its ρ, (b) is B ≤ κ(K_P) and (a) is B ≥ harder_by·κ(K_H)/κ_gen; here
    both are measured, on a logarithmic grid from 1 to κ(K_P) and by bisection above its largest budget that holds.

    Measured ratios need not be monotone in B: with `spectrum` they jump where an eigenvalue crosses the rank cut, so
    nothing is claimed about budgets between grid points below the largest that holds. On data with nearly dead
    features (MNIST) κ by `spectrum` is decided at that cut, (b) admits almost any B, and `ridge` with
    ``harder_by=1`` is the more telling criterion.

    Args:
        spectrum: of D_H's and D_P's covariances.
        x_pretrain: (N, D) float64 validation rows of D_P.
        x_harmful: those of D_H.
        estimator: behind (i) and (ii).
        rho: ρ of the `ridge` estimator.
        harder_by: see above.
        ease_limit: see above.

    Raises:
        ValueError: the supremum of RIR is infinite.
    """
    check_attainable(spectrum)
    rows = [x_pretrain, x_harmful]
    grams = [x.T @ x for x in rows]
    base = [kappa_of_gram(gram, len(x), estimator, rho) for gram, x in zip(grams, rows, strict=True)]
    inner = [spectrum.directions.T @ gram @ spectrum.directions for gram in grams]  # only d depends on B
    tried: dict[float, BudgetTrial] = {}

    def holds(budget: float) -> bool:
        root = (0.5 * math.log(budget) * spectrum.exponents).exp()
        easier, harder = (
            kappa_of_gram(root[:, None] * gram * root, len(x), estimator, rho) / kappa
            for gram, x, kappa in zip(inner, rows, base, strict=True)
        )
        trial = tried[budget] = BudgetTrial(budget, harder, easier)
        return trial.ratio_harmful > 1 and trial.ratio_harmful >= harder_by and trial.ratio_pretrain <= ease_limit

    # Beyond κ(K_P) with its ρ (b) fails on what the map was computed from.
    grid = [spectrum.kappa_pretrain ** (step / (BUDGET_POINTS - 1)) for step in range(BUDGET_POINTS)]
    good = [budget for budget in grid if holds(budget)]
    if not good:
        # ridge κ ≤ (tr(H) + α)/α = 1 + D/ρ for every H
        most = (1 + x_pretrain.shape[1] / rho) / base[1]
        capped = estimator == "ridge" and most < harder_by
        hint = f", and the ridge estimator (rho = {rho:g}) cannot exceed (i) = {most:.3g}" if capped else ""
        return _infeasible(tried, estimator, ease_limit, hint)
    low = good[-1]
    high = next((budget for budget in grid if budget > low), low)
    while high > low * BUDGET_PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    trials = tuple(tried[budget] for budget in sorted(tried))
    reason = (
        f"B = {low:.3g} is the largest budget for which (a) and (b) hold on validation data: (i) = "
        f"{tried[low].ratio_harmful:.3g}, (ii) = {tried[low].ratio_pretrain:.3g} ({estimator})"
    )
    return BudgetChoice(low, True, estimator, trials, reason)


def kappa_of_gram(gram: Tensor, n_samples: int, estimator: Estimator, rho: float, size: int | None = None) -> float:
    """κ of a Gram matrix; `size` is D where the matrix is written in coordinates of a subspace."""
    spectrum = spectrum_of_gram((gram + gram.T) / 2, n_samples)
    if size is not None:
        spectrum = replace(spectrum, n_features=size)
    value: float = condition_number(spectrum, estimator, rho=rho).value
    return value


def _infeasible(tried: dict[float, BudgetTrial], estimator: Estimator, ease_limit: float, hint: str) -> BudgetChoice:
    easy = [trial for trial in tried.values() if trial.ratio_pretrain <= ease_limit]
    if easy:
        best = max(easy, key=lambda trial: trial.ratio_harmful)
        reason = f"no budget meets (a): where (ii) is at most {ease_limit:g}, (i) reaches only {best.ratio_harmful:.3g}"
        reason += hint
    else:
        best = tried[min(tried)]
        reason = f"no budget meets (b): (ii) is {best.ratio_pretrain:.3g} even for B = 1; raise shrinkage"
    trials = tuple(tried[budget] for budget in sorted(tried))
    return BudgetChoice(best.budget, False, estimator, trials, f"{reason}; B = {best.budget:.3g} is used ({estimator})")
