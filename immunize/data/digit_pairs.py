"""Ordered pairs of digits as two binary tasks: what `digits` and `mnist` share (§5.1 "Image classification", C.2).

The paper speaks of binary tasks. In the code its authors released, D_P holds only the images of digit p, all with
label 0, and D_H only those of digit h, all with label 1; this package follows the code. Immunization is decided by the
spectra of the features, which do not depend on the labels; losses on such one-class tasks say little.

Balanced as in C.2: both sides are limited to the count of the rarer digit, by a seeded draw from the other.

Shapes: N images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from immunize.data.parts import Part, Role, SourceBase, random_generator, to_part
from immunize.errors import DataError

__all__ = ["DigitPairSource", "balanced_rows", "parse_pair"]

Array = np.ndarray[Any, np.dtype[Any]]
LABELS: dict[Role, int] = {"pretrain": 0, "harmful": 1}


class DigitPairSource(SourceBase):
    """One side of an ordered pair of digits.

    Args:
        pair: [p, h]; p is D_P's digit, h is D_H's.
        role: "pretrain" or "harmful"; decides which of the two digits this source holds.
        seed: of the balancing draw. The default keeps the data the same for every seed of the run.

    Raises:
        DataError: if the pair is not two different digits, or for an unknown role.
    """

    task = "binary"

    def __init__(self, pair: Sequence[int], role: str, seed: int = 0) -> None:
        super().__init__(role)
        self.pair = parse_pair(pair, self.name)
        self.seed = seed

    @property
    def digit(self) -> int:
        """The digit whose images this source holds."""
        return self.pair[0] if self.role == "pretrain" else self.pair[1]

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        return {
            "name": self.name,
            "role": self.role,
            "task": self.task,
            "pair": list(self.pair),
            "digit": self.digit,
            "label": LABELS[self.role],
            "balance_seed": self.seed,
            "held_out_protocol": self.held_out_protocol,
        }

    def select(self, images: Array, labels: Array, stream: int) -> Part:
        """This source's images, balanced against the other digit's.

        Args:
            images: (N, D) features of all ten digits.
            labels: (N,) digits.
            stream: tells the draws of the two parts apart.

        Returns:
            the images of `digit`, all with the label of the role.
        """
        rows = balanced_rows(labels, self.pair, self.digit, seed=self.seed, stream=stream, name=self.name)
        return to_part(images[rows], np.full(len(rows), LABELS[self.role]))


def parse_pair(pair: object, name: str) -> tuple[int, int]:
    """Check that a pair is two different digits.

    Args:
        pair: what the configuration holds; any sequence.
        name: the data set, for the message.

    Returns:
        (p, h).

    Raises:
        DataError: otherwise; the message shows how a pair is written.
    """
    how = f"write two different digits, the first for D_P and the second for D_H: harmful={name} harmful.pair=[0,1]"
    items = list(pair) if isinstance(pair, Sequence) and not isinstance(pair, str) else []
    if len(items) != 2 or any(isinstance(item, bool) or not isinstance(item, int) for item in items):
        raise DataError(f"{name}: the pair {pair!r} is not two whole numbers; {how}")
    absent = [item for item in items if not 0 <= item <= 9]
    if absent:
        raise DataError(f"{name}: there is no digit {absent[0]}; digits go from 0 to 9; {how}")
    if items[0] == items[1]:
        raise DataError(f"{name}: the pair {items} names the digit {items[0]} twice; {how}")
    return items[0], items[1]


def balanced_rows(labels: Array, pair: tuple[int, int], digit: int, *, seed: int, stream: int, name: str) -> Array:
    """Rows of one digit of a pair, no more than there are of the other.

    Args:
        labels: (N,) digits of all images.
        pair: (p, h).
        digit: p or h.
        seed: of the draw from the more frequent digit.
        stream: tells draws with the same seed apart.
        name: the data set, for the message.

    Returns:
        (M,) int64 ascending row numbers, M the smaller of the two counts.

    Raises:
        DataError: if one of the two digits does not occur.
    """
    counts = {wanted: int((labels == wanted).sum()) for wanted in pair}
    for wanted, count in counts.items():
        if count == 0:
            raise DataError(f"{name}: the files hold no image of the digit {wanted}; choose another harmful.pair")
    rows = np.flatnonzero(labels == digit)
    chosen = random_generator(seed, stream, digit).permutation(len(rows))[: min(counts.values())]
    return rows[np.sort(chosen)]
