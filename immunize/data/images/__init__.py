"""Image data sets for deep networks: D_P and D_H of Table 3 and Figure 3, and any folder of images (§5.2, C.1-C.3).

Three steps, each in files of their own: a source finds the files of a data set in one of its known layouts (`source`;
`published`, `folders`), `stored` and `image_set` decode them one at a time and leave unreadable ones out, and
`pair` puts D_P and D_H side by side. Configurations and records know the sources by the names below; finding the
folders needs no torch.
"""

from immunize.data.images.folders import ImageFolder
from immunize.data.images.published import Caltech101, Cars, Cifar10, Country211, ImageNet, Imagenette, TinyImageNet
from immunize.data.images.source import SeveralSets

__all__ = [
    "Caltech101",
    "Cars",
    "Cifar10",
    "Country211",
    "ImageFolder",
    "ImageNet",
    "Imagenette",
    "SeveralSets",
    "TinyImageNet",
]
