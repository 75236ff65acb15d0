"""θ of the tiny run as a test wants it, and what is to be expected of it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from immunize.features.linear import LinearExtractor
from immunize.objective import Objective, Step
from tests import reference as ref
from tests.composing import D

I = torch.eye(D, dtype=torch.float64)  # noqa: E741 (the paper's identity)


def scaled(x: Tensor, *factors: float) -> Tensor:
    """θ that multiplies the eigenvalues of H = θᵀKθ by the factors, in descending order of K's."""
    v = torch.linalg.svd(x).Vh.T
    return v @ torch.diag(torch.tensor(factors, dtype=torch.float64).sqrt()) @ v.T


def kappa(x: Tensor, theta: Tensor = I) -> float:
    """κ(H(θ)) from singular values of Xθ, which have the digits to see a change of 1e-12."""
    return float(torch.linalg.cond(x @ theta) ** 2)


def gradients(batch: Any, theta: Tensor, head: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Of each term of `ours` by θ, as Algorithm 1 has it; and of the task loss by ω."""
    (x_p, y_p), (x_h, _) = batch["pretrain"], batch["harmful"]
    task, of_head = ref.task_gradients(x_p, y_p, theta, head)
    well = ref.algorithm_1_direction(x_p, theta, ref.r_well_gradient)
    return {"task": task, "well": well, "ill": ref.algorithm_1_direction(x_h, theta, ref.r_ill_gradient)}, of_head


class Recorder(Objective):
    """Moves θ as told, step by step, without any gradient."""

    def __init__(self, *thetas: Tensor, fail_at: int | None = None, term: str = "ill") -> None:
        super().__init__({term: 1.0})
        self.thetas, self.fail_at, self.term, self.calls = thetas, fail_at, term, 0

    def terms(self, step: Step) -> dict[str, Tensor]:
        theta = cast(LinearExtractor, step.extractor).theta
        with torch.no_grad():
            theta.copy_(self.thetas[min(self.calls, len(self.thetas) - 1)])
        value = torch.inf if self.calls == self.fail_at else 0.0
        self.calls += 1
        return {self.term: (theta * 0).sum() + value}
