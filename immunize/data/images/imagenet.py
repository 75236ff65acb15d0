"""ImageNet (ILSVRC 2012): D_P of Table 3 (§5.2).

``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``, a WordNet id such as n01440764 for each class. Labels are the
positions in the list of all 1,000 ids, the order in which every released classifier has its outputs; so a copy with
some classes only has the right labels too.

Shapes: C = 1,000 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from immunize.data.images.folders import class_names, read_two_folders, two_folders
from immunize.data.images.source import ImageSource, Layout, StoredSplits
from immunize.data.images.stored import FileImages, StoredImages
from immunize.errors import DataError


class ImageNet(ImageSource):
    """ILSVRC 2012; `fit` are the training images, `held_out` the validation images."""

    name = "imagenet"
    usual_names: ClassVar[tuple[str, ...]] = ("imagenet", "ILSVRC2012", "imagenet-1k")
    how_to_get: ClassVar[str] = (
        "ImageNet asks for an account: get ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from "
        "https://image-net.org/download-images, unpack each class's archive into train/<wnid>, and sort the "
        "validation images into val/<wnid>."
    )

    def layouts(self) -> Sequence[Layout]:
        """One folder a class."""
        return (replace(two_folders(("train",), ("val",)), read=_read),)


def with_imagenet_labels(splits: StoredSplits) -> StoredSplits:
    """The same images with labels among ImageNet's 1,000 classes, in the order of the list that timm ships.

    Args:
        splits: of files, whose classes are WordNet ids.

    Raises:
        DataError: if a class is not one of ImageNet's.
    """
    from timm.data.imagenet_info import ImageNetInfo  # imports torch

    ids = tuple(ImageNetInfo("imagenet-1k").label_names())  # type: ignore[no-untyped-call]
    position = {wnid: label for label, wnid in enumerate(ids)}

    def relabelled(images: StoredImages) -> FileImages:
        assert isinstance(images, FileImages)
        if unknown := [name for name in images.classes if name not in position]:
            raise DataError(
                f"{images.root}: {', '.join(unknown[:3])} {'is' if len(unknown) == 1 else 'are'} not among the 1,000 "
                f"WordNet ids of ImageNet; remove these folders, or use imagefolder for classes of your own"
            )
        labels = np.array([position[name] for name in images.classes], dtype=np.int64)[images.labels]
        return replace(images, labels=labels, classes=ids)

    return StoredSplits(relabelled(splits.fit), relabelled(splits.held_out))


def _read(folder: Path) -> StoredSplits:
    if not class_names(folder / "val"):
        raise DataError(
            f"{folder / 'val'} has no class folders; the archive of validation images has none, sort them into "
            f"val/<wnid> by the labels of ILSVRC2012_devkit_t12.tar.gz"
        )
    return with_imagenet_labels(read_two_folders(folder / "train", folder / "val"))
