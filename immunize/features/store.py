"""Arrays of features on disk: safetensors files that carry the whole key of what they were made from.

Shapes: N samples.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Features", "key_text", "load_features", "save_features"]

logger = logging.getLogger(__name__)


class Features(NamedTuple):
    """What a network made of a data set, in its order, on the CPU: `x` (N, ...) and the labels `y` (N,) int64."""

    x: Tensor
    y: Tensor


def key_text(key: Mapping[str, Any], dtype: torch.dtype, device: torch.device, batch_size: int) -> str:
    """The whole key as text. The batch size and the kind of device are in it: they change the rounding.

    Args:
        key: what the caller knows; text, numbers, and lists and dictionaries of them.
        dtype: of the array.
        device: where it is computed.
        batch_size: B.

    Raises:
        TypeError: a key of other things.
    """
    from importlib.metadata import version

    known = {
        "dtype": str(dtype),
        "device": device.type,
        "batch_size": batch_size,
        "versions": {package: version(package) for package in ("torch", "torchvision", "timm", "pillow")},
    }
    return json.dumps({"array": known, "of": dict(key)}, sort_keys=True)


def load_features(path: Path, text: str) -> Features | None:
    """What the file holds if it belongs to this key; None if it does not, is not there, or cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("key") != text:
                return None
            return Features(file.get_tensor("x"), file.get_tensor("y"))
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError) as error:
        logger.warning("%s cannot be read (%s) and is made anew", path, error)
        return None


def save_features(path: Path, text: str, features: Features) -> None:
    """Write the file whole or not at all; where that cannot be done (a full disk) the run goes on without."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(features._asdict(), partial, metadata={"key": text})
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        logger.warning("features could not be kept in %s: %s", path.parent, error)
