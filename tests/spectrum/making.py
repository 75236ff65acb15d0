"""Small matrices that the tests of this room share."""

from __future__ import annotations

import torch
from torch import Tensor


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def diagonal(*values: float) -> Tensor:
    return torch.diag(column(*values))
