"""Image data sets for deep networks: D_P and D_H of Table 3 and Figure 3, and any folder of images (§5.2, C.1-C.3).

Three steps, each in files of their own: a source finds the files of a data set in one of its known layouts (`source`,
one file a data set), `stored` and `image_set` decode them one at a time and leave unreadable ones out, and `pair` puts
D_P and D_H side by side. The names are loaded on first use: finding the folders needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from immunize.data.images.caltech101 import Caltech101
    from immunize.data.images.cars import Cars
    from immunize.data.images.cifar10 import Cifar10
    from immunize.data.images.country211 import Country211
    from immunize.data.images.digit_images import DigitImages
    from immunize.data.images.folders import ImageFolder
    from immunize.data.images.image_set import ImageSet, ImageSplits
    from immunize.data.images.imagenet import ImageNet
    from immunize.data.images.imagenette import Imagenette
    from immunize.data.images.multi import SeveralSets
    from immunize.data.images.pair import ImagePair
    from immunize.data.images.source import ImageSource, as_image_source
    from immunize.data.images.tiny_imagenet import TinyImageNet

__all__ = [
    "Caltech101",
    "Cars",
    "Cifar10",
    "Country211",
    "DigitImages",
    "ImageFolder",
    "ImageNet",
    "ImagePair",
    "ImageSet",
    "ImageSource",
    "ImageSplits",
    "Imagenette",
    "SeveralSets",
    "TinyImageNet",
    "as_image_source",
]

_HOME = {
    "Caltech101": "caltech101",
    "Cars": "cars",
    "Cifar10": "cifar10",
    "Country211": "country211",
    "DigitImages": "digit_images",
    "ImageFolder": "folders",
    "ImageNet": "imagenet",
    "ImagePair": "pair",
    "ImageSet": "image_set",
    "ImageSource": "source",
    "ImageSplits": "image_set",
    "Imagenette": "imagenette",
    "SeveralSets": "multi",
    "TinyImageNet": "tiny_imagenet",
    "as_image_source": "source",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"immunize.data.images.{_HOME[name]}"), name)
    raise AttributeError(f"module 'immunize.data.images' has no attribute {name!r}")
