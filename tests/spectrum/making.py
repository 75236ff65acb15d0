"""Small matrices that the tests of this room share."""

from __future__ import annotations

import torch
from torch import Tensor

from tests import reference as ref


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def diagonal(*values: float) -> Tensor:
    return torch.diag(column(*values))


def gram(seed: int, size: int = 6) -> Tensor:
    x = ref.gaussian(3 * size, size, seed=seed) * torch.logspace(0, -1, size, dtype=torch.float64)
    return x.T @ x
