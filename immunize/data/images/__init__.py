"""Image data sets for deep networks: D_P and D_H of Table 3 and Figure 3, and any folder of images (§5.2, C.1-C.3).

Three steps, each in files of their own: a source finds the files of a data set in one of its known layouts (`source`,
one file a data set), `stored` and `image_set` decode them one at a time and leave unreadable ones out, and `pair` puts
D_P and D_H side by side. Configurations and records know the sources by the names below, which are loaded on first use:
finding the folders needs no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Caltech101": "caltech101",
    "Cars": "cars",
    "Cifar10": "cifar10",
    "Country211": "country211",
    "ImageFolder": "folders",
    "ImageNet": "imagenet",
    "Imagenette": "imagenette",
    "SeveralSets": "multi",
    "TinyImageNet": "tiny_imagenet",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"immunize.data.images.{_HOME[name]}"), name)
    raise AttributeError(f"module 'immunize.data.images' has no attribute {name!r}")
