"""Whatever a data file holds: data, or an error that names it. Random damage, wrong types, huge and empty files."""

from __future__ import annotations

import contextlib
import io
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from immunize.data.arrays import Arrays
from immunize.data.housing import COLUMNS, Housing
from immunize.data.images.folders import ImageFolder
from immunize.data.mnist import read_idx
from immunize.errors import DataError, UserError
from tests.data.test_digits import idx_bytes
from tests.fuzzing import cases, damaged


def table(rows: int = 12) -> str:
    """House Prices' columns, half of the rows for each role."""
    numbers = np.random.default_rng(0).integers(99, size=(rows, len(COLUMNS))).astype(str)
    numbers[:, COLUMNS.index("MSZoning")] = ["RL", "RM"] * (rows // 2)
    return "\n".join(map(",".join, [COLUMNS, *numbers]))


def house_prices(content: bytes, root: Path) -> None:
    """Both roles of a file with this content."""
    path = root / "house_prices" / "train.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    for role in ("pretrain", "harmful"):
        part = Housing(root, role).load().fit
        assert part.x.shape == (len(part.y), 79)
        assert part.x.isfinite().all()


@cases(40)
@given(content=damaged(table().encode()))
def test_damaged_table(content: bytes, tmp_path: Path) -> None:
    with contextlib.suppress(UserError):
        house_prices(content, tmp_path)


ROW = table().splitlines()[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (table().replace("\n", "\n" + "x" * 5_000_000 + ",", 1), "more fields than the header"),
        (table().replace("\n", ",\n"), "more fields than the header|columns too many"),
        (table().replace("SalePrice", ",".join(["SalePrice", *map(str, range(20_000))]), 1), "columns too many"),
        (f"{table()}\n{ROW.rpartition(',')[0]},1e400", "target SalePrice has entries|infinite numbers"),
        (f'{table()}\n"{ROW}', "not a readable CSV|target"),
    ],
    ids=["a field of 5 MB", "commas at the end", "20,081 columns", "1e400", "quote"],
)
def test_tables_of_wrong_types_and_huge_ones(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        house_prices(content.encode(), tmp_path)


def test_table_of_many_rows_is_read(tmp_path: Path) -> None:
    house_prices(table(40_000).encode(), tmp_path)


@cases(40)
@given(content=damaged(idx_bytes(np.arange(20 * 28 * 28).reshape(20, 28, 28) % 251)), packed=st.booleans())
def test_damaged_idx_file(content: bytes, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert read_idx(path).dtype == np.uint8


def test_idx_file_that_announces_more_than_any_memory_holds(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12)
    with pytest.raises(DataError):
        read_idx(tmp_path / "images")


def archive(compressed: bool) -> bytes:
    """Two arrays, as `harmful=arrays` takes them."""
    stream, draws = io.BytesIO(), np.random.default_rng(0)
    save = np.savez_compressed if compressed else np.savez
    save(stream, x=draws.standard_normal((12, 3)), y=draws.standard_normal(12))
    return stream.getvalue()


@cases(40)
@given(content=st.one_of(damaged(archive(False)), damaged(archive(True))))
def test_damaged_arrays(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with contextlib.suppress(UserError):
        part = Arrays("harmful", tmp_path / "a.npz").load().fit
        assert len(part.x) == len(part.y)


def picture(kind: str) -> bytes:
    """A small picture as a file."""
    stream = io.BytesIO()
    Image.fromarray(np.arange(12 * 12 * 3, dtype="u1").reshape(12, 12, 3)).save(stream, kind)
    return stream.getvalue()


def images(root: Path, content: bytes, name: str) -> None:
    """Read a folder of seven images, one of which has this content."""
    shutil.rmtree(root / "images", ignore_errors=True)
    for which in range(2):
        for image in range(3):
            path = root / "images" / f"class{which}" / f"{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture("PNG"))
    (root / "images" / "class0" / name).write_bytes(content)
    splits = ImageFolder("harmful", root=root / "images").splits(None, None)
    for split in (splits.fit, splits.held_out):
        for index in range(len(split)):
            assert split[index][0].shape[0] == 3


@cases(20)
@given(content=st.one_of(damaged(picture("PNG")), damaged(picture("JPEG"))), name=st.sampled_from(["x.png", "x.jpg"]))
def test_damaged_image(content: bytes, name: str, tmp_path: Path) -> None:
    with contextlib.suppress(UserError):  # one of so few is more than 1 %, unless it can be read after all
        images(tmp_path, content, name)


def sized(width: int, height: int) -> bytes:
    """A PNG whose header announces another size than it has, with the right checksum."""
    content = picture("PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + content[24:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


@pytest.mark.parametrize("size", [(30_000, 30_000), (2**31 - 1, 2**31 - 1), (0, 12)])
def test_image_of_an_absurd_size_is_unreadable(size: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 of 5 images cannot be read"):
        images(tmp_path, sized(*size), "x.png")


def test_large_image_is_read(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (3_000, 2_500)).save(stream, "PNG")
    images(tmp_path, stream.getvalue(), "x.png")
