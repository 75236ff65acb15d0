"""Every image source on generated images in its real layouts, what is said when it is not there, and the real packs."""

from __future__ import annotations

import functools
import json
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
from scipy.io import savemat
from torchvision.datasets import CIFAR10
from torchvision.datasets.utils import calculate_md5

from immunize.data import images as sets
from immunize.data.digits import DigitImages, Digits, FiveDigits, embedded_digits, held_out_mask
from immunize.data.images.source import ImageSource, Layout, StoredSplits, as_image_source
from immunize.data.images.stored import ArrayImages
from immunize.data.mnist import Mnist
from immunize.errors import DataError, MissingDataError
from tests.commands import fresh
from tests.data import image_files as files
from tests.data.image_files import WNIDS, colour, colour_of, write_classes, write_two_splits
from tests.data.test_digits import write_mnist


def labels_of(source: ImageSource, part: str) -> list[int]:
    return getattr(source.splits(None, None), part).labels.tolist()


def read(source: ImageSource) -> tuple[str, tuple[str, ...], list[int], list[int]]:
    """Its layout, its classes, and the labels of both parts."""
    return source.layout, source.stored.fit.classes, labels_of(source, "fit"), labels_of(source, "held_out")


# One folder a class.


@pytest.mark.parametrize(
    ("cls", "folder", "test"),
    [
        (sets.Cars, "stanford_cars", "test"),
        (sets.Caltech101, "caltech101", "test"),
        (sets.Cifar10, "cifar10", "test"),
        (sets.Country211, "country211", "test"),
        (sets.Imagenette, "imagenette2-320", "val"),
        (sets.TinyImageNet, "tiny_imagenet_32", "val"),
    ],
)
def test_split_folders_below_the_data_folder(tmp_path: Path, cls: Any, folder: str, test: str) -> None:
    write_two_splits(tmp_path / folder, test)
    (tmp_path / folder / "train" / "a" / "notes.txt").write_text("no image")
    (tmp_path / folder / "train" / ".hidden").mkdir()
    for source in (cls("harmful", tmp_path), cls("harmful", root=tmp_path / folder), cls("harmful", root=tmp_path)):
        assert read(source)[1:] == (("a", "b", "c"), [0] * 4 + [1] * 4 + [2] * 4, [0, 0, 1, 1, 2, 2])
        assert colour_of(source.splits(None, None).fit[5][0]) == colour(1, 1)
        assert source.file_hash() == cls("harmful", tmp_path).file_hash()
        facts = source.describe()
        assert facts["images"] == {"fit": 12, "held_out": 6}
        assert json.loads(json.dumps(facts)) == facts
        assert str(tmp_path) not in json.dumps(facts)


@pytest.mark.parametrize("name", [name for name in sets.__all__ if name not in ("ImageFolder", "SeveralSets")])
def test_missing_data_set_says_what_to_place_where(tmp_path: Path, name: str) -> None:
    cls = getattr(sets, name)
    place = tmp_path / cls.usual_names[0]
    words = "train", "http" if cls is not sets.Cars else "gone", "harmful.root=", "data_root="
    for source in (cls("harmful", tmp_path), cls("harmful", root=place)):
        with pytest.raises(MissingDataError, match=f"was not found.*{place}.*{'.*'.join(words)}"):
            source.require()


def refused(message: str, source: ImageSource) -> None:
    with pytest.raises(DataError, match=message):
        source.splits(None, None)


def folder_of(root: Path, folders: dict[str, int], **options: Any) -> sets.ImageFolder:
    """So many images in each."""
    for name, count in folders.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            files.write_image(root / name / f"{number}.png", colour(0, number))
    return sets.ImageFolder("harmful", root, **options)


