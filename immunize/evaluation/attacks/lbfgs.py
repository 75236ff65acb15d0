"""T2: logistic regression by L-BFGS over a grid of penalties, the linear probe of CLIP and DINOv2.

The solver is SciPy's L-BFGS-B, as in scikit-learn's LogisticRegression; here its iterates are looked at on the way.

`C` is that of scikit-learn for features divided by σ_1(X)/√N: λ = 1/(C·N).
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import minimize

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import Trace, look_steps
from immunize.evaluation.attacks.logistic import BudgetSpentError, Logistic
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome, Task
from immunize.evaluation.attacks.scoring import Meter


@dataclass(frozen=True, kw_only=True)
class Lbfgs(Attack):
    """Penalized logistic regression with an intercept, by L-BFGS or by Newton's method.

    Attributes:
        strengths: the grid of C; inverse penalties, as in scikit-learn.
        solver: of `scipy.optimize.minimize`: "L-BFGS-B", or "Newton-CG", Newton's method with the system solved by
            conjugate gradients. Each gradient and each curvature product is a step.

    Raises:
        UserError: an empty grid, or a C that is not positive.
    """

    strengths: tuple[float, ...]
    solver: str = "L-BFGS-B"
    grids: ClassVar[tuple[str, ...]] = ("strengths",)
    tasks: ClassVar[tuple[Task, ...]] = ("classification",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solver not in ("L-BFGS-B", "Newton-CG"):
            raise UserError(f"unknown solver {self.solver!r}; there are L-BFGS-B and Newton-CG")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Solve for every C with an equal share of the budget; nothing is random."""
        share = budget.share(len(self.strengths))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what SciPy says of a search that ended early is seen in the curve
            return Outcome(tuple(self._solve(data, share, strength) for strength in self.strengths))

    def _solve(self, data: AttackData, budget: Budget, strength: float) -> Trace:
        loss = Logistic(data, penalty=1 / (strength * len(data.train)))
        loss.limit = budget.affordable(loss.per_pass.flops, 1.0)
        meter = Meter(loss.seen, f"C {strength:g}", loss.per_pass)
        looks = look_steps(loss.limit)
        latest, looked_at = np.zeros(loss.shape[0] * loss.shape[1]), 0

        def look(w: Array) -> None:
            nonlocal latest, looked_at
            latest = w.copy()
            due = [step for step in looks if looked_at < step <= loss.passes]
            if due:
                looked_at = loss.passes
                meter.look(looked_at, loss.predictor(latest))
                if meter.over:
                    raise StopIteration  # what SciPy's solvers take for an end

        newton = self.solver == "Newton-CG"
        options = {"maxiter": loss.limit} | ({} if newton else {"maxfun": loss.limit, "ftol": 0.0, "gtol": 1e-9})
        with contextlib.suppress(BudgetSpentError):
            minimize(
                loss.value_and_gradient,
                latest,
                jac=True,
                hessp=loss.curvature if newton else None,
                method=self.solver,
                callback=look,
                options=options,
            )
        if looked_at < loss.passes:  # it ended between two looks
            meter.look(loss.passes, loss.predictor(latest))
        return meter.trace()
