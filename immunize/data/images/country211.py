"""Country211: photographs and the country each was taken in; D_H of Table 3 (§5.2).

OpenAI's layout, which torchvision downloads: ``train``, ``valid`` and ``test``, each with one folder a country code.
`fit` are the 150 training images of each country, `held_out` its 100 test images; ``valid`` is not used.

Shapes: C = 211 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from immunize.data.images.folders import two_folders
from immunize.data.images.source import ImageSource, Layout
from immunize.errors import MissingDataError


class Country211(ImageSource):
    """Country211; `fit` are the training images, `held_out` the test images."""

    name = "country211"
    usual_names: ClassVar[tuple[str, ...]] = ("country211",)
    how_to_get: ClassVar[str] = (
        "Get https://openaipublic.azureedge.net/clip/data/country211.tgz (11 GB) and unpack it there, or let "
        "download=true fetch it."
    )

    def layouts(self) -> Sequence[Layout]:
        """One folder a country."""
        return (two_folders(("train",), ("test",)),)

    def fetch(self, folder: Path) -> None:
        """Download with torchvision, which unpacks into a folder ``country211``.

        Raises:
            MissingDataError: the folder is to have another name.
        """
        if folder.name != "country211":
            folder = folder / "country211"
        if folder.exists():  # torchvision would take it for complete
            raise MissingDataError(f"{folder} exists but is not complete; remove it to download the data set anew")
        from torchvision.datasets import Country211 as TorchvisionCountry211

        TorchvisionCountry211(str(folder.parent), download=True)
