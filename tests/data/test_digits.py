"""The embedded digits: balance, labels, scaling, that held-out images are never seen, and what a pair may be."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from immunize.data import Part
from immunize.data.digits import Digits, FiveDigits, balanced_rows, embedded_digits, held_out_mask, parse_pair
from immunize.data.mnist import SPLIT_FILES, Mnist
from immunize.errors import DataError, MissingDataError

RAW, DIGIT = load_digits(return_X_y=True)
HELD_OUT = held_out_mask(DIGIT)
SCALED = (RAW - RAW[~HELD_OUT].mean()) / RAW[~HELD_OUT].std()
NUMBERS = {image.tobytes(): number for number, image in enumerate(RAW)}


def originals(part: Part) -> np.ndarray:
    """Numbers of the embedded images that the rows of a part are; they are scaled by all training pixels."""
    pixels = np.rint(part.x.numpy() * RAW[~HELD_OUT].std() + RAW[~HELD_OUT].mean())
    numbers = np.array([NUMBERS[image.tobytes()] for image in np.abs(pixels)])
    np.testing.assert_allclose(part.x.numpy(), SCALED[numbers], rtol=0, atol=1e-13)
    assert len(set(numbers)) == len(numbers)
    return numbers


def test_the_images_are_those_of_scikit_learn_of_which_a_third_is_held_out() -> None:
    for ours, theirs in zip(embedded_digits(), (RAW, DIGIT), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    assert len(NUMBERS) == len(RAW)
    for digit in range(10):
        assert HELD_OUT[digit == DIGIT].sum() == (digit == DIGIT).sum() // 3


@pytest.mark.parametrize("pair", [(0, 1), (8, 3), ((0, 1), (2, 3)), ((6, "rest"), ("rest", 9)), (4, (7, 8))], ids=str)
def test_each_side_holds_as_many_images_of_each_label_as_the_rarest_digit_has(pair: tuple[Any, Any]) -> None:
    sides = [side if isinstance(side, tuple) else (side,) for side in pair]
    named = [of for side in sides for of in side if of != "rest"]
    for role, side, first in zip(("pretrain", "harmful"), sides, (0, 1), strict=True):
        splits = Digits(pair, role, seed=2).load()
        for part, rows in ((splits.fit, ~HELD_OUT), (splits.held_out, HELD_OUT)):
            numbers = originals(part)
            assert rows[numbers].all()
            fewest = min((DIGIT[rows] == digit).sum() for digit in named)
            for label, which in enumerate(side, first if len(side) == 1 else 0):
                mine = numbers[part.y.numpy() == label]
                assert (np.diff(mine) > 0).all()
                assert len(mine) == fewest
                wanted = set(range(10)) - set(side) if which == "rest" else {which}
                assert set(DIGIT[mine]) == wanted
            assert len(part) == fewest * len(side)


def test_another_seed_draws_other_images() -> None:
    first, again, other = (originals(Digits((3, 8), "pretrain", seed).load().fit) for seed in (0, 0, 1))
    assert (first == again).all()
    assert set(first) != set(other)


def test_five_digits_a_role_have_their_labels_and_the_same_standardized_images() -> None:
    seen: set[int] = set()
    for role, first in (("pretrain", 0), ("harmful", 5)):
        splits = FiveDigits(role).load()
        for part, rows in ((splits.fit, ~HELD_OUT), (splits.held_out, HELD_OUT)):
            assert part.y.dtype == torch.int64
            numbers = originals(part)
            assert rows[numbers].all()
            assert (DIGIT[numbers] == part.y.numpy() + first).all()
            seen |= set(numbers)
        assert FiveDigits(role).describe()["target"] == f"{first} to {first + 4}"
    assert len(seen) == 1797


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ([4, 4], "names the digit 4 twice"),
        ([0, 10], "there is no digit 10"),
        *((pair, "is not two whole numbers") for pair in ([0], [True, False], None, [[0, 1, 2], 3], ["rest", 3])),
        ([[0, "all"], 3], "nor two sides"),
        ([[5, 5], 3], "names 5 twice"),
        ([[0, 1], [1, 0]], "names the digit 0 twice"),
    ],
)
def test_other_pairs_are_refused_with_an_example(pair: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        parse_pair(pair, "mnist")
    assert "harmful=mnist harmful.pair=[0,1]" in str(caught.value)


def test_digit_without_images_is_named() -> None:
    with pytest.raises(DataError, match="no image of the digit 5"):
        balanced_rows(np.array([0, 0, 1]), (0, 5), [0], seed=0, stream=0, name="mnist")
    with pytest.raises(DataError, match="no image of the digit 2"):  # nor of any other that is the rest
        balanced_rows(np.array([0, 0, 1]), (0, 1), [2, 3], seed=0, stream=0, name="mnist")


COUNTS = {"fit": {0: 9, 1: 6, 2: 7}, "held_out": {0: 4, 1: 5, 2: 3}}


def idx_bytes(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def write_mnist(root: Path, packed: bool = False) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A small MNIST: images and labels of each part."""
    rng = np.random.default_rng(0)
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    written = {}
    for part, names in SPLIT_FILES.items():
        labels = rng.permutation([digit for digit, count in COUNTS[part].items() for _ in range(count)])
        images = rng.integers(0, 256, (len(labels), 28, 28))
        for name, array in zip(names, (images, labels), strict=True):
            content = idx_bytes(array)
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
        written[part] = (images, labels)
    return written


