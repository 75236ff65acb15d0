"""Targets of squared losses, the scores by which attacks are compared, and what measures a candidate on its way.

accuracy    classification: the share of rows whose largest output is that of their class
R²          regression: 1 - Σ(y - ŷ)²/Σ(y - ȳ)², with ȳ the mean of the training targets

A candidate is settled, and its attack spends nothing more on it, once both hold:

1. It took `FEWEST` steps, and had at least `LEARNED` of the validation rows right in the first quarter of them. No
   score of θ_0 is 5 points above that, and 0.9 of θ_0's lies below it: more steps change no verdict.
2. Since then it has gained less than `NOTHING`, a tenth of a point: the score that is reported has come to rest. Fewer
   than a thousand validation rows cannot tell: with them all go on to the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from immunize.evaluation.attacks.curves import Cost, Point, Trace
from immunize.evaluation.attacks.judging import LESS_ACCURATE_BY
from immunize.evaluation.attacks.protocol import Array, AttackData, Predict, Rows

LEARNED = 1 - LESS_ACCURATE_BY / 2
"""Validation accuracy from which a verdict has nothing to wait for; half of the points are left to the difference
between validation and test rows. R² has no such end: it may fall behind by any amount on one row."""

FEWEST, LONGER = 100, 4
"""Steps that every candidate takes, and so many times those in which it learned the task."""

NOTHING = 0.001


def target_matrix(data: AttackData, rows: Rows) -> Array:
    """Targets of a squared loss, (N, C) float64.

    Classification: one-hot minus 1/C, for two classes ±1/2, which are the ±1 of §3 up to scale. Regression: y less the
    mean of the training targets, over their standard deviation.
    """
    if data.n_classes:
        return np.asarray(np.eye(data.n_classes)[rows.y.astype(np.int64)] - 1 / data.n_classes)
    return np.asarray(((rows.y - data.train.y.mean()) / data.train.y.std())[:, None])


def shares(data: AttackData, rows: Rows, outputs: Array) -> npt.NDArray[Any]:
    """What each row adds to the score s, which is their mean.

    Classification: right or wrong. Regression, a_i = (y_i - ŷ_i)², b_i = (y_i - ȳ)²: s + ((1 - s)b_i - a_i)/mean(b), so
    that their variance is that of the ratio s = 1 - mean(a)/mean(b) in first order.

    Args:
        data: the task.
        rows: N of it.
        outputs: (N, C) for these rows; of a regression in the units of `target_matrix`.

    Returns:
        (N,).
    """
    if data.n_classes:
        return np.asarray(outputs.argmax(axis=1) == rows.y)
    targets = target_matrix(data, rows)
    with np.errstate(over="ignore"):
        a, b = np.square(targets - outputs).sum(axis=1), np.square(targets).sum(axis=1)
    score = 1 - a.mean() / b.mean()
    if not math.isfinite(score):  # finite outputs, whose squares are not
        return np.full(len(rows), -np.inf)
    return np.asarray(score + ((1 - score) * b - a) / b.mean())


def constant_shares(data: AttackData) -> npt.NDArray[Any]:
    """The same of the best constant answer on the test rows: the most frequent training class; 0 for regression."""
    if not data.n_classes:
        return np.zeros(len(data.test))
    return np.asarray(data.test.y == np.bincount(data.train.y.astype(np.int64)).argmax())


class Meter:
    """The clock and the notebook of one candidate; time spent in measuring is not the attacker's.

    Args:
        data: the task.
        label: of the candidate.
        per_step: samples and FLOPs of one step. Where it has seconds, each step is taken to have lasted them, instead
            of the time that passed: for attacks that are simulated.
    """

    def __init__(self, data: AttackData, label: str, per_step: Cost) -> None:
        self.data, self.label, self.per_step = data, label, per_step
        self.points: list[Point] = []
        self.diverged = False
        self._steps, self._seconds = 0, 0.0
        self._since: float | None = time.perf_counter()

    def look(self, steps: int, predict: Predict) -> bool:
        """Note where the candidate stands after so many steps.

        Args:
            steps: since its start.
            predict: its outputs for features.

        Returns:
            False if an output is not finite: the candidate has diverged, and nothing is noted.
        """
        return self.note(steps, lambda: [predict(rows.x) for rows in (self.data.validation, self.data.test)])

    def note(self, steps: int, measure: Callable[[], Sequence[Array]]) -> bool:
        """The same for a candidate that does not predict from features.

        Args:
            steps: since its start.
            measure: its outputs for the validation rows and for the test rows.
        """
        running = self._since is not None
        self.pause(steps)
        measured = (self.data.validation, self.data.test)
        with np.errstate(all="ignore"):
            outputs = measure()
            finite = all(np.isfinite(out).all() for out in outputs)
            if finite:
                validation, test = (shares(self.data, *of) for of in zip(measured, outputs, strict=True))
                self.points.append(Point(self.cost, float(validation.mean()), float(test.mean()), test))
        self.diverged = self.diverged or not finite
        if running:
            self.resume()
        return finite

    @property
    def over(self) -> bool:
        """Whether the candidate need not go on: it has diverged, or it is settled (see the module's note)."""
        if self.diverged or not (self.points and self.data.n_classes and len(self.data.validation) * NOTHING >= 1):
            return self.diverged
        steps = self.points[-1].cost.steps
        early = max((p.validation for p in self.points if p.cost.steps * LONGER <= steps), default=0.0)
        gained = max(p.validation for p in self.points) - early
        return steps >= FEWEST and early >= LEARNED and gained < NOTHING

    def pause(self, steps: int) -> None:
        """Stop the clock after so many steps."""
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
        self._steps, self._since = steps, None

    def resume(self) -> None:
        """Let the clock run."""
        self._since = time.perf_counter()

    def charge(self, steps: int, seconds: float) -> None:
        """For candidates that share one clock: put down more seconds; its own clock stands still from then on.

        Args:
            steps: since its start.
            seconds: since it was last charged.
        """
        self._since = None
        self._steps, self._seconds = steps, self._seconds + seconds

    @property
    def cost(self) -> Cost:
        """Paid up to the last pause or look."""
        seconds = self.per_step.seconds * self._steps if self.per_step.seconds else self._seconds
        return Cost(self._steps, seconds, self.per_step.samples * self._steps, self.per_step.flops * self._steps)

    def trace(self) -> Trace:
        """What was noted."""
        status = "diverged" if self.diverged else "finished"
        return Trace(self.label, tuple(self.points), status, self.cost)


def trace_of_one_step(data: AttackData, label: str, cost: Cost, outputs: Sequence[Array]) -> Trace:
    """A candidate whose first step is its last, such as a closed form.

    Args:
        data: the task.
        label: of the candidate.
        cost: of the step, its seconds included.
        outputs: for the validation rows and for the test rows.
    """
    meter = Meter(data, label, cost)
    meter.note(1, lambda: outputs)
    return meter.trace()
