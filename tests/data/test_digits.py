"""The embedded digits: balance, labels, scaling, that held-out images are never seen, and what a pair may be."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from sklearn.datasets import load_digits

from immunize.data import Part
from immunize.data.digit_pairs import balanced_rows, parse_pair
from immunize.data.digits import Digits, FiveDigits, embedded_digits, held_out_mask
from immunize.data.mnist import SPLIT_FILES, Mnist, read_idx
from immunize.errors import DataError, MissingDataError


def originals(part: Part, digit: int) -> list[int]:
    """Numbers of the embedded images that the rows of a part are, found by undoing the standardization."""
    raw, labels = load_digits(return_X_y=True)
    train = raw[~held_out_mask(labels)]
    pixels = np.rint(part.x.numpy() * train.std() + train.mean())
    rows = [np.flatnonzero((raw == image).all(axis=1) & (labels == digit)) for image in pixels]
    assert all(len(found) == 1 for found in rows)
    return [int(found[0]) for found in rows]


def test_the_images_are_those_of_scikit_learn() -> None:
    for ours, theirs in zip(embedded_digits(), load_digits(return_X_y=True), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("pair", [(0, 1), (8, 3)])
def test_each_role_holds_one_digit_with_one_label(pair: tuple[int, int]) -> None:
    for role, digit, label in (("pretrain", pair[0], 0.0), ("harmful", pair[1], 1.0)):
        splits = Digits(pair, role).load()
        for part in (splits.fit, splits.held_out):
            assert part.x.shape == (len(part), 64)
            assert part.x.dtype == part.y.dtype == torch.float64
            assert part.y.unique().tolist() == [label]
        fit, held_out = originals(splits.fit, digit), originals(splits.held_out, digit)
        assert not set(fit) & set(held_out)


@pytest.mark.parametrize("pair", [((0, 1), (2, 3)), ((6, "rest"), ("rest", 9)), (4, (7, 8))], ids=str)
def test_a_side_of_two_labels_holds_as_many_images_of_each_as_the_rarest_digit_has(pair: tuple[Any, Any]) -> None:
    raw, labels = load_digits(return_X_y=True)
    mask = held_out_mask(labels)
    named = [of for side in pair for of in (side if isinstance(side, tuple) else (side,)) if of != "rest"]
    for role, side in zip(("pretrain", "harmful"), pair, strict=True):
        if not isinstance(side, tuple):
            continue
        splits = Digits(pair, role).load()
        for part, rows in ((splits.fit, ~mask), (splits.held_out, mask)):
            fewest = min((labels[rows] == digit).sum() for digit in named)
            pixels = np.rint(part.x.numpy() * raw[~mask].std() + raw[~mask].mean())
            for label, which in enumerate(side):
                of_label = pixels[part.y.numpy() == label]
                assert len(of_label) == fewest
                wanted = set(range(10)) - set(side) if which == "rest" else {which}
                mine = raw[rows & np.isin(labels, list(wanted))]
                assert (of_label[:, None] == mine[None]).all(2).any(1).all()
                assert len(np.unique(of_label, axis=0)) == fewest
            if "rest" in side:  # all nine, and not the first of them
                rest = pixels[part.y.numpy() == side.index("rest")]
                found = {labels[(raw == image).all(1)][0] for image in rest}
                assert len(found) == 9


def test_a_third_of_each_digit_is_held_out_whatever_the_seed() -> None:
    labels = load_digits().target
    mask = held_out_mask(labels)
    for digit in range(10):
        assert mask[labels == digit].sum() == (labels == digit).sum() // 3
    train = set(np.flatnonzero(~mask))
    for seed in range(3):
        assert set(originals(Digits((3, 8), "pretrain", seed).load().fit, 3)) <= train


def test_scaling_is_that_of_all_training_pixels() -> None:
    raw, labels = load_digits(return_X_y=True)
    train = raw[~held_out_mask(labels)]
    part = Digits((0, 1), "harmful").load().fit
    expected = (raw[originals(part, 1)] - train.mean()) / train.std()
    assert np.allclose(part.x.numpy(), expected, rtol=0, atol=1e-13)


def test_same_seed_same_images_other_seed_other_images() -> None:
    first, again, other = (Digits((3, 8), "pretrain", seed).load() for seed in (0, 0, 1))
    assert torch.equal(first.fit.x, again.fit.x)
    assert not torch.equal(first.fit.x, other.fit.x)


def test_five_digits_a_role_have_their_labels_and_the_same_standardized_images() -> None:
    seen: list[int] = []
    for role, digits in (("pretrain", range(5)), ("harmful", range(5, 10))):
        splits = FiveDigits(role).load()
        for part in (splits.fit, splits.held_out):
            assert part.y.dtype == torch.int64
            for label, digit in enumerate(digits):
                rows = part.take((part.y == label).nonzero()[:, 0])
                seen += (found := originals(rows, digit))
                assert len(set(found)) == len(rows) > 50
        assert FiveDigits(role).describe()["target"] == f"{digits[0]} to {digits[-1]}"
    assert len(seen) == len(set(seen)) == 1797


def test_pair_may_come_from_a_configuration() -> None:
    assert parse_pair(OmegaConf.create([3, 8]), "mnist") == (3, 8)
    assert parse_pair((9, 0), "mnist") == (9, 0)
    assert parse_pair(OmegaConf.create([[0, 1], [2, 3]]), "mnist") == ((0, 1), (2, 3))
    assert parse_pair([[0, "rest"], [1, "rest"]], "mnist") == ((0, "rest"), (1, "rest"))
    assert parse_pair([4, [4, 9]], "mnist") == (4, (4, 9))


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ([4, 4], "names the digit 4 twice"),
        ([0, 10], "there is no digit 10"),
        ([0], "is not two whole numbers"),
        (["0", "1"], "is not two whole numbers"),
        ([True, False], "is not two whole numbers"),
        (None, "is not two whole numbers"),
        ([[0, 1, 2], 3], "is not two whole numbers, nor two sides"),
        (["rest", 3], "is not two whole numbers, nor two sides"),
        ([[0, "all"], 3], "is not two whole numbers, nor two sides"),
        ([[5, 5], 3], "names 5 twice"),
        ([[0, 1], [1, 0]], "names the digit 0 twice"),
    ],
)
def test_other_pairs_are_refused_with_an_example(pair: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        parse_pair(pair, "mnist")
    assert "harmful=mnist harmful.pair=[0,1]" in str(caught.value)


def test_balanced_rows_are_as_many_as_the_rarer_digit_has() -> None:
    labels = np.array([0] * 7 + [1] * 3 + [2] * 5)

    def rows(digit: int, seed: int) -> list[int]:
        return balanced_rows(labels, (0, 1), [digit], seed=seed, stream=0, name="mnist").tolist()

    assert rows(1, 0) == [7, 8, 9]
    chosen = [rows(0, seed) for seed in range(20)]
    assert all(len(set(some)) == 3 and set(some) <= set(range(7)) and some == sorted(some) for some in chosen)
    assert chosen[0] == rows(0, 0)
    assert {row for some in chosen for row in some} == set(range(7))  # a draw, not the first ones


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
    """Lay out a small MNIST under root.

    Returns:
        images and labels of each part.
    """
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
            assert part.x.shape == (min(COUNTS[name][0], COUNTS[name][1]), 784)
            assert part.x.dtype == part.y.dtype == torch.float64
            assert part.y.unique().tolist() == [label]
            images, labels = written[name]
            allowed = ((images[labels == digit].reshape(-1, 784) / 255) - 0.1307) / 0.3081
            gaps = np.abs(part.x.numpy()[:, None] - allowed[None]).max(axis=2)
            nearest = gaps.argmin(axis=1)
            assert gaps.min(axis=1).max() < 1e-12
            assert len(set(nearest)) == len(part)  # no image twice
    assert sorted(tmp_path.rglob("*")) == before  # nothing is written into the user's folder


def test_missing_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    absent = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    absent.unlink()
    with pytest.raises(MissingDataError) as caught:
        Mnist(tmp_path, [0, 1], "harmful").load()
    for words in (str(absent), "https://", "data_root=", "IMMUNIZE_DATA", "harmful.download=true"):
        assert words in str(caught.value)


def test_download_is_torchvisions_and_only_when_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fake_mnist(root: str, download: bool) -> None:
        calls.append((root, download))
        if len(calls) == 1:
            raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")
        write_mnist(Path(root))

    monkeypatch.setattr("torchvision.datasets.MNIST", fake_mnist)
    source = Mnist(tmp_path, [0, 1], "harmful", download=True)
    with pytest.raises(MissingDataError, match=r"could not be downloaded.*Error downloading.*data_root="):
        source.load()
    source.load()
    source.load()
    assert calls == [(str(tmp_path), True)] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>", "not an idx file"),
        (bytes([0, 0, 13, 1]) + struct.pack(">I", 1) + b"abcd", "not an idx file of unsigned bytes"),
        (bytes([0, 0, 8, 3, 0, 0]), "cut off in its header"),
        (idx_bytes(np.zeros((2, 28, 28)))[:-5], "holds 1563 bytes instead of 1568"),
    ],
)
def test_broken_idx_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_files_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    labels = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.zeros(3)))
    with pytest.raises(DataError, match=r"labels for 22 images"):
        Mnist(tmp_path, [0, 1], "harmful").load()
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((3, 32, 32))))
    with pytest.raises(DataError, match="not 28x28 images"):
        Mnist(tmp_path, [0, 1], "harmful").load()


@pytest.mark.data
def test_real_files(data_root: Path) -> None:
    sizes = {role: Mnist(data_root, [0, 1], role).load() for role in ("pretrain", "harmful")}
    for splits in sizes.values():
        assert splits.fit.x.shape == (5923, 784)  # digit 0 is the rarer one in both files
        assert splits.held_out.x.shape == (980, 784)
        assert abs(float(splits.fit.x.min()) + 0.1307 / 0.3081) < 1e-12
        assert abs(float(splits.fit.x.max()) - (1 - 0.1307) / 0.3081) < 1e-12
