"""Scikit-learn's embedded digits as they are, and which third of them is held out: what tables and images share.

Shapes: N = 1,797 images of 8 x 8 pixels.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from immunize.data.splits import Role, random_generator

__all__ = ["DIGITS_OF", "PIXEL_MAX", "embedded_digits", "held_out_mask"]

Array = np.ndarray[Any, np.dtype[Any]]

PIXEL_MAX = 16.0
"""Largest pixel value: each is a count of the dark ones in a 4x4 block."""

DIGITS_OF: dict[Role, tuple[int, ...]] = {"pretrain": (0, 1, 2, 3, 4), "harmful": (5, 6, 7, 8, 9)}
"""The digits of each role where they are two tasks of five classes; a label is a digit's position here."""

HOLD_OUT_SEED = 0
"""Constant, so that no choice of the user can turn a test image into a training image."""


def embedded_digits() -> tuple[Array, Array]:
    """Images and labels.

    Returns:
        (N, 64) float64 pixels from 0 to `PIXEL_MAX`, row by row, and (N,) digits.
    """
    package = importlib.util.find_spec("sklearn")  # found and not imported, which would take a second
    assert package is not None
    assert package.origin is not None
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt", encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)


def held_out_mask(labels: Array) -> Array:
    """The stratified third that is held out.

    Args:
        labels: (N,) digits.

    Returns:
        (N,) bool, true for a third (rounded down) of the images of each digit; the same on every call.
    """
    mask = np.zeros(len(labels), dtype=bool)
    for digit in np.unique(labels):
        rows = np.flatnonzero(labels == digit)
        mask[random_generator(HOLD_OUT_SEED, int(digit)).permutation(rows)[: len(rows) // 3]] = True
    return mask
