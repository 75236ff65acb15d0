"""T2: least squares with an intercept, by ridge regression or conjugate gradients; classes by one-hot targets.

    W(λ) = V diag(σ/(σ² + λ)) Uᵀ Y,    X - mean = UΣVᵀ

One singular value decomposition serves the whole grid of ridge regression. λ is in units of σ_1², and the grid reaches
far down: on features of condition number κ, directions below √(λ/σ_1²) are lost. Its solution is also the head that
fine-tuning starts from (Kumar et al., ICLR 2022: LP-FT).

Conjugate gradients on the normal equations XᵀXW = XᵀY, one linear system in W for all outputs at once, regularize by
stopping early. In the principal axes of the rows XᵀX is diagonal, so that the iterates of SciPy's solver cost vectors
instead of passes over the rows, as those of T0 do. The error shrinks like ((√κ - 1)/(√κ + 1))^t, where gradient descent
has κ. A product is right here to the last bit of every direction; an attacker whose passes are rounded relative to σ_1
gets less far on ill-conditioned features, never farther.

Shapes: N samples, D features, C outputs, k axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, cg
from torch import nn

from immunize.evaluation.attacks.coordinates import Principal, pass_over, principal, svd_flops
from immunize.evaluation.attacks.curves import Cost, best_validation, look_steps
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.scoring import Meter, target_matrix, trace_of_one_step


@dataclass(frozen=True, kw_only=True)
class Ridge(Attack):
    """Ridge regression; one step, the closed form.

    Attributes:
        penalties: the grid of λ/σ_1².

    Raises:
        UserError: an empty grid, or a penalty that is not positive.
    """

    penalties: tuple[float, ...]
    grids: ClassVar[tuple[str, ...]] = ("penalties",)

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Solve for every penalty; nothing is random. A closed form is not cut short by the budget."""
        seen = principal(data, centred=True)
        axes, (n, d) = seen.axes, data.train.x.shape
        once = Cost(1, axes.seconds, n, svd_flops((n, d)) + 2.0 * n * d * data.n_outputs)
        weights = np.hstack([_solution(seen, penalty) for penalty in self.penalties])  # one product for the whole grid
        measured = seen.data.validation.x, seen.data.test.x
        with np.errstate(all="ignore"):
            outputs = zip(*(np.hsplit(x @ weights, len(self.penalties)) for x in measured), strict=True)
            traces = [
                trace_of_one_step(seen.data, f"λ {penalty:g}·σ₁²", once, [of_rows + seen.offset for of_rows in both])
                for penalty, both in zip(self.penalties, outputs, strict=True)
            ]
        return Outcome(tuple(traces))

    def fitted(self, data: AttackData) -> tuple[Array, Array, Cost]:
        """The solution that the validation rows choose, and what it cost; of equals the larger penalty.

        Returns:
            W (D, C), b (C,) for the features as they come, and the cost.
        """
        seen, traces = principal(data, centred=True), self.run(data, Budget(1), 0).traces
        _, penalty = max(zip((best_validation(trace.points) for trace in traces), self.penalties, strict=True))
        weights = seen.axes.basis @ _solution(seen, penalty)
        return weights, seen.offset - seen.axes.mean @ weights, traces[0].spent


def _solution(seen: Principal, penalty: float) -> Array:
    """V's coordinates of W(λ), (k, C); 0 for rows that are all the same."""
    sigma = seen.axes.sigma
    if not sigma[0] > 0:
        return np.zeros_like(seen.targets)
    return np.asarray((sigma / (sigma**2 + penalty * sigma[0] ** 2))[:, None] * seen.targets)


_SHARPNESS = tuple(float(2**power) for power in range(-2, 15))
"""What the outputs of ridge regression, which lie between 0 and 1, may be multiplied with; ours."""


def probed_head(data: AttackData, probe: Ridge, scale: float) -> tuple[nn.Linear, Cost]:
    """The probe as logits of features over `scale`; its cost is one step.

    From a head at zero, a few hundred steps of fine-tuning on many classes end below the probe, and the race between
    learning rates is decided by chance. So the probe is solved first, and is part of the cost.

    The classes of ridge regression are kept; the multiple of its outputs is the one with the smallest cross-entropy on
    the validation rows.

    Args:
        data: a classification task.
        probe: has the grid of penalties.
        scale: of the features, positive.
    """
    weight, bias, cost = probe.fitted(data)
    outputs = torch.from_numpy(data.validation.x @ weight + bias)
    labels = torch.from_numpy(data.validation.y.astype(np.int64))
    losses = [float(nn.functional.cross_entropy(sharp * outputs, labels)) for sharp in _SHARPNESS]
    sharp = _SHARPNESS[int(np.nanargmin(losses))]
    head = nn.utils.skip_init(nn.Linear, *weight.shape)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(sharp * scale * weight).T)
        head.bias.copy_(torch.from_numpy(sharp * bias))
    return head, cost


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
