"""Scikit-learn's embedded digits: 1,797 real 8x8 images, available offline. The default; not in the paper.

The protocol is that of the paper's MNIST experiment (see `digit_pairs`): D_P holds the images of one digit with label
0, D_H those of another with label 1, balanced. Pixels go from 0 to 16. They are divided by 16, then one mean and one
standard deviation, those of all pixels of the training images of all ten digits, are subtracted and divided out: the
same recipe that gives MNIST its constants 0.1307 and 0.3081.

Deep networks take the same images as two tasks of five classes (`DigitImages`), 0 to 4 as D_P and 5 to 9 as D_H: they
stay 8 x 8 gray levels there, and the network's transform enlarges them and makes three equal channels. `FiveDigits`
are these two tasks for a linear model, with real labels.

A third of each digit's images is held out, drawn once with a constant seed: the `seed` argument chooses images for
balancing but never moves an image from one part to the other.

Shapes: N images, D = 64 pixels.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from immunize.data.digit_pairs import DigitPairSource
from immunize.data.images.source import ImageSource, Layout, StoredSplits
from immunize.data.images.stored import Array, ArrayImages
from immunize.data.splits import Part, Role, SourceBase, Splits, mask_of_classes, to_part

PIXEL_MAX = 16.0
"""Largest pixel value: each is a count of the dark ones in a 4x4 block."""

DIGITS_OF: dict[Role, tuple[int, ...]] = {"pretrain": (0, 1, 2, 3, 4), "harmful": (5, 6, 7, 8, 9)}
"""The digits of each role where they are two tasks of five classes; a label is a digit's position here."""

HOLD_OUT_SEED = 0
"""Constant, so that no choice of the user can turn a test image into a training image."""


@functools.cache
def embedded_digits() -> tuple[Array, Array]:
    """Images and labels, which are read once and cannot be written to.

    Returns:
        (N, 64) float64 pixels from 0 to `PIXEL_MAX`, row by row, and (N,) digits.
    """
    package = importlib.util.find_spec("sklearn")  # found and not imported, which would take a second
    assert package is not None
    assert package.origin is not None
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt", encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",")
    digits = table[:, -1].astype(int)
    table.flags.writeable = digits.flags.writeable = False
    return table[:, :-1], digits


def held_out_mask(labels: Array) -> Array:
    """The stratified third that is held out.

    Args:
        labels: (N,) digits.

    Returns:
        (N,) bool, true for a third (rounded down) of the images of each digit; the same on every call.
    """
    return mask_of_classes(labels, lambda rows: rows // 3, HOLD_OUT_SEED)


_MADE = {
    "from": "sklearn.datasets.load_digits",
    "scaling": "pixels / 16, then the mean and std of all training pixels",
    "held_out": "a third of each digit's images, constant draw",
}


class Digits(DigitPairSource):
    """Images of one digit of a pair, 64 columns; `fit` is two thirds of them, `held_out` the rest.

    Args:
        pair: [D_P's, D_H's], each a digit or two labels, see `DigitPairSource`.
        role: "pretrain" or "harmful".
        seed: of the balancing draw.

    Raises:
        DataError: if the pair is not two different ones, or for an unknown role.
    """

    name = "digits"
    unused: ClassVar[Mapping[str, tuple[str, ...]]] = {"images": ("pair", "seed")}

    def load(self) -> Splits:
        """Read the embedded images, hold a third out, standardize, and select this source's digit.

        Returns:
            both parts, (N, 64) each.
        """
        images, labels, held_out = _standardized()
        return Splits(
            fit=self.select(images[~held_out], labels[~held_out], stream=0),
            held_out=self.select(images[held_out], labels[held_out], stream=1),
        )

    def images(self) -> DigitImages:
        """The same data set for deep networks: five digits a role, as images; the pair and the seed play no part."""
        return DigitImages(self.role)

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        return super().describe() | _MADE


class FiveDigits(SourceBase):
    """Five of the ten digits with their labels, 0 to 4 as D_P and 5 to 9 as D_H; otherwise as :class:`Digits`.

    Args:
        role: "pretrain" or "harmful".

    Raises:
        DataError: for an unknown role.
    """

    name = "digits"
    task = "classification"

    def load(self) -> Splits:
        """Both parts, (N, 64) each, and the position of each digit among the five."""
        images, labels, held_out = _standardized()
        chosen = np.array(DIGITS_OF[self.role])
        mine = np.isin(labels, chosen)

        def part(rows: Array) -> Part:
            return to_part(images[rows], np.searchsorted(chosen, labels[rows]), classes=True)

        return Splits(fit=part(mine & ~held_out), held_out=part(mine & held_out))

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        first, *_, last = DIGITS_OF[self.role]
        return self.facts({"target": f"{first} to {last}"}) | _MADE


def _standardized() -> tuple[Array, Array, Array]:
    """Images (1,797, 64), their digits, and which are held out."""
    raw, labels = embedded_digits()
    held_out = held_out_mask(labels)
    scaled = raw / PIXEL_MAX
    return (scaled - scaled[~held_out].mean()) / scaled[~held_out].std(), labels, held_out


class DigitImages(ImageSource):
    """Five of the ten embedded digits; `fit` is two thirds of them, `held_out` the rest.

    Args:
        role: "pretrain" or "harmful".

    Raises:
        DataError: for an unknown role.
    """

    name = "digits"
    usual_names: ClassVar[tuple[str, ...]] = ("",)

    def __init__(self, role: str) -> None:
        super().__init__(role, data_root="")

    def layouts(self) -> Sequence[Layout]:
        """Embedded in scikit-learn."""
        return (Layout("embedded", "nothing", lambda _: True, lambda _: self._read()),)

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        return super().describe() | {
            "from": "sklearn.datasets.load_digits",
            "digits": list(DIGITS_OF[self.role]),
            "held_out": "a third of each digit's images, constant draw",
        }

    def _read(self) -> StoredSplits:
        raw, digits = embedded_digits()
        pixels = np.rint(raw.reshape(-1, 8, 8) * (255 / PIXEL_MAX)).astype(np.uint8)
        mine = np.isin(digits, DIGITS_OF[self.role])
        held_out = held_out_mask(digits)
        return StoredSplits(
            self._select(pixels, digits, mine & ~held_out), self._select(pixels, digits, mine & held_out)
        )

    def _select(self, pixels: Array, digits: Array, rows: Array) -> ArrayImages:
        chosen = DIGITS_OF[self.role]
        return ArrayImages(
            pixels[rows], np.searchsorted(np.array(chosen), digits[rows]).astype(np.int64), tuple(map(str, chosen))
        )
