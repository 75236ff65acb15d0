"""A split of images: what an item is in every mode, what is left out, what stands in for it, what is fingerprinted."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from immunize.data.images.folders import class_names, read_class_folders
from immunize.data.images.image_set import ImageSet
from immunize.data.images.stored import UNREADABLE, FileImages, is_readable, open_rgb, to_rgb
from immunize.errors import DataError
from tests.data.image_files import break_inside, colour, colour_of, truncate, write_classes, write_image, write_noise


def stored(folder: Path) -> FileImages:
    return read_class_folders(folder, class_names(folder))


def images(folder: Path) -> ImageSet:
    return ImageSet(stored(folder), None, "test set")


def test_item_is_the_image_and_its_label(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 2, "b": 3})
    found = images(tmp_path)
    assert found.labels.tolist() == [0, 0, 1, 1, 1]
    assert (found.stored.classes, found.skipped) == (("a", "b"), 0)
    expected = [(colour(label, number), label) for label, count in ((0, 2), (1, 3)) for number in range(count)]
    assert [(colour_of(x), y) for x, y in found] == expected  # type: ignore[attr-defined]


def test_unreadable_files_have_no_index_and_are_counted(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 150, "b": 150})
    truncate(tmp_path / "a" / "003.png")
    (tmp_path / "b" / "000.png").write_bytes(b"")
    found = images(tmp_path)
    assert (len(found), found.skipped) == (298, 2)
    assert found.labels.bincount().tolist() == [149, 149]
    assert colour_of(found[2][0]) == colour(0, 2)
    assert colour_of(found[3][0]) == colour(0, 4)  # the one after the one left out
    truncate(tmp_path / "b" / "001.png")
    assert images(tmp_path).skipped == 3  # one percent
    truncate(tmp_path / "b" / "002.png")
    with pytest.raises(DataError, match=r"test set: 4 of 300 images cannot be read.*a/003\.png, b/000\.png"):
        images(tmp_path)


def test_file_that_fails_only_when_read_is_replaced_within_its_class_and_counted_for_all_processes(
    tmp_path: Path,
) -> None:
    write_classes(tmp_path, {"a": 150, "b": 150})
    for name in ("a/004.png", "a/149.png"):
        break_inside(tmp_path / name)
    found = images(tmp_path)
    other = found.with_transform(lambda image: torch.full((3, 1, 1), float(image.size[0])))
    assert (len(found), found.skipped) == (300, 0)
    read = [x for batch, _ in DataLoader(found, batch_size=50, num_workers=2) for x in batch]
    assert (len(read), len(found), found.skipped, other.skipped) == (300, 300, 2, 2)  # for all views of the split
    assert [colour_of(x) for x in (read[4], read[149])] == [colour(0, 5), colour(0, 0)]  # from the last to the first
    for own in (found, images(tmp_path)):  # known to fail already, and not
        taken = own.take([149, 1, 2])[0]
        assert (colour_of(taken[0]), taken[1]) == (colour(0, 1), 0)  # from its own images alone
    for name in ("b/002.png", "b/050.png"):
        break_inside(tmp_path / name)
    with pytest.raises(DataError, match="4 of 300 images cannot be read"):
        list(found)  # type: ignore[call-overload]


def test_transform_has_to_give_three_channels_of_float32(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 2})
    for wrong in (torch.zeros(1, 4, 4), torch.zeros(3, 4, 4, dtype=torch.float64), "image"):
        with pytest.raises(DataError, match=r"test set: the transform gives .*float32 tensor \(3, H, W\)"):
            images(tmp_path).with_transform(lambda _, wrong=wrong: wrong)[0]


def test_fingerprint_knows_files_labels_rows_and_times_but_not_the_transform(tmp_path: Path) -> None:
    write_classes(tmp_path / "x", {"a": 3, "b": 3})
    first, path = images(tmp_path / "x"), tmp_path / "x" / "a" / "000.png"
    prints = {first.fingerprint, first.take([0, 1]).fingerprint, first.take([1, 0]).fingerprint}
    assert len(prints) == 3
    assert images(tmp_path / "x").fingerprint == first.fingerprint
    assert first.with_transform(lambda image: image).fingerprint == first.fingerprint
    os.utime(path, (1, 1))  # rewritten with the same size
    assert images(tmp_path / "x").fingerprint not in prints
    digests = [first.stored.digest(times=False), stored(tmp_path / "x").digest(times=False)]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    digests.append(stored(tmp_path / "x").digest(times=False))  # of a small set its bytes count
    (tmp_path / "x" / "a").rename(tmp_path / "x" / "c")  # other labels for the same images
    digests.append(stored(tmp_path / "x").digest(times=False))
    assert [digests.index(digest) for digest in digests] == [0, 0, 2, 3]


@pytest.mark.parametrize(
    ("mode", "value", "ending", "expected"),
    [
        ("RGB", (200, 100, 50), "png", (200, 100, 50)),
        ("L", 90, "png", (90, 90, 90)),
        ("LA", (90, 10), "png", (90, 90, 90)),
        ("RGBA", (200, 100, 50, 10), "png", (200, 100, 50)),
        ("CMYK", (0, 255, 255, 0), "tiff", (255, 0, 0)),
        ("CMYK", (0, 255, 255, 0), "jpg", (254, 0, 0)),
        ("I;16", 0x8000, "png", (128, 128, 128)),
    ],
)
def test_every_mode_becomes_three_channels(
    tmp_path: Path, mode: str, value: object, ending: str, expected: tuple[int, ...]
) -> None:
    path = tmp_path / f"image.{ending}"
    Image.new(mode, (8, 6), value).save(path)
    image = open_rgb(str(path))
    assert image.mode == "RGB"
    assert image.size == (8, 6)
    assert np.abs(np.asarray(image).astype(int) - expected).max() <= 1  # JPEG rounds


def test_pixels_without_a_known_range_are_none(tmp_path: Path) -> None:
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(tmp_path / "image.tif")
    assert not is_readable(str(tmp_path / "image.tif"))


def test_palettes_with_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "image.png", transparency=b"\x00\x80")
    pixels = np.asarray(to_rgb(Image.open(tmp_path / "image.png")))
    assert np.array_equal(np.unique(pixels.reshape(-1, 3), axis=0), [[10, 20, 30]])


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "bmp", "gif", "tiff"])
def test_whole_file_is_readable_whatever_follows_it_and_what_is_cut_off_or_no_image_is_not(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"image.{ending}"
    write_noise(path, np.random.default_rng(0), 40)
    whole = path.read_bytes()
    for content in (whole, whole + b"written by some camera"):
        path.write_bytes(content)
        assert is_readable(str(path))
    for content in (whole[: len(whole) * 3 // 5], b"", b"\xff\xd8\xff", b"<html>404</html>" * 20, bytes(1000)):
        path.write_bytes(content)
        assert not is_readable(str(path))
        with pytest.raises(UNREADABLE):
            open_rgb(str(path))


def test_absurdly_large_file_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "image.png", (1, 2, 3))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(UNREADABLE, match="exceeds limit of 20 pixels"):
        open_rgb(str(tmp_path / "image.png"))
