"""Products of float32 matrices on the CPU, by oneDNN on processors that MKL was not made for.

There they take half the time of MKL's, which PyTorch takes by itself, and a tenth where one side has few columns. On
Intel's MKL is as fast or up to twice as fast. Both round, and not alike.

Shapes: N samples, D features, O outputs.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


def packed(x: Tensor) -> Tensor:
    """A matrix as oneDNN wants it, for :func:`products` alone; what it cannot multiply stays as it is."""
    usable = x.dtype == torch.float32 and x.device.type == "cpu" and not x.is_mkldnn
    return x.to_mkldnn() if usable and _by_onednn() else x


@functools.cache
def _by_onednn() -> bool:
    has_mkl, has_onednn = (of.is_available() for of in (torch.backends.mkl, torch.backends.mkldnn))
    return has_onednn and not (has_mkl and "GenuineIntel" in _cpuinfo())


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return ""


def products(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """xWᵀ + b: (N, D), packed or not, and (O, D) to (N, O)."""
    found = nn.functional.linear(packed(x), weight, bias)
    return found.to_dense() if found.is_mkldnn else found


def quotient(x: npt.NDArray[np.float64], size: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """x/size, divided in float64 and rounded once, without a float64 copy of the rows."""
    found = torch.empty(x.shape, dtype=dtype)
    np.divide(x, size, out=found.numpy(), casting="same_kind")
    return found
