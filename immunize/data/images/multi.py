"""Several image data sets that are harmful at once: `harmful=multi`. Not in the paper, which has one.

To everything that only reads images they are one data set: their images one set after the other, their classes side by
side, so that a label says which set it belongs to. What each of them is, `parts` says.

Shapes: N images, C classes of all sets together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from immunize.data.images.source import ImageSource, StoredSplits, as_image_source
from immunize.data.images.stored import Array, JoinedImages
from immunize.errors import DataError, MissingDataError


def set_numbers(labels: Array, classes: Sequence[int]) -> Array:
    """Which of several data sets each label belongs to, (N,) int64.

    Args:
        labels: (N,) int64, counted over all sets.
        classes: C of each set.
    """
    return np.searchsorted(np.cumsum(classes), labels, side="right").astype(np.int64)


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
