"""Ordered pairs of digits as two binary tasks (§5.1 "Image classification", C.2), and the default data for them.

The paper speaks of binary tasks. In the code its authors released, D_P holds only the images of digit p, all with
label 0, and D_H only those of digit h, all with label 1; a pair of digits, [p, h], follows the code. Immunization is
decided by the spectra of the features, which do not depend on the labels; losses on such one-class tasks say little.
A side that is a list of two holds both labels: [[0, 1], [2, 3]] is to tell 0 from 1 as D_P and 2 from 3 as D_H,
[[0, "rest"], [1, "rest"]] one digit from all others; the first of a list has label 0.

Balanced as in C.2: every label is limited to the count of the rarest digit named, by a seeded draw from the others.

The default, which is not in the paper, is scikit-learn's embedded digits: 1,797 real 8x8 images, available offline;
the paper's are in `mnist`. Pixels go from 0 to 16. They are divided by 16, then one mean and one
standard deviation, those of all pixels of the training images of all ten digits, are subtracted and divided out: the
same recipe that gives MNIST its constants 0.1307 and 0.3081.

Deep networks take the same images as two tasks of five classes (`DigitImages`), 0 to 4 as D_P and 5 to 9 as D_H: they
stay 8 x 8 gray levels there, and the network's transform enlarges them and makes three equal channels. `FiveDigits`
are these two tasks for a linear model, with real labels.

A third of each digit's images is held out, drawn once with a constant seed: the `seed` argument chooses images for
balancing but never moves an image from one part to the other.

Shapes: N images, D pixels.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from immunize.data.images.source import ImageSource, Layout, StoredSplits
from immunize.data.images.stored import Array, ArrayImages
from immunize.data.splits import (
    HOLD_OUT_SEED,
    ROLES,
    Part,
    Role,
    SourceBase,
    Splits,
    mask_of_classes,
    random_generator,
    to_part,
)
from immunize.errors import DataError

LABELS: dict[Role, int] = {"pretrain": 0, "harmful": 1}
REST = "rest"
"""All digits but the other one of its side."""
Side = tuple[int | str, ...]
"""One data set: a digit with the label of its role, or two with both labels, of which one may be `REST`."""


class DigitPairSource(SourceBase):
    """One side of an ordered pair of digits.

    Args:
        pair: [D_P's, D_H's], each a digit or a list of two, of which one may be "rest".
        role: "pretrain" or "harmful"; decides which of the two sides this source holds.
        seed: of the balancing draw. The default keeps the data the same for every seed of the run.

    Raises:
        DataError: if the pair is not two different ones, or for an unknown role.
    """

    task = "binary"

    def __init__(self, pair: Sequence[Any], role: str, seed: int = 0) -> None:
        super().__init__(role)
        self.pair = parse_pair(pair, self.name)
        self.seed = seed

    @property
    def side(self) -> Side:
        """What this source holds."""
        return self.pair[ROLES.index(self.role)]

    @property
    def digits(self) -> tuple[int, int] | None:
        """D_P's digit and D_H's; None where a side has both labels."""
        (p, *with_p), (h, *with_h) = self.pair
        return None if with_p or with_h else (int(p), int(h))

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        first, *second = self.side
        held = {"target": f"{first} vs {second[0]}"} if second else {"digit": first, "label": LABELS[self.role]}
        pair = [list(side) if len(side) > 1 else side[0] for side in self.pair]
        return self.facts({"pair": pair, **held, "balance_seed": self.seed})

    def select(self, labels: Array, stream: int) -> tuple[Array, Array]:
        """This source's images, as many of each label as the rarest digit of the pair has.

        Args:
            labels: (N,) digits of all images.
            stream: tells the draws of the two parts apart.

        Returns:
            (M,) int64 row numbers of its side, of two labels those of label 0 first, and their labels.
        """
        named = [of for side in self.pair for of in side if isinstance(of, int)]
        rows, targets = [], []
        for label, which in enumerate(self.side, LABELS[self.role] if len(self.side) == 1 else 0):
            wanted = [which] if isinstance(which, int) else [d for d in range(10) if d not in self.side]
            found = balanced_rows(labels, named, wanted, seed=self.seed, stream=stream, name=self.name)
            rows.append(found)
            targets.append(np.full(len(found), label))
        return np.concatenate(rows), np.concatenate(targets)


def parse_pair(pair: object, name: str) -> tuple[Side, Side]:
    """Check that a pair is two different digits, or two sides of which one or both have two labels.

    Args:
        pair: what the configuration holds; any sequence.
        name: the data set, for the message.

    Returns:
        D_P's side and D_H's.

    Raises:
        DataError: otherwise; the message shows how a pair is written.
    """
    how = (
        f"write two different digits, the first for D_P and the second for D_H: harmful={name} harmful.pair=[0,1], or "
        f"two labels a side: harmful.pair=[[0,1],[2,3]], harmful.pair=[[0,{REST}],[1,{REST}]]"
    )
    items = _two(pair)
    sides = items and [_two(item) or (item,) for item in items]
    numbers = [of for side in sides or () for of in side if not (of == REST and len(side) == 2)]
    if sides is None or any(isinstance(of, bool) or not isinstance(of, int) for of in numbers):
        raise DataError(f"{name}: the pair {pair!r} is not two whole numbers, nor two sides of two labels; {how}")
    if absent := [of for of in numbers if not 0 <= of <= 9]:
        raise DataError(f"{name}: there is no digit {absent[0]}; digits go from 0 to 9; {how}")
    if twice := [side for side in sides if len(set(side)) < len(side)]:
        raise DataError(f"{name}: the side {list(twice[0])} names {twice[0][0]} twice; {how}")
    if set(sides[0]) == set(sides[1]):
        raise DataError(f"{name}: the pair {pair} names the digit {sides[0][0]} twice; {how}")
    return sides[0], sides[1]


def _two(value: object) -> tuple[Any, Any] | None:
    """Both items of a sequence of two."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2 else None