BOTH = {f"{split}/{name}": 3 for split in ("train", "test") for name in ("a", "b")}


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ({"train": 0, "test": 0}, "train has no class folders"),
        ({"train/a": 0, "train/b": 0, "test/a": 0}, "class folders but no image in any of them"),
        ({"a": 0, "b": 0}, "class folders but no image in any of them"),
        ({}, "imagefolder was not found"),
        ({"train/lonely": 4, "test/lonely": 2}, r"all images in .* are of one class \(lonely\)"),
        (BOTH | {"train/empty": 0}, "no image in empty; remove empty class folders"),
        (BOTH | {"test/z": 0}, r"has 1 class folders that .*train has not, such as z"),
        ({"train/a": 3, "train/b": 3, "dev/a": 3, "dev/b": 3}, r"dev has classes of .*say harmful\.test=dev, or"),
    ],
)
def test_class_folders_that_cannot_be_used_are_explained(tmp_path: Path, folders: dict[str, int], message: str) -> None:
    refused(message, folder_of(tmp_path, folders))


def test_published_sets_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    def at(name: str, cls: Any) -> Any:
        return cls("harmful", root=tmp_path / name)

    files.write_cars(tmp_path / "unlabelled", {"train": [1, 2], "test": [1]}, with_test_labels=False)
    refused(r"annos_withlabels\.mat: the labels of the test images are not part", at("unlabelled", sets.Cars))
    files.write_cars(tmp_path / "mixed", {"train": [1, 4], "test": [1]}, classes=3)
    refused(r"labels from 1 to 4, but .* names 3 classes", at("mixed", sets.Cars))
    (tmp_path / "mixed" / "devkit" / "cars_meta.mat").write_bytes(b"no table")
    refused(r"cars_meta.mat cannot be read as the table 'class_names'", at("mixed", sets.Cars))
    files.write_tiny_imagenet(tmp_path / "tiny", [("val_0.JPEG", WNIDS[0]), ("val_1.JPEG", "n99999999")])
    refused(r"annotations.txt, line 2: .*is not an image's name and one of the 3", at("tiny", sets.TinyImageNet))
    (tmp_path / "tiny" / "val" / "val_annotations.txt").write_bytes(b"\xff\xfe\x00")
    refused(r"annotations.txt, line 1: .*is not an image's name", at("tiny", sets.TinyImageNet))
    files.write_cars(tmp_path / "words", {"train": [1], "test": [1]})
    words = np.array([("Make", "00001.jpg")], dtype=[("class", "O"), ("fname", "O")])
    savemat(tmp_path / "words" / "devkit" / "cars_train_annos.mat", {"annotations": words})
    refused("a class that is no number", at("words", sets.Cars))
    write_two_splits(tmp_path / "unknown", "val", classes=[*WNIDS, "cats"])
    refused("cats is not among the 1,000 WordNet ids", at("unknown", sets.ImageNet))
    for name in ("train/n01440764", "val"):
        files.write_image(tmp_path / "heap" / name / "0.JPEG", (1, 2, 3))
    refused(r"val has no class folders; .* sort them into val/<wnid>", at("heap", sets.ImageNet))
    files.write_cifar_batches(tmp_path / "cifar")
    refused("not the published ones", at("cifar", sets.Cifar10))  # torchvision compares checksums, then unpickles


