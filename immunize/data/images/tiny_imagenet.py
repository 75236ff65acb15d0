"""Tiny ImageNet: 200 classes of ImageNet at 64 pixels; D_P at small scale. Not in the paper.

The official folder has its validation images in one folder, with a table of labels::

    train/<wnid>/images/*.JPEG
    val/images/*.JPEG
    val/val_annotations.txt        one line an image: name, wnid, and a box, separated by tabs

Copies often have ``val/<wnid>`` instead. Its test images have no labels and are not used.

Shapes: C = 200 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from immunize.data.images.folders import class_names, read_class_folders, two_folders
from immunize.data.images.source import ImageSource, Layout, StoredSplits
from immunize.data.images.stored import FileImages
from immunize.errors import DataError

ANNOTATIONS = Path("val") / "val_annotations.txt"


class TinyImageNet(ImageSource):
    """Tiny ImageNet; `fit` are the training images, `held_out` the validation images."""

    name = "tiny_imagenet"
    usual_names: ClassVar[tuple[str, ...]] = ("tiny-imagenet-200", "tiny_imagenet", "tiny_imagenet_32")
    how_to_get: ClassVar[str] = "Get http://cs231n.stanford.edu/tiny-imagenet-200.zip (237 MB) and unpack it there."

    def layouts(self) -> Sequence[Layout]:
        """The official one, or one folder a class."""
        official = Layout(
            "official",
            f"train/<wnid>/images/<image> and {ANNOTATIONS}",
            lambda folder: (folder / "train").is_dir() and (folder / ANNOTATIONS).is_file(),
            _read_official,
        )
        return official, two_folders(("train",), ("val",))


def _read_official(folder: Path) -> StoredSplits:
    classes = class_names(folder / "train")
    fit = read_class_folders(folder / "train", classes)
    position = {wnid: label for label, wnid in enumerate(classes)}
    names, labels = [], []
    table = folder / ANNOTATIONS
    for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), start=1):
        cells = line.split("\t")
        if not line.strip():
            continue
        if len(cells) < 2 or cells[1] not in position:
            raise DataError(
                f"{table}, line {number}: {line[:60]!r} is not an image's name and one of the {len(classes)} classes "
                f"in {folder / 'train'}; unpack the data set anew"
            )
        names.append(f"images/{cells[0]}")
        labels.append(position[cells[1]])
    return StoredSplits(fit, FileImages.of(folder / "val", names, labels, classes))
