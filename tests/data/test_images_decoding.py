"""What becomes of grayscale, CMYK and other images, and which files are taken for whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from immunize.data.images.stored import UNREADABLE, is_readable, open_rgb, to_rgb
from tests.data.image_files import truncate, write_image


def saved(path: Path, image: Image.Image) -> Image.Image:
    image.save(path)
    return open_rgb(str(path))


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
    image = saved(tmp_path / f"image.{ending}", Image.new(mode, (8, 6), value))
    assert image.mode == "RGB"
    assert image.size == (8, 6)
    assert np.abs(np.asarray(image).astype(int) - expected).max() <= 1  # JPEG rounds


def test_palette_with_transparency_keeps_its_colours(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "image.png", transparency=b"\x00\x80")
    pixels = np.asarray(to_rgb(Image.open(tmp_path / "image.png")))
    assert np.array_equal(np.unique(pixels.reshape(-1, 3), axis=0), [[10, 20, 30]])


def test_gray_levels_of_16_bits_keep_their_order() -> None:
    levels = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    gray = np.asarray(to_rgb(Image.fromarray(levels)))[..., 0]
    assert np.array_equal(gray, levels >> 8)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "bmp", "gif", "tiff"])
def test_whole_file_is_readable_and_cut_off_file_is_not(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"image.{ending}"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(path)
    assert is_readable(str(path))
    truncate(path)
    assert not is_readable(str(path))
    with pytest.raises(UNREADABLE):
        open_rgb(str(path))


def test_jpeg_with_bytes_after_its_end_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    write_image(path, (1, 2, 3))
    path.write_bytes(path.read_bytes() + b"written by some camera")
    assert is_readable(str(path))


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff", b"<html>404</html>" * 20, bytes(1000)])
def test_file_that_is_no_image_is_not_readable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(content)
    assert not is_readable(str(path))


def test_cut_off_images_are_not_filled_up() -> None:
    assert not ImageFile.LOAD_TRUNCATED_IMAGES  # a switch for the whole program; on, half an image would pass
