"""One folder a class: the layout of most image data sets, and `imagefolder` for any of them (§5.2).

``<root>/train/<class>/<any depth>/<image>`` and the same under ``val`` or ``test``. Labels are the positions of the
class folders in alphabetical order, torchvision's rule. Where there is one split only, a share of each class's images
is held out, drawn with a constant seed: what is held out does not depend on the seed of the run.

Shapes: N images, C classes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from immunize.data.images.source import ImageSource, Layout, StoredSplits
from immunize.data.images.stored import FileImages
from immunize.data.splits import HOLD_OUT_SEED, mask_of_classes, share_of
from immunize.errors import DataError, some

log = logging.getLogger(__name__)

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""Torchvision's list, and gif; whatever else lies in a folder is ignored."""

TRAIN_NAMES, TEST_NAMES = ("train", "training"), ("val", "test", "valid", "validation", "testing")
"""Usual names of split folders, the first that is there is taken."""

HELD_OUT = 0.2
"""The share that is held out unless somebody says another one."""


class ImageFolder(ImageSource):
    """Any images, one folder a class.

    Args:
        role: "pretrain" or "harmful".
        root: the folder that holds the split folders, or the class folders themselves.
        train: name of the folder of training images below `root`; None: one of the usual names, or `root` itself.
        test: name of the folder of held-out images; None: one of the usual names, or drawn from the training images.
        held_out_fraction: share of each class's images that is held out where there is no second folder.

    Raises:
        DataError: for an unknown role, a fraction outside (0, 1), or without a folder.
    """

    name = "imagefolder"
    how_to_get: ClassVar[str] = "Place the images of each class in a folder of its own."

    def __init__(
        self,
        role: str,
        root: str | Path,
        train: str | None = None,
        test: str | None = None,
        held_out_fraction: float = HELD_OUT,
    ) -> None:
        super().__init__(role, root=root)
        if not 0 < held_out_fraction < 1:
            raise DataError(f"{role}.held_out_fraction={held_out_fraction}, but it has to be between 0 and 1")
        self.train, self.test, self.held_out_fraction = train, test, held_out_fraction

    def layouts(self) -> Sequence[Layout]:
        """Two split folders; one split folder; class folders alone."""
        trains = TRAIN_NAMES if self.train is None else (self.train,)
        tests = tuple(name for name in TEST_NAMES if name != self.train) if self.test is None else (self.test,)
        both = two_folders(trains, tests)
        if self.held_out_fraction != HELD_OUT:
            both = replace(both, read=self._without_draw)
        if self.test is not None:
            return (both,)
        one = Layout(
            "class folders in one split folder, a share held out",
            f"{' or '.join(trains)}/<class>/<image>",
            lambda folder: _first(folder, trains) is not None,
            lambda folder: self._drawn(self._alone(folder, _existing(folder, trains))),
        )
        if self.train is not None:
            return both, one
        bare = Layout(
            "class folders, a share held out",
            "<class>/<image>",
            lambda folder: bool(class_names(folder)) and not _first(folder, (*TRAIN_NAMES, *TEST_NAMES)),
            self._drawn,
        )
        return both, one, bare

    def own_folder(self) -> dict[str, object]:
        """Of the path only the folder's own name."""
        assert self.root is not None
        return {"folder": self.root.resolve().name}

    def _alone(self, folder: Path, train: Path) -> Path:
        """The split folder, if no other one has its classes.

        Raises:
            DataError: one has, by a name that nobody has told.
        """
        classes = set(class_names(train))
        for name in class_names(folder):
            if name != train.name and classes & set(class_names(folder / name)):
                raise DataError(
                    f"{folder / name} has classes of {train} and would not be used: say {self.role}.test={name}, or "
                    f"move it away"
                )
        return train

    def _without_draw(self, folder: Path) -> StoredSplits:
        raise DataError(
            f"{self.role}.held_out_fraction has no effect: {folder} has held-out images in a folder of their own; "
            f"leave it out"
        )

    def _drawn(self, folder: Path) -> StoredSplits:
        return hold_out(read_class_folders(folder, class_names(folder)), self.held_out_fraction)


