"""Both data sets of an experiment: loaded, checked, hashed and, if asked for, in units of their own: standardized.

What a pair has to satisfy before anything is computed on it is checked here; every failure says which part and why.

Shapes: N samples, D features.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from immunize.data.splits import ROLES, Part, Role, SourceBase, Splits, Standardizer, hash_of
from immunize.errors import DataError, some, unsquarable

NAMED = 10
"""Constant columns that a message names."""


TARGETS: dict[str, tuple[str, Callable[[Tensor], bool]]] = {
    "regression": ("float64", Tensor.is_floating_point),
    "binary": ("0 and 1, float64", lambda y: y.is_floating_point() and bool(((y == 0) | (y == 1)).all())),
    "classification": ("whole numbers from 0, int64", lambda y: not y.is_floating_point() and int(y.min()) >= 0),
}
"""What y holds, by task: in words, and whether it does."""


def check_part(part: Part, what: str, task: str) -> None:
    """Check one part of one data set.

    Args:
        part: (N, D) features and (N,) targets.
        what: its name in messages, such as "mnist (harmful, fit)".
        task: of `TARGETS`.

    Raises:
        DataError: for wrong shapes or another dtype, N of 0 or 1, NaN or Inf, a matrix of zeros or of numbers whose
            squares are none, rows that are all the same, or targets that are not the task's.
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
    # The sum is finite for all data worth having, and 30 times faster than looking at each number.
    if not math.isfinite(float(part.x.sum())) and bool((bad := ~torch.isfinite(part.x)).any()):
        first = int(bad.any(dim=0).nonzero()[0])
        raise DataError(
            f"{what}: {int(bad.sum())} features are NaN or Inf, the first in column {first} (counted from 0); "
            f"fill or drop them before immunizing"
        )
    if not bool(torch.isfinite(part.y).all()):
        count = int((~torch.isfinite(part.y)).sum())
        raise DataError(f"{what}: {count} targets are NaN or Inf; drop those rows or repair the file")
    size = float(torch.linalg.vector_norm(part.x, math.inf)) if part.x.numel() else 0.0
    if size == 0:
        raise DataError(f"{what}: the features are a matrix of zeros, which has no condition number; check the file")
    if told := unsquarable(size):
        raise DataError(f"{what}: features {told}")
    if bool((part.x == part.x[0]).all()):
        raise DataError(
            f"{what}: all {part.x.shape[1]} columns are constant ({some(range(part.x.shape[1]), NAMED)}): the "
            f"{len(part):,} rows are one and the same, which leaves nothing to immunize; check the file"
        )
    wanted, hold = TARGETS.get(task, (f"those of another: {', '.join(TARGETS)}", lambda _: False))
    if not hold(part.y):
        raise DataError(
            f"{what}: targets of a {task} task have to be {wanted}; correct the source's load(), or its task"
        )


@dataclass(frozen=True)
class LoadedPair:
    """What both sources gave.

    Attributes:
        splits: rows of D_P and D_H.
        hash: SHA-256 over names, shapes and bytes of all rows as they were read.
        scale: what the rows were standardized by; None where they are as they were read.
    """

    splits: dict[Role, Splits]
    hash: str
    scale: Standardizer | None = None


def load_pair(pretrain: SourceBase, harmful: SourceBase, *, cross_fit: int | None = None) -> LoadedPair:
    """Load and check both data sets; standardize both by D_P's fit rows where D_H's source says so.

    Args:
        pretrain: D_P.
        harmful: D_H.
        cross_fit: seed of the halves that a data set without held-out rows of its own is split into; None: it is not.

    Raises:
        MissingDataError: one is not there.
        DataError: one cannot be used, or they do not go together.
    """
    sources = {"pretrain": pretrain, "harmful": harmful}
    splits = {role: _load(sources[role], role, cross_fit) for role in ROLES}
    widths = {role: of.fit.x.shape[1] for role, of in splits.items()}
    if widths["pretrain"] != widths["harmful"]:
        raise DataError(
            f"D_P ({pretrain.name}) has {widths['pretrain']} features and D_H ({harmful.name}) has "
            f"{widths['harmful']}; one extractor serves both, so choose data sets with the same number (leave "
            f"pretrain= out to let D_P follow from D_H)"
        )
    loaded = LoadedPair(splits, hash_of({role: sources[role].name for role in ROLES}, splits))
    return _standardized(loaded, harmful.name) if getattr(harmful, "standardize", False) else loaded


def _load(source: SourceBase, role: Role, cross_fit: int | None) -> Splits:
    if cross_fit is not None and source.held_out_protocol == "cross_fit":
        splits = source.cross_fit(cross_fit)
    else:
        splits = source.load()
    check_part(splits.fit, f"{source.name} ({role}, fit)", source.task)
    if splits.held_out is not None:
        if splits.held_out.x.shape[1:] != splits.fit.x.shape[1:]:
            raise DataError(
                f"{source.name} ({role}): {splits.held_out.x.shape[1]} features held out and "
                f"{splits.fit.x.shape[1]} in fit; correct the source's load()"
            )
        check_part(splits.held_out, f"{source.name} ({role}, held_out)", source.task)
    elif cross_fit is not None or source.held_out_protocol != "cross_fit":
        raise DataError(
            f"{source.name} ({role}): there are no held-out rows; correct the source's load(), or give it "
            'held_out_protocol="cross_fit" and the halves that cross_fit(seed) draws'
        )
    return splits


def _standardized(loaded: LoadedPair, name: str) -> LoadedPair:
    """Rows less D_P's mean, by its standard deviation; what no row of either varies in is 0 and counts for nothing."""
    scale = Standardizer.of_pair(*(loaded.splits[role].fit.x.numpy() for role in ROLES))
    if gone := scale.dropped:
        logging.getLogger(__name__).warning(
            "%s: %d of %d columns are constant in D_P and D_H and are left out: %s (counted from 0)",
            *(name, len(gone), len(scale.mean), some(gone, NAMED)),
        )

    def of(part: Part) -> Part:
        return Part(torch.from_numpy(np.ascontiguousarray(scale.apply(part.x.numpy()))), part.y)

    return replace(loaded, splits={role: own.mapped(of) for role, own in loaded.splits.items()}, scale=scale)
