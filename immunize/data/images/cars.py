"""Stanford Cars: 196 models of cars; D_H of Table 3 and Figure 3 (§5.2).

The original download is gone. Two layouts are in circulation, and both are found by themselves. The original one, with
the development kit, as torchvision reads it::

    devkit/cars_meta.mat                    names of the classes
    devkit/cars_train_annos.mat             label of each training image
    cars_test_annos_withlabels.mat          label of each test image; also found in devkit/
    cars_train/*.jpg, cars_test/*.jpg

and one folder a class: ``train/<class>/*.jpg`` and ``test/<class>/*.jpg``.

Shapes: C = 196 classes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from immunize.data.images.folders import two_folders
from immunize.data.images.source import ImageSource, Layout, StoredSplits
from immunize.data.images.stored import FileImages
from immunize.errors import DataError

DEVKIT = Path("devkit")
META, TRAIN_LABELS = DEVKIT / "cars_meta.mat", DEVKIT / "cars_train_annos.mat"
TEST_LABELS = "cars_test_annos_withlabels.mat"


class Cars(ImageSource):
    """Stanford Cars; `fit` are the training images, `held_out` the test images."""

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
    labels = np.array([int(row["class"]) - 1 for row in rows], dtype=np.int64)
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
