"""MNIST digit pairs (Table 2, Fig. 2; §5.1 "Image classification", C.2).

D_P holds the training images of one digit with label 0, D_H those of another with label 1 (see `digits`),
balanced; 90 ordered pairs. Held out are the test images of the same digits, balanced likewise. Each image is flattened
to 784 numbers (x/255 - 0.1307)/0.3081, the usual constants: mean and standard deviation of all training pixels.

Files: torchvision's layout, ``<root>/MNIST/raw/train-images-idx3-ubyte`` and three more, plain or with ``.gz``. They
are read here and not by torchvision, whose reader needs unpacked files (it would have to write into the user's folder)
and costs seconds of import time; torchvision is used to download.

Shapes: N images, D = 784 pixels.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from immunize.data.digits import DigitPairSource
from immunize.data.images.stored import Array
from immunize.data.splits import Part, Splits, to_part
from immunize.errors import DataError, MissingDataError

MEAN, STD = 0.1307, 0.3081
"""Of all training pixels / 255; the constants everyone uses."""

IDX_UNSIGNED_BYTE = 0x08
"""The idx format's code for the element type of all MNIST files."""

SPLIT_FILES = {
    "fit": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "held_out": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


class Mnist(DigitPairSource):
    """Images of one digit of a pair, 784 columns; `fit` from the training files, `held_out` from the test files.

    Args:
        root: the data folder, which holds ``MNIST/raw``.
        pair: [D_P's, D_H's], each a digit or two labels, see `DigitPairSource`.
        role: "pretrain" or "harmful".
        seed: of the balancing draw.
        download: fetch the files into ``<root>/MNIST/raw`` when they are not there.

    Raises:
        DataError: if the pair is not two different ones, or for an unknown role.
    """

    name = "mnist"

    def __init__(self, root: str | Path, pair: Sequence[Any], role: str, seed: int = 0, download: bool = False) -> None:
        super().__init__(pair, role, seed)
        self.root = Path(root).expanduser()
        self.download = download

    def load(self) -> Splits:
        """Read, normalize and select this source's images.

        Returns:
            both parts, (N, 784) each.

        Raises:
            MissingDataError: if a file is not there and may not, or cannot, be downloaded.
            DataError: if a file is not an MNIST file, or lacks one of the digits.
        """
        self.require()
        return Splits(*(self._part(split, stream) for stream, split in enumerate(SPLIT_FILES)))

    def _part(self, split: str, stream: int) -> Part:
        images, labels = self._read(split)
        rows, targets = self.select(labels, stream)
        images = images[rows]  # float64 copies of 60,000 images would take 376 MB
        part = to_part(images, targets)
        part.x.div_(255.0).sub_(MEAN).div_(STD)
        return part

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        return super().describe() | {
            "from": "MNIST idx files",
            "scaling": f"(x/255 - {MEAN})/{STD}",
            "held_out": "test images of the same digit",
        }

    @property
    def folder(self) -> Path:
        """Where the four files lie."""
        return self.root / "MNIST" / "raw"

    def require(self) -> None:
        """Find the four files, downloading them if that is allowed.

        Raises:
            MissingDataError: if a file is not there and may not, or cannot, be downloaded.
        """
        if self.download and self._missing():
            self._download()
        if missing := self._missing():
            raise MissingDataError(
                f"MNIST was not found: looked for {self.folder / missing[0]} (plain or .gz). "
                f"Get the four files from {MIRROR} and name the folder that holds MNIST/raw with data_root=<folder> "
                f"or the environment variable IMMUNIZE_DATA, or let harmful.download=true fetch them."
            )

    def _missing(self) -> list[str]:
        names = [name for pair in SPLIT_FILES.values() for name in pair]
        return [name for name in names if find_file(self.folder, name) is None]

    def _download(self) -> None:
        from torchvision.datasets import MNIST  # seconds of import time, needed for nothing else here

        try:
            MNIST(str(self.root), download=True)
        except (OSError, RuntimeError) as error:  # no network, no permission, wrong checksum
            raise MissingDataError(
                f"MNIST could not be downloaded into {self.folder}: {error}. Get the four files from {MIRROR} by other "
                f"means and name the folder that holds MNIST/raw with data_root=<folder> or IMMUNIZE_DATA."
            ) from error

    def _read(self, split: str) -> tuple[Array, Array]:
        paths = [path for name in SPLIT_FILES[split] if (path := find_file(self.folder, name)) is not None]
        images, labels = read_idx(paths[0]), read_idx(paths[1])
        if images.ndim != 3 or images.shape[1:] != (28, 28):
            raise DataError(f"{paths[0]} holds an array of shape {images.shape}, not 28x28 images; replace the file")
        if labels.shape != images.shape[:1]:
            raise DataError(f"{paths[1]} holds {labels.shape} labels for {len(images)} images; replace both files")
        return images.reshape(len(images), -1), labels


def find_file(folder: Path, name: str) -> Path | None:
    """The file with this name, plain or packed.

    Args:
        folder: where to look.
        name: without ``.gz``.

    Returns:
        the plain file if it is there, else the ``.gz`` file if that is there, else None.
    """
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_idx(path: Path) -> Array:
    """Read an array of bytes in the idx format: two zero bytes, type, number of dimensions, dimensions, elements.

    Args:
        path: plain file, or ``.gz``.

    Returns:
        the array, uint8, read-only.

    Raises:
        DataError: if the file is unreadable, cut off, or no idx file of unsigned bytes.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); replace the file") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, IDX_UNSIGNED_BYTE]):
        raise DataError(f"{path} is not an idx file of unsigned bytes; replace the file")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{path} is cut off in its header; replace the file")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(f"{path} holds {len(content) - start} bytes instead of {math.prod(shape)}; replace the file")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
