"""Which images of `fit` are set aside to judge by: the same ones of a data set for the same seed and role.

So `immunize.pretrain` can train a θ_0 that has not seen the images by which a run with `selection=validation` is
judged.

Shapes: N images.
"""

from __future__ import annotations

import numpy as np

from immunize.data.images.image_set import ImageSet, ImageSplits
from immunize.data.pair import MAX_VALIDATION_FRACTION
from immunize.data.parts import ROLES, Role, random_generator
from immunize.errors import DataError

__all__ = ["is_fraction", "set_aside"]

VALIDATION_STREAM = 0


def is_fraction(fraction: float) -> bool:
    """0, for nothing set aside, to `MAX_VALIDATION_FRACTION`."""
    return 0 <= fraction <= MAX_VALIDATION_FRACTION


def set_aside(splits: ImageSplits, fraction: float, *, seed: int, role: Role) -> tuple[ImageSplits, ImageSet]:
    """Split the `fit` images into what stays and what is for validation.

    Args:
        splits: of the whole data set.
        fraction: share of the N `fit` images that is set aside, rounded to whole images.
        seed: of the draw.
        role: whose images they are; D_P and D_H are drawn independently of each other.

    Returns:
        the splits without them, and them, through the transform of `fit`; both in the order they had.

    Raises:
        DataError: if either part would have fewer than 2 images.
    """
    n = len(splits.fit)
    n_aside = round(n * fraction)
    if min(n_aside, n - n_aside) < 2:
        raise DataError(
            f"validation_fraction={fraction} splits the {n} images of {splits.fit.what} into {n - n_aside} and "
            f"{n_aside}, but both parts need at least 2; choose another fraction"
        )
    order = random_generator(seed, VALIDATION_STREAM, ROLES.index(role)).permutation(n)
    stays, aside = np.sort(order[n_aside:]), np.sort(order[:n_aside])
    return ImageSplits(splits.fit.take(stays), splits.held_out), splits.fit.take(aside)
