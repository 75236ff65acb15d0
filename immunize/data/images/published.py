"""Image data sets that others have published: how to get each, and the layouts in which copies of it lie (§5.2).

Stanford Cars and Country211 are D_H of Table 3 and ImageNet is its D_P; the others are not in the paper. The class of
each says what its files look like.

Shapes: C classes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from immunize.data.images.folders import class_names, hold_out, read_class_folders, read_two_folders, two_folders
from immunize.data.images.source import ImageSource, Layout, StoredSplits
from immunize.data.images.stored import ArrayImages, FileImages, StoredImages
from immunize.errors import DataError, MissingDataError, some

# --- Stanford Cars --------------------------------------------------------------------------------------------------

DEVKIT = Path("devkit")
META, TRAIN_LABELS = DEVKIT / "cars_meta.mat", DEVKIT / "cars_train_annos.mat"
TEST_LABELS = "cars_test_annos_withlabels.mat"


class Cars(ImageSource):
    """Stanford Cars: 196 models of cars; `fit` are the training images, `held_out` the test images.

    The original download is gone. Two layouts are in circulation, and both are found by themselves: one folder a class,
    ``train/<class>/*.jpg`` and ``test/<class>/*.jpg``, and the original one, with the development kit, as torchvision
    reads it::

        devkit/cars_meta.mat                    names of the classes
        devkit/cars_train_annos.mat             label of each training image
        cars_test_annos_withlabels.mat          label of each test image; also found in devkit/
        cars_train/*.jpg, cars_test/*.jpg
    """

    name = "cars"
    usual_names: ClassVar[tuple[str, ...]] = ("stanford_cars", "cars")
    how_to_get: ClassVar[str] = (
        "The original download (ai.stanford.edu/~jkrause) is gone and torchvision cannot fetch it either; copies are "
        "on Kaggle and Hugging Face (search for Stanford Cars). Place either layout there; of the first, the test "
        f"labels {TEST_LABELS} are a file of their own beside the development kit."
    )

    def layouts(self) -> Sequence[Layout]:
        """The development kit, or one folder a class."""
        devkit = Layout(
            "development kit",
            f"{TRAIN_LABELS}, {META}, {TEST_LABELS}, cars_train/*.jpg and cars_test/*.jpg",
            lambda folder: (folder / TRAIN_LABELS).is_file() and (folder / "cars_train").is_dir(),
            _read_devkit,
        )
        return devkit, two_folders(("train",), ("test",))


def _read_devkit(folder: Path) -> StoredSplits:
    test_labels = next((path for path in (folder / TEST_LABELS, folder / DEVKIT / TEST_LABELS) if path.is_file()), None)
    if test_labels is None:
        raise DataError(
            f"{folder} has no {TEST_LABELS}: the labels of the test images are not part of the development kit; place "
            f"that file there"
        )
    classes = [str(name) for name in np.atleast_1d(_load_mat(folder / META, "class_names"))]
    return StoredSplits(
        _annotated(folder / "cars_train", folder / TRAIN_LABELS, classes),
        _annotated(folder / "cars_test", test_labels, classes),
    )


def _annotated(images: Path, table: Path, classes: Sequence[str]) -> FileImages:
    """The images that a table of annotations lists, in its order; its classes count from 1."""
    rows = np.atleast_1d(_load_mat(table, "annotations"))
    fields = rows.dtype.names or ()
    if not {"fname", "class"} <= set(fields):
        raise DataError(f"{table} has no image names and labels but {', '.join(fields) or 'nothing'}; replace the file")
    try:
        labels = np.array([int(row["class"]) - 1 for row in rows], dtype=np.int64)
    except (ValueError, TypeError) as error:
        raise DataError(f"{table} has a class that is no number ({error}); replace the file") from error
    if len(labels) and not (labels.min() >= 0 and labels.max() < len(classes)):
        raise DataError(
            f"{table} has labels from {labels.min() + 1} to {labels.max() + 1}, but {META} names {len(classes)} "
            f"classes; take both files from the same copy"
        )
    return FileImages.of(images, [str(row["fname"]) for row in rows], labels, classes)


def _load_mat(path: Path, key: str) -> Any:
    from scipy.io import loadmat  # half a second of import time
    from scipy.io.matlab import MatReadError

    try:
        return loadmat(path, squeeze_me=True, variable_names=[key])[key]
    except (OSError, ValueError, TypeError, LookupError, NotImplementedError, zlib.error, MatReadError) as error:
        raise DataError(f"{path} cannot be read as the table {key!r} ({error}); replace the file") from error


# --- Country211 -----------------------------------------------------------------------------------------------------


class Country211(ImageSource):
    """Country211: photographs and the country each was taken in, 211 of them, in OpenAI's layout.

    ``train``, ``valid`` and ``test``, each with one folder a country code. `fit` are the 150 training images of each
    country, `held_out` its 100 test images; ``valid`` is not used.
    """

    name = "country211"
    usual_names: ClassVar[tuple[str, ...]] = ("country211",)
    how_to_get: ClassVar[str] = (
        "Get https://openaipublic.azureedge.net/clip/data/country211.tgz (11 GB) and unpack it there, or let "
        "download=true fetch it."
    )

    def layouts(self) -> Sequence[Layout]:
        """One folder a country."""
        return (two_folders(("train",), ("test",)),)

    def fetch(self, folder: Path) -> None:
        """Download with torchvision, which unpacks into a folder ``country211``.

        Raises:
            MissingDataError: the folder is to have another name.
        """
        if folder.name != "country211":
            folder = folder / "country211"
        if folder.exists():  # torchvision would take it for complete
            raise MissingDataError(f"{folder} exists but is not complete; remove it to download the data set anew")
        from torchvision.datasets import Country211 as TorchvisionCountry211

        TorchvisionCountry211(str(folder.parent), download=True)


# --- ImageNet -------------------------------------------------------------------------------------------------------


class ImageNet(ImageSource):
    """ILSVRC 2012, 1,000 classes; `fit` are the training images, `held_out` the validation images.

    ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``, a WordNet id such as n01440764 for each class. Labels are the
    positions in the list of all 1,000 ids, the order in which every released classifier has its outputs; so a copy with
    some classes only has the right labels too.
    """

    name = "imagenet"
    usual_names: ClassVar[tuple[str, ...]] = ("imagenet", "ILSVRC2012", "imagenet-1k")
    how_to_get: ClassVar[str] = (
        "ImageNet asks for an account: get ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from "
        "https://image-net.org/download-images, unpack each class's archive into train/<wnid>, and sort the "
        "validation images into val/<wnid>."
    )

    def layouts(self) -> Sequence[Layout]:
        """One folder a class."""
        return (replace(two_folders(("train",), ("val",)), read=_read_imagenet),)


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
                f"{images.root}: {some(unknown)} {'is' if len(unknown) == 1 else 'are'} not among the 1,000 "
                f"WordNet ids of ImageNet; remove these folders, or use imagefolder for classes of your own"
            )
        labels = np.array([position[name] for name in images.classes], dtype=np.int64)[images.labels]
        return replace(images, labels=labels, classes=ids)

    return StoredSplits(relabelled(splits.fit), relabelled(splits.held_out))


def _read_imagenet(folder: Path) -> StoredSplits:
    if not class_names(folder / "val"):
        raise DataError(
            f"{folder / 'val'} has no class folders; the archive of validation images has none, sort them into "
            f"val/<wnid> by the labels of ILSVRC2012_devkit_t12.tar.gz"
        )
    return with_imagenet_labels(read_two_folders(folder / "train", folder / "val"))


# --- Imagenette -----------------------------------------------------------------------------------------------------

LABELS = ("own", "imagenet")


class Imagenette(ImageSource):
    """Imagenette: ten easy classes of ImageNet, for experiments that ImageNet is too large for.

    ``train/<wnid>`` and ``val/<wnid>``, fast.ai's layout at any image size; `fit` are the training images, `held_out`
    the validation images. Labels are 0 to 9, or, for a θ_0 trained on ImageNet, those of its 1,000 classes.

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


# --- Tiny ImageNet --------------------------------------------------------------------------------------------------

ANNOTATIONS = Path("val") / "val_annotations.txt"


class TinyImageNet(ImageSource):
    """Tiny ImageNet: 200 classes at 64 pixels; `fit` are the training images, `held_out` the validation images.

    The official folder has its validation images in one folder, with a table of labels::

        train/<wnid>/images/*.JPEG
        val/images/*.JPEG
        val/val_annotations.txt        one line an image: name, wnid, and a box, separated by tabs

    Copies often have ``val/<wnid>`` instead. Its test images have no labels and are not used.
    """

    name = "tiny_imagenet"
    usual_names: ClassVar[tuple[str, ...]] = ("tiny-imagenet-200", "tiny_imagenet", "tiny_imagenet_32")
    how_to_get: ClassVar[str] = "Get http://cs231n.stanford.edu/tiny-imagenet-200.zip (237 MB) and unpack it there."

    def layouts(self) -> Sequence[Layout]:
        """The official one, or one folder a class."""
        official = Layout(
            "official",
            f"train/<wnid>/images/<image> and {ANNOTATIONS}",
            lambda folder: (folder / "train").is_dir() and (folder / ANNOTATIONS).is_file(),
            _read_annotated,
        )
        return official, two_folders(("train",), ("val",))


def _read_annotated(folder: Path) -> StoredSplits:
    classes = class_names(folder / "train")
    fit = read_class_folders(folder / "train", classes)
    position = {wnid: label for label, wnid in enumerate(classes)}
    names, labels = [], []
    table = folder / ANNOTATIONS
    for number, line in enumerate(table.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
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


# --- Caltech-101 ----------------------------------------------------------------------------------------------------

ORIGINAL, BACKGROUND = "101_ObjectCategories", "BACKGROUND_Google"

HELD_OUT_FRACTION = 0.25
"""Ours; the original has no split. The classes have 31 to 800 images."""


class Caltech101(ImageSource):
    """Caltech-101: objects of 101 kinds; `held_out` are the test images, or a quarter of all.

    Either ``train/<class>`` and ``test/<class>``, or the original ``101_ObjectCategories/<class>``, which has no split:
    a quarter of each class's images is held out, drawn with a constant seed. The background class is left out.
    """

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
            _read_categories,
        )
        return two_folders(("train",), ("test",)), original

    def fetch(self, folder: Path) -> None:
        """Download with torchvision, which unpacks into a folder ``caltech101``."""
        from torchvision.datasets import Caltech101 as TorchvisionCaltech101

        TorchvisionCaltech101(str(folder.parent if folder.name == "caltech101" else folder), download=True)


def _read_categories(folder: Path) -> StoredSplits:
    classes = [name for name in class_names(folder / ORIGINAL) if name != BACKGROUND]
    return hold_out(read_class_folders(folder / ORIGINAL, classes), HELD_OUT_FRACTION)


# --- CIFAR-10 -------------------------------------------------------------------------------------------------------

BATCHES = "cifar-10-batches-py"


class Cifar10(ImageSource):
    """CIFAR-10: ten kinds of things at 32 x 32 pixels; `fit` are the training images, `held_out` the test images.

    Either one folder a class, ``train/<class>`` and ``test/<class>``, or the original ``cifar-10-batches-py``, which
    torchvision downloads. The original files are pickles; torchvision reads them, and only after their checksums are
    those of the published files, so no foreign pickle is ever executed.
    """

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
