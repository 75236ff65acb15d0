"""Arrays of features on disk: safetensors files that carry the whole key of what they were made from.

Shapes: N samples.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from immunize.files import whole

__all__ = ["Features", "Place", "cache_place"]

logger = logging.getLogger(__name__)


class Features(NamedTuple):
    """What a network made of a data set, in its order, on the CPU: `x` (N, ...) and the labels `y` (N,) int64."""

    x: Tensor
    y: Tensor


class Place(NamedTuple):
    """Where one array is kept: the file, and the whole key as text, which the file holds too."""

    path: Path
    text: str

    def load(self) -> Features | None:
        """What the file holds if it belongs to this key; None if it does not, is not there, or cannot be read."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "pt") as file:
                if (file.metadata() or {}).get("key") != self.text:
                    return None
                return Features(file.get_tensor("x"), file.get_tensor("y"))
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError) as error:
            logger.warning("%s cannot be read (%s) and is made anew", self.path, error)
            return None

    def save(self, features: Features) -> None:
        """Write the file whole or not at all; where that cannot be done (a full disk) the run goes on without."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            with whole(self.path) as partial:
                save_file(features._asdict(), partial, metadata={"key": self.text})
        except (OSError, SafetensorError) as error:
            logger.warning("features could not be kept in %s: %s", self.path.parent, error)


def cache_place(
    cache_dir: Path, key: Mapping[str, Any], dtype: torch.dtype, device: torch.device, batch_size: int
) -> Place:
    """The place of an array. Batch size, device and number of threads are in its key: they change the rounding.

    Args:
        cache_dir: the folder.
        key: what the caller knows; text, numbers, and lists and dictionaries of them.
        dtype: of the array.
        device: where it is computed.
        batch_size: B.

    Raises:
        ValueError: an empty key.
        TypeError: a key of other things.
    """
    from importlib.metadata import version

    if not key:
        raise ValueError("a cache needs a key that says what the array depends on")

    known = {
        "dtype": str(dtype),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "batch_size": batch_size,
        "versions": {package: version(package) for package in ("immunize", "torch", "torchvision", "timm", "pillow")},
    }
    text = json.dumps({"array": known, "of": dict(key)}, sort_keys=True)
    return Place(cache_dir / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors", text)
