"""T2: least squares by conjugate gradients on the normal equations, with an intercept; stopping early regularizes.

For all outputs at once: XᵀXW = XᵀY is one linear system in W. In the principal axes of the rows XᵀX is diagonal, so
that the iterates of SciPy's solver cost vectors instead of passes over the rows, as those of T0 do. The error shrinks
like ((√κ - 1)/(√κ + 1))^t, where gradient descent has κ. A product is right here to the last bit of every direction; an
attacker whose passes are rounded relative to σ_1 gets less far on ill-conditioned features, never farther.

Shapes: C outputs, k axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from immunize.evaluation.attacks.coordinates import pass_over, principal
from immunize.evaluation.attacks.curves import look_steps
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.scoring import Meter, target_matrix

__all__ = ["ConjugateGradient"]

CONVERGED = 1e-12
"""Residual of the normal equations, relative to XᵀY, below which nothing is left to gain."""


@dataclass(frozen=True, kw_only=True)
class ConjugateGradient(Attack):
    """Conjugate gradients on the squared loss."""

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Iterate until the budget is spent or the system is solved; nothing is random."""
        seen, per_step = principal(data, centred=True), pass_over(data)
        scale = float(seen.axes.sigma[0]) or 1.0
        rhs = seen.data.train.x.T @ (target_matrix(data, data.train) - seen.offset) / scale
        diagonal = np.repeat((seen.axes.sigma / scale) ** 2, data.n_outputs)
        limit = budget.affordable(per_step.flops, 1.0)
        looks = set(look_steps(limit))
        meter = Meter(seen.data, "conjugate gradients", per_step)
        steps = 0

        def look(w: Array, force: bool = False) -> None:
            nonlocal steps
            steps += not force
            if steps in looks or force:
                weights = w.reshape(rhs.shape) / scale
                meter.look(max(steps, 1), lambda rows: rows @ weights + seen.offset)

        normal = LinearOperator((diagonal.size, diagonal.size), matvec=lambda w: diagonal * w, dtype=diagonal.dtype)
        found, _ = cg(normal, rhs.ravel(), rtol=CONVERGED, maxiter=limit, callback=look)
        if steps not in looks:  # converged between two looks
            look(found, force=True)
        return Outcome((meter.trace(),))
