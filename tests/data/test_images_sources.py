"""Every image source on generated images in its real layouts, what is said when it is not there, and the real packs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets.utils import calculate_md5

from immunize.data.digits import DigitImages, Digits
from immunize.data.images import (
    Caltech101,
    Cars,
    Cifar10,
    Country211,
    ImageFolder,
    ImageNet,
    Imagenette,
    TinyImageNet,
)
from immunize.data.images.source import ImageSource, as_image_source
from immunize.errors import DataError, MissingDataError
from tests.commands import fresh
from tests.data.image_files import (
    WNIDS,
    colour,
    colour_of,
    write_cars,
    write_cifar_batches,
    write_classes,
    write_image,
    write_tiny_imagenet,
    write_two_splits,
)

SOURCES: list[type[ImageSource]] = [Caltech101, Cars, Cifar10, Country211, Imagenette, ImageNet, TinyImageNet]


def labels_of(source: ImageSource, part: str) -> list[int]:
    return getattr(source.splits(None, None), part).labels.tolist()


# One folder a class.


@pytest.mark.parametrize(
    ("cls", "folder", "test"),
    [
        (Cars, "stanford_cars", "test"),
        (Caltech101, "caltech101", "test"),
        (Cifar10, "cifar10", "test"),
        (Country211, "country211", "test"),
        (Imagenette, "imagenette2-320", "val"),
        (TinyImageNet, "tiny_imagenet_32", "val"),
    ],
)
def test_split_folders_below_the_data_folder(tmp_path: Path, cls: Any, folder: str, test: str) -> None:
    write_two_splits(tmp_path / folder, test)
    (tmp_path / folder / "train" / "a" / "notes.txt").write_text("no image")
    (tmp_path / folder / "train" / ".hidden").mkdir()
    for source in (cls("harmful", tmp_path), cls("harmful", root=tmp_path / folder), cls("harmful", root=tmp_path)):
        source.require()
        assert labels_of(source, "fit") == [0] * 4 + [1] * 4 + [2] * 4
        assert labels_of(source, "held_out") == [0, 0, 1, 1, 2, 2]
        assert source.n_classes == 3
        assert colour_of(source.splits(None, None).fit[5][0]) == colour(1, 1)
        assert source.file_hash() == cls("harmful", tmp_path).file_hash()
        facts = source.describe()
        assert facts["images"] == {"fit": 12, "held_out": 6}
        assert json.loads(json.dumps(facts)) == facts
        assert str(tmp_path) not in json.dumps(facts)


@pytest.mark.parametrize("cls", SOURCES)
def test_missing_data_set_says_what_to_place_where(tmp_path: Path, cls: Any) -> None:
    with pytest.raises(MissingDataError) as caught:
        cls("harmful", tmp_path).require()
    for words in ("was not found", str(tmp_path / cls.usual_names[0]), "train", "harmful.root=", "data_root=", "http"):
        if (cls, words) != (Cars, "http"):  # there is no address any more
            assert words in str(caught.value)
    with pytest.raises(MissingDataError, match=r"harmful\.root="):
        cls("harmful", root=tmp_path / "nowhere").require()


def test_dead_download_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"(?s)cars_train_annos\.mat.*original download .* is gone"):
        Cars("harmful", tmp_path).require()
    with pytest.raises(MissingDataError, match="cannot be downloaded by this program"):
        ImageNet("pretrain", tmp_path, download=True).require()


def test_classes_without_images_and_without_folder_are_told_apart(tmp_path: Path) -> None:
    write_two_splits(tmp_path)
    for path in (tmp_path / "test" / "b").iterdir():
        path.unlink()
    assert labels_of(ImageFolder("harmful", tmp_path), "held_out") == [0, 0, 2, 2]  # fewer to measure on, that is all
    (tmp_path / "train" / "empty").mkdir()
    with pytest.raises(DataError, match="no image in empty; remove empty class folders"):
        ImageFolder("harmful", tmp_path).splits(None, None)
    (tmp_path / "train" / "empty").rmdir()
    write_image(tmp_path / "test" / "z" / "0.png", (1, 1, 1))
    with pytest.raises(DataError, match=r"has 1 class folders that .*train has not, such as z"):
        ImageFolder("harmful", tmp_path).splits(None, None)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["train", "test"], "train has no class folders"),
        (["train/a", "train/b", "test/a"], "class folders but no image in any of them"),
        (["a", "b"], "class folders but no image in any of them"),
        ([], "imagefolder was not found"),
    ],
)
def test_empty_folders(tmp_path: Path, folders: list[str], message: str) -> None:
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(DataError, match=message):
        ImageFolder("harmful", tmp_path).splits(None, None)


def test_images_of_one_class_only(tmp_path: Path) -> None:
    write_two_splits(tmp_path, classes=["lonely"])
    with pytest.raises(DataError, match=r"all images in .* are of one class \(lonely\)"):
        ImageFolder("harmful", tmp_path).splits(None, None)


# Any folder.


def test_image_folder_takes_split_folders_by_name(tmp_path: Path) -> None:
    write_two_splits(tmp_path, "val")
    write_classes(tmp_path / "extra", {"a": 1, "b": 1})
    assert len(labels_of(ImageFolder("harmful", tmp_path), "held_out")) == 6
    assert labels_of(ImageFolder("harmful", tmp_path, test="extra"), "held_out") == [0, 1]
    with pytest.raises(MissingDataError, match="training2/<class>"):
        ImageFolder("harmful", tmp_path, train="training2").require()


@pytest.mark.parametrize("below", ["", "train"])
def test_image_folder_without_a_second_split_holds_a_share_of_each_class_out(tmp_path: Path, below: str) -> None:
    write_classes(tmp_path / below, {"a": 10, "b": 5, "c": 2, "d": 1})
    source = ImageFolder("harmful", tmp_path, held_out_fraction=0.4)
    splits = source.splits(None, None)
    assert splits.held_out.labels.bincount(minlength=4).tolist() == [4, 2, 1, 0]
    assert splits.fit.labels.bincount().tolist() == [6, 3, 1, 1]
    fit, held_out = ({colour_of(x) for x, _ in part} for part in (splits.fit, splits.held_out))
    assert len(fit) + len(held_out) == len(fit | held_out) == 18
    again = ImageFolder("pretrain", tmp_path, held_out_fraction=0.4)
    assert again.file_hash() == source.file_hash()  # a constant draw, whatever the role
    assert source.describe()["folder"] == tmp_path.name
    write_classes(tmp_path / "test", {"a": 1})
    if below:
        with pytest.raises(DataError, match=r"harmful\.held_out_fraction has no effect: .* folder of their own; leave"):
            ImageFolder("harmful", tmp_path, held_out_fraction=0.4).splits(None, None)


def test_split_folders_in_capitals_are_no_classes(tmp_path: Path) -> None:
    write_classes(tmp_path / "Train", {"a": 3, "b": 3})
    write_classes(tmp_path / "TEST", {"a": 1, "b": 2})
    source = ImageFolder("harmful", tmp_path)
    assert source.n_classes == 2
    assert (labels_of(source, "fit"), labels_of(source, "held_out")) == ([0, 0, 0, 1, 1, 1], [0, 1, 1])


def test_a_second_folder_of_the_same_classes_is_not_left_out_without_a_word(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 3, "b": 3})
    write_classes(tmp_path / "notes", {"drafts": 1})
    assert len(labels_of(ImageFolder("harmful", tmp_path), "fit")) == 4
    write_classes(tmp_path / "dev", {"a": 1})
    with pytest.raises(DataError, match=r"dev has classes of .*train and would not be used: say harmful\.test=dev, or"):
        ImageFolder("harmful", tmp_path).splits(None, None)
    assert labels_of(ImageFolder("harmful", tmp_path, test="dev"), "held_out") == [0]


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_share_outside_its_range_is_refused(tmp_path: Path, fraction: float) -> None:
    with pytest.raises(DataError, match=r"harmful.held_out_fraction=.* between 0 and 1"):
        ImageFolder("harmful", tmp_path, held_out_fraction=fraction)


def test_a_folder_is_asked_for_and_a_deep_model() -> None:
    with pytest.raises(DataError, match=r"harmful\.root=<folder>"):
        Cars("harmful")
    with pytest.raises(DataError, match="choose a deep one"):
        Cars("harmful", "data").load()


@pytest.mark.parametrize("name", ["Cars", "Cifar10"])
def test_looking_for_a_data_set_imports_no_torch(tmp_path: Path, name: str) -> None:
    """What is missing is to be told at once and not after seconds of imports."""
    code = (
        "import sys; from immunize.data import images; from immunize.errors import MissingDataError\n"
        f"try: images.{name}('pretrain', {str(tmp_path)!r}).require()\n"
        "except MissingDataError: sys.exit('torch' in sys.modules or 'scipy' in sys.modules)\n"
        "sys.exit(2)"
    )
    assert fresh("-c", code, cwd=tmp_path).returncode == 0


# Data sets with layouts of their own.


@pytest.mark.parametrize("place", ["", "devkit"])
def test_cars_development_kit(tmp_path: Path, place: str) -> None:
    write_cars(tmp_path / "stanford_cars", {"train": [3, 1, 2, 1], "test": [2]})
    moved = tmp_path / "stanford_cars" / "cars_test_annos_withlabels.mat"
    moved.rename(tmp_path / "stanford_cars" / place / moved.name)
    source = Cars("harmful", tmp_path)
    splits = source.splits(None, None)
    assert source.describe()["layout"] == "development kit"
    assert splits.fit.classes == ["Make Model 0", "Make Model 1", "Make Model 2"]
    assert splits.fit.labels.tolist() == [2, 0, 1, 0]
    assert splits.held_out.labels.tolist() == [1]
    for number, label in enumerate((2, 0, 1, 0)):
        x, y = splits.fit[number]
        assert y == label
        assert max(abs(a - b) for a, b in zip(colour_of(x), colour(label, number), strict=True)) < 6  # JPEG


def test_cars_without_test_labels_or_with_labels_of_another_copy(tmp_path: Path) -> None:
    write_cars(tmp_path / "x", {"train": [1, 2], "test": [1]}, with_test_labels=False)
    with pytest.raises(DataError, match=r"cars_test_annos_withlabels\.mat: the labels of the test images are not part"):
        Cars("harmful", root=tmp_path / "x").splits(None, None)
    write_cars(tmp_path / "y", {"train": [1, 4], "test": [1]}, classes=3)
    with pytest.raises(DataError, match=r"labels from 1 to 4, but .* names 3 classes"):
        Cars("harmful", root=tmp_path / "y").splits(None, None)
    write_cars(tmp_path / "z", {"train": [1, 2], "test": [1]})
    (tmp_path / "z" / "devkit" / "cars_meta.mat").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"cars_meta.mat cannot be read as the table 'class_names'"):
        Cars("harmful", root=tmp_path / "z").splits(None, None)


def test_cars_image_that_is_listed_and_not_there_counts_as_unreadable(tmp_path: Path) -> None:
    write_cars(tmp_path, {"train": [1, 2] * 60, "test": [1]})
    (tmp_path / "cars_train" / "00003.jpg").unlink()
    fit = Cars("harmful", root=tmp_path).splits(None, None).fit
    assert (len(fit), fit.skipped) == (119, 1)


def test_tiny_imagenet_official(tmp_path: Path) -> None:
    listed = [("val_1.JPEG", WNIDS[2]), ("val_0.JPEG", WNIDS[0])]
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200", listed)
    source = TinyImageNet("pretrain", tmp_path)
    splits = source.splits(None, None)
    assert source.describe()["layout"] == "official"
    assert splits.fit.classes == list(WNIDS)
    assert splits.fit.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert splits.held_out.labels.tolist() == [2, 0]


def test_tiny_imagenet_with_a_broken_table(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path, [("val_0.JPEG", WNIDS[0]), ("val_1.JPEG", "n99999999")])
    with pytest.raises(DataError, match=r"val_annotations.txt, line 2: .*is not an image's name and one of the 3"):
        TinyImageNet("pretrain", root=tmp_path).splits(None, None)


def test_imagenet_labels_are_positions_among_the_thousand(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_classes(tmp_path / "imagenet" / split, {"n03888257": 1, WNIDS[1]: 2}, ending="JPEG")
    source = ImageNet("pretrain", tmp_path)
    splits = source.splits(None, None)
    assert (source.n_classes, splits.fit.n_classes) == (1000, 1000)
    assert splits.fit.labels.tolist() == [1, 1, 701]  # goldfish; parachute is number 701 of every ImageNet classifier
    write_classes(tmp_path / "imagenet" / "train", {"cats": 1})
    with pytest.raises(DataError, match="cats is not among the 1,000 WordNet ids"):
        ImageNet("pretrain", tmp_path).splits(None, None)


def test_imagenet_validation_images_in_one_heap(tmp_path: Path) -> None:
    write_classes(tmp_path / "imagenet" / "train", dict.fromkeys(WNIDS, 1), ending="JPEG")
    write_image(tmp_path / "imagenet" / "val" / "ILSVRC2012_val_00000001.JPEG", (1, 2, 3))
    with pytest.raises(DataError, match=r"val has no class folders; .* sort them into val/<wnid>"):
        ImageNet("pretrain", tmp_path).splits(None, None)


def test_imagenette_with_either_labels(tmp_path: Path) -> None:
    write_two_splits(tmp_path / "imagenette", "val", classes=WNIDS[1:], count=1)
    assert labels_of(Imagenette("pretrain", tmp_path), "fit") == [0, 1]
    source = Imagenette("pretrain", tmp_path, labels="imagenet")
    assert labels_of(source, "fit") == [1, 2]
    assert source.n_classes == 1000
    with pytest.raises(DataError, match=r"pretrain\.labels is 'both'"):
        Imagenette("pretrain", tmp_path, labels="both")


def test_caltech101_original_folder(tmp_path: Path) -> None:
    folder = tmp_path / "caltech101" / "101_ObjectCategories"
    write_classes(folder, {"BACKGROUND_Google": 3, "ant": 8, "bass": 4})
    source = Caltech101("harmful", tmp_path)
    splits = source.splits(None, None)
    assert splits.fit.classes == ["ant", "bass"]
    assert splits.fit.labels.bincount().tolist() == [6, 3]
    assert splits.held_out.labels.bincount().tolist() == [2, 1]


def test_cifar10_original_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write_cifar_batches(tmp_path / "cifar10")
    source = Cifar10("pretrain", tmp_path)
    source.require()
    with pytest.raises(DataError, match="not the published ones"):  # torchvision compares checksums, then unpickles
        source.splits(None, None)
    trust_checksums(monkeypatch, tmp_path / "cifar10" / "cifar-10-batches-py")
    splits = Cifar10("pretrain", tmp_path).splits(None, None)
    assert (len(splits.fit), len(splits.held_out)) == (20, 10)
    assert splits.fit.classes[3] == "class 3"
    pixels, labels = written["data_batch_2"]
    x, y = splits.fit[5]
    assert y == labels[1]
    assert (x * 255).round().byte().permute(1, 2, 0).numpy().tolist() == pixels[1].tolist()


def trust_checksums(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let torchvision take generated batches for the published ones."""
    from torchvision.datasets import CIFAR10

    for attribute in ("train_list", "test_list"):
        listed = [[name, calculate_md5(folder / name)] for name, _ in getattr(CIFAR10, attribute)]
        monkeypatch.setattr(CIFAR10, attribute, listed)
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": calculate_md5(folder / "batches.meta")})


