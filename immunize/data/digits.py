"""Scikit-learn's embedded digits: 1,797 real 8x8 images, available offline. The default; not in the paper.

The protocol is that of the paper's MNIST experiment (see `digit_pairs`): D_P holds the images of one digit with label
0, D_H those of another with label 1, balanced. Pixels go from 0 to 16. They are divided by 16, then one mean and one
standard deviation, those of all pixels of the training images of all ten digits, are subtracted and divided out: the
same recipe that gives MNIST its constants 0.1307 and 0.3081.

Deep networks take the same images as two tasks of five classes (`Digits.images`).

A third of each digit's images is held out, drawn once with a constant seed: the `seed` argument chooses images for
balancing but never moves an image from one part to the other.

Shapes: N images, D = 64 pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from immunize.data.digit_pairs import DigitPairSource
from immunize.data.embedded_digits import PIXEL_MAX, embedded_digits, held_out_mask
from immunize.data.parts import Splits

if TYPE_CHECKING:
    from immunize.data.images.digit_images import DigitImages

__all__ = ["Digits"]


class Digits(DigitPairSource):
    """Images of one digit of a pair, 64 columns; `fit` is two thirds of them, `held_out` the rest.

    Args:
        pair: [p, h]; p is D_P's digit, h is D_H's.
        role: "pretrain" or "harmful".
        seed: of the balancing draw.

    Raises:
        DataError: if the pair is not two different digits, or for an unknown role.
    """

    name = "digits"

    def load(self) -> Splits:
        """Read the embedded images, hold a third out, standardize, and select this source's digit.

        Returns:
            both parts, (N, 64) each.
        """
        raw, labels = embedded_digits()
        held_out = held_out_mask(labels)
        scaled = raw / PIXEL_MAX
        images = (scaled - scaled[~held_out].mean()) / scaled[~held_out].std()
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
        return super().describe() | {
            "from": "sklearn.datasets.load_digits",
            "scaling": "pixels / 16, then the mean and std of all training pixels",
            "held_out": "a third of each digit's images, constant draw",
        }
