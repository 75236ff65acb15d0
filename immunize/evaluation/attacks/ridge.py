"""T2: ridge regression in closed form over a grid of penalties, with an intercept; classes by one-hot targets.

    W(λ) = V diag(σ/(σ² + λ)) Uᵀ Y,    X - mean = UΣVᵀ

One singular value decomposition serves the whole grid. λ is in units of σ_1², and the grid reaches far down: on
features of condition number κ, directions below √(λ/σ_1²) are lost.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import numpy as np

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.factoring import thin_svd
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.scoring import Meter, target_matrix

__all__ = ["Ridge"]


@dataclass(frozen=True, kw_only=True)
class Ridge(Attack):
    """Ridge regression; one step, the closed form.

    Attributes:
        penalties: the grid of λ/σ_1².

    Raises:
        UserError: an empty grid, or a penalty that is not positive.
    """

    penalties: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.penalties or min(self.penalties) <= 0:
            raise UserError("the grid of penalties has to hold at least one number, and positive ones")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Solve for every penalty; nothing is random. A closed form is not cut short by the budget."""
        started = time.perf_counter()
        x, y = data.train.x, target_matrix(data, data.train)
        mean, offset = x.mean(axis=0), y.mean(axis=0)
        u, sigma, vt = thin_svd(x - mean)
        projected = u.T @ (y - offset)
        n, d = x.shape
        # Golub and Van Loan: 4·N·D² + 8·D³ for the thin decomposition of an N×D matrix, N ≥ D; or of its transpose.
        long, short = max(n, d), min(n, d)
        flops = 4.0 * long * short**2 + 8.0 * short**3 + 2.0 * x.size * y.shape[1]
        once = Cost(1, time.perf_counter() - started, n, flops)
        traces = []
        for penalty in self.penalties:
            coordinates = (sigma / (sigma**2 + penalty * sigma[0] ** 2))[:, None] * projected
            meter = Meter(data, f"λ {penalty:g}·σ₁²", once)
            meter.look(1, functools.partial(_outputs, mean, vt.T, coordinates, offset))
            traces.append(meter.trace())
        return Outcome(tuple(traces))


def _outputs(mean: Array, basis: Array, coordinates: Array, offset: Array, x: Array) -> Array:
    return np.asarray((x - mean) @ basis @ coordinates + offset)
