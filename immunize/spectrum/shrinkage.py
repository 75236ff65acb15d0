"""The closed form from rows of data: how much to trust their covariance (ρ), and how much of κ(H_P) to spend (B).

The map of `spectrum.optimum` is optimal for the K it is given, and a K from few samples is not the K of the next ones.
Both hyper-parameters are therefore chosen on rows that the map was not computed from:

ρ   "auto": cross-validation. Every row is mapped by θ = (K_P + ρ·tr(K_P)/D·I)^{-1/2} of the folds it does not belong
    to, and the ρ with the largest RIR (`ridge` estimator) of rows so mapped is taken. (For B = 1, RIR depends on ρ_P
    alone.)
    "ledoit_wolf": (1 - δ)S + δ·tr(S)/D·I of Ledoit and Wolf (2004) is K + ρ·tr(K)/D·I with ρ = δ/(1 - δ), up to a
    factor; δ for each data set, about the origin (K is not centred). It minimizes the expected
    Frobenius error of the covariance, which says little about its small eigenvalues.
B   "auto": the largest B for which conditions (a) and (b) of Definition 3.1 hold on validation rows.

Shapes: N samples, D features; θ (D, D) acts on rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from immunize.spectrum.condition import (
    DEFAULT_RHO,
    HARDER_BY,
    Estimator,
    binary_unit,
    check_matrix,
    check_squares,
    condition_number,
    default_tolerance,
    spectrum_of_gram,
)
from immunize.spectrum.decompositions import eigh
from immunize.spectrum.optimum import Immunizer, check_attainable, frontier
from immunize.spectrum.pencil import GeneralizedSpectrum, generalized_spectrum

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
        feasible: (a) and (b) hold at B on the validation rows. Otherwise B has the largest (i) of those at which (b)
            does, or is 1.
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
    """The middle (of logarithms) of the budgets for which (a) and (b) hold in theory.

    It is as far from failing (a) as (b), or nearer to (b) where no budget from 1 up fails (a).

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


Array = Tensor | npt.NDArray[Any]
Rows = Array | list[Array] | tuple[Array, ...]
Shrinkage = float | str

SHRINKAGE_GRID = tuple(10.0 ** (exponent / 2) for exponent in range(-8, 1))
"""ρ from 1e-4 to 1 in half decades (ours)."""

FEW_SAMPLES = 5
"""Below this many samples of D_P a feature, cross-validation uses ten folds instead of three (ours)."""

LARGEST_SHRINKAGE = 1e3
"""Ledoit-Wolf's δ reaches 1 where nothing but noise is seen; ρ = δ/(1 - δ) is cut here."""


@dataclass(frozen=True)
class ShrinkageChoice:
    """How ρ was chosen.

    Attributes:
        pretrain: ρ_P.
        harmful: ρ_H.
        how: "given", "auto" or "ledoit_wolf".
        scores: for "auto", each ρ tried with the log RIR of rows mapped without having been seen.
    """

    pretrain: float
    harmful: float
    how: str
    scores: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class ClosedForm(Immunizer):
    """An :class:`~immunize.spectrum.optimum.Immunizer` and how its hyper-parameters were chosen.

    Attributes:
        spectrum: of all rows, by which the map was computed.
        shrinkage_choice: how ρ was chosen.
        budget_choice: how B was chosen; None where it was given.
    """

    spectrum: GeneralizedSpectrum = field(kw_only=True)
    shrinkage_choice: ShrinkageChoice | None = None
    budget_choice: BudgetChoice | None = None


