"""T3: attacks by distances between rows, k nearest neighbours and kernel ridge regression.

Distances see the features' spread as it is, so they are taken on the features themselves and on standardized ones.

Nearest neighbours search all training rows; there are no weights and no condition number. Distances are float32, of
features of size one: a rounding of 1e-7 decides between neighbours that are equally near.

Kernel ridge regression with a Gaussian kernel is a head that is not linear, in closed form, here its dual one:

    k(x, z) = exp(-|x - z|²/(w m)),    α(w, λ) = (K + λI)⁻¹ Y,    outputs k(x, X)α + offset

with m the median squared distance of training rows. These distances are float64: rounded to float32 they made kernels
of rows that lie close together indefinite. Every λ is one Cholesky factor of K, whose cost grows with the cube of the
rows: where there are many, all are tried on some of the rows, and the best few, by validation, on all of them.

Shapes: N training rows, M rows that are asked for, D features, C outputs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import principal
from immunize.evaluation.attacks.curves import Cost, Trace, best_validation
from immunize.evaluation.attacks.network import Numbers
from immunize.evaluation.attacks.prepared import standardized
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.scoring import target_matrix, trace_of_one_step
from immunize.evaluation.products import products, quotient

METRICS = ("euclidean", "cosine")
"""Of nearest neighbours, all of which are tried."""

TOGETHER = 2**22
"""Distances that are held at once: 16 MiB."""


@dataclass(frozen=True, kw_only=True)
class NearestNeighbours(Attack):
    """k nearest neighbours.

    Attributes:
        neighbours: the grid of k; those above N are left out.

    Raises:
        UserError: an empty grid, or k < 1.
    """

    neighbours: tuple[int, ...]
    grids: ClassVar[tuple[str, ...]] = ("neighbours",)
    version: ClassVar[int] = 1  # one product for both metrics

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Remember the training rows; the cost is that of answering for the test rows, one search for all k."""
        n = len(data.train)
        ks = [k for k in self.neighbours if k <= n] or [1]
        flops = 2.0 * len(data.test) * data.train.x.size
        traces = []
        for name, seen in (("features", data), ("standardized", standardized(data))):
            rows = principal(seen).data  # in principal axes a row only loses what is the same for all training rows
            started = time.perf_counter()
            test = nearest(rows.train.x, rows.test.x, max(ks))
            seconds = (time.perf_counter() - started) / len(METRICS)
            validation = nearest(rows.train.x, rows.validation.x, max(ks))
            for metric in METRICS:
                for k in ks:
                    answers = [_answers(rows, of[metric][:, :k]) for of in (validation, test)]
                    cost = Cost(1, seconds, n, flops)
                    traces.append(trace_of_one_step(rows, f"k {k}, {metric}, {name}", cost, answers))
        return Outcome(tuple(traces))


def nearest(train: Array, asked: Array, k: int) -> dict[str, Numbers]:
    """(M, k) numbers of training rows by metric, the nearest first; one product of matrices serves all metrics.

    A row of zeros counts as one of cosine ½.

    Args:
        train: (N, D).
        asked: (M, D).
        k: at most N.
    """
    size = float(np.abs(train).max()) or 1.0
    x, others = (quotient(rows, size) for rows in (train, asked))
    squares = x.square().sum(dim=1)
    zero = squares == 0
    lengths = torch.where(zero, 1.0, squares.sqrt())
    found: dict[str, list[Tensor]] = {metric: [] for metric in METRICS}
    for rows in others.tensor_split(max(1, round(len(others) * len(x) / TOGETHER))):
        both = products(rows, x)
        for metric in METRICS:
            if metric == "euclidean":  # less the length of the asked row, the same for all training rows
                far = torch.add(squares, both, alpha=-2)
            else:
                far = both / -lengths
                far[:, zero] = -0.5 * rows.norm(dim=1, keepdim=True)
            found[metric].append(far.topk(k, dim=1, largest=False).indices)  # of equals in any order that stays
    return {metric: torch.cat(parts).numpy() for metric, parts in found.items()}


def _answers(data: AttackData, nearest: Numbers) -> Array:
    """(M, C): the share of each class among the neighbours, or the mean of their targets."""
    if not data.n_classes:
        return np.asarray(target_matrix(data, data.train)[nearest].mean(axis=1))
    rows = np.arange(len(nearest))[:, None] * data.n_classes + data.train.y[nearest].astype(np.int64)
    votes = np.bincount(rows.ravel(), minlength=len(nearest) * data.n_classes)
    return np.asarray(votes.reshape(len(nearest), data.n_classes) / nearest.shape[1])


_Candidate = tuple[str, float, float]
"""View, width and penalty."""

ASKED = 500
"""Training rows of which distances to all others are looked at for the median."""


