"""What every data set of this package is made of: parts, splits, and the source that loads them (§5.1, App. C).

An immunization experiment has two data sets, D_P (pre-training task) and D_H (harmful task). Each comes from a
`SourceBase` in one of two roles, and each has rows the extractor is immunized with (`fit`) and rows it never saw
(`held_out`). How the second part comes about is the source's `held_out_protocol`:

=========  ======================================================================================================
split      the data set has test rows of its own (MNIST, digits, synthetic): `load` returns both parts
cross_fit  the paper's protocol fits on every row (House Prices): `load` returns no held-out part, and
           `cross_fit` returns a random half against the other half, for a second extractor fitted the same way
=========  ======================================================================================================

Shapes: N samples, D features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from immunize.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

Role = Literal["pretrain", "harmful"]
ROLES: tuple[Role, ...] = get_args(Role)
"""The two data sets of an experiment: D_P and D_H."""


@dataclass(frozen=True)
class Part:
    """Rows of one data set.

    Attributes:
        x: (N, D) float64 features.
        y: (N,) float64, the standardized target of a regression or the 0/1 label of a binary task; int64 from 0, the
            class of a classification.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return self.x.shape[0]

    def take(self, rows: Tensor) -> Part:
        """The rows with these indices.

        Args:
            rows: (M,) int64 indices.

        Returns:
            a part of M rows, copied.
        """
        return Part(self.x[rows], self.y[rows])


Parts = dict[Role, Part]
"""The same part of both data sets."""


@dataclass(frozen=True)
class Splits:
    """The parts of one data set.

    Attributes:
        fit: rows the extractor is immunized with.
        held_out: rows it never sees; None when the data set has none of its own and is cross-fitted.
    """

    fit: Part
    held_out: Part | None

    def mapped(self, change: Callable[[Part], Part]) -> Splits:
        """Both parts changed alike."""
        return Splits(change(self.fit), None if self.held_out is None else change(self.held_out))


class SourceBase:
    """One data set in one role: what ``conf/harmful/*.yaml`` and ``conf/pretrain/*.yaml`` instantiate.

    A subclass sets the class attributes and defines `load` and `describe`.

    Args:
        role: "pretrain" or "harmful".

    Raises:
        DataError: for any other role.
    """

    name: str
    """Short name of the data set, such as "mnist"."""
    task: str
    """What y holds: "regression", "binary" or "classification"."""
    held_out_protocol: str = "split"
    """Where held-out rows come from: "split" or "cross_fit"."""
    unused: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Settings without effect, by the role that does not use them; "images": for networks; "rows": without targets."""

    def __init__(self, role: str) -> None:
        if role not in ROLES:
            raise DataError(f"{self.name}: role is {role!r}, but has to be one of {', '.join(ROLES)}")
        self.role: Role = role

    def require(self) -> None:
        """Find the files, without reading them; data that are embedded or generated need none."""

    def load(self) -> Splits:
        """Read the data set and prepare it as its paper section says."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """Short facts for the record; plain values that JSON can hold."""
        raise NotImplementedError

    def facts(self, own: Mapping[str, object]) -> dict[str, object]:
        """What records say of every data set, with what they say of this one among it."""
        common = {"name": self.name, "role": self.role, "task": self.task}
        return {**common, **own, "held_out_protocol": self.held_out_protocol}

    def cross_fit(self, seed: int) -> Splits:
        """Of a source whose protocol is "cross_fit": half of the rows as `fit`, the other half as `held_out`.

        Args:
            seed: of the halves.

        Raises:
            DataError: the source does not say how.
        """
        raise DataError(
            f"{self.name} is cross-fitted, as its held_out_protocol says, but does not define cross_fit(seed)"
        )


def random_generator(seed: int, *stream: int) -> np.random.Generator:
    """A generator of random numbers that is independent of every other generator and of the global state.

    Args:
        seed: what the user chose; 0 or more.
        stream: further non-negative numbers that tell draws with the same seed apart.

    Returns:
        a numpy generator that depends on nothing but the arguments.

    Raises:
        DataError: for a seed that is negative or not a whole number.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise DataError(f"a seed has to be a whole number, 0 or more, not {seed!r}")
    return np.random.default_rng([seed, *stream])