def closed_form(
    x_pretrain: Array,
    x_harmful: Array,
    *,
    budget: float | str = 1.0,
    shrinkage: Shrinkage = 1e-3,
    validation: tuple[Array, Array] | None = None,
    validation_fraction: float = 0.2,
    seed: int = 0,
    estimator: Estimator = "spectrum",
    rho: float = DEFAULT_RHO,
    harder_by: float = 2.0,
    ease_limit: float = 1.0,
) -> ClosedForm:
    """The best linear map for a pre-training and a harmful data set, with its inverse.

        theta = closed_form(x_p, x_h, budget=10.0, shrinkage="auto")
        features = x @ theta.theta;  head = theta.inverse @ w      # features @ head = x @ w

    Args:
        x_pretrain: (N_P, D) real numbers, array or tensor; computed with in float64.
        x_harmful: (N_H, D).
        budget: B, the κ(H_P) that is allowed (1 whitens D_P), "auto" (:func:`choose_budget`), or "middle", as far from
            failing (a) as (b) on these rows.
        shrinkage: ρ, or "auto" (:func:`choose_shrinkage`), or "ledoit_wolf".
        validation: (rows of D_P, rows of D_H) on which "auto" chooses B. Without it a fraction of the rows is split
            off to choose B, and the map is then computed from all rows. "auto" shrinkage is chosen before, on all rows.
        validation_fraction: that fraction, of each data set.
        seed: of the splits.
        estimator: behind (i) and (ii) of "auto" budget. Note that `ridge` bounds κ by 1 + D/ρ, hence (i) too.
        rho: ρ of the `ridge` estimator, there and for "auto" shrinkage.
        harder_by: (a) holds where (i) is at least this, and above 1.
        ease_limit: (b) holds where (ii) is at most this; below 1 leaves room for the difference between rows.

    Raises:
        ValueError: rows that are empty, not finite, all zero, of different widths or of numbers that cannot be
            squared; fewer rows than features without shrinkage; a budget below 1; an unknown word; too few rows to
            split.
    """
    pretrain = row_set(x_pretrain, "x_pretrain")
    harmful = row_set(x_harmful, "x_harmful", pretrain.shape[1])
    if isinstance(budget, str) and budget not in ("auto", "middle"):
        raise ValueError(f'budget is a number of at least 1, "auto" or "middle", not {budget!r}')
    chosen = _choose(pretrain, harmful, shrinkage, rho, seed)
    sets = [pretrain, harmful]
    grams, counts = [x.T @ x for x in sets], [len(x) for x in sets]
    spectrum = _spectrum(grams, counts, chosen)
    spent, budget = None, middle_budget(spectrum, grams, counts, harder_by) if budget == "middle" else budget
    if isinstance(budget, str):
        if validation is not None:
            if len(validation) != 2:
                raise ValueError(f"validation is a pair, rows of D_P and rows of D_H, not {len(validation)} of them")
            names = ("validation D_P", "validation D_H")
            held = [row_set(x, name, pretrain.shape[1]) for x, name in zip(validation, names, strict=True)]
            partial = spectrum
        else:
            parts = [_split(x, validation_fraction, seed + index) for index, x in enumerate(sets)]
            held, kept = ([part[side] for part in parts] for side in (0, 1))
            partial = _spectrum([x.T @ x for x in kept], [len(x) for x in kept], chosen)
        options: dict[str, Any] = {"estimator": estimator, "rho": rho, "harder_by": harder_by, "ease_limit": ease_limit}
        spent = choose_budget(partial, *held, **options)
        budget = spent.budget
    best = frontier(spectrum, budget)
    if spent is not None:
        best = replace(best, notes=(*best.notes, spent.reason))
    return ClosedForm(**vars(best), spectrum=spectrum, shrinkage_choice=chosen, budget_choice=spent)


