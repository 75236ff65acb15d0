"""What a pair of data sets has to satisfy before anything is computed on it; every failure says which part and why.

Shapes: N samples, D features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from immunize.data.splits import Part
from immunize.errors import DataError

__all__ = ["check_part", "check_same_width", "first_columns"]

NAMED = 10
"""Constant columns that a message names."""


def check_part(part: Part, what: str) -> None:
    """Check one part of one data set.

    Args:
        part: (N, D) features and (N,) targets.
        what: its name in messages, such as "mnist (harmful, fit)".

    Raises:
        DataError: for wrong shapes or another dtype, N of 0 or 1, NaN or Inf, a matrix of zeros, or rows that are
            all the same.
    """
    if part.x.ndim != 2 or part.y.shape != part.x.shape[:1]:
        raise DataError(
            f"{what}: features of shape {tuple(part.x.shape)} and targets of shape {tuple(part.y.shape)}, but (N, D) "
            f"and (N,) are needed; correct the source's load()"
        )
    if part.x.dtype != torch.float64 or part.y.dtype not in (torch.float64, torch.int64):
        raise DataError(
            f"{what}: {part.x.dtype} features and {part.y.dtype} targets; convert both to torch.float64 (the labels of "
            "several classes to torch.int64)"
        )
    if len(part) < 2:
        raise DataError(f"{what}: N = {len(part)} rows, but a spectrum needs at least 2; choose a larger data set")
    _check_finite(part.x, what)
    if not bool(torch.isfinite(part.y).all()):
        count = int((~torch.isfinite(part.y)).sum())
        raise DataError(f"{what}: {count} targets are NaN or Inf; drop those rows or repair the file")
    if not bool(part.x.any()):
        raise DataError(f"{what}: the features are a matrix of zeros, which has no condition number; check the file")
    if bool((part.x == part.x[0]).all()):
        raise DataError(
            f"{what}: all {part.x.shape[1]} columns are constant ({first_columns(range(part.x.shape[1]))}): the "
            f"{len(part):,} rows are one and the same, which leaves nothing to immunize; check the file"
        )


def first_columns(columns: Sequence[int]) -> str:
    """The first `NAMED` of some columns, for a message."""
    return ", ".join(map(str, columns[:NAMED])) + (", …" if len(columns) > NAMED else "")


def check_same_width(pretrain: Part, harmful: Part, names: tuple[str, str]) -> None:
    """Check that one extractor fits both data sets.

    Args:
        pretrain: D_P's rows.
        harmful: D_H's rows.
        names: of the two data sets.

    Raises:
        DataError: if D differs.
    """
    d_pretrain, d_harmful = pretrain.x.shape[1], harmful.x.shape[1]
    if d_pretrain != d_harmful:
        raise DataError(
            f"D_P ({names[0]}) has {d_pretrain} features and D_H ({names[1]}) has {d_harmful}; one extractor serves "
            f"both, so choose data sets with the same number (leave pretrain= out to let D_P follow from D_H)"
        )


def _check_finite(x: Tensor, what: str) -> None:
    if math.isfinite(float(x.sum())):  # true of all data worth having, and 30 times faster than looking at each number
        return
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        first = int(bad.any(dim=0).nonzero()[0])
        raise DataError(
            f"{what}: {int(bad.sum())} features are NaN or Inf, the first in column {first} (counted from 0); "
            f"fill or drop them before immunizing"
        )
