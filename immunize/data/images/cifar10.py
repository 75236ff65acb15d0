"""CIFAR-10: ten kinds of things at 32 pixels; D_P or D_H at small scale. Not in the paper.

Either one folder a class, ``train/<class>`` and ``test/<class>``, or the original ``cifar-10-batches-py``, which
torchvision downloads. The original files are pickles; torchvision reads them, and only after their checksums are those
of the published files, so no foreign pickle is ever executed.

Shapes: C = 10 classes, 32 x 32 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from immunize.data.images.folders import two_folders
from immunize.data.images.source import ImageSource, Layout, StoredSplits
from immunize.data.images.stored import ArrayImages
from immunize.errors import DataError

BATCHES = "cifar-10-batches-py"


class Cifar10(ImageSource):
    """CIFAR-10; `fit` are the 50,000 training images, `held_out` the 10,000 test images."""

    name = "cifar10"
    usual_names: ClassVar[tuple[str, ...]] = ("cifar10", "cifar-10")
    how_to_get: ClassVar[str] = (
        "Get https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz (170 MB) and unpack it there, or let "
        "download=true fetch it."
    )

    def layouts(self) -> Sequence[Layout]:
        """One folder a class, or the original batches."""
        batches = Layout("original batches", BATCHES, lambda folder: (folder / BATCHES).is_dir(), _read_batches)
        return two_folders(("train",), ("test",)), batches

    def fetch(self, folder: Path) -> None:
        """Download with torchvision, which unpacks into ``cifar-10-batches-py`` in this folder."""
        from torchvision.datasets import CIFAR10

        CIFAR10(str(folder), download=True)


def _read_batches(folder: Path) -> StoredSplits:
    from torchvision.datasets import CIFAR10

    try:
        train, test = (CIFAR10(str(folder), train=is_train) for is_train in (True, False))
    except (OSError, RuntimeError) as error:  # torchvision's word for a missing file or a wrong checksum
        raise DataError(
            f"{folder / BATCHES} is not complete, or its files are not the published ones; remove it and unpack "
            f"cifar-10-python.tar.gz anew"
        ) from error
    return StoredSplits(_arrays(train), _arrays(test))


def _arrays(images: Any) -> ArrayImages:
    return ArrayImages(images.data, np.asarray(images.targets, dtype=np.int64), tuple(images.classes))