@pytest.mark.parametrize("labels", [["a", "b"], [0.0, 1.0], np.array([0, 1], dtype=np.uint8), [-1, 1], [0, 2]])
def test_labels_of_a_source_of_ones_own_are_checked(labels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images = ArrayImages(np.zeros((2, 8, 8), dtype=np.uint8), np.asarray(labels), ("a", "b"))
    monkeypatch.setattr(DigitImages, "_read", lambda _: StoredSplits(images, images))
    refused(r"digits \(harmful\): fit labels have to be whole numbers from 0 to 1, int64", DigitImages("harmful"))


def test_images_in_memory_are_bytes_with_a_label_each() -> None:
    for shape, kind, told in (
        ((2, 8, 8), np.float64, r"uint8.*they are float64"),
        ((2, 3, 8, 8), np.uint8, r"\(N, H, W, 3\); they are uint8, \(2, 3, 8, 8\)"),
        ((3, 8, 8), np.uint8, "3 images and 2 labels"),
    ):
        with pytest.raises(DataError, match=told):
            ArrayImages(np.zeros(shape, kind), np.array([0, 1]), ("a", "b"))


def test_a_source_of_ones_own_without_a_usual_name_lies_in_the_data_folder_itself(tmp_path: Path) -> None:
    images = ArrayImages(np.zeros((2, 8, 8), dtype=np.uint8), np.array([0, 1]), ("a", "b"))

    class Own(ImageSource):
        name = "own"

        def layouts(self) -> list[Layout]:
            return [Layout("memory", "nothing", lambda _: True, lambda _: StoredSplits(images, images))]

    assert Own("harmful", tmp_path).counts()["images"] == {"fit": 2, "held_out": 2}


def test_settings_that_cannot_be_are_explained(tmp_path: Path) -> None:
    (tmp_path / "country211" / "train").mkdir(parents=True)
    folder = functools.partial(sets.ImageFolder, "harmful", tmp_path / "own")
    for asked, words in (
        (lambda: sets.Cars("harmful", tmp_path).require(), r"(?s)cars_train_annos\.mat.*original download .* is gone"),
        (lambda: sets.ImageNet("pretrain", tmp_path, download=True).require(), "cannot be downloaded by this program"),
        (lambda: sets.Country211("harmful", tmp_path, download=True).require(), "exists but is not complete"),
        *((lambda of=of: folder(held_out_fraction=of), r"fraction=.* between 0 and 1") for of in (0.0, 1.0)),
        (folder(train="training2").require, "training2/<class>"),
        (lambda: sets.Cars("harmful"), r"harmful\.root=<folder>"),
        (lambda: sets.Cars("harmful", "data").load(), "choose a deep one"),
        (lambda: sets.Imagenette("pretrain", tmp_path, labels="both"), r"pretrain\.labels is 'both'"),
    ):
        with pytest.raises(DataError, match=words):
            asked()
    write_two_splits(tmp_path / "own")
    refused(r"harmful\.held_out_fraction has no effect: .* their own; leave", folder(held_out_fraction=0.4))


# Any folder.


TRAIN = {"train/a": 2, "train/b": 2}
MORE = TRAIN | {"val/a": 2, "val/b": 1, "extra/a": 1, "extra/b": 2}


@pytest.mark.parametrize(
    ("folders", "options", "labels"),
    [
        ({"Train/a": 2, "Train/b": 2, "TEST/a": 1, "TEST/b": 2}, {}, ([0, 0, 1, 1], [0, 1, 1])),
        (MORE, {}, ([0, 0, 1, 1], [0, 0, 1])),
        (MORE, {"test": "extra"}, ([0, 0, 1, 1], [0, 1, 1])),
        (TRAIN | {"train/c": 1, "dev/a": 1, "dev/b": 0}, {"test": "dev"}, ([0, 0, 1, 1, 2], [0])),  # of c no folder
        (TRAIN | {"notes/drafts": 1}, {}, ([0, 1], [0, 1])),  # a share is held out
        ({"val/a": 2, "val/b": 2}, {"train": "val"}, ([0, 1], [0, 1])),
    ],
)
def test_image_folder_takes_split_folders_by_usual_names_in_capitals_too_and_others_only_if_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, folders: dict[str, int], options: Any, labels: Any
) -> None:
    assert read(folder_of(tmp_path, folders, **options))[2:] == labels
    told = f"{tmp_path / 'dev'} has no image of 2 of 3 classes, such as b, c"
    assert caplog.messages == [told] * ("dev/b" in folders)


@pytest.mark.parametrize("below", ["", "train"])
def test_image_folder_without_a_second_split_holds_a_share_of_each_class_out(tmp_path: Path, below: str) -> None:
    write_classes(tmp_path / below, {"a": 10, "b": 5, "c": 2, "d": 1})
    source = sets.ImageFolder("harmful", tmp_path, held_out_fraction=0.4)
    splits = source.splits(None, None)
    assert splits.held_out.labels.bincount(minlength=4).tolist() == [4, 2, 1, 0]
    assert splits.fit.labels.bincount().tolist() == [6, 3, 1, 1]
    fit, held_out = ({colour_of(x) for x, _ in part} for part in (splits.fit, splits.held_out))
    assert len(fit) + len(held_out) == len(fit | held_out) == 18
    again = sets.ImageFolder("pretrain", tmp_path, held_out_fraction=0.4)
    assert again.file_hash() == source.file_hash()  # a constant draw, whatever the role
    assert source.describe()["folder"] == tmp_path.name


