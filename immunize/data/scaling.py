"""Columns in units of their own: mean and standard deviation of some rows, applied to these and to others.

Shapes: N rows, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Standardizer"]

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
        # max = min and not std = 0: the mean of a constant column need not be its value to the last bit, and its
        # rounding error, divided by an equally small standard deviation, would become a feature of size one.
        constant = values.max(axis=0) == values.min(axis=0)
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
