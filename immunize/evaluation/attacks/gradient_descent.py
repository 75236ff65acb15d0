"""T0: the paper's attacker, gradient descent on the squared loss of a linear probe without intercept (Eqs. 4, 16).

For L(W) = ‖FW - Y‖² with H = FᵀF = VΛVᵀ, a step of length α multiplies the error in direction v_i by 1 - αλ_i, so that

    W_t = V (1 - m_t) Vᵀ W*,    m_t,i = Π_s (1 - α_s λ_i)

and T steps cost T vectors instead of T passes over the rows. A fixed step is a share of 1/λ_1; the exact line search
takes α = ‖∇‖²/‖F∇‖² of the whole gradient. The curve is that of the real iteration, step by step; its seconds are
steps times the measured time of one real pass.

Shapes: N samples, D features, C outputs, k eigenvalues.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import Cost, look_steps
from immunize.evaluation.attacks.factoring import thin_svd
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.scoring import Meter, target_matrix

__all__ = ["STEPS", "GradientDescent"]

STEPS = ("fixed", "line_search")

GROWN = 1e6
"""An error that has grown by this factor in any direction diverges: it will not come back."""


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step not in STEPS:
            raise UserError(f"unknown step {self.step!r}; there are {', '.join(STEPS)}")
        if not self.multipliers or min(self.multipliers) <= 0:
            raise UserError("gradient descent needs at least one step length, and positive ones")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Simulate every step length; nothing is random, and the FLOPs of the real iteration are not spent."""
        u, sigma, vt = thin_svd(data.train.x)
        kept = sigma > sigma[0] * max(data.train.x.shape) * np.finfo(np.float64).eps
        sigma, basis = sigma[kept], vt[kept].T
        optimum = (u[:, kept].T @ target_matrix(data, data.train)) / sigma[:, None]
        values = (sigma / sigma[0]) ** 2
        per_step = _cost_of_a_pass(data)
        weights = np.square(optimum).sum(axis=1)
        if self.step == "line_search":
            factors = {"exact line search": _line_search(values, weights, budget.steps)}
        else:
            factors = {f"step {m:g}/σ₁": _fixed(values, m, budget.steps) for m in self.multipliers}
        meters = {name: Meter(data, name, per_step) for name in factors}
        for name, meter in meters.items():
            _follow(meter, factors[name], basis, optimum)
        return Outcome(tuple(meter.trace() for meter in meters.values()))


def _follow(meter: Meter, factors: Iterator[tuple[int, Array]], basis: Array, optimum: Array) -> None:
    """Look at the probe after the steps that `factors` names, until it diverges."""
    for steps, left in factors:
        if not np.abs(left).max() < GROWN:
            meter.pause(steps)
            meter.diverged = True
            return
        w = basis @ ((1 - left)[:, None] * optimum)
        if not meter.look(steps, functools.partial(_outputs, w)):
            return


def _outputs(w: Array, x: Array) -> Array:
    return np.asarray(x @ w)


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


def _cost_of_a_pass(data: AttackData) -> Cost:
    """One real gradient: FLOPs, rows, and the shortest time of three."""
    x, y = data.train.x, target_matrix(data, data.train)
    w = np.zeros((data.n_features, data.n_outputs))
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        x.T @ (x @ w - y)
        seconds.append(time.perf_counter() - started)
    return Cost(1, min(seconds), len(x), 4.0 * x.size * data.n_outputs)