def choose_shrinkage(
    x_pretrain: Tensor,
    x_harmful: Tensor,
    *,
    grid: Sequence[float] = SHRINKAGE_GRID,
    folds: int | None = None,
    seed: int = 0,
    rho: float = DEFAULT_RHO,
) -> ShrinkageChoice:
    """The ρ of `grid` with the largest cross-fitted log RIR (`ridge`), B = 1.

    With θ_f the map of all rows of D_P but those of fold f, and K_f the Gram matrices of fold f,

        H_P = Σ_f θ_fK_{P,f}θ_f,   H_H = Σ_f θ_fK_{H,f}θ_f,   θ_f = (K_P + αI)^{-1/2} of the other folds (symmetric,
                                                              so that the folds' features have common coordinates)

    hold every row mapped by a θ that has not seen it. Ratios of single folds would be those of N/K samples, too few
    for a spectrum just where ρ matters. One `eigh` a fold serves every ρ.

    Args:
        x_pretrain: (N, D) float64.
        x_harmful: (N, D) float64.
        grid: positive ρ to try.
        folds: number of folds; default 10 where N_P < 5D, otherwise 3 (where N is large, two thirds of it tell the
            same ρ).
        seed: of the random folds.
        rho: ρ of the `ridge` estimator, not of the map.

    Raises:
        ValueError: fewer rows than twice the folds, or D_P without rows other than zeros outside one fold.
    """
    size = x_pretrain.shape[1]
    if folds is None:
        folds = 10 if len(x_pretrain) < FEW_SAMPLES * size else 3
    sets = [x_pretrain, x_harmful]
    parts = _in_joint_range([_fold_grams(x, folds, seed + index) for index, x in enumerate(sets)], sets)
    totals = [part.sum(0) for part in parts]
    hessians = torch.zeros(len(grid), len(sets), *totals[0].shape, dtype=torch.float64)
    for fold in range(folds):
        rest = torch.cat([parts[0][:fold], parts[0][fold + 1 :]]).sum(0)  # a difference rounds by the largest row
        if not float(rest.trace()) > 0:
            raise ValueError("D_P has rows other than zeros in one fold alone: give shrinkage as a number")
        values, vectors = eigh(rest / rest.trace())  # one scale for the maps of all folds
        values = values.clamp_min(0)
        inner = [vectors.T @ part[fold] @ vectors for part in parts]
        for index, shrinkage in enumerate(grid):
            root = (values + shrinkage * values.sum() / size).rsqrt()
            for which, gram in enumerate(inner):
                hessians[index, which] += vectors @ (root[:, None] * gram * root) @ vectors.T
    base = [kappa_of_gram(gram, len(x), "ridge", rho, size) for gram, x in zip(totals, sets, strict=True)]
    scores = []
    for mapped in hessians:
        easier, harder = (
            math.log(kappa_of_gram(gram, len(x), "ridge", rho, size) / kappa)
            for gram, x, kappa in zip(mapped, sets, base, strict=True)
        )
        scores.append(harder - easier)
    best = float(grid[scores.index(max(scores))])
    return ShrinkageChoice(best, best, "auto", tuple(zip(map(float, grid), scores, strict=True)))


def ledoit_wolf(x: Tensor, gram: Tensor | None = None) -> float:
    """ρ = δ/(1 - δ) of Ledoit and Wolf (2004) for K = XᵀX, about the origin; `gram` is K/N; at most 1e3."""
    (n, d), gram = x.shape, x.T @ x / len(x) if gram is None else gram
    mean = float(gram.trace()) / d
    unit = binary_unit(mean)  # fourth powers end at 1e±77
    size, mean = float((gram / unit).square().sum()), mean / unit
    noise = (float((x.square().sum(1) / unit).square().mean()) - size) / n  # Σ_n‖x_nx_nᵀ - K/N‖²_F/N²
    spread = size - d * mean**2
    delta = min(noise / spread, 1.0) if spread > 0 else 0.0
    # δ = 0 (exact multiples of one row, say) would ask for no shrinkage; the smallest ρ of the grid stands for it.
    rho: float = delta / max(1 - delta, 1e-12)
    return float(np.clip(rho, SHRINKAGE_GRID[0], LARGEST_SHRINKAGE))


