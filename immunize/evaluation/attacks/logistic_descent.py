"""T0: gradient descent with a fixed step on the logistic loss of a linear probe without intercept (Fig. 3's loss).

The step is a multiple of 1/L with L = λ_1/2 the curvature bound, which is pessimistic: several multiples race for a
tenth of the steps, the best by validation goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import look_steps
from immunize.evaluation.attacks.logistic import CURVATURE, Logistic
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome, Task
from immunize.evaluation.attacks.scoring import Meter

__all__ = ["LogisticDescent"]

FIRST_LAP = 10
"""The race is over after this share of the steps, one in ten."""


@dataclass(frozen=True, kw_only=True)
class LogisticDescent(Attack):
    """Full-batch gradient descent on the multinomial logistic loss, W_0 = 0.

    Attributes:
        multipliers: step lengths in units of 1/L.

    Raises:
        UserError: no multiplier, or one that is not positive.
    """

    multipliers: tuple[float, ...]
    version: ClassVar[int] = 2  # float64 rows; 1 had float32
    tasks: ClassVar[tuple[Task, ...]] = ("classification",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.multipliers or min(self.multipliers) <= 0:
            raise UserError("gradient descent needs at least one step length, and positive ones")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Race the step lengths; nothing is random."""
        loss = Logistic(data, intercept=False)
        weight = 1 + (len(self.multipliers) - 1) / FIRST_LAP
        steps = budget.affordable(loss.per_pass.flops, weight)
        racers = [_Racer(loss, m) for m in self.multipliers]
        looks = look_steps(steps)
        lap = max(1, steps // FIRST_LAP)
        _advance(racers, [at for at in looks if at <= lap])
        best = max(racers, key=lambda racer: racer.best)
        _advance([best], [at for at in looks if at > lap])
        return Outcome(tuple(racer.meter.trace() for racer in racers))


class _Racer:
    """One step length on its way."""

    def __init__(self, loss: Logistic, multiplier: float) -> None:
        self.loss, self.length = loss, multiplier / CURVATURE
        self.meter = Meter(loss.seen, f"step {multiplier:g}/L", loss.per_pass)
        self.w: Array = np.zeros(loss.shape[0] * loss.shape[1])
        self.step = 0

    @property
    def best(self) -> float:
        return max((point.validation for point in self.meter.points), default=-np.inf)


def _advance(racers: Sequence[_Racer], looks: Sequence[int]) -> None:
    """All at the same step, whose passes read the rows together; who is over stays behind."""
    for look in looks:
        live = [racer for racer in racers if not racer.meter.over]
        for _ in range(look - max((racer.step for racer in live), default=look)):
            gradients = live[0].loss.gradients([racer.w for racer in live])
            for racer, gradient in zip(live, gradients, strict=True):
                racer.w = racer.w - racer.length * gradient
                racer.step += 1
        for racer in live:
            racer.meter.look(look, racer.loss.predictor(racer.w))
