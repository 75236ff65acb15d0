"""T0: the paper's attacker, gradient descent on the squared or the logistic loss of a linear probe without intercept.

For L(W) = ‖FW - Y‖² (Eqs. 4, 16) with H = FᵀF = VΛVᵀ, a step of length α multiplies the error in direction v_i by
1 - αλ_i, so that

    W_t = V (1 - m_t) Vᵀ W*,    m_t,i = Π_s (1 - α_s λ_i)

and T steps cost T vectors instead of T passes over the rows. A fixed step is a share of 1/λ_1; the exact line search
takes α = ‖∇‖²/‖F∇‖² of the whole gradient. The curve is that of the real iteration, step by step; its seconds are
steps times the measured time of one real pass.

On the logistic loss (Fig. 3's) the step is a multiple of 1/L with L = λ_1/2 the curvature bound, which is pessimistic:
several multiples race for a tenth of the steps, the best by validation goes on.

Shapes: N samples, D features, C outputs, k eigenvalues.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import pass_over, principal
from immunize.evaluation.attacks.curves import FIRST_LAP, best_validation, look_steps
from immunize.evaluation.attacks.logistic import CURVATURE, Logistic
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome, Task
from immunize.evaluation.attacks.scoring import Meter

STEPS = ("fixed", "line_search")

GROWN = 1e6
"""An error that has grown by this factor in any direction diverges: it will not come back."""

COLUMNS = 512
"""Outputs of so many probes together are computed at once; one look is a product with too thin a matrix to be quick."""


@dataclass(frozen=True, kw_only=True)
class GradientDescent(Attack):
    """Gradient descent on the squared loss.

    Attributes:
        step: "fixed" or "line_search".
        multipliers: fixed step lengths in units of 1/λ_1; 2 and more diverge. Ignored by the line search.

    Raises:
        UserError: an unknown step, or no multiplier.
    """

    step: str
    multipliers: tuple[float, ...] = (1.0,)
    grids: ClassVar[tuple[str, ...]] = ("multipliers",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step not in STEPS:
            raise UserError(f"unknown step {self.step!r}; there are {', '.join(STEPS)}")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Simulate every step length; nothing is random, and the FLOPs of the real iteration are not spent."""
        seen = principal(data)
        sigma = seen.axes.sigma
        optimum = seen.targets / sigma[:, None]
        values = (sigma / sigma[0]) ** 2
        weights = np.square(optimum).sum(axis=1)
        if self.step == "line_search":
            factors = {"exact line search": _line_search(values, weights, budget.steps)}
        else:
            factors = {f"step {m:g}/σ₁": _fixed(values, m, budget.steps) for m in self.multipliers}
        meters = {name: Meter(seen.data, name, pass_over(data)) for name in factors}
        for name, meter in meters.items():
            _follow(meter, factors[name], optimum)
        return Outcome(tuple(meter.trace() for meter in meters.values()))


def _follow(meter: Meter, factors: Iterator[tuple[int, Array]], optimum: Array) -> None:
    """Look at the probe after the steps that `factors` names, until it diverges."""
    together = max(1, COLUMNS // optimum.shape[1])
    while some := list(itertools.islice(factors, together)):
        tame = list(itertools.takewhile(lambda one: np.abs(one[1]).max() < GROWN, some))
        if tame and not _look(meter, tame, optimum):
            return
        if len(tame) < len(some):
            meter.pause(some[len(tame)][0])
            meter.diverged = True
            return


def _look(meter: Meter, factors: list[tuple[int, Array]], optimum: Array) -> bool:
    """Several looks by one product of matrices; whether all outputs were finite."""
    probes = np.hstack([(1 - left)[:, None] * optimum for _, left in factors])
    with np.errstate(all="ignore"):
        outputs = [np.hsplit(rows.x @ probes, len(factors)) for rows in (meter.data.validation, meter.data.test)]
    return all(
        meter.note(steps, lambda at=at: [of_rows[at] for of_rows in outputs])  # type: ignore[misc]
        for at, (steps, _) in enumerate(factors)
    )


def _fixed(values: Array, multiplier: float, steps: int) -> Iterator[tuple[int, Array]]:
    """Steps and m_t, (k,)."""
    with np.errstate(over="ignore"):
        for step in look_steps(steps):
            yield step, (1 - multiplier * values) ** step


def _line_search(values: Array, weights: Array, steps: int) -> Iterator[tuple[int, Array]]:
    """Steps and m_t, (k,); ends early at the optimum."""
    looks, left = set(look_steps(steps)), np.ones_like(values)
    squared, cubed = values**2 * weights, values**3 * weights
    for step in range(1, steps + 1):
        error = left**2
        curvature = cubed @ error
        if not curvature > 0:  # converged to the last bit
            return
        left = left * (1 - (squared @ error) / curvature * values)
        if step in looks:
            yield step, left


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
    grids: ClassVar[tuple[str, ...]] = ("multipliers",)
    tasks: ClassVar[tuple[Task, ...]] = ("classification",)

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Race the step lengths; nothing is random."""
        loss = Logistic(data, intercept=False)
        weight = 1 + (len(self.multipliers) - 1) / FIRST_LAP
        steps = budget.affordable(loss.per_pass.flops, weight)
        racers = [_Racer(loss, m) for m in self.multipliers]
        looks = look_steps(steps)
        lap = max(1, steps // FIRST_LAP)
        _advance(racers, [at for at in looks if at <= lap])
        best = max(racers, key=lambda racer: best_validation(racer.meter.points))
        _advance([best], [at for at in looks if at > lap])
        return Outcome(tuple(racer.meter.trace() for racer in racers))


class _Racer:
    """One step length on its way."""

    def __init__(self, loss: Logistic, multiplier: float) -> None:
        self.loss, self.length = loss, multiplier / CURVATURE
        self.meter = Meter(loss.seen, f"step {multiplier:g}/L", loss.per_pass)
        self.w: Array = np.zeros(loss.shape[0] * loss.shape[1])
        self.step = 0


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