@pytest.mark.parametrize("packed", [False, True])
def test_images_of_the_digit_normalized_and_balanced(tmp_path: Path, packed: bool) -> None:
    written = write_mnist(tmp_path, packed)
    before = sorted(tmp_path.rglob("*"))
    for role, digit, label in (("pretrain", 0, 0.0), ("harmful", 1, 1.0)):
        splits = Mnist(tmp_path, [0, 1], role).load()
        for name, part in (("fit", splits.fit), ("held_out", splits.held_out)):
            assert part.y.unique().tolist() == [label]
            images, labels = written[name]
            allowed = {image.tobytes() for image in images[labels == digit].astype(np.uint8)}
            pixels = np.rint((part.x.numpy() * 0.3081 + 0.1307) * 255)
            np.testing.assert_allclose(part.x.numpy(), (pixels / 255 - 0.1307) / 0.3081, rtol=0, atol=1e-12)
            found = {image.tobytes() for image in pixels.astype(np.uint8)}
            assert found <= allowed
            assert len(found) == len(part) == min(COUNTS[name][0], COUNTS[name][1])  # no image twice
    assert sorted(tmp_path.rglob("*")) == before  # nothing is written into the user's folder


def test_missing_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    absent = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    absent.unlink()
    with pytest.raises(MissingDataError, match=f"{absent}.*https://.*data_root=.*IMMUNIZE_DATA.*harmful.download=true"):
        Mnist(tmp_path, [0, 1], "harmful").load()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("images-idx3", b"<html>", "not an idx file"),
        ("images-idx3", bytes([0, 0, 13, 1]) + struct.pack(">I", 1) + b"abcd", "not an idx file of unsigned bytes"),
        ("images-idx3", bytes([0, 0, 8, 3, 0, 0]), "cut off in its header"),
        ("images-idx3", idx_bytes(np.zeros((2, 28, 28)))[:-5], "holds 1563 bytes instead of 1568"),
        ("images-idx3", idx_bytes(np.zeros((3, 32, 32))), "not 28x28 images"),
        ("labels-idx1", idx_bytes(np.zeros(3)), "labels for 22 images"),
    ],
)
def test_files_that_are_broken_or_do_not_go_together_are_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "MNIST" / "raw" / f"train-{name}-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path} .*{message}"):
        Mnist(tmp_path, [0, 1], "harmful").load()


@pytest.mark.data
def test_real_files(data_root: Path) -> None:
    sizes = {role: Mnist(data_root, [0, 1], role).load() for role in ("pretrain", "harmful")}
    for splits in sizes.values():
        assert splits.fit.x.shape == (5923, 784)  # digit 0 is the rarer one in both files
        assert splits.held_out.x.shape == (980, 784)
        assert abs(float(splits.fit.x.min()) + 0.1307 / 0.3081) < 1e-12
        assert abs(float(splits.fit.x.max()) - (1 - 0.1307) / 0.3081) < 1e-12