def hash_of(names: Mapping[Role, str], splits: Mapping[Role, Splits]) -> str:
    """SHA-256 over names, shapes and bytes of the fit and held-out rows of both data sets.

    Args:
        names: of D_P and D_H.
        splits: their rows.
    """
    digest = hashlib.sha256()
    for role in ROLES:
        for name, part in (("fit", splits[role].fit), ("held_out", splits[role].held_out)):
            digest.update(f"{names[role]}/{role}/{name}".encode())
            for tensor in () if part is None else (part.x, part.y):
                digest.update(str(tuple(tensor.shape)).encode())
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


HOLD_OUT_SEED = 0
"""Constant, so that no choice of the user can turn a test image into a training image."""


def mask_of_classes(
    labels: np.ndarray[Any, np.dtype[Any]], count: Callable[[int], int], seed: int, *stream: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows that are held out of each class, the same on every call.

    Args:
        labels: (N,) whole numbers from 0.
        count: from the rows of a class to how many of them are held out.
        seed: of the draw.
        stream: further numbers that tell draws with the same seed apart.

    Returns:
        (N,) bool, true for what is held out.
    """
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        mask[random_generator(seed, *stream, int(label)).permutation(rows)[: count(len(rows))]] = True
    return mask


def share_of(fraction: float) -> Callable[[int], int]:
    """Of `mask_of_classes`: a share, rounded, of a class with at least 2 rows at least one and never all."""
    return lambda rows: min(max(round(rows * fraction), 1), rows - 1)


def to_part(x: np.ndarray[Any, np.dtype[Any]], y: np.ndarray[Any, np.dtype[Any]], *, classes: bool = False) -> Part:
    """A part from arrays.

    Args:
        x: (N, D) features of any real dtype.
        y: (N,) targets or labels.
        classes: y are class numbers from 0, of a classification.

    Returns:
        the same numbers as float64 tensors with memory of their own, classes as int64.
    """
    import torch  # here, so that missing data are reported before anything heavy is imported

    targets = np.array(y, dtype=np.int64 if classes else np.float64)
    return Part(torch.from_numpy(np.array(x, dtype=np.float64)), torch.from_numpy(targets))


Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Standardizer:
    """Mean and standard deviation of each column, taken from some rows and applied to others.

    Attributes:
        mean: (D,) float64.
        std: (D,) float64, N - 1 in the denominator; infinite for a constant column, which is thereby dropped (0) from
            every set of rows. Left in raw units, a rare value met only in other rows would dwarf every other column.
    """

    mean: Array
    std: Array

    @classmethod
    def of(cls, values: Array) -> Standardizer:
        """The statistics of these rows.

        Args:
            values: (N, D) float64, N ≥ 2.

        Returns:
            one mean and one standard deviation a column.
        """
        # The mean of a constant column need not be its value to the last bit, and its rounding error, or that of sums
        # which are all the same, would become a feature of size one, divided by an equally small standard deviation.
        rounding = 8 * np.finfo(np.float64).eps * np.abs(values).max(axis=0)
        constant = np.ptp(values, axis=0) <= rounding
        mean = np.where(constant, values[0], values.mean(axis=0))
        return cls(mean, np.where(constant, np.inf, values.std(axis=0, ddof=1)))

    def apply(self, values: Array) -> Array:
        """Standardize rows.

        Args:
            values: (N, D) float64.

        Returns:
            (N, D) float64, (values - mean) / std.
        """
        return np.asarray((values - self.mean) / self.std, dtype=np.float64)

    @classmethod
    def of_pair(cls, pretrain: Array, harmful: Array) -> Standardizer:
        """D_P's statistics, for both data sets; a column that is constant in D_P alone has D_H's standard deviation.

        Args:
            pretrain: (N_P, D) float64, N_P ≥ 2.
            harmful: (N_H, D).

        Returns:
            one mean and one standard deviation a column; what is constant in both is dropped.
        """
        own, other = cls.of(pretrain), cls.of(harmful)
        return cls(own.mean, np.where(np.isinf(own.std), other.std, own.std))

    @property
    def dropped(self) -> list[int]:
        """The columns that are dropped, counted from 0."""
        return np.flatnonzero(np.isinf(self.std)).tolist()