def test_no_folder_is_both_parts(tmp_path: Path) -> None:
    source = folder_of(tmp_path, {"val/a": 3, "val/b": 3}, train="val")
    (tmp_path / "test").symlink_to(tmp_path / "val")
    refused("test has the training images", source)


LOOKING = """
import sys
from immunize.data import images
for cls in images.Cars, images.Cifar10:
    try:
        cls("pretrain", "nowhere").require()
    except Exception as error:
        print(type(error).__name__, *{"torch", "scipy"} & sys.modules.keys())
"""


def test_looking_for_a_data_set_imports_no_torch(tmp_path: Path) -> None:
    """What is missing is to be told at once and not after seconds of imports."""
    assert fresh("-c", LOOKING, cwd=tmp_path).stdout == "MissingDataError\n" * 2


# Data sets with layouts of their own.


@pytest.mark.parametrize("place", ["", "devkit"])
def test_cars_development_kit(tmp_path: Path, place: str) -> None:
    files.write_cars(tmp_path / "stanford_cars", {"train": [3, 1, 2, 1], "test": [2]})
    moved = tmp_path / "stanford_cars" / "cars_test_annos_withlabels.mat"
    moved.rename(tmp_path / "stanford_cars" / place / moved.name)
    source = sets.Cars("harmful", tmp_path)
    assert read(source) == ("development kit", tuple(f"Make Model {of}" for of in range(3)), [2, 0, 1, 0], [1])
    for number, label in enumerate((2, 0, 1, 0)):
        x, y = source.splits(None, None).fit[number]
        assert y == label
        assert max(abs(a - b) for a, b in zip(colour_of(x), colour(label, number), strict=True)) < 6  # JPEG


def test_cars_image_that_is_listed_and_not_there_counts_as_unreadable(tmp_path: Path) -> None:
    files.write_cars(tmp_path, {"train": [1, 2] * 60, "test": [1]})
    (tmp_path / "cars_train" / "00003.jpg").unlink()
    fit = sets.Cars("harmful", root=tmp_path).splits(None, None).fit
    assert (len(fit), fit.skipped) == (119, 1)


def test_tiny_imagenet_official(tmp_path: Path) -> None:
    listed = [("val_1.JPEG", WNIDS[2]), ("val_0.JPEG", WNIDS[0])]
    files.write_tiny_imagenet(tmp_path / "tiny-imagenet-200", listed)
    assert read(sets.TinyImageNet("pretrain", tmp_path)) == ("official", WNIDS, [0, 0, 1, 1, 2, 2], [2, 0])


def test_labels_of_imagenet_and_if_asked_of_imagenette_are_positions_among_the_thousand(tmp_path: Path) -> None:
    for name, options in (("imagenet", {}), ("imagenette", {"labels": "imagenet"})):
        for split in ("train", "val"):
            write_classes(tmp_path / name / split, {"n03888257": 1, WNIDS[1]: 2}, ending="JPEG")
        source = (sets.ImageNet if name == "imagenet" else sets.Imagenette)("pretrain", tmp_path, **options)
        assert source.n_classes == 1000
        assert labels_of(source, "fit") == [1, 1, 701]  # goldfish; parachute is 701 of every ImageNet classifier


def test_caltech101_original_folder(tmp_path: Path) -> None:
    write_classes(tmp_path / "caltech101" / "101_ObjectCategories", {"BACKGROUND_Google": 3, "ant": 8, "bass": 4})
    _, classes, *labels = read(sets.Caltech101("harmful", tmp_path))
    assert (classes, labels) == (("ant", "bass"), [[0] * 6 + [1] * 3, [0] * 2 + [1]])


