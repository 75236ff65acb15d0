"""Small matrices that the tests of this room share."""

from __future__ import annotations

import torch
from hypothesis import settings
from torch import Tensor

properties = settings(max_examples=60)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def diagonal(*values: float) -> Tensor:
    return torch.diag(column(*values))