# Downloads.


@pytest.mark.parametrize(
    ("cls", "target", "unpack"),
    [
        (Country211, "Country211", lambda root: write_two_splits(root / "country211")),
        (
            Caltech101,
            "Caltech101",
            lambda root: write_classes(root / "caltech101/101_ObjectCategories", {"a": 4, "b": 4}),
        ),
        (Imagenette, "Imagenette", lambda root: write_two_splits(root / "imagenette2-160", "val")),
        (Cifar10, "CIFAR10", write_cifar_batches),
    ],
)
def test_download_is_torchvisions_and_only_when_needed_and_what_to_do_where_it_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cls: Any, target: str, unpack: Callable[[Path], None]
) -> None:
    calls = []

    def fake(root: str, download: bool, size: str = "") -> None:
        calls.append(download)
        if len(calls) == 1:
            raise RuntimeError("Error downloading the archive")
        unpack(Path(root))

    monkeypatch.setattr(f"torchvision.datasets.{target}", fake)
    with pytest.raises(MissingDataError, match=r"could not be downloaded: Error downloading.*harmful\.root="):
        cls("harmful", tmp_path, download=True).require()
    for place in ({"data_root": tmp_path}, {"root": tmp_path / "mine"}):
        for _ in range(2):
            cls("harmful", download=True, **place).require()
    assert calls == [True] * 3


