"""Ordered pairs of digits as two binary tasks: what `digits` and `mnist` share (§5.1 "Image classification", C.2).

The paper speaks of binary tasks. In the code its authors released, D_P holds only the images of digit p, all with
label 0, and D_H only those of digit h, all with label 1; a pair of digits, [p, h], follows the code. Immunization is
decided by the spectra of the features, which do not depend on the labels; losses on such one-class tasks say little.
A side that is a list of two holds both labels: [[0, 1], [2, 3]] is to tell 0 from 1 as D_P and 2 from 3 as D_H,
[[0, "rest"], [1, "rest"]] one digit from all others; the first of a list has label 0.

Balanced as in C.2: every label is limited to the count of the rarest digit named, by a seeded draw from the others.

Shapes: N images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from immunize.data.splits import Part, Role, SourceBase, random_generator, to_part
from immunize.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]
LABELS: dict[Role, int] = {"pretrain": 0, "harmful": 1}
REST = "rest"
"""All digits but the other one of its side."""
Side = int | tuple[int | str, int | str]
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
        return self.pair[0] if self.role == "pretrain" else self.pair[1]

    @property
    def digits(self) -> tuple[int, int] | None:
        """D_P's digit and D_H's; None where a side has both labels."""
        p, h = self.pair
        return (p, h) if isinstance(p, int) and isinstance(h, int) else None

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        side = self.side
        held: dict[str, object] = {"digit": side, "label": LABELS[self.role]}
        if isinstance(side, tuple):
            held = {"target": f"{side[0]} vs {side[1]}"}
        pair = [of if isinstance(of, int) else list(of) for of in self.pair]
        return self.facts({"pair": pair, **held, "balance_seed": self.seed})

    def select(self, images: Array, labels: Array, stream: int) -> Part:
        """This source's images, as many of each label as the rarest digit of the pair has.

        Args:
            images: (N, D) features of all ten digits.
            labels: (N,) digits.
            stream: tells the draws of the two parts apart.

        Returns:
            the images of its side; of two labels those of label 0 first.
        """
        named = [of for side in self.pair for of in _members(side) if isinstance(of, int)]
        rows, targets = [], []
        for label, which in enumerate(_members(self.side), LABELS[self.role] if isinstance(self.side, int) else 0):
            wanted = [which] if isinstance(which, int) else [d for d in range(10) if d not in _members(self.side)]
            found = balanced_rows(labels, named, wanted, seed=self.seed, stream=stream, name=self.name)
            rows.append(found)
            targets.append(np.full(len(found), label))
        return to_part(images[np.concatenate(rows)], np.concatenate(targets))


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
    one, other = (side[0] if len(side) == 1 else side for side in sides)
    return one, other


def _two(value: object) -> tuple[Any, Any] | None:
    """Both items of a sequence of two."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2 else None


def _members(side: Side) -> tuple[int | str, ...]:
    return side if isinstance(side, tuple) else (side,)


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
