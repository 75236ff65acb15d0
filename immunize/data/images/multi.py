"""Several image data sets that are harmful at once: `harmful=multi`. Not in the paper, which has one.

To everything that only reads images they are one data set: their images one set after the other, their classes side by
side, so that a label says which set it belongs to. What each of them is, `parts` says.

Shapes: N images, C classes of all sets together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from immunize.data.images.source import ImageSource, StoredSplits, as_image_source
from immunize.data.images.stored import Array, StoredImages
from immunize.errors import DataError, MissingDataError

if TYPE_CHECKING:
    from PIL.Image import Image


def set_numbers(labels: Array, classes: Sequence[int]) -> Array:
    """Which of several data sets each label belongs to, (N,) int64.

    Args:
        labels: (N,) int64, counted over all sets.
        classes: C of each set.
    """
    return np.searchsorted(np.cumsum(classes), labels, side="right").astype(np.int64)


@dataclass(frozen=True, eq=False)
class JoinedImages:
    """Images of several data sets.

    Attributes:
        parts: where those of each set are stored.
        names: of the sets; a class is called "<set>/<class>".
        number_of: (N,) int64, the set of each image.
        row_of: (N,) int64, its index there.
    """

    parts: tuple[StoredImages, ...]
    names: tuple[str, ...]
    number_of: Array
    row_of: Array

    @classmethod
    def of(cls, parts: Mapping[str, StoredImages]) -> JoinedImages:
        """All images, set after set."""
        sizes = [len(part) for part in parts.values()]
        return cls(
            tuple(parts.values()),
            tuple(parts),
            np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
            np.concatenate([np.arange(size, dtype=np.int64) for size in sizes]),
        )

    def __len__(self) -> int:
        return len(self.row_of)

    @cached_property
    def labels(self) -> Array:
        """(N,) int64, those of a set after those of the sets before it."""
        first = np.array([0, *accumulate(len(part.classes) for part in self.parts)], dtype=np.int64)
        own = np.empty(len(self), dtype=np.int64)
        for number, part in enumerate(self.parts):
            mine = self.number_of == number
            own[mine] = part.labels[self.row_of[mine]]
        return own + first[self.number_of]

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """C names."""
        return tuple(f"{name}/{of}" for name, part in zip(self.names, self.parts, strict=True) for of in part.classes)

    def take(self, rows: Array) -> JoinedImages:
        """The images with these indices, (M,) int64, in their order."""
        return replace(self, number_of=self.number_of[rows], row_of=self.row_of[rows])

    def open(self, row: int) -> Image:
        """One image, mode RGB; raises one of `stored.UNREADABLE`."""
        part: StoredImages = self.parts[self.number_of[row]]
        return part.open(int(self.row_of[row]))

    def name_of(self, row: int) -> str:
        """Set and name."""
        number = self.number_of[row]
        return f"{self.names[number]}: {self.parts[number].name_of(int(self.row_of[row]))}"

    def unreadable(self) -> Array:
        """Indices of images that cannot be decoded, as far as a fast look tells."""
        bad = np.zeros(len(self), dtype=np.bool_)
        for number, part in enumerate(self.parts):
            bad |= (self.number_of == number) & np.isin(self.row_of, part.unreadable())
        return np.flatnonzero(bad).astype(np.int64)

    def digest(self, *, times: bool) -> str:
        """SHA-256 of the sets' names and digests, and of which images of each."""
        digest = hashlib.sha256("\0".join(self.names).encode())
        for part in self.parts:
            digest.update(part.digest(times=times).encode())
        for array in (self.number_of, self.row_of):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


class SeveralSets(ImageSource):
    """Several data sets as D_H.

    Args:
        sets: at least two image sources in the role "harmful", by the names that a record calls them by.
        role: "harmful".

    Raises:
        DataError: another role, fewer than two sets, or one that has no images.
    """

    def __init__(self, sets: Mapping[str, Any], role: str = "harmful") -> None:
        if role != "harmful":
            raise DataError("several data sets at once can be harmful, but D_P is one: choose it with pretrain=<name>")
        if len(sets) < 2:
            raise DataError(
                f"harmful=multi is for two data sets or more, there is {', '.join(sets) or 'none'}; choose them with "
                f"harmful/sets=[cars,caltech101], or a single one with harmful=<name>"
            )
        self._sets = {str(name): as_image_source(source) for name, source in sets.items()}
        self.name = "+".join(self._sets)
        super().__init__(role, data_root="")

    @property
    def parts(self) -> dict[str, ImageSource]:
        """The sets by name."""
        return self._sets

    def require(self) -> None:
        """Find the files of every set.

        Raises:
            MissingDataError: those of one are not there.
        """
        for name, source in self._sets.items():
            try:
                source.require()
            except MissingDataError as error:
                raise MissingDataError(f"{error} (Here: harmful.sets.{name}.root.)") from None

    @cached_property
    def stored(self) -> StoredSplits:
        """Both splits of all sets, each checked but for its pixels.

        Raises:
            MissingDataError, DataError: as :meth:`ImageSource.splits`.
        """
        stored = {name: source.stored for name, source in self._sets.items()}
        return StoredSplits(
            JoinedImages.of({name: splits.fit for name, splits in stored.items()}),
            JoinedImages.of({name: splits.held_out for name, splits in stored.items()}),
        )

    def describe(self) -> dict[str, object]:
        """Short facts for the record, and under "sets" those of each set."""
        sets = self._readable
        counted = {
            split: np.bincount(
                set_numbers(images.labels.numpy(), [source.n_classes for source in self._sets.values()]),
                minlength=len(self._sets),
            )
            for split, images in (("fit", sets.fit), ("held_out", sets.held_out))
        }
        own = {
            name: {
                "name": source.name,
                "layout": source.layout,
                "classes": source.n_classes,
                "images": {split: int(counts[number]) for split, counts in counted.items()},
            }
            for number, (name, source) in enumerate(self._sets.items())
        }
        return self.facts(self.counts()) | {"sets": own}
