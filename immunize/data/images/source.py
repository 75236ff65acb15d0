"""What all image sources have in common: where a data set is looked for, in which layouts, and what is checked.

A data set is where `root` says, or below the data folder under one of its usual names. Each source knows one or more
layouts of its files and takes the first that it finds; a data set that is not there is an error that says what to place
where. None of it imports torch before images are asked for.

Several data sets that are harmful at once (`harmful=multi`; the paper has one) are one data set to whatever only reads
images: one set's images after another's, their classes side by side. What each of them is, `parts` says.

Shapes: N images, C classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from immunize.data.images.stored import Array, JoinedImages, StoredImages
from immunize.data.splits import SourceBase, Splits
from immunize.errors import DataError, MissingDataError

if TYPE_CHECKING:
    from immunize.data.images.image_set import ImageSplits, Transform

FEWEST_CLASSES = 2


class StoredSplits(NamedTuple):
    """Both splits of a data set where they are stored.

    Attributes:
        fit: the training images.
        held_out: images that training never sees; the same classes.
    """

    fit: StoredImages
    held_out: StoredImages


@dataclass(frozen=True)
class Layout:
    """One way in which the files of a data set may lie in its folder.

    Attributes:
        name: for the record.
        expects: what is looked for, for the message when nothing is found.
        found: whether a folder has this layout; looks at no image.
        read: both splits of a folder that has it.
    """

    name: str
    expects: str
    found: Callable[[Path], bool]
    read: Callable[[Path], StoredSplits]


class ImageSource(SourceBase):
    """One image data set in one role. A subclass sets the class attributes and defines `layouts`.

    Args:
        role: "pretrain" or "harmful".
        data_root: the folder that holds data sets under their usual names; needed if `root` is None.
        root: the folder of this data set, whatever its name; None: look for it in `data_root`.
        download: fetch the files if they are not there, for the data sets that can be fetched.

    Raises:
        DataError: for an unknown role, or neither folder given.
    """

    task = "classification"
    usual_names: ClassVar[tuple[str, ...]] = ()
    how_to_get: ClassVar[str] = ""

    def __init__(
        self,
        role: str,
        data_root: str | Path | None = None,
        root: str | Path | None = None,
        download: bool = False,
    ) -> None:
        super().__init__(role)
        if root is None and data_root is None:
            raise DataError(f"{self.name}: name the folder of its images with {role}.root=<folder>")
        self.data_root = None if data_root is None else Path(data_root).expanduser()
        self.root = None if root is None else Path(root).expanduser()
        self.download = download

    def layouts(self) -> Sequence[Layout]:
        """The layouts this data set may have, the likeliest first."""
        raise NotImplementedError

    def fetch(self, folder: Path) -> None:
        """Download the data set into its folder; the base class refuses.

        Args:
            folder: where the data set is to lie.

        Raises:
            MissingDataError: there is nowhere to download it from.
        """
        raise MissingDataError(f"{self.name} cannot be downloaded by this program. {self._help()}")

    def require(self) -> None:
        """Find the files, downloading them if that is allowed; looks at no image and imports no torch.

        Raises:
            MissingDataError: if no folder holds the data set in a known layout.
        """
        if self.download and self._search() is None:
            try:
                self.fetch(self._candidates()[0])
            except (OSError, RuntimeError) as error:  # no network, no permission, wrong checksum
                raise MissingDataError(f"{self.name} could not be downloaded: {error}. {self._help()}") from error
        self._found()

    def splits(self, transform_fit: Transform | None, transform_eval: Transform | None) -> ImageSplits:
        """Both splits, unreadable images left out.

        Args:
            transform_fit: from a PIL image, mode RGB, to (3, H, W) float32, for `fit`; None: pixels / 255.
            transform_eval: the same for `held_out`.

        Raises:
            MissingDataError: as `require`.
            DataError: no images, labels that are none, one class only, or more than 1 % of a split unreadable.
        """
        return self._readable.with_transforms(transform_fit, transform_eval)

    @property
    def n_classes(self) -> int:
        """C."""
        return len(self.stored.fit.classes)

    @property
    def parts(self) -> dict[str, ImageSource]:
        """The data sets that this one is made of, by name: itself, but for `SeveralSets`."""
        return {self.name: self}

    @property
    def layout(self) -> str:
        """The name of the layout that was found."""
        return self._found()[0].name

    @cached_property
    def stored(self) -> StoredSplits:
        """Both splits as stored, checked but for their pixels.

        Raises:
            MissingDataError, DataError: as `splits`.
        """
        self.require()
        layout, folder = self._found()
        splits = layout.read(folder)
        classes = len(splits.fit.classes)
        for split, images in splits._asdict().items():
            if len(images) == 0:
                raise DataError(f"{self.name} ({self.role}): {folder} has no {split} images; check how it was unpacked")
            if (of := images.labels).dtype != np.int64 or not 0 <= of.min() <= of.max() < classes:
                raise DataError(
                    f"{self.name} ({self.role}): {split} labels have to be whole numbers from 0 to {classes - 1}, "
                    f"int64, as there are {classes} classes; correct the source's layouts()"
                )
        present = np.unique(splits.fit.labels)
        if len(present) < FEWEST_CLASSES:
            only = splits.fit.classes[int(present[0])]
            raise DataError(
                f"{self.name} ({self.role}): all images in {folder} are of one class ({only}); a task needs at least "
                f"{FEWEST_CLASSES}, one folder a class"
            )
        return splits

    def file_hash(self) -> str:
        """SHA-256 of names, sizes and labels of both splits, and of the bytes of small ones; equal for equal copies."""
        return hashlib.sha256("/".join([self.name, *self.digests]).encode()).hexdigest()

    @cached_property
    def digests(self) -> tuple[str, str]:
        """Of both splits, whatever the data set is called."""
        return self.stored.fit.digest(times=False), self.stored.held_out.digest(times=False)

    def describe(self) -> dict[str, object]:
        """Short facts for the record; counts are those after unreadable images were left out."""
        return self.facts({"layout": self.layout, **self.counts()}) | self.own_folder()

    def own_folder(self) -> dict[str, object]:
        """Of images of the user's own, whose names say nothing, the "folder" for the record."""
        return {}

    def counts(self) -> dict[str, object]:
        """Classes, and how many images can and cannot be read by now."""
        sets = self._readable
        return {
            "classes": self.n_classes,
            "images": {"fit": len(sets.fit), "held_out": len(sets.held_out)},
            "skipped": {"fit": sets.fit.skipped, "held_out": sets.held_out.skipped},
        }

    def load(self) -> Splits:
        """Refuse: images are no table.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"{self.name} holds images, and a linear model takes tables, as a forecast does; to train on images "
            f"choose a deep one, such as model=resnet18"
        )

    @cached_property
    def _readable(self) -> ImageSplits:
        """Both splits without unreadable images; kept, so that all users count into the same `skipped`."""
        from immunize.data.images.image_set import ImageSet, ImageSplits

        stored = self.stored._asdict().items()
        return ImageSplits(*(ImageSet(images, None, f"{self.name} ({self.role}, {split})") for split, images in stored))

    def _candidates(self) -> list[Path]:
        """Where the data set may be, in the order of looking; a download goes to the first."""
        if self.root is not None:
            return [self.root, *(self.root / name for name in self.usual_names)]
        assert self.data_root is not None
        return [self.data_root / name for name in self.usual_names or ("",)]

    def _search(self) -> tuple[Layout, Path] | None:
        every = ((layout, folder) for folder in self._candidates() for layout in self.layouts())
        return next(((layout, folder) for layout, folder in every if layout.found(folder)), None)

    def _found(self) -> tuple[Layout, Path]:
        found = self._search()
        if found is None:
            raise MissingDataError(f"{self.name} was not found. {self._help()}")
        return found

    def _help(self) -> str:
        """Where it was looked for, for what, and how to get it."""
        places = " or ".join(str(folder) for folder in self._candidates())
        layouts = "; or ".join(layout.expects for layout in self.layouts())
        return (
            f"Looked in {places} for {layouts}. {self.how_to_get} Name another folder with {self.role}.root=<folder>, "
            f"or the folder of all data sets with data_root=<folder> or IMMUNIZE_DATA; "
            f"of a run that is there already, data_root=<folder> names the one that this one lies in now."
        )


def as_image_source(source: Any) -> ImageSource:
    """The source as images.

    Args:
        source: an image source, or one that has its rows as images too (`digits`, with a method `images`).

    Raises:
        DataError: if it has no images.
    """
    if isinstance(source, ImageSource):
        return source
    images = getattr(source, "images", None)
    if images is None:
        raise DataError(
            f"{source.name} has no images, which a deep model needs; choose harmful=cars, harmful=imagefolder "
            f"harmful.root=<folder>, or another image set, or model=linear"
        )
    converted = images()
    assert isinstance(converted, ImageSource)
    return converted


def rows_of_sets(labels: Array, classes: Iterable[int]) -> list[Array]:
    """Which rows belong to each of several data sets, ascending, int64.

    Args:
        labels: (N,) int64, counted over all sets.
        classes: C of each set.
    """
    ends = np.cumsum(list(classes))
    number = np.searchsorted(ends, labels, side="right")
    return [np.flatnonzero(number == which) for which in range(len(ends))]


class SeveralSets(ImageSource):
    """Several data sets as D_H.

    Args:
        sets: at least two image sources in the role "harmful", by the names that a record calls them by.
        role: "harmful".

    Raises:
        DataError: another role, fewer than two sets, or one that has no images.
    """

    def __init__(self, sets: Mapping[str, Any] | None = None, role: str = "harmful") -> None:
        sets = sets or {}
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
            JoinedImages({name: splits.fit for name, splits in stored.items()}),
            JoinedImages({name: splits.held_out for name, splits in stored.items()}),
        )

    @cached_property
    def _readable(self) -> ImageSplits:
        """Both splits; each set may lack 1 % of its images and no more, as far as a fast look at its files tells."""
        for source in self._sets.values():
            _ = source._readable
        return super()._readable

    def describe(self) -> dict[str, object]:
        """Short facts for the record, and under "sets" those of each set."""
        classes = [source.n_classes for source in self._sets.values()]
        counted = {
            split: [len(rows) for rows in rows_of_sets(images.labels.numpy(), classes)]
            for split, images in self._readable._asdict().items()
        }
        own = {
            name: {
                "name": source.name,
                "layout": source.layout,
                "classes": source.n_classes,
                "images": {split: counts[number] for split, counts in counted.items()},
                **source.own_folder(),
            }
            for number, (name, source) in enumerate(self._sets.items())
        }
        return self.facts(self.counts()) | {"sets": own}
