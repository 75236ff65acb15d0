"""Erasing with ρ and the rank chosen on rows set aside: as much of D_H's labels as D_P can do without.

ρ   "auto": with labels of D_P, of `SHRINKAGES` the one with which a ridge probe of D_P does best on rows that neither
    the map nor the probe has seen; without labels Ledoit and Wolf's.
k   all directions; with labels of D_P halved until that probe has lost no more than it may.

How well a probe does is its correlation with the targets (`separability`), so that classes and targets are alike.

Shapes: N samples, D features, k directions.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunize.spectrum.erasing import (
    SAME_DATA,
    Erasure,
    covariance,
    directions_of,
    erasing_map,
    leading,
    ridge_weights,
    root_of,
    same_data,
    taking,
)
from immunize.spectrum.ranges import within_span
from immunize.spectrum.separability import (
    correlation,
    cross_fitted_correlation,
    folds_of,
    in_halves,
    ridge_solutions,
    scaled_targets,
)
from immunize.spectrum.shrinkage import Array, ledoit_wolf, row_set, row_sets

Labelled = tuple[Tensor, Tensor]
"""(N, D) float64 features, and (N,) class numbers or targets."""

SHRINKAGES = (1e-3, 1e-2, 1e-1, 1.0)
"""ρ that "auto" tries (ours)."""

PROBES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""ρ of the probes; where rows are few, a probe of D_P needs the larger ones (ours)."""

FOLDS, MANY_ROWS = 3, 4
"""A third of the rows is set aside; in turn, where D_P has fewer rows than this many a feature (ours)."""

FEW = 20
"""So many whole values of a floating-point type may well be labels of classes (ours)."""

LEAST_ROWS = 2 * FOLDS
"""Of D_P with labels, two in a third."""

SPANNING = 1e-8
"""Rows whose covariance has no smaller pivot, relative to its mean variance, span everything beyond doubt."""

LEFT = 1e-6
"""Share of the variance behind a map; of less, second moments, which are squares, have too few digits (ours)."""

JUDGED_ROWS = 3000
"""Most rows of a data set that a choice is made by; more take seconds and decide nothing (ours)."""


NO_LABELS = "erasing needs labels of D_H, two at least; method=ours and method=closed_form look at the features alone"


NO_ROW_JUDGES = (
    "no row of D_P lies in the span of the others, so that none can judge a map: D_P has too few rows for so many "
    "features; give rank and shrinkage"
)


@dataclass(frozen=True)
class EraseTrial:
    """One map on rows set aside: the correlation of a ridge probe with the targets, at the probe's best ρ.

    Attributes:
        rank: k of each harmful data set; 0 for the features as they are.
        shrinkage: ρ of the map.
        pretrain: of a probe of D_P.
        harmful: of a probe of D_H that is fitted and judged on rows the map has not seen; of several sets the largest;
            None for a map that was not chosen.
    """

    rank: int
    shrinkage: float
    pretrain: float
    harmful: float | None = None


@dataclass(frozen=True)
class ChosenErasure(Erasure):
    """An :class:`~immunize.spectrum.erasing.Erasure` from all rows, and how its rank and ρ were chosen.

    Attributes:
        available: the directions that the labels of D_H use.
        shrinkage_chosen_by: "given", "ledoit_wolf" or "auto".
        trials: first the features as they are, last what was chosen; empty without labels of D_P.
        feasible: whether D_P lost no more than it may; None without labels of D_P.
    """

    available: int
    shrinkage_chosen_by: str
    trials: tuple[EraseTrial, ...]
    feasible: bool | None