def _choose(pretrain: Tensor, harmful: Tensor, how: Shrinkage, rho: float, seed: int) -> ShrinkageChoice:
    if how == "auto":
        return choose_shrinkage(pretrain, harmful, rho=rho, seed=seed)
    if how == "ledoit_wolf":
        return ShrinkageChoice(ledoit_wolf(pretrain), ledoit_wolf(harmful), "ledoit_wolf")
    if isinstance(how, str):
        raise ValueError(f'shrinkage is a number, "auto" or "ledoit_wolf", not {how!r}')
    return ShrinkageChoice(float(how), float(how), "given")


def _spectrum(grams: list[Tensor], counts: list[int], chosen: ShrinkageChoice) -> GeneralizedSpectrum:
    shrinkage = (chosen.pretrain, chosen.harmful)
    return generalized_spectrum(grams[0], grams[1], n_samples=(counts[0], counts[1]), shrinkage=shrinkage)


def _fold_grams(x: Tensor, folds: int, seed: int) -> Tensor:
    """(folds, D, D): the Gram matrix of each of so many random parts of the rows."""
    if len(x) < 2 * folds:
        raise ValueError(f"{len(x)} rows are too few for {folds} folds of at least 2: give shrinkage as a number")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    return torch.stack([x[rows].T @ x[rows] for rows in order.tensor_split(folds)])


def _in_joint_range(parts: list[Tensor], sets: list[Tensor]) -> list[Tensor]:
    """The same matrices in an orthonormal basis of the directions that any sample has: fewer columns, same spectra."""
    size = sets[0].shape[1]
    grams = [part.sum(0) for part in parts]
    values, vectors = eigh(torch.stack([gram / gram.trace() for gram in grams]).sum(0))
    basis = vectors[:, values > default_tolerance(sum(len(x) for x in sets), size) * values[-1]]
    return [basis.T @ part @ basis for part in parts] if basis.shape[1] < size else parts


def _split(x: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """A random part of the rows, of the given fraction, and the others."""
    if not 0 < fraction < 1:
        raise ValueError(f"validation_fraction lies between 0 and 1, it is {fraction}")
    held = max(2, round(fraction * len(x)))
    if len(x) - held < 2:
        raise ValueError(f"{len(x)} rows are too few to split: give validation=, or budget as a number")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    return x[order[:held]], x[order[held:]]


def row_set(x: Array, name: str, width: int | None = None) -> Tensor:
    """A data set (N, D) as a float64 tensor; arguments and errors as :func:`row_sets`, which takes several."""
    try:
        given = x.detach() if isinstance(x, Tensor) else np.asarray(x)
    except ValueError:  # matrices of different sizes
        raise ValueError(f"{name} has to be one matrix (rows, columns), and is several") from None
    if given.is_complex() if isinstance(given, Tensor) else np.iscomplexobj(given):
        raise ValueError(f"{name} holds complex numbers")
    rows = given if isinstance(given, Tensor) else torch.from_numpy(np.array(given, dtype=np.float64))
    rows = rows.to(device="cpu", dtype=torch.float64)
    check_matrix(rows, name)
    if not bool(rows.any()):
        raise ValueError(f"{name} is a matrix of zeros, which has no condition number")
    check_squares(rows, name)
    if width is not None and rows.shape[1] != width:
        raise ValueError(f"{name} has {rows.shape[1]} features and D_P has {width}: one map serves both")
    return rows


def row_sets(x: Rows, name: str, width: int | None = None) -> list[Tensor]:
    """One or several data sets as float64 tensors.

    Args:
        x: array or tensor of real numbers (N, D), or a list of them.
        name: in messages.
        width: D, if known.

    Raises:
        ValueError: rows that are empty, not finite, all zero, of other widths or of numbers that cannot be squared, or
            no data set.
    """
    if isinstance(x, list | tuple) and not x:
        raise ValueError(f"{name} is an empty list: at least one harmful data set is needed")
    return [row_set(one, name, width) for one in (x if isinstance(x, list | tuple) else [x])]
