"""Scikit-learn's embedded digits: 1,797 real 8x8 images, available offline. The default; not in the paper.

The protocol is that of the paper's MNIST experiment (see `digit_pairs`): D_P holds the images of one digit with label
0, D_H those of another with label 1, balanced. Pixels go from 0 to 16. They are divided by 16, then one mean and one
standard deviation, those of all pixels of the training images of all ten digits, are subtracted and divided out: the
same recipe that gives MNIST its constants 0.1307 and 0.3081.

Deep networks take the same images as two tasks of five classes (`Digits.images`); `FiveDigits` are these two
tasks for a linear model, with real labels.

A third of each digit's images is held out, drawn once with a constant seed: the `seed` argument chooses images for
balancing but never moves an image from one part to the other.

Shapes: N images, D = 64 pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from immunize.data.digit_pairs import DigitPairSource
from immunize.data.embedded_digits import DIGITS_OF, PIXEL_MAX, Array, embedded_digits, held_out_mask
from immunize.data.splits import Part, SourceBase, Splits, to_part

if TYPE_CHECKING:
    from immunize.data.images.digit_images import DigitImages

__all__ = ["Digits", "FiveDigits"]

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
        from immunize.data.images.digit_images import DigitImages

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
        return {
            "name": self.name,
            "role": self.role,
            "task": self.task,
            "target": f"{first} to {last}",
            "held_out_protocol": self.held_out_protocol,
            **_MADE,
        }


def _standardized() -> tuple[Array, Array, Array]:
    """Images (1,797, 64), their digits, and which are held out."""
    raw, labels = embedded_digits()
    held_out = held_out_mask(labels)
    scaled = raw / PIXEL_MAX
    return (scaled - scaled[~held_out].mean()) / scaled[~held_out].std(), labels, held_out
