"""Small images in the folder layouts of real data sets, for tests of `immunize.data.images` and of what uses it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from PIL import Image
from scipy.io import savemat
from torch import Tensor

WNIDS = ("n01440764", "n01443537", "n01484850")
"""The first three of ImageNet's 1,000 ids, for tench, goldfish and great white shark."""


def colour(label: int, number: int) -> tuple[int, int, int]:
    """A colour that says which class and which image of it this is."""
    return 40 * label, 10 * number, 7


def write_image(path: Path, rgb: tuple[int, int, int], size: tuple[int, int] = (12, 10)) -> None:
    """One image of one colour, in the format that the name's ending says; as JPEG the colour is kept nearly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, rgb).save(path)


def write_noise(path: Path, rng: np.random.Generator, size: int = 24, levels: tuple[int, int] = (0, 256)) -> None:
    """One square image of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(*levels, (size, size, 3), dtype=np.uint8)).save(path)


def write_noisy_classes(
    root: Path, counts: Mapping[str, int], levels: Mapping[str, tuple[int, int]], rng: Generator, size: int = 24
) -> None:
    """So many images of noise a class in each split, as PNG; the gray levels of every class are given."""
    for split, count in counts.items():
        for name, of in levels.items():
            for number in range(count):
                write_noise(root / split / name / f"{number}.png", rng, size, of)


def write_classes(folder: Path, counts: dict[str, int], ending: str = "png", below: str = "") -> None:
    """One folder a class with so many images; labels are positions in alphabetical order."""
    for label, (name, count) in enumerate(sorted(counts.items())):
        for number in range(count):
            write_image(folder / name / below / f"{number:03d}.{ending}", colour(label, number))


def write_two_splits(root: Path, test: str = "test", classes: Sequence[str] = ("a", "b", "c"), count: int = 4) -> None:
    """`train` with so many images a class and a second split with two."""
    write_classes(root / "train", dict.fromkeys(classes, count))
    write_classes(root / test, dict.fromkeys(classes, 2))


def write_cars(
    root: Path, labels: dict[str, Sequence[int]], *, classes: int = 3, with_test_labels: bool = True
) -> None:
    """The development kit's layout; labels of "train" and "test" count from 1."""
    names = np.array([f"Make Model {number}" for number in range(classes)], dtype=object)
    (root / "devkit").mkdir(parents=True)
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": names})
    tables = {"train": root / "devkit" / "cars_train_annos.mat", "test": root / "cars_test_annos_withlabels.mat"}
    for split, path in tables.items():
        fields = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
        rows = np.zeros((1, len(labels[split])), dtype=fields)
        for number, label in enumerate(labels[split]):
            name = f"{number + 1:05d}.jpg"
            rows[0, number] = (np.uint8(1), np.uint8(label), name)
            write_image(root / f"cars_{split}" / name, colour(label - 1, number))
        if split == "train" or with_test_labels:
            savemat(path, {"annotations": rows})


def write_tiny_imagenet(root: Path, validation: Sequence[tuple[str, str]]) -> None:
    """The official layout; `validation` are names of images and their ids."""
    write_classes(root / "train", dict.fromkeys(WNIDS, 2), ending="JPEG", below="images")
    lines = []
    for number, (name, wnid) in enumerate(validation):
        write_image(root / "val" / "images" / name, colour(WNIDS.index(wnid) if wnid in WNIDS else 0, number))
        lines.append(f"{name}\t{wnid}\t0\t0\t9\t9\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))


def write_cifar_batches(root: Path, n_train: int = 20, n_test: int = 10) -> dict[str, Any]:
    """`cifar-10-batches-py` with fewer images; returns pixels (N, 32, 32, 3) and labels by file."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    written = {}
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        n = n_test if name == "test_batch" else n_train // 5
        pixels = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        labels = [int(label) for label in rng.integers(0, 10, n)]
        rows = pixels.transpose(0, 3, 1, 2).reshape(n, -1)
        (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": labels}))
        written[name] = (pixels, labels)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {number}" for number in range(10)]}))
    return written


def truncate(path: Path, keep: float = 0.6) -> None:
    """Cut a file off, as a broken download does."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def colour_of(x: Tensor) -> tuple[int, ...]:
    """The colour of the first pixel of an image read with pixels / 255."""
    return tuple(round(float(value) * 255) for value in x[:, 0, 0])


def break_inside(path: Path) -> None:
    """Whole at both ends, and not to be decoded: a PNG with a wrong checksum in between."""
    content = bytearray(path.read_bytes())
    middle = content.index(b"IDAT") + 6
    content[middle : middle + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