def erase(
    x_pretrain: Array,
    x_harmful: Array | list[Array],
    y_harmful: Array | list[Array],
    *,
    y_pretrain: Array | None = None,
    rank: int | None = None,
    shrinkage: float | str = "auto",
    slack: float = 0.02,
    protect: bool = False,
    seed: int = 0,
) -> ChosenErasure:
    """Erase what a linear probe can learn of D_H's labels; D_P changes as little as that allows.

        r = immunize.erase(X_p, X_h, y_h)
        released = X @ r.matrix + r.offset

    Args:
        x_pretrain: (N_P, D) real numbers, array or tensor.
        x_harmful: (N_H, D), or a list of several data sets, all of which are erased.
        y_harmful: (N_H,), or a list: an integer type holds classes, a floating-point one the target of a regression.
        y_pretrain: (N_P,) labels of D_P, by which rank and ρ are chosen and its classifier is protected.
        rank: k, of several sets of each; None: see above.
        shrinkage: ρ ≥ 0 of K_P + ρ·tr(K_P)/D·I, or "auto", see above.
        slack: what D_P's ridge probe may lose in correlation with its targets.
        protect: leave the outputs of a ridge probe of D_P as they are on every x, whatever that leaves to D_H.
        seed: of the rows set aside.

    Warns:
        UserWarning: a target that looks like labels of classes.

    Raises:
        TypeError: a rank that is no whole number, or a shrinkage or slack that is none at all.
        ValueError: a setting outside its range, rows or labels that do not fit, constant features, D_H without labels,
            with one or one for every image, a rank that is not below D, a singular K_P, D_P and D_H the same data,
            labels of D_P with too few rows to judge a map by, or protection without labels, or that leaves nothing to
            erase.
    """
    check_choice(rank, shrinkage, slack)
    pretrain = row_set(x_pretrain, "x_pretrain")
    harmful = row_sets(x_harmful, "x_harmful", pretrain.shape[1])
    given: list[Any] = list(y_harmful) if isinstance(x_harmful, list | tuple) else [y_harmful]
    if len(given) != len(harmful):
        raise ValueError(f"{len(harmful)} harmful data sets and {len(given)} sets of labels")
    sets = [(x, _labels(y, len(x), "y_harmful")) for x, y in zip(harmful, given, strict=True)]
    for _, labels in sets:
        values = torch.unique(labels)
        if labels.is_floating_point() and 2 < len(values) <= FEW and bool((values == values.round()).all()):
            warnings.warn(
                f"y_harmful has {len(values)} whole values of a floating-point type: it is taken for a target, of "
                "which one direction goes; labels of classes have to be of an integer type",
                stacklevel=2,
            )
        if not labels.is_floating_point() and len(values) == len(labels) > 2:
            raise ValueError(
                f"every class of D_H has one image, so that nothing tells a class from an image: {NO_LABELS}"
            )
    y = None if y_pretrain is None else _labels(y_pretrain, len(pretrain), "y_pretrain")
    if y is not None and any(same_data([(pretrain, y)], [one]) for one in sets):
        raise ValueError(SAME_DATA)
    if y is not None and bool((y == y[0]).all()):
        y = None  # one label says nothing of what D_P may lose
    if protect and y is None:
        raise ValueError("protection needs labels of D_P that differ: they say what its classifier needs")
    chosen = rank is not None and not isinstance(shrinkage, str)
    if y is not None and not chosen and len(pretrain) < LEAST_ROWS:
        raise ValueError(
            f"D_P has too few rows, {len(pretrain)}, to judge a map by some of them, which takes {LEAST_ROWS}; give "
            "rank and shrinkage"
        )
    directions = [directions_of(x, labels) for x, labels in sets]
    size, available = pretrain.shape[1], sum(of.shape[1] for of in directions)
    if (rank or available) >= size:
        wanted = f"rank is {rank}" if rank is not None else f"the labels of D_H use {available} directions"
        raise ValueError(f"{wanted}, but it has to be below the {size} features; give another rank")

    how = "given"
    if isinstance(shrinkage, str):
        how = "ledoit_wolf" if y is None else "auto"
        shrinkage = ledoit_wolf(pretrain - pretrain.mean(0)) if y is None else shrinkage
    trials: list[EraseTrial] = []
    feasible = None
    if y is not None:
        with contextlib.suppress(*((ValueError,) if chosen else ())):  # of rows that can judge nothing
            judge = _Judge((pretrain, y), sets, protect, seed)
            trials, feasible = judge.choose(rank, SHRINKAGES if isinstance(shrinkage, str) else (shrinkage,), slack)
            best_rank, shrinkage = trials[-1].rank, trials[-1].shrinkage
            if rank is None and best_rank < judge.full:  # else all: classes may be too rare to be judged by
                rank = best_rank
    weights = ridge_weights(pretrain, y, "D_P") if protect and y is not None else None
    best = erasing_map(pretrain, leading(directions, rank), float(shrinkage), protected=weights)
    return ChosenErasure(
        **vars(best), available=available, shrinkage_chosen_by=how, trials=tuple(trials), feasible=feasible
    )


