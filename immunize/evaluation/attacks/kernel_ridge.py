"""T3: kernel ridge regression with a Gaussian kernel, in its dual form: a head that is not linear, in closed form.

    k(x, z) = exp(-|x - z|²/(w m)),    α(w, λ) = (K + λI)⁻¹ Y,    outputs k(x, X)α + offset

with m the median squared distance of training rows. Distances see the features' spread as it is, so that they are taken
on the features themselves and on standardized ones, as for neighbours. Every λ is one Cholesky factor of K.

Shapes: N training rows, M rows that are asked for, D features, C outputs.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import principal
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.repaired import standardized
from immunize.evaluation.attacks.scoring import Meter, target_matrix

__all__ = ["KernelRidge"]

ASKED = 500
"""Training rows of which distances to all others are looked at for the median."""


@dataclass(frozen=True, kw_only=True)
class KernelRidge(Attack):
    """Kernel ridge regression; one step, the closed form.

    Attributes:
        widths: the grid of w, multiples of the median squared distance.
        penalties: the grid of λ; k(x, x) is 1.
        max_rows: training rows that it takes at most, drawn at random: its cost grows with the cube of their number.

    Raises:
        UserError: an empty grid, a number that is not positive, or fewer than two rows.
    """

    widths: tuple[float, ...]
    penalties: tuple[float, ...]
    max_rows: int = 4000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, grid in (("widths", self.widths), ("penalties", self.penalties)):
            if not grid or min(grid) <= 0:
                raise UserError(f"the grid of {name} has to hold at least one number, and positive ones")
        if self.max_rows < 2:
            raise UserError(f"kernel ridge regression needs 2 rows or more, not {self.max_rows}")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Solve for every width and penalty; the seed draws the rows. A closed form is not cut short by the budget."""
        n = min(len(data.train), self.max_rows)
        chosen = np.sort(np.random.default_rng(seed).permutation(len(data.train))[:n])
        y = target_matrix(data, data.train)[chosen]
        offset = y.mean(axis=0)
        flops = 2.0 * n * n * data.n_features + n**3 / 3 + 2.0 * n * n * data.n_outputs
        traces = []
        for name, view in (("features", data), ("standardized", standardized(data))):
            seen = principal(view).data  # in principal axes a row only loses what is the same for all training rows
            started = time.perf_counter()
            x = seen.train.x[chosen]
            among = _distances(x, x)
            scale = float(np.median(among[:: -(-n // ASKED)])) or 1.0
            seconds = time.perf_counter() - started
            asked = [_distances(part.x, x) for part in (seen.validation, seen.test)]
            for width in self.widths:
                started = time.perf_counter()
                kernel = np.exp(among / (-width * scale))
                own = seconds + time.perf_counter() - started
                answering = [np.exp(of / (-width * scale)) for of in asked]
                for penalty in self.penalties:
                    started = time.perf_counter()
                    factor = cho_factor(kernel + penalty * np.eye(n), lower=True, overwrite_a=True, check_finite=False)
                    alpha = cho_solve(factor, y - offset, check_finite=False)
                    cost = Cost(1, own + time.perf_counter() - started, n, flops)
                    meter = Meter(seen, f"width {width:g}, λ {penalty:g}, {name}", cost)
                    meter.note(1, functools.partial(list, [of @ alpha + offset for of in answering]))
                    traces.append(meter.trace())
        return Outcome(tuple(traces))


def _distances(asked: Array, x: Array) -> Array:
    """(M, N) squared Euclidean distances, none below zero."""
    found = asked @ (-2 * x.T)
    found += np.square(asked).sum(axis=1)[:, None]
    found += np.square(x).sum(axis=1)
    return np.maximum(found, 0, out=found)