def test_cifar10_original_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = files.write_cifar_batches(tmp_path / "cifar10")
    md5 = {
        name: calculate_md5(tmp_path / "cifar10" / "cifar-10-batches-py" / name) for name in [*written, "batches.meta"]
    }
    for split, names in (("train_list", [*written][:5]), ("test_list", ["test_batch"])):  # as if they were published
        monkeypatch.setattr(CIFAR10, split, [[name, md5[name]] for name in names])
    monkeypatch.setitem(CIFAR10.meta, "md5", md5["batches.meta"])
    _, classes, *labels = read(sets.Cifar10("pretrain", tmp_path))
    assert classes[3] == "class 3"
    assert [len(of) for of in labels] == [20, 10]
    pixels, expected = written["data_batch_2"]
    x, y = sets.Cifar10("pretrain", tmp_path).splits(None, None).fit[5]
    assert y == expected[1]
    assert (x * 255).round().byte().permute(1, 2, 0).numpy().tolist() == pixels[1].tolist()


# Downloads.


FETCHED = {
    "Country211": (sets.Country211, "country211"),
    "Caltech101": (sets.Caltech101, "caltech101"),
    "Imagenette": (sets.Imagenette, "imagenette2-160"),
    "CIFAR10": (sets.Cifar10, ""),
    "MNIST": (functools.partial(Mnist, pair=[0, 1]), ""),
}
"""By the name that each has in torchvision, and the folder that it is unpacked into; MNIST has only a `root`."""


@pytest.mark.parametrize(("name", "place"), [*product(FETCHED, ["root", "data_root"])][:-1])
def test_download_is_torchvisions_and_only_when_needed_and_what_to_do_where_it_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    def write(root: str, download: bool, size: str = "") -> None:
        (write_mnist if name == "MNIST" else write_two_splits)(Path(root) / made)

    cls, made = FETCHED[name]
    fetch = Mock(wraps=write, side_effect=[RuntimeError("Error downloading the archive"), DEFAULT])
    monkeypatch.setattr(f"torchvision.datasets.{name}", fetch)
    source = cls(role="harmful", download=True, **{place: tmp_path})
    with pytest.raises(MissingDataError, match=r"could not be downloaded.*Error downloading.*(harmful\.|data_)root="):
        source.require()
    for _ in range(2):
        source.require()
    assert [call.kwargs["download"] for call in fetch.mock_calls] == [True, True]


# Embedded digits.


def test_digits_as_images_are_those_of_the_tables() -> None:
    raw, digits = embedded_digits()
    train = raw[~held_out_mask(digits)] / 16
    for role, chosen in (("pretrain", [0, 1, 2, 3, 4]), ("harmful", [5, 6, 7, 8, 9])):
        source, tables = as_image_source(Digits([0, 1], role)), FiveDigits(role).load()
        for images, rows in zip(source.splits(None, None), (tables.fit, tables.held_out), strict=True):
            assert images.labels.tolist() == rows.y.tolist()
            x, _ = images[7]
            assert x.shape == (3, 8, 8)
            assert (x == x[:1]).all()
            expected = rows.x[7].numpy() * train.std() + train.mean()
            assert abs(x[0].flatten().numpy() - expected).max() <= 0.5 / 255 + 1e-7
        assert source.describe()["digits"] == chosen


# Real packs.


@pytest.mark.data
@pytest.mark.parametrize(
    ("cls", "classes", "fit", "held_out"),
    [(sets.Cars, 196, 6509, 1635), (sets.Caltech101, 101, 2500, 808), (sets.Imagenette, 10, 3500, 800)],
)
def test_real_packs(data_root: Path, cls: Any, classes: int, fit: int, held_out: int) -> None:
    source = cls("harmful", data_root)
    splits = source.splits(None, None)
    assert (source.n_classes, len(splits.fit), len(splits.held_out)) == (classes, fit, held_out)
    assert splits.fit.skipped == splits.held_out.skipped == 0
    assert len(splits.fit.labels.unique()) == len(splits.held_out.labels.unique()) == classes
    x, _ = splits.held_out[0]
    assert x.shape[0] == 3
    assert 0 <= float(x.min()) < float(x.max()) <= 1