def balanced_rows(
    labels: Array, named: Sequence[int], wanted: Sequence[int], *, seed: int, stream: int, name: str
) -> Array:
    """Rows of one label of a pair, no more than there are of the rarest digit that the pair names.

    Args:
        labels: (N,) digits of all images.
        named: the digits of the pair.
        wanted: the digit, or all those of `REST`.
        seed: of the draw from the more frequent ones.
        stream: tells draws with the same seed apart.
        name: the data set, for the message.

    Returns:
        (M,) int64 ascending row numbers, M the smallest of the counts.

    Raises:
        DataError: if a digit does not occur.
    """
    counts = {digit: int((labels == digit).sum()) for digit in named}
    rows = np.flatnonzero(np.isin(labels, wanted))
    if absent := [digit for digit, count in counts.items() if count == 0] or ([] if len(rows) else list(wanted)):
        raise DataError(f"{name}: the files hold no image of the digit {absent[0]}; choose another harmful.pair")
    kind = wanted[0] if len(wanted) == 1 else 10
    chosen = random_generator(seed, stream, kind).permutation(len(rows))[: min(counts.values())]
    return rows[np.sort(chosen)]


# --- scikit-learn's images ------------------------------------------------------------------------------------------

PIXEL_MAX = 16.0
"""Largest pixel value: each is a count of the dark ones in a 4x4 block."""

DIGITS_OF: dict[Role, tuple[int, ...]] = {"pretrain": (0, 1, 2, 3, 4), "harmful": (5, 6, 7, 8, 9)}
"""The digits of each role where they are two tasks of five classes; a label is a digit's position here."""


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


def five_digits(role: Role, digits: Array) -> list[tuple[Array, Array]]:
    """The images of one of the two tasks of five classes: row numbers and labels of `fit` and of `held_out`.

    Args:
        role: whose.
        digits: (N,) of all images.
    """
    chosen, held_out = np.array(DIGITS_OF[role]), held_out_mask(digits)
    parts = [np.flatnonzero(np.isin(digits, chosen) & of) for of in (~held_out, held_out)]
    return [(rows, np.searchsorted(chosen, digits[rows]).astype(np.int64)) for rows in parts]


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

        def part(mine: Array, stream: int) -> Part:
            rows, targets = self.select(labels[mine], stream)
            return to_part(images[mine][rows], targets)

        return Splits(fit=part(~held_out, 0), held_out=part(held_out, 1))

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
        images, digits, _ = _standardized()
        return Splits(*(to_part(images[rows], y, classes=True) for rows, y in five_digits(self.role, digits)))

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
            "from": _MADE["from"],
            "digits": list(DIGITS_OF[self.role]),
            "held_out": _MADE["held_out"],
        }

    def _read(self) -> StoredSplits:
        raw, digits = embedded_digits()
        pixels = np.rint(raw.reshape(-1, 8, 8) * (255 / PIXEL_MAX)).astype(np.uint8)
        classes = tuple(map(str, DIGITS_OF[self.role]))
        fit, held_out = (ArrayImages(pixels[rows], labels, classes) for rows, labels in five_digits(self.role, digits))
        return StoredSplits(fit, held_out)