def test_half_unpacked_country211_is_not_taken_for_complete(tmp_path: Path) -> None:
    (tmp_path / "country211" / "train").mkdir(parents=True)
    with pytest.raises(MissingDataError, match="exists but is not complete"):
        Country211("harmful", tmp_path, download=True).require()


# Embedded digits.


def test_digits_as_images_share_rows_with_digits_as_tables() -> None:
    from sklearn.datasets import load_digits

    from immunize.data.digits import held_out_mask

    raw, digits = load_digits(return_X_y=True)
    mask = held_out_mask(digits)
    for role, chosen in (("pretrain", range(5)), ("harmful", range(5, 10))):
        source = as_image_source(Digits([0, 1], role))
        assert isinstance(source, DigitImages)
        splits = source.splits(None, None)
        for part, rows in ((splits.fit, ~mask), (splits.held_out, mask)):
            expected = [row for row in range(len(digits)) if rows[row] and digits[row] in chosen]
            assert part.labels.tolist() == [int(digits[row]) - chosen[0] for row in expected]
            x, _ = part[7]
            assert x.shape == (3, 8, 8)
            assert (x[0] == x[1]).all()
            assert (x[0] == x[2]).all()
            assert abs(x[0].numpy() - raw[expected[7]].reshape(8, 8) / 16).max() <= 0.5 / 255 + 1e-7
        assert source.describe()["digits"] == list(chosen)


# Real packs.


@pytest.mark.data
@pytest.mark.parametrize(
    ("cls", "classes", "fit", "held_out"),
    [
        (Cars, 196, 6509, 1635),
        (Caltech101, 101, 2500, 808),
        (Imagenette, 10, 3500, 800),
    ],
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
