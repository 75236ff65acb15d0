"""Caltech-101: objects of 101 kinds; a harmful or benign task at small scale. Not in the paper.

Either ``train/<class>`` and ``test/<class>``, or the original ``101_ObjectCategories/<class>``, which has no split: a
quarter of each class's images is held out, drawn with a constant seed. The background class is left out.

Shapes: C = 101 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from immunize.data.images.folders import class_names, hold_out, read_class_folders, two_folders
from immunize.data.images.source import ImageSource, Layout, StoredSplits

ORIGINAL, BACKGROUND = "101_ObjectCategories", "BACKGROUND_Google"

HELD_OUT_FRACTION = 0.25
"""Ours; the original has no split. The classes have 31 to 800 images."""


class Caltech101(ImageSource):
    """Caltech-101; `held_out` are the test images, or a quarter of all."""

    name = "caltech101"
    usual_names: ClassVar[tuple[str, ...]] = ("caltech101", "caltech-101")
    how_to_get: ClassVar[str] = (
        "Get caltech-101.zip from https://data.caltech.edu/records/mzrjq-6wc02 (137 MB) and unpack the "
        "101_ObjectCategories.tar.gz in it there, or let download=true fetch it."
    )

    def layouts(self) -> Sequence[Layout]:
        """Two split folders, or the original one folder."""
        original = Layout(
            "101_ObjectCategories, a quarter held out",
            f"{ORIGINAL}/<class>/<image>",
            lambda folder: (folder / ORIGINAL).is_dir(),
            _read_original,
        )
        return two_folders(("train",), ("test",)), original

    def fetch(self, folder: Path) -> None:
        """Download with torchvision, which unpacks into a folder ``caltech101``."""
        from torchvision.datasets import Caltech101 as TorchvisionCaltech101

        TorchvisionCaltech101(str(folder.parent if folder.name == "caltech101" else folder), download=True)


def _read_original(folder: Path) -> StoredSplits:
    classes = [name for name in class_names(folder / ORIGINAL) if name != BACKGROUND]
    return hold_out(read_class_folders(folder / ORIGINAL, classes), HELD_OUT_FRACTION)
