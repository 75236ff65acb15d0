"""Two arrays of your own in one `.npz` file a data set: x, the features, and y, what a probe is to predict.

    np.savez("harmful.npz", x=X_H, y=Y_H); np.savez("pretrain.npz", x=X_P, y=Y_P)
    python -m immunize.train harmful=arrays harmful.file=harmful.npz pretrain.file=pretrain.npz

κ depends on the scale of the features, so both data sets are standardized by D_P's fit rows (`harmful.standardize`, see
`loading`). Shapes: N samples, D features.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib.npyio import NpzFile

from immunize.data.splits import ROLES, SourceBase, Splits, mask_of_classes, random_generator, share_of, to_part
from immunize.errors import DataError, MissingDataError, unsquarable

RECIPE = "np.savez(file, x=X, y=Y) writes one, x (N, D) and y (N,)"

Array = np.ndarray[Any, np.dtype[Any]]


_UNREADABLE = (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, RuntimeError)
"""What numpy and zipfile raise for a damaged archive; RuntimeError: encrypted, or a compression nobody knows."""


class Arrays(SourceBase):
    """One `.npz` file with x (N, D) and y (N,), of which a random share of the rows is held out.

    Args:
        role: "pretrain" or "harmful".
        file: the file. Labels 0 and 1 in y make the task binary; other targets are standardized by the mean and the
            standard deviation of the fitted rows. More than two whole numbers of an integer type are neither.
        held_out: share of the rows set aside, positive and below 1.
        split_seed: of that choice.
        standardize: of D_H: both data sets in units of D_P's fit rows, see :func:`~immunize.data.loading.load_pair`.
            Not the default here: older records know no such setting, and their rows were taken as they are.
        classes: y are labels of classes, whatever whole numbers; of each a share of the rows is held out.

    Raises:
        DataError: no file named, or a share outside (0, 1).
    """

    name = "arrays"
    unused: ClassVar[Mapping[str, tuple[str, ...]]] = {"pretrain": ("standardize",)}

    def __init__(
        self,
        role: str,
        file: str | Path | None,
        held_out: float = 0.25,
        split_seed: int = 0,
        *,
        standardize: bool = False,
        classes: bool = False,
    ) -> None:
        super().__init__(role)
        if not file:
            raise DataError(f"arrays ({role}): name the file with {role}.file=<file>.npz; {RECIPE}")
        if not 0 < held_out < 1:
            raise DataError(f"arrays ({role}): held_out is a share of the rows between 0 and 1, not {held_out}")
        self.file, self.held_out, self.split_seed = Path(str(file)).expanduser(), held_out, split_seed
        self.standardize, self.classes = standardize and role == "harmful", classes

    @property
    def task(self) -> str:  # type: ignore[override]
        """Classification if asked for; binary where y holds nothing but 0 and 1, otherwise regression."""
        if self.classes:
            return "classification"
        return "binary" if np.isin(self._arrays[1], (0, 1)).all() else "regression"

    def require(self) -> None:
        """Find the file.

        Raises:
            MissingDataError: it is not there.
        """
        if not self.file.is_file():
            raise MissingDataError(f"arrays ({self.role}): there is no file {self.file.absolute()}; {RECIPE}")

    def load(self) -> Splits:
        """Read and split.

        Returns:
            `fit` and `held_out`, rows in the order of the file.

        Raises:
            MissingDataError: no such file.
            DataError: not a `.npz` file with numbers x (N, D) and y (N,), fewer than 2 rows in a part or of a class, or
                labels of several classes that are not said to be that.
        """
        x, y = self._arrays
        stream = self.split_seed, ROLES.index(self.role)
        held = round(self.held_out * len(x))
        if min(held, len(x) - held) < 2:
            raise DataError(
                f"arrays ({self.role}): {len(x)} rows with held_out={self.held_out} leave a part without 2 rows"
            )
        if self.classes:
            found, y, counts = np.unique(y, return_inverse=True, return_counts=True)
            if (few := found[counts < 2]).size:
                raise DataError(
                    f"arrays ({self.role}): classes=true, but of class {few[0]:g} there is 1 row; 2 are needed"
                )
            out = mask_of_classes(y, share_of(self.held_out), *stream)
        else:
            out = np.zeros(len(x), dtype=bool)
            out[random_generator(*stream).permutation(len(x))[:held]] = True
        if self.task == "regression" and np.isfinite(y).all():  # others are counted and refused
            size, fitted = float(np.abs(y).max()), y[~out]
            if told := unsquarable(size):
                raise DataError(f"arrays ({self.role}): targets {told}")
            spread = float(fitted.std(ddof=1)) if np.ptp(fitted) else 0.0  # of a constant it is rounding
            y = (y - (fitted.mean() if spread else fitted[0])) / (spread or 1.0)
        return Splits(*(to_part(x[rows], y[rows], classes=self.classes) for rows in (~out, out)))

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        return {
            "name": self.name,
            "role": self.role,
            "task": self.task,
            "file": self.file.name,
            "held_out": self.held_out,
            "split_seed": self.split_seed,
            **({"standardized": "by D_P's fit rows, D_P too"} if self.standardize else {}),
        }

    @cached_property
    def _arrays(self) -> tuple[Array, Array]:
        """X and y, read once and checked."""
        self.require()
        what = f"arrays ({self.role}): {self.file}"
        try:
            archive = np.load(self.file, allow_pickle=False)
            if not isinstance(archive, NpzFile) or not {"x", "y"} <= set(archive.files):
                raise DataError(f"{what} has no arrays x and y; {RECIPE}")
            with archive:
                x, y = archive["x"], archive["y"]
        except _UNREADABLE as error:
            raise DataError(f"{what} cannot be read: {str(error).partition('. ')[0]}; {RECIPE}") from error
        if x.dtype.kind not in "fiub" or y.dtype.kind not in "fiub":
            raise DataError(f"{what} holds {x.dtype} and {y.dtype}; x and y have to be real numbers")
        if x.ndim != 2 or y.shape != x.shape[:1]:
            raise DataError(f"{what}: x has the shape {x.shape} and y {y.shape}; (N, D) and (N,) are needed")
        whole = y.dtype.kind != "f"
        if not self.classes and whole and len(several := np.unique(y)) > 2:
            raise DataError(
                f"{what}: y holds {len(several)} whole numbers; if they are classes, set {self.role}.classes=true and "
                "objective.loss=ce, which go for both data sets; a target has to be of a floating-point type"
            )
        if self.classes and not whole and (y % 1).any():
            raise DataError(f"{what}: {self.role}.classes=true, but y holds other than whole numbers")
        return x.astype(np.float64), y.astype(np.float64)
