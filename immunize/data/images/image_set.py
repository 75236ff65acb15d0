"""One split of an image data set as PyTorch reads it: decoded one image at a time, unreadable ones left out.

Unreadable images are found in two places. A fast look at all files before anything is read (`stored`) leaves out what
is cut off, empty or no image: it has no index here. The rare file that looks whole and cannot be decoded is found when
it is read; the next readable image of its class takes its place, so that indices, lengths and batches stay what they
are, in every process. Both are counted in `skipped`; more than 1 % of a split is an error.

Shapes: N images, C classes, 3 x H x W after the transform.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from immunize.data.images.stored import UNREADABLE, Array, StoredImages
from immunize.data.splits import random_generator
from immunize.errors import DataError, some

Transform = Callable[[Any], Any]
"""From a PIL image, mode RGB, to a float32 tensor (3, H, W)."""

MOST_SKIPPED = 0.01
"""Share of a split's images that may be unreadable; a few are usual in large sets, more mean a broken copy."""

DRAW_STREAM = 0xD2A3
"""Tells the draw of images of a large data set apart from other draws."""

NAMED = 5
"""How many unreadable files an error names."""


class ImageSet(Dataset[tuple[Tensor, int]]):
    """The readable images of one split, or some of them; `images[i]` is ``(tensor, label)``, (3, H, W) float32 and int.

    Args:
        stored: all images of the split where they lie.
        transform: from a PIL image, mode RGB, to (3, H, W) float32; None: pixels / 255.
        what: data set and split, for messages.

    Raises:
        DataError: if more than 1 % of the split are unreadable.
    """

    def __init__(self, stored: StoredImages, transform: Transform | None, what: str) -> None:
        self.stored, self.transform, self.what = stored, transform, what
        # Shared memory: what a worker process finds is known to the others, and to every set of the same split.
        self._failed = torch.zeros(len(stored), dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]
        self._failed[torch.from_numpy(stored.unreadable())] = True
        self._check_share()
        self.rows: Array = np.flatnonzero(~self._failed.numpy())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One image and its label.

        Raises:
            DataError: if more than 1 % of the split turned out to be unreadable, or the transform gives something else
                than (3, H, W) float32.
            IndexError: for an index of N or more.
        """
        row = int(self.rows[index])
        image = self._open(row)
        x = _to_tensor(image) if self.transform is None else self.transform(image)
        if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[0] != 3 or x.dtype != torch.float32:
            facts = f"{tuple(x.shape)} {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            raise DataError(f"{self.what}: the transform gives {facts}, but has to give a float32 tensor (3, H, W)")
        return x, int(self.stored.labels[row])

    @cached_property
    def labels(self) -> Tensor:
        """(N,) int64, 0 to C - 1."""
        return torch.from_numpy(self.stored.labels[self.rows].astype(np.int64))

    @property
    def unreadable(self) -> Tensor:
        """Which images of the whole split are unreadable, as far as is known by now: (all of them,) bool, no copy."""
        flags: Tensor = self._failed
        return flags

    @property
    def skipped(self) -> int:
        """How many images of the whole split are unreadable, as far as is known by now."""
        return int(self._failed.sum())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of names, sizes, times and labels of the files, and which of them: the key of whatever is cached."""
        digest = hashlib.sha256(self.stored.digest(times=True).encode())
        digest.update(np.ascontiguousarray(self.rows, dtype=np.int64).data)
        return digest.hexdigest()

    def take(self, indices: Tensor | Array | Sequence[int]) -> ImageSet:
        """The images with these indices, (M,) int64, in their order."""
        other = self.with_transform(self.transform)
        other.rows = self.rows[np.asarray(indices, dtype=np.int64)]
        return other

    def drawn(self, most: int | None, *stream: int) -> ImageSet:
        """At most so many of the images, in their order, the same for every seed.

        Args:
            most: how many; None takes all.
            stream: sets this draw apart from that of another data set or split.
        """
        if most is None or len(self) <= most:
            return self
        return self.take(np.sort(random_generator(0, DRAW_STREAM, *stream).permutation(len(self))[:most]))

    def with_transform(self, transform: Transform | None) -> ImageSet:
        """The same images through another transform."""
        other = ImageSet.__new__(ImageSet)
        other.stored, other.transform, other.what = self.stored, transform, self.what
        other._failed, other.rows = self._failed, self.rows
        return other

    def _open(self, row: int) -> Any:
        """The image, or if it is unreadable the next one of its class here that is not."""
        for candidate in self._candidates(row):
            if not self._failed[candidate]:
                try:
                    return self.stored.open(candidate)
                except UNREADABLE:
                    self._failed[candidate] = True
                    self._check_share()
        name = self.stored.classes[int(self.stored.labels[row])]
        raise DataError(f"{self.what}: no image of the class {name} can be read; replace its files")

    def _candidates(self, row: int) -> Iterator[int]:
        """The row itself, and then the others of its class, in a circle; almost always only the first is asked for."""
        yield row
        same = self.rows[self.stored.labels[self.rows] == self.stored.labels[row]]
        yield from (int(other) for other in np.concatenate([same[same > row], same[same < row]]))

    def _check_share(self) -> None:
        bad, total = np.flatnonzero(self._failed.numpy()), len(self.stored)
        if len(bad) > MOST_SKIPPED * total:
            named = some([self.stored.name_of(int(row)) for row in bad], NAMED)
            raise DataError(
                f"{self.what}: {len(bad)} of {total} images cannot be read, more than {MOST_SKIPPED:.0%}: {named}; "
                f"replace these files or unpack the data set anew"
            )


class ImageSplits(NamedTuple):
    """Both splits of one data set.

    Attributes:
        fit: images the extractor is immunized with.
        held_out: images it never sees; the same classes.
    """

    fit: ImageSet
    held_out: ImageSet

    def with_transforms(self, transform_fit: Transform | None, transform_eval: Transform | None) -> ImageSplits:
        """The same images, `fit` through the first transform and `held_out` through the second."""
        return ImageSplits(self.fit.with_transform(transform_fit), self.held_out.with_transform(transform_eval))


def _to_tensor(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
