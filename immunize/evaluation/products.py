"""Products of float32 matrices on the CPU, by oneDNN.

They take half the time of MKL's, which PyTorch takes by itself, on processors that MKL was not made for, and a tenth
where one side has few columns. Both round, and not alike.

Shapes: N samples, D features, O outputs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


def packed(x: Tensor) -> Tensor:
    """A matrix as oneDNN wants it, for :func:`products` alone; what it cannot multiply stays as it is."""
    usable = x.dtype == torch.float32 and x.device.type == "cpu" and not x.is_mkldnn
    return x.to_mkldnn() if usable and torch.backends.mkldnn.is_available() else x  # type: ignore[no-untyped-call]


def products(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """xWᵀ + b: (N, D), packed or not, and (O, D) to (N, O)."""
    found = nn.functional.linear(packed(x), weight, bias)
    return found.to_dense() if found.is_mkldnn else found


def quotient(x: npt.NDArray[np.float64], size: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """x/size, divided in float64 and rounded once, without a float64 copy of the rows."""
    found = torch.empty(x.shape, dtype=dtype)
    np.divide(x, size, out=found.numpy(), casting="same_kind")
    return found
