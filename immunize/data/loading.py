"""Both data sets of an experiment: loaded, checked, hashed and, if asked for, in units of their own: standardized.

Shapes: N samples, D features.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import torch

from immunize.data.checks import check_part, check_same_width, first_columns
from immunize.data.scaling import Standardizer
from immunize.data.splits import ROLES, Part, Role, Source, Splits, hash_of
from immunize.errors import DataError

__all__ = ["CrossFitted", "LoadedPair", "load_pair"]


class CrossFitted:
    """A source whose `fit` and `held_out` are two halves of another source's rows.

    A source that has held-out rows of its own keeps its split.

    Args:
        source: what is cross-fitted.
        seed: of the halves.
    """

    held_out_protocol = "split"

    def __init__(self, source: Source, seed: int) -> None:
        self.source, self.seed = source, seed
        self.name, self.task = source.name, source.task
        self.standardize = getattr(source, "standardize", False)

    def require(self) -> None:
        """Find the source's files."""
        self.source.require()

    def load(self) -> Splits:
        """The two halves, or the source's own split."""
        return self.source.cross_fit(self.seed) if self.source.held_out_protocol == "cross_fit" else self.source.load()

    def cross_fit(self, seed: int) -> Splits:
        """Refuse: halves are not halved again.

        Args:
            seed: ignored.

        Raises:
            DataError: always.
        """
        raise DataError(f"{self.name} is cross-fitted already")

    def describe(self) -> dict[str, object]:
        """The source's facts and the seed of the halves."""
        return self.source.describe() | {"cross_fit_seed": self.seed}


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


def load_pair(pretrain: Source, harmful: Source) -> LoadedPair:
    """Load and check both data sets; standardize both by D_P's fit rows where D_H's source says so.

    Raises:
        MissingDataError: one is not there.
        DataError: one cannot be used, or they do not go together.
    """
    sources = {"pretrain": pretrain, "harmful": harmful}
    splits = {role: _load(sources[role], role) for role in ROLES}
    check_same_width(splits["pretrain"].fit, splits["harmful"].fit, (pretrain.name, harmful.name))
    loaded = LoadedPair(splits, hash_of({role: sources[role].name for role in ROLES}, splits))
    return _standardized(loaded, harmful.name) if getattr(harmful, "standardize", False) else loaded


def _load(source: Source, role: Role) -> Splits:
    splits = source.load()
    check_part(splits.fit, f"{source.name} ({role}, fit)")
    if splits.held_out is not None:
        if splits.held_out.x.shape[1:] != splits.fit.x.shape[1:]:
            raise DataError(
                f"{source.name} ({role}): {splits.held_out.x.shape[1]} features held out and "
                f"{splits.fit.x.shape[1]} in fit; correct the source's load()"
            )
        check_part(splits.held_out, f"{source.name} ({role}, held_out)")
    return splits


def _standardized(loaded: LoadedPair, name: str) -> LoadedPair:
    """Rows less D_P's mean, by its standard deviation; what no row of either varies in is 0 and counts for nothing."""
    scale = Standardizer.of_pair(*(loaded.splits[role].fit.x.numpy() for role in ROLES))
    if gone := scale.dropped:
        logging.getLogger(__name__).warning(
            "%s: %d of %d columns are constant in D_P and D_H and are left out: %s (counted from 0)",
            *(name, len(gone), len(scale.mean), first_columns(gone)),
        )

    def of(part: Part) -> Part:
        return Part(torch.from_numpy(np.ascontiguousarray(scale.apply(part.x.numpy()))), part.y)

    splits = {
        role: Splits(of(own.fit), None if own.held_out is None else of(own.held_out))
        for role, own in loaded.splits.items()
    }
    return replace(loaded, splits=splits, scale=scale)