def two_folders(trains: Sequence[str], tests: Sequence[str]) -> Layout:
    """The layout of two split folders, each with one folder a class.

    Args:
        trains: names that the folder of training images may have.
        tests: names that the folder of held-out images may have.
    """
    return Layout(
        "one folder a class",
        f"{' or '.join(trains)}/<class>/<image> and {' or '.join(tests)}/<class>/<image>",
        lambda folder: _first(folder, trains) is not None and _first(folder, tests) is not None,
        lambda folder: read_two_folders(_existing(folder, trains), _existing(folder, tests)),
    )


def read_two_folders(train: Path, test: Path) -> StoredSplits:
    """Both splits, with the classes of the training folder.

    Args:
        train: holds one folder a class.
        test: the same classes, or some of them.

    Raises:
        DataError: one folder for both, no class folders, one without training images, or a class in `test` alone.
    """
    if train.samefile(test):
        raise DataError(f"{test} has the training images; name another folder of held-out ones, or leave it out")
    classes = class_names(train)
    if unknown := [name for name in class_names(test) if name not in set(classes)]:
        raise DataError(
            f"{test} has {len(unknown)} class folders that {train} has not, such as {some(unknown)}; both need the "
            f"same classes"
        )
    fit, held_out = read_class_folders(train, classes), read_class_folders(test, classes, partial=True)
    if absent := [name for number, name in enumerate(classes) if number not in held_out.labels]:
        log.warning("%s has no image of %d of %d classes, such as %s", test, len(absent), len(classes), some(absent))
    return StoredSplits(fit, held_out)


def read_class_folders(folder: Path, classes: Sequence[str], *, partial: bool = False) -> FileImages:
    """The images of all classes, by class and then by name.

    Args:
        folder: holds one folder a class.
        classes: their names in the order of the labels.
        partial: allow classes without images.

    Raises:
        DataError: there are no images, or a class has none and `partial` is false.
    """
    if not classes:
        raise DataError(f"{folder} has no class folders; it has to hold one folder of images for each class")
    found = [sorted(_images_below(folder, name)) if (folder / name).is_dir() else [] for name in classes]
    empty = [name for name, names in zip(classes, found, strict=True) if not names]
    if len(empty) == len(classes):
        raise DataError(f"{folder} has class folders but no image in any of them; endings known are {some(SUFFIXES)}")
    if empty and not partial:
        raise DataError(f"{folder}: no image in {some(empty)}; remove empty class folders, or unpack the data set anew")
    labels = np.repeat(np.arange(len(classes)), [len(names) for names in found])
    return FileImages.of(folder, [name for names in found for name in names], labels, classes)


def class_names(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted; hidden ones are left out.

    Args:
        folder: need not exist.
    """
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def hold_out(images: FileImages, fraction: float) -> StoredSplits:
    """Split off a share of each class's images, the same on every call.

    Args:
        images: of all classes.
        fraction: share that is held out, rounded, of a class with at least 2 images at least one and never all.

    Returns:
        both splits in the original order.
    """
    mask = mask_of_classes(images.labels, share_of(fraction), HOLD_OUT_SEED)
    return StoredSplits(images.take(np.flatnonzero(~mask)), images.take(np.flatnonzero(mask)))


def _images_below(folder: Path, name: str) -> Iterator[str]:
    """Paths relative to `folder` of the images at any depth below `folder/name`."""
    with os.scandir(folder / name) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _images_below(folder, f"{name}/{entry.name}")
            elif entry.name.lower().endswith(SUFFIXES):
                yield f"{name}/{entry.name}"


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of these folders that is there, in small letters or capitals."""
    there = {name.lower(): name for name in class_names(folder)}
    paths = (folder / there.get(name.lower(), name) for name in names)
    return next((path for path in paths if path.is_dir()), None)


def _existing(folder: Path, names: Sequence[str]) -> Path:
    path = _first(folder, names)
    assert path is not None  # the layout was found
    return path