def check_choice(rank: Any, shrinkage: Any, slack: Any, prefix: str = "") -> None:
    """Check settings of :func:`erase`, whose names begin with `prefix` in messages.

    Raises:
        TypeError: a rank that is no whole number, or a shrinkage or slack that is none at all.
        ValueError: a value outside its range.
    """
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, Integral)):
        raise TypeError(f"{prefix}rank has to be a whole number, or nothing, it is {rank!r}")
    if rank is not None and rank < 1:
        raise ValueError(f"{prefix}rank has to be at least 1, or nothing, it is {rank}")
    if isinstance(shrinkage, str) and shrinkage != "auto":
        raise ValueError(f'{prefix}shrinkage has to be a number, or "auto", it is {shrinkage!r}')
    for name, value in {"slack": slack, **({} if shrinkage == "auto" else {"shrinkage": shrinkage})}.items():
        if not isinstance(value, Real):
            raise TypeError(f"{prefix}{name} has to be a number, it is {value!r}")
        if not 0 <= float(value) < math.inf:
            raise ValueError(f"{prefix}{name} has to be a finite number ≥ 0, it is {value}")


class _Judge:
    """D_P and D_H with rows set aside.

    Args:
        pretrain: D_P.
        sets: each harmful data set.
        protect: whether D_P's classifier is.
        seed: of the rows.
    """

    def __init__(self, pretrain: Labelled, sets: Sequence[Labelled], protect: bool, seed: int) -> None:
        self.x, self.y = _fewer(pretrain, seed)
        self.folds = folds_of(self.y, FOLDS, seed)
        self.turns = FOLDS if len(self.y) < MANY_ROWS * self.x.shape[1] else 1
        fitted = [self.folds != fold for fold in range(self.turns)]
        self.grams = [covariance(self.x[rows], "D_P") for rows in fitted]  # no ρ changes them
        self.moments = [_Moments(self.x, self.y, rows, k) for rows, k in zip(fitted, self.grams, strict=True)]
        self.weights = [ridge_weights(self.x[rows], self.y[rows], "D_P") if protect else None for rows in fitted]
        self.seed = seed
        self.sets = [(x, y, _held(y, seed)) for x, y in (_fewer(one, seed) for one in sets)]
        self.directions = [directions_of(x[~held], y[~held]) for x, y, held in self.sets]
        self.full = max(of.shape[1] for of in self.directions)

    def choose(self, rank: int | None, shrinkages: Sequence[float], slack: float) -> tuple[list[EraseTrial], bool]:
        """The trials and whether D_P lost no more than `slack`."""
        raw = EraseTrial(0, 0.0, self.pretrain(None), self.harmful(None))
        trials = [self.trial(min(rank or self.full, self.full), rho) for rho in shrinkages]
        best = max(trials, key=lambda trial: trial.pretrain)
        while rank is None and raw.pretrain - best.pretrain > slack and best.rank > 1:
            trials.append(best := self.trial(best.rank // 2, best.shrinkage))
        chosen = EraseTrial(best.rank, best.shrinkage, best.pretrain, self.harmful(self.map(best, 0)))
        return [raw, *(one for one in trials if one != best), chosen], raw.pretrain - best.pretrain <= slack

    def trial(self, rank: int, shrinkage: float) -> EraseTrial:
        """What a map costs D_P."""
        return EraseTrial(rank, shrinkage, self.pretrain(EraseTrial(rank, shrinkage, 0.0)))

    def taking(self, of: EraseTrial | None, fold: int) -> tuple[Tensor, Tensor]:
        """M of the map without the rows set aside, as :func:`taking` has it; None takes nothing."""
        gram = self.grams[fold]
        if of is None:
            return gram[:, :0], gram[:0]
        return taking(root_of(gram, of.shrinkage), leading(self.directions, of.rank), self.weights[fold])

    def map(self, of: EraseTrial | None, fold: int) -> Callable[[Tensor], Tensor]:
        """The map without the rows set aside."""
        left, right = self.taking(of, fold)
        mean = self.x[self.folds != fold].mean(0)
        return lambda x: x - ((x - mean) @ left) @ right

    def pretrain(self, of: EraseTrial | None) -> float:
        """A probe of D_P, fitted on what the map was computed from, on the rows set aside."""
        found = []
        for fold, rows in enumerate(self.moments):
            c = rows.correlation(self.taking(of, fold))
            if c is None:
                c = cross_fitted_correlation(self.map(of, fold)(rows.x), rows.y, rows.judged, PROBES)
            found.append(c)
        return float(torch.stack(found).mean(0).max())

    def harmful(self, r: Callable[[Tensor], Tensor] | None) -> float:
        """Probes of D_H on one half of the rows set aside, fitted on the other."""
        found = []
        for x, y, held in self.sets:
            seen = x[held] if r is None else r(x[held])
            found.append(float(in_halves(cross_fitted_correlation, seen, y[held], PROBES, self.seed).max()))
        return max(found)


class _Moments:
    """What a linear probe takes from the rows that it is fitted on and from those that it is judged on.

    Args:
        x: (N, D) rows; those outside the span of the fitted ones are left out.
        y: (N,) labels or a target.
        fitted: (N,) bool; the others judge.
        gram: covariance of the fitted ones.

    Raises:
        ValueError: all that are to judge leave that span.
    """

    def __init__(self, x: Tensor, y: Tensor, fitted: Tensor, gram: Tensor) -> None:
        within = _within_range(x, fitted, gram)
        self.x, self.y, self.judged = x[within], y[within], ~fitted[within]
        if not bool(self.judged.any()):
            raise ValueError(NO_ROW_JUDGES)
        columns = scaled_targets(self.y)
        sides = [
            (self.x[of] - self.x[of].mean(0), columns[of] - columns[of].mean(0)) for of in (~self.judged, self.judged)
        ]
        (self.gram, self.right), (self.judging, self.wanted) = ((f.T @ f, f.T @ of) for f, of in sides)
        self.count, self.scale = min(sides[0][0].shape), sides[1][1].square().sum()

    def correlation(self, taken: tuple[Tensor, Tensor]) -> Tensor | None:
        """As :func:`cross_fitted_correlation` of `PROBES` has it, behind the map I - M; None: too little is left."""
        left, right = taken
        gram = self.gram - (self.gram @ left) @ right
        gram = gram - right.T @ (left.T @ gram)
        if not bool(self.scale) or not float(gram.trace()) > LEFT * float(self.gram.trace()):
            return None
        rhos = [rho * len(gram) / self.count for rho in PROBES]
        weights = ridge_solutions(gram, self.right - right.T @ (left.T @ self.right), rhos)
        weights = weights - left @ (right @ weights)
        inner, size = (weights * self.wanted).sum((1, 2)), (weights * (self.judging @ weights)).sum((1, 2))
        return correlation(inner, size, self.scale, self.x)


def _within_range(x: Tensor, fitted: Tensor, gram: Tensor) -> Tensor:
    """Rows that do not leave the span of those that a map is fitted on, whose covariance is `gram`.

    The others, a category that no fitted row has, say nothing of a map that has seen all rows.
    """
    root, failed = torch.linalg.cholesky_ex(gram)
    if not int(failed) and float(root.diagonal().min()) ** 2 > SPANNING * float(gram.diagonal().mean()):
        return torch.ones(len(x), dtype=torch.bool)
    return within_span(x, fitted)


def _held(y: Tensor, seed: int) -> Tensor:
    """A third of the rows, (N,) bool; of a label that the others would be without none."""
    held = folds_of(y, FOLDS, seed) == 0
    same = y == y[~held][0]
    return held & same if bool(same[~held].all() and (held & same).any()) else held


def _fewer(of: Labelled, seed: int) -> Labelled:
    """As many rows as a choice needs."""
    x, y = of
    kept = folds_of(y, math.ceil(len(y) / JUDGED_ROWS), seed) == 0
    return x[kept], y[kept]


def _labels(y: Array | None, count: int, name: str) -> Tensor:
    if y is None:
        raise ValueError(f"{name} is missing: {NO_LABELS}")
    if not isinstance(y, Tensor) and (kind := np.asarray(y).dtype).kind not in "biuf":
        raise ValueError(
            f"{name} has to hold numbers, and they are {kind.name}; np.unique({name}, return_inverse=True)[1] numbers "
            "the classes of names"
        )
    labels = y.detach().cpu() if isinstance(y, Tensor) else torch.from_numpy(np.array(y))
    if labels.shape != (count,):
        raise ValueError(f"{name} has the shape {tuple(labels.shape)}, and there are {count} rows")
    if not labels.is_floating_point():
        return labels.long()
    if not bool(torch.isfinite(labels).all()):
        raise ValueError(f"{name} contains NaN or infinite values")
    return labels.double()
