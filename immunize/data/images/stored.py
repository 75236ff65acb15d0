"""The images of one split where they are stored, as files, in memory, or several of these: which, and how to get one.

All kinds know names, labels and sizes of all images without holding a decoded one. Paths are kept as one array of
bytes, 40 MB for ImageNet: a list of a million Python strings would be copied into every worker process as soon as
anything there looks at it.

Networks take three channels. Grayscale, palette, transparent, CMYK and 16-bit images are converted; what an image is
must not depend on which data set it lies in, so there is one conversion for all.

Shapes: N images, C classes, H x W pixels.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow
from PIL.Image import Image

from immunize.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]

SMALL_FILES = 64 * 2**20
"""Bytes up to which a split's hash covers the content of its files and not only names and sizes: below a second."""

READERS, FILES_A_TASK = 16, 512
"""Threads that look at files, for the sake of network file systems, and how many files each takes at a time."""


@dataclass(frozen=True, eq=False)
class FileImages:
    """Images that are files below one folder.

    Attributes:
        root: the folder.
        names: (N,) bytes, paths relative to it.
        labels: (N,) int64.
        sizes: (N,) int64 bytes; -1 for a file that is not there.
        times: (N,) int64 nanoseconds, when each was last written.
        classes: C names.
    """

    root: Path
    names: Array
    labels: Array
    sizes: Array
    times: Array
    classes: tuple[str, ...]

    @classmethod
    def of(cls, root: Path, names: Sequence[str], labels: Sequence[int] | Array, classes: Sequence[str]) -> FileImages:
        """Look up size and time of each file.

        Args:
            root: the folder.
            names: N paths relative to it.
            labels: N class indices.
            classes: C names.
        """
        stats = [_stat(os.path.join(root, name)) for name in names]
        sizes, times = np.array(stats, dtype=np.int64).reshape(len(names), 2).T
        encoded = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)
        return cls(root, encoded, np.asarray(labels, dtype=np.int64), sizes, times, tuple(classes))

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: Array) -> FileImages:
        """The images with these indices, (M,) int64, in their order."""
        picked = {name: getattr(self, name)[rows] for name in ("names", "labels", "sizes", "times")}
        return replace(self, **picked)

    def path(self, row: int) -> str:
        """Where one image lies."""
        return os.path.join(self.root, self.name_of(row))

    def open(self, row: int) -> Image:
        """One image, mode RGB; raises one of `UNREADABLE`."""
        return open_rgb(self.path(row))

    def name_of(self, row: int) -> str:
        """Path relative to the folder."""
        return os.fsdecode(bytes(self.names[row]))

    def unreadable(self) -> Array:
        """Indices of files that are missing, cut off or no images; see `is_readable` for what is looked at."""

        def look(start: int) -> list[int]:
            rows = range(start, min(start + FILES_A_TASK, len(self)))
            return [row for row in rows if not is_readable(self.path(row))]

        with ThreadPoolExecutor(READERS) as pool:
            found = pool.map(look, range(0, len(self), FILES_A_TASK))
        return np.array([row for rows in found for row in rows], dtype=np.int64)

    def digest(self, *, times: bool) -> str:
        """SHA-256 of names, labels, sizes and classes.

        Args:
            times: of the times of writing, too, which differ between copies; otherwise of the bytes, if they are few.
        """
        digest = hashlib.sha256("\0".join(self.classes).encode())
        arrays = (self.labels, self.sizes) + ((self.times,) if times else ())
        digest.update(b"\0".join(map(bytes, self.names)))
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        if not times and int(self.sizes.sum()) <= SMALL_FILES:
            for row in np.flatnonzero(self.sizes >= 0):
                digest.update(Path(self.path(int(row))).read_bytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """Images in memory.

    Attributes:
        pixels: (N, H, W) or (N, H, W, 3) uint8; gray levels become three equal channels.
        labels: (N,) int64.
        classes: C names.

    Raises:
        DataError: other pixels, such as floats from 0 to 1, which would all be black; or not a label for each.
    """

    pixels: Array
    labels: Array
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        shape, kind = self.pixels.shape, self.pixels.dtype
        if kind != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)):
            raise DataError(f"pixels have to be uint8, 0 to 255, (N, H, W) or (N, H, W, 3); they are {kind}, {shape}")
        if len(self.labels) != len(self):
            raise DataError(f"there are {len(self):,} images and {len(self.labels):,} labels")

    def __len__(self) -> int:
        return len(self.pixels)

    def open(self, row: int) -> Image:
        """One image, mode RGB."""
        return Pillow.fromarray(self.pixels[row]).convert("RGB")

    def name_of(self, row: int) -> str:
        """Its number."""
        return f"image {row}"

    def unreadable(self) -> Array:
        """None of them."""
        return np.empty(0, dtype=np.int64)

    def digest(self, *, times: bool) -> str:
        """SHA-256 of pixels, labels and classes; there are no times."""
        digest = hashlib.sha256("\0".join(self.classes).encode())
        for array in (self.pixels, self.labels):
            digest.update(str(array.shape).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class JoinedImages:
    """Images of several data sets, those of one set after those of another.

    Attributes:
        parts: where those of each set are stored, by its name; a class is called "<set>/<class>".
    """

    parts: Mapping[str, StoredImages]

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    @cached_property
    def labels(self) -> Array:
        """(N,) int64, those of a set after those of the sets before it."""
        first = accumulate((len(part.classes) for part in self.parts.values()), initial=0)
        return np.concatenate([part.labels + before for part, before in zip(self.parts.values(), first, strict=False)])

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """C names."""
        return tuple(f"{name}/{of}" for name, part in self.parts.items() for of in part.classes)

    def open(self, row: int) -> Image:
        """One image, mode RGB; raises one of `UNREADABLE`."""
        name, row = self._place(row)
        return self.parts[name].open(row)

    def name_of(self, row: int) -> str:
        """Set and name."""
        name, row = self._place(row)
        return f"{name}: {self.parts[name].name_of(row)}"

    def unreadable(self) -> Array:
        """Indices of images that cannot be decoded, as far as a fast look tells."""
        first = accumulate(map(len, self.parts.values()), initial=0)
        parts = zip(self.parts.values(), first, strict=False)
        return np.concatenate([part.unreadable() + before for part, before in parts])

    def digest(self, *, times: bool) -> str:
        """SHA-256 of the sets' names and digests, and of which image of which set is where."""
        digest = hashlib.sha256("\0".join(self.parts).encode())
        for part in self.parts.values():
            digest.update(part.digest(times=times).encode())
        sizes = [len(part) for part in self.parts.values()]
        digest.update(np.repeat(np.arange(len(sizes), dtype=np.int64), sizes).data)
        digest.update(np.concatenate([np.arange(size, dtype=np.int64) for size in sizes]).data)
        return digest.hexdigest()

    def _place(self, row: int) -> tuple[str, int]:
        """The set of an image, and its index there."""
        for name, part in self.parts.items():
            if row < len(part):
                return name, row
            row -= len(part)
        raise IndexError("there are fewer images")


StoredImages = FileImages | ArrayImages | JoinedImages
"""N images with labels (N,) from 0 to C - 1, and the names of C classes, of which one need not have an image."""


def _stat(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return -1, 0
    return found.st_size, found.st_mtime_ns


UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Pillow.DecompressionBombError)
"""What Pillow raises for files that are missing, cut off, corrupt, of no known format, or absurdly large."""

JPEG_START, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xae\x42\x60\x82"
SIXTEEN_BIT = ("I", "I;16", "I;16L", "I;16B", "I;16N")
"""Pillow's modes for gray levels from 0 to 65535; its own conversion to RGB would cut them at 255."""


def open_rgb(path: str) -> Image:
    """Decode a file.

    Args:
        path: in any format that Pillow reads.

    Returns:
        all pixels, mode RGB.

    Raises:
        OSError, ValueError, ...: one of `UNREADABLE`.
    """
    with Pillow.open(path) as image:
        image.load()  # Pillow decodes lazily; a file that is cut off is to fail here
        return to_rgb(image)


def to_rgb(image: Image) -> Image:
    """Three channels of 8 bits.

    Args:
        image: any mode. Transparency is dropped, the colour below it kept.

    Returns:
        the same size, mode RGB.

    Raises:
        ValueError: pixels that are floating-point numbers.
    """
    if image.mode == "F":
        raise ValueError("floating-point pixels have no range that is known")
    if image.mode in SIXTEEN_BIT:
        gray = np.asarray(image).astype(np.int64) >> 8
        return Pillow.fromarray(gray.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def is_readable(path: str) -> bool:
    """Whether a file can be decoded, found without decoding it where that is possible.

    A JPEG or PNG that begins and ends as the format says is taken for whole, in microseconds instead of milliseconds: a
    file cut off by a broken download or a full disk has no such end. Anything else is decoded and thereby decided. What
    passes and cannot be decoded after all is found when it is read (`ImageSet`).

    Args:
        path: of the file.
    """
    try:
        start, end = _ends(path)
        if (start.startswith(JPEG_START) and end.endswith(JPEG_END)) or (start == PNG_START and end == PNG_END):
            return True
        open_rgb(path)
    except UNREADABLE:
        return False
    return True


def _ends(path: str) -> tuple[bytes, bytes]:
    """The first and the last 8 bytes of a file; twice as fast as through a file object."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, 8, 0), os.pread(descriptor, 8, max(size - 8, 0))
    finally:
        os.close(descriptor)
