"""θ of the tiny run as a test wants it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from immunize.features import LinearExtractor
from immunize.objective import Objective, Step
from tests.composing import D

I = torch.eye(D, dtype=torch.float64)  # noqa: E741 (the paper's identity)


def scaled(x: Tensor, *factors: float) -> Tensor:
    """θ that multiplies the eigenvalues of H = θᵀKθ by the factors, in descending order of K's."""
    v = torch.linalg.svd(x).Vh.T
    return v @ torch.diag(torch.tensor(factors, dtype=torch.float64).sqrt()) @ v.T


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