@dataclass(frozen=True, kw_only=True)
class KernelRidge(Attack):
    """Kernel ridge regression; one step, the closed form.

    Attributes:
        widths: the grid of w, multiples of the median squared distance.
        penalties: the grid of λ; k(x, x) is 1.
        max_rows: training rows that it takes at most, drawn at random.
        first_rows: of these, on which the whole grid is tried; all where there are fewer.
        keep: of the grid, go on to all of them.

    Raises:
        UserError: an empty grid, a number that is not positive, or fewer than two rows.
    """

    widths: tuple[float, ...]
    penalties: tuple[float, ...]
    max_rows: int = 4000
    first_rows: int = 1000
    keep: int = 2
    grids: ClassVar[tuple[str, ...]] = ("widths", "penalties")
    version: ClassVar[int] = 4  # 0 took all of the grid to the end; 1 had float32 distances; 2 lost lengths; 3 rounded

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.max_rows, self.first_rows) < 2:
            raise UserError(f"kernel ridge regression needs 2 rows or more, not {min(self.max_rows, self.first_rows)}")
        if self.keep < 1:
            raise UserError("kernel ridge regression has to keep 1 of its grid or more")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Solve for every width and penalty; the seed draws the rows. A closed form is not cut short by the budget."""
        drawn = np.random.default_rng(seed).permutation(len(data.train))[: self.max_rows]
        views = {"features": data, "standardized": standardized(data)}
        grid = list(itertools.product(views, self.widths, self.penalties))
        traces = []
        if len(drawn) > self.first_rows and len(grid) > self.keep:
            traces = self._solve(views, grid, np.sort(drawn[: self.first_rows]))
            best = sorted(
                range(len(grid)), key=lambda at: -best_validation(traces[at].points)
            )  # stable: of equals the first
            grid = [grid[at] for at in sorted(best[: self.keep])]
        return Outcome((*traces, *self._solve(views, grid, np.sort(drawn))))

    def _solve(self, views: dict[str, AttackData], grid: Sequence[_Candidate], chosen: Numbers) -> list[Trace]:
        """One trace a candidate, in their order, from these training rows."""
        traces = []
        for name, of_view in itertools.groupby(grid, key=lambda one: one[0]):
            data = views[name]
            n = len(chosen)
            few = f" of {n:,} rows" if n < min(self.max_rows, len(data.train)) else ""
            y = target_matrix(data, data.train)[chosen]
            offset = y.mean(axis=0)
            flops = 2.0 * n * n * data.n_features + n**3 / 3 + 2.0 * n * n * data.n_outputs
            principals = principal(data)
            seen, axes = principals.data, principals.axes
            started = time.perf_counter()
            x = seen.train.x[chosen]
            middle = np.median(x, axis=0)  # of which distances know nothing, and would be rounded by its length
            x = x - middle
            among = _distances(x, x, _squares(x))
            scale = float(np.median(among[:: -(-n // ASKED)])) or 1.0
            seconds = time.perf_counter() - started
            # Of a row, principal axes leave out what no training row has, which is in its length.
            measured = ((data.validation, seen.validation), (data.test, seen.test))
            origin = axes.mean + axes.basis @ middle
            asked = [_distances(of.x - middle, x, _squares(whole.x - origin)) for whole, of in measured]
            for width, of_width in itertools.groupby(of_view, key=lambda one: one[1]):
                started = time.perf_counter()
                kernel = _kernel(among, width * scale)
                own = seconds + time.perf_counter() - started
                answering = [_kernel(of, width * scale) for of in asked]
                penalties = [penalty for *_, penalty in of_width]
                for number, penalty in enumerate(penalties, start=1):
                    started = time.perf_counter()
                    # symmetric, and as LAPACK overwrites it; the last time nobody needs it any more
                    shifted = kernel.T if number == len(penalties) else kernel.T.copy(order="F")
                    shifted.flat[:: n + 1] += penalty
                    factor = cho_factor(shifted, lower=True, overwrite_a=True, check_finite=False)
                    alpha = cho_solve(factor, y - offset, check_finite=False)
                    cost = Cost(1, own + time.perf_counter() - started, n, flops)
                    label = f"width {width:g}, λ {penalty:g}, {name}{few}"
                    outputs = [of @ alpha + offset for of in answering]
                    traces.append(trace_of_one_step(seen, label, cost, outputs))
        return traces


def _kernel(distances: Array, width: float) -> Array:
    """exp(-d/width), in one array; PyTorch's exponential takes a quarter of NumPy's time."""
    found = distances / -width
    torch.from_numpy(found).exp_()
    return found


def _squares(x: Array) -> Array:
    """(M,) squared lengths."""
    return np.asarray(np.square(x).sum(axis=1))


def _distances(asked: Array, x: Array, lengths: Array) -> Array:
    """(M, N) squared Euclidean distances, none below zero; `lengths` are the whole asked rows', squared, (M,)."""
    found = asked @ x.T  # half the work where both are the same
    found *= -2
    found += lengths[:, None]
    found += _squares(x)
    return np.maximum(found, 0, out=found)
