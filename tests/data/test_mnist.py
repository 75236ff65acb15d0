"""MNIST pairs on generated idx files in the real layout, and on the real files where they are."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from immunize.data.mnist import SPLIT_FILES, Mnist, read_idx
from immunize.errors import DataError, MissingDataError

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


def test_two_labels_a_side(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    splits = Mnist(tmp_path, [[0, 1], [2, "rest"]], "harmful").load()
    assert splits.held_out is not None
    for name, part in (("fit", splits.fit), ("held_out", splits.held_out)):
        fewest = min(COUNTS[name].values())
        assert part.x.shape == (2 * fewest, 784)
        assert part.y.tolist() == [0] * fewest + [1] * fewest


@pytest.mark.parametrize("packed", [False, True])
def test_images_of_the_digit_normalized_and_balanced(tmp_path: Path, packed: bool) -> None:
    written = write_mnist(tmp_path, packed)
    for role, digit, label in (("pretrain", 0, 0.0), ("harmful", 1, 1.0)):
        splits = Mnist(tmp_path, [0, 1], role).load()
        assert splits.held_out is not None
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


def test_nothing_is_written_into_the_users_folder(tmp_path: Path) -> None:
    write_mnist(tmp_path, packed=True)
    before = sorted(tmp_path.rglob("*"))
    Mnist(tmp_path, [0, 1], "harmful").load()
    assert sorted(tmp_path.rglob("*")) == before


def test_draw_depends_on_the_seed_only(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    first, again = (Mnist(tmp_path, [0, 1], "pretrain").load().fit.x for _ in range(2))
    others = [Mnist(tmp_path, [0, 1], "pretrain", seed=seed).load().fit.x for seed in range(1, 5)]
    assert torch.equal(first, again)
    assert any(not torch.equal(first, other) for other in others)


def test_missing_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    absent = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    absent.unlink()
    with pytest.raises(MissingDataError) as caught:
        Mnist(tmp_path, [0, 1], "harmful").load()
    for words in (str(absent), "https://", "data_root=", "IMMUNIZE_DATA", "harmful.download=true"):
        assert words in str(caught.value)


@pytest.mark.parametrize("works", [True, False])
def test_download_is_torchvisions_and_only_when_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    calls = []

    def fake_mnist(root: str, download: bool) -> None:
        calls.append((root, download))
        if not works:
            raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")
        write_mnist(Path(root))

    monkeypatch.setattr("torchvision.datasets.MNIST", fake_mnist)
    source = Mnist(tmp_path, [0, 1], "harmful", download=True)
    if works:
        source.load()
        source.load()
    else:
        with pytest.raises(MissingDataError, match=r"could not be downloaded.*Error downloading.*data_root="):
            source.load()
    assert calls == [(str(tmp_path), True)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
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


# Named, because packed bytes hold the second they were made in, and workers that collect have to agree on names.
@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(bytes(1000))[:-9]], ids=["other", "cut off"])
def test_broken_packed_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(path)


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
        assert splits.held_out is not None
        assert splits.held_out.x.shape == (980, 784)
        assert abs(float(splits.fit.x.min()) + 0.1307 / 0.3081) < 1e-12
        assert abs(float(splits.fit.x.max()) - (1 - 0.1307) / 0.3081) < 1e-12
