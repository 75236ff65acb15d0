"""Imagenette: ten easy classes of ImageNet, for experiments that ImageNet is too large for. Not in the paper.

``train/<wnid>`` and ``val/<wnid>``, fast.ai's layout at any image size. Labels are 0 to 9, or, for a θ_0 trained on
ImageNet, those of its 1,000 classes.

Shapes: C = 10 classes, or 1,000 with ImageNet's labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from immunize.data.images.folders import two_folders
from immunize.data.images.imagenet import with_imagenet_labels
from immunize.data.images.source import ImageSource, Layout
from immunize.errors import DataError

LABELS = ("own", "imagenet")


class Imagenette(ImageSource):
    """Imagenette; `fit` are the training images, `held_out` the validation images.

    Args:
        role: "pretrain" or "harmful".
        data_root: as `ImageSource`.
        root: as `ImageSource`.
        download: fetch fast.ai's copy with images of 160 pixels.
        labels: "own" for 0 to 9, "imagenet" for the positions among ImageNet's 1,000 classes.

    Raises:
        DataError: for an unknown role or `labels`, or without a folder.
    """

    name = "imagenette"
    usual_names: ClassVar[tuple[str, ...]] = ("imagenette", "imagenette2", "imagenette2-320", "imagenette2-160")
    how_to_get: ClassVar[str] = (
        "Get it from https://github.com/fastai/imagenette, or let download=true fetch it (99 MB)."
    )

    def __init__(
        self,
        role: str,
        data_root: str | Path | None = None,
        root: str | Path | None = None,
        download: bool = False,
        labels: str = "own",
    ) -> None:
        super().__init__(role, data_root, root, download)
        if labels not in LABELS:
            raise DataError(f"{role}.labels is {labels!r}, but has to be one of {', '.join(LABELS)}")
        self.labels = labels

    def layouts(self) -> Sequence[Layout]:
        """One folder a class."""
        layout = two_folders(("train",), ("val", "test"))
        if self.labels == "own":
            return (layout,)
        return (replace(layout, read=lambda folder: with_imagenet_labels(layout.read(folder))),)

    def fetch(self, folder: Path) -> None:
        """Download with torchvision, which unpacks into ``imagenette2-160`` in a folder it is given."""
        from torchvision.datasets import Imagenette as TorchvisionImagenette

        parent = folder if self.root is not None else folder.parent
        TorchvisionImagenette(str(parent), size="160px", download=True)

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        return super().describe() | {"labels": self.labels}
