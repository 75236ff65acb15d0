"""Scikit-learn's embedded digits as they are, and which third of them is held out: what tables and images share.

Shapes: N = 1,797 images of 8 x 8 pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from immunize.data.parts import random_generator

__all__ = ["PIXEL_MAX", "embedded_digits", "held_out_mask"]

Array = np.ndarray[Any, np.dtype[Any]]

PIXEL_MAX = 16.0
"""Largest pixel value: each is a count of the dark ones in a 4x4 block."""

HOLD_OUT_SEED = 0
"""Constant, so that no choice of the user can turn a test image into a training image."""


def embedded_digits() -> tuple[Array, Array]:
    """Images and labels.

    Returns:
        (N, 64) float64 pixels from 0 to `PIXEL_MAX`, row by row, and (N,) digits.
    """
    from sklearn.datasets import load_digits  # a second of import time that --help need not pay

    raw, digits = load_digits(return_X_y=True)
    return raw, digits


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
