"""T2: least squares by conjugate gradients on the normal equations, with an intercept; stopping early regularizes.

Solved by SciPy for all outputs at once: XᵀXW = XᵀY is one linear system in W, with the eigenvalues of XᵀX. The error
shrinks like ((√κ - 1)/(√κ + 1))^t, where gradient descent has κ.
"""

from __future__ import annotations

import math
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
        seen = principal(data, centred=True)
        scale = float(seen.axes.sigma[0]) / math.sqrt(len(data.train)) or 1.0
        x, y = seen.data.train.x / scale, target_matrix(data, data.train)
        shape = (x.shape[1], data.n_outputs)
        per_step = pass_over(data)
        limit = budget.affordable(per_step.flops, 1.0)
        looks = set(look_steps(limit))
        meter = Meter(seen.data, "conjugate gradients", per_step)
        steps = 0

        def look(w: Array, force: bool = False) -> None:
            nonlocal steps
            steps += not force
            if steps in looks or force:
                weights = np.array(w).reshape(shape) / scale
                meter.look(max(steps, 1), lambda rows: rows @ weights + seen.offset)

        size = shape[0] * shape[1]
        normal = LinearOperator((size, size), matvec=lambda w: (x.T @ (x @ w.reshape(shape))).ravel(), dtype=x.dtype)
        found, _ = cg(normal, (x.T @ (y - seen.offset)).ravel(), rtol=CONVERGED, maxiter=limit, callback=look)
        if steps not in looks:  # converged between two looks
            look(found, force=True)
        return Outcome((meter.trace(),))
