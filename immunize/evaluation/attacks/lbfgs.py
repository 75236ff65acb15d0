"""T2: logistic regression by L-BFGS over a grid of penalties, the linear probe of CLIP and DINOv2.

The solver is SciPy's L-BFGS-B, as in scikit-learn's LogisticRegression; here its iterates are looked at on the way, and
all penalties are solved for side by side, so that the rows are read once for all of them (`together`). Every solver has
a thread of its own, of which one runs at a time, until it asks or ends. So what comes of each is what comes of it
alone, and nothing depends on chance.

`C` is that of scikit-learn for features divided by σ_1(X)/√N: λ = 1/(C·N). Two classes have a weight vector each here,
and scikit-learn one for both: there its C is twice as large.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import Trace, look_steps
from immunize.evaluation.attacks.logistic import BudgetSpentError, Logistic, Question, answers
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
            works = [partial(self._solve, data, share, strength) for strength in self.strengths]
            return Outcome(tuple(together(works, answers)))

    def _solve(self, data: AttackData, budget: Budget, strength: float, ask: Callable[[Question], Any]) -> Trace:
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

        def asked(w: Array, direction: Array | None = None) -> Any:
            loss.count()
            return ask((loss, w, direction))

        newton = self.solver == "Newton-CG"
        options = {"maxiter": loss.limit} | ({} if newton else {"maxfun": loss.limit, "ftol": 0.0, "gtol": 1e-9})
        with contextlib.suppress(BudgetSpentError):
            minimize(
                asked,
                latest,
                jac=True,
                hessp=asked if newton else None,
                method=self.solver,
                callback=look,
                options=options,
            )
        if looked_at < loss.passes:  # it ended between two looks
            meter.look(loss.passes, loss.predictor(latest))
        return meter.trace()


Ask = Callable[[Any], Any]


class _StoppedError(BaseException):
    """Ends a solver of which nobody wants to know any more; no solver holds it up."""


_ENDED = object()
"""Told of a solver that has ended, and to one that shall end."""


def _stepwise(work: Callable[[Ask], Any]) -> Generator[Any, Any, Any]:
    """A solver in a thread of its own as a generator: it yields what it asks, is sent the answers, and returns."""
    asked: SimpleQueue[Any] = SimpleQueue()
    told: SimpleQueue[Any] = SimpleQueue()

    def ask(question: Any) -> Any:
        asked.put(question)
        answer = told.get()
        if answer is _ENDED:
            raise _StoppedError
        return answer

    with ThreadPoolExecutor(1) as thread:
        try:  # from here on: Ctrl-C comes while the thread starts as well, and whoever waits there is waited for
            end = thread.submit(work, ask)
            end.add_done_callback(lambda _: asked.put(_ENDED))
            while (question := asked.get()) is not _ENDED:
                told.put((yield question))
        finally:
            told.put(_ENDED)
        return end.result()


def together(works: Sequence[Callable[[Ask], Any]], answer: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """Run solvers.

    Args:
        works: each gets what it may ask with, and returns its result.
        answer: of the questions of all that wait, in their order.

    Returns:
        what each returned.

    Raises:
        BaseException: the first that a solver raised, or `answer`; the others are ended.
    """
    solvers = [_stepwise(work) for work in works]
    results: list[Any] = [None] * len(solvers)
    told: dict[int, Any] = dict.fromkeys(range(len(solvers)))  # by solver; a None begins it
    try:
        while told:
            questions = {}
            for at, reply in told.items():
                try:
                    questions[at] = solvers[at].send(reply)
                except StopIteration as end:
                    results[at] = end.value
            told = dict(zip(questions, answer([*questions.values()]), strict=True)) if questions else {}
    finally:
        for solver in solvers:
            solver.close()
    return results
