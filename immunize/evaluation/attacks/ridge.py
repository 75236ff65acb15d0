"""T2: ridge regression in closed form over a grid of penalties, with an intercept; classes by one-hot targets.

    W(λ) = V diag(σ/(σ² + λ)) Uᵀ Y,    X - mean = UΣVᵀ

One singular value decomposition serves the whole grid. λ is in units of σ_1², and the grid reaches far down: on
features of condition number κ, directions below √(λ/σ_1²) are lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import Principal, principal
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.scoring import Meter

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
        seen = principal(data, centred=True)
        axes, (n, d) = seen.axes, data.train.x.shape
        # Golub and Van Loan: 4·N·D² + 8·D³ for the thin decomposition of an N×D matrix, N ≥ D; or of its transpose.
        long, short = max(n, d), min(n, d)
        flops = 4.0 * long * short**2 + 8.0 * short**3 + 2.0 * n * d * data.n_outputs
        once = Cost(1, axes.seconds, n, flops)
        weights = np.hstack([_solution(seen, penalty) for penalty in self.penalties])  # one product for the whole grid
        measured = seen.data.validation.x, seen.data.test.x
        with np.errstate(all="ignore"):
            outputs = [np.hsplit(x @ weights, len(self.penalties)) for x in measured]
        traces = []
        for at, penalty in enumerate(self.penalties):
            meter = Meter(seen.data, f"λ {penalty:g}·σ₁²", once)
            meter.note(1, lambda at=at: [of_rows[at] + seen.offset for of_rows in outputs])  # type: ignore[misc]
            traces.append(meter.trace())
        return Outcome(tuple(traces))

    def fitted(self, data: AttackData) -> tuple[Array, Array, Cost]:
        """The solution that the validation rows choose, and what it cost; of equals the larger penalty.

        Returns:
            W (D, C), b (C,) for the features as they come, and the cost.
        """
        seen, traces = principal(data, centred=True), self.run(data, Budget(1), 0).traces
        scores = [max((point.validation for point in trace.points), default=-math.inf) for trace in traces]
        _, penalty = max(zip(scores, self.penalties, strict=True))
        weights = seen.axes.basis @ _solution(seen, penalty)
        return weights, seen.offset - seen.axes.mean @ weights, traces[0].spent


def _solution(seen: Principal, penalty: float) -> Array:
    """V's coordinates of W(λ), (k, C); 0 for rows that are all the same."""
    sigma = seen.axes.sigma
    if not sigma[0] > 0:
        return np.zeros_like(seen.targets)
    return np.asarray((sigma / (sigma**2 + penalty * sigma[0] ** 2))[:, None] * seen.targets)
