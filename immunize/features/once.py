"""A frozen trunk that works once an image, for batches that come from anywhere: an image is known by its bytes.

Where the images of a data set are known by number, :func:`~immunize.features.extract.cached_trunk` does it beforehand.

Shapes: B images (B, ...), h (B, ...).
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from immunize.features.extract import available_memory

__all__ = ["Once"]

SHARE, UNKNOWN = 0.4, 2**30
"""Of the memory that is available, what is kept at most, and bytes where that is not known."""

GROWTH = 2
"""Times as many images as a pass has: more different ones than that come from a loader that changes them each time."""


class Once(nn.Module):
    """The same outputs as a trunk's, each computed once as long as memory suffices; on the CPU alone.

    An image that was seen in a batch of other images gives what it gave there, which may differ in rounding.

    Args:
        trunk: from images to h, one row for each, by the values of that image alone.
        images: about how many different ones there are. Where far more come, none comes back: all is forgotten, and
            the trunk works as before.
        limit: bytes of outputs that are kept; None is `SHARE` of what is available.

    Attributes:
        computed: images that the trunk has been given.
    """

    def __init__(self, trunk: nn.Module, images: int, limit: int | None = None) -> None:
        super().__init__()
        available = available_memory()
        self.trunk, self.images = trunk, images
        self.limit = limit if limit is not None else UNKNOWN if available is None else int(SHARE * available)
        self.computed = self._bytes = 0
        self._different = 0
        self._kept: dict[bytes, Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        """H of images, without autograd."""
        if images.device.type != "cpu" or self._different > GROWTH * self.images:
            return self._compute(images)
        keys = [_digest(image) for image in images]
        new = {key: index for index, key in enumerate(keys) if key not in self._kept}
        if len(new) == len(keys):
            h = self._compute(images)
            self._keep(dict(zip(keys, h, strict=True)))
            return h
        rows = {key: self._kept[key] for key in keys if key not in new}
        if new:
            computed = dict(zip(new, self._compute(images[list(new.values())]), strict=True))
            self._keep(computed)
            rows |= computed
        return torch.stack([rows[key] for key in keys])

    def __deepcopy__(self, memo: object) -> Once:
        """Itself: what is frozen is the same in every copy of a network."""
        return self

    def _compute(self, images: Tensor) -> Tensor:
        self.computed += len(images)
        h: Tensor = self.trunk(images)
        return h

    def _keep(self, rows: dict[bytes, Tensor]) -> None:
        self._different += len(rows)
        if self._different > GROWTH * self.images:
            self._kept.clear()
            return
        for key, row in rows.items():
            self._bytes += row.nbytes
            if self._bytes > self.limit:
                self._bytes -= row.nbytes
                return
            self._kept[key] = row.clone()  # not a view, which would keep its whole batch


def _digest(image: Tensor) -> bytes:
    """Of shape, type and bytes."""
    digest = hashlib.sha256(f"{tuple(image.shape)} {image.dtype}".encode())
    digest.update(image.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()
