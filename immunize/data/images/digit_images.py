"""Scikit-learn's embedded digits as images: 0 to 4 are D_P, 5 to 9 are D_H; offline. Not in the paper.

Each is a task of five classes. The images, and which third of them is held out, are those of `embedded_digits`; here
they stay images, 8 x 8 gray levels, and the network's transform enlarges them and makes three equal channels.

Shapes: C = 5 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from immunize.data.embedded_digits import DIGITS_OF, PIXEL_MAX, embedded_digits, held_out_mask
from immunize.data.images.source import ImageSource, Layout, StoredSplits
from immunize.data.images.stored import Array, ArrayImages

__all__ = ["DigitImages"]


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
