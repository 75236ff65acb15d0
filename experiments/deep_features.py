"""Pooled features of a small ResNet18 on four image sets, for `experiments.appended_layer` and `experiments.signal`.

    D_P     Tiny ImageNet, 200 classes, the task the network was trained on
    D_H     Stanford Cars, 196 classes
    benign  Caltech-101, 101 classes: a third task that should stay as easy as it was
    spared  one image of each of 1,000 ImageNet classes, without its labels: what other users' photographs look like.
            Tiny ImageNet's 32 pixels are blurred at 64, and a covariance of blurred images alone would count
            sharpness among the things that D_H has and nobody else

D_P's training images are those the network was trained on, and its features know them by heart; a share of the other
split is therefore set aside as well, to choose maps by. It is no part of the held-out images.

Images and weights lie in the data root (`data_root=` or IMMUNIZE_DATA), in ImageFolder layout. Features are cached by
set and part, so that a run that was cut off goes on where it stopped. Images are resized to 64×64, which is what the
network was trained at; the aspect ratio is not kept, so that no part of a car is cut off.

Shapes: N images, D = 512 features.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from immunize.config import data_folder
from immunize.errors import DataError, MissingDataError
from immunize.files import whole

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["SETS", "DeepSet", "FeatureSet", "Take", "data_root", "load_model", "load_pixels", "load_sets"]

WEIGHTS = "weights/resnet18_tiny_imagenet_64px.safetensors"
PIXELS, MEAN, STD = 64, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = 100


@dataclass(frozen=True)
class Take:
    """Some of the images of a set.

    Attributes:
        split: folder below that of the set.
        first: of a class's images, in the order of their names, from 0.
        end: the first that is left out; None takes all.
    """

    split: str
    first: int = 0
    end: int | None = None


@dataclass(frozen=True)
class DeepSet:
    """Where an image set lies and what it is used for.

    Attributes:
        folder: below the data root.
        parts: "train", "held_out" and "validation"; only the first is in all of them.
    """

    folder: str
    parts: dict[str, Take]


SETS = {
    "tiny_imagenet": DeepSet(
        "tiny_imagenet_32",
        {
            "train": Take("train", end=50),
            "held_out": Take("val", end=20),
            "validation": Take("val", 20, 50),
        },
    ),
    "stanford_cars": DeepSet("stanford_cars", {"train": Take("train"), "held_out": Take("test")}),
    "caltech101": DeepSet("caltech101", {"train": Take("train"), "held_out": Take("test")}),
    "imagenet_1_per_class": DeepSet("imagenet_1_per_class", {"train": Take("all")}),
}


@dataclass(frozen=True)
class FeatureSet:
    """Features and labels of one image set.

    Attributes:
        x: (N, 512) float32 features of the training images.
        y: (N,) int64 classes.
        x_held_out: (M, 512), of the held-out images; None if there are none.
        y_held_out: (M,).
        x_validation: (V, 512), of images that are neither; None if there are none.
        y_validation: (V,).
    """

    x: Tensor
    y: Tensor
    x_held_out: Tensor | None = None
    y_held_out: Tensor | None = None
    x_validation: Tensor | None = None
    y_validation: Tensor | None = None


def data_root(given: str | None) -> Path:
    """The data root as given, or from IMMUNIZE_DATA, or `data`."""
    return Path(data_folder(given) or "data").expanduser()


def load_model(root: Path) -> nn.Module:
    """The network in float32, in evaluation mode.

    Raises:
        MissingDataError: the weights are not there.
    """
    path = root / WEIGHTS
    if not path.is_file():
        raise MissingDataError(f"the weights were not found: looked for {path}; name the data root with data_root=")
    import timm
    from safetensors.torch import load_file

    model: nn.Module = timm.create_model("resnet18", num_classes=200)
    model.load_state_dict(
        {name: value.float() if value.is_floating_point() else value for name, value in load_file(path).items()}
    )
    return model.eval()


def load_sets(root: Path, cache: Path) -> dict[str, FeatureSet]:
    """The features of every set of `SETS`, computed where the cache lacks them.

    Raises:
        MissingDataError: an image folder or the weights are not there. Everything is looked for before anything is
            computed.
        DataError: a folder without images.
    """
    files = {
        (name, part): _files(root, of.folder, take) for name, of in SETS.items() for part, take in of.parts.items()
    }
    weights = root / WEIGHTS
    if not weights.is_file():
        raise MissingDataError(f"the weights were not found: looked for {weights}; name the data root with data_root=")
    parts: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}
    model = None
    for (name, part), found in files.items():
        path = cache / f"{name}_{part}.safetensors"
        key = f"{len(found)} images, {PIXELS} px, weights of {weights.stat().st_size} bytes"
        stored = _stored(path, key)
        if stored is None:
            model = model or load_model(root)
            stored = _compute(model, found, f"{name} {part}")
            _store(path, stored, key)
        parts[name, part] = stored
    return {name: FeatureSet(*(t for part in of.parts for t in parts[name, part])) for name, of in SETS.items()}


def load_pixels(root: Path, name: str, count: int) -> Tensor:
    """The first `count` held-out images of a set, one a class as far as there are, (count, 3, 64, 64) float32."""
    found = _files(root, SETS[name].folder, SETS[name].parts["held_out"])
    firsts = {label: path for path, label in reversed(found)}
    import torch

    return torch.stack([_read(path) for path in list(firsts.values())[:count]])


def _files(root: Path, name: str, take: Take) -> list[tuple[Path, int]]:
    folder = root / name / take.split
    if not folder.is_dir():
        raise MissingDataError(
            f"{name} was not found: looked for {folder}/<class>/<image>.jpg; name the folder that holds "
            f"{name} with data_root=<folder> or the environment variable IMMUNIZE_DATA"
        )
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    found = [
        (path, label) for label, one in enumerate(classes) for path in sorted(one.glob("*.jp*g"))[take.first : take.end]
    ]
    if not found:
        raise DataError(f"{folder} holds no images in folders of classes; unpack {name} again")
    return found


def _read(path: Path) -> Tensor:
    import numpy as np
    import torch
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB").resize((PIXELS, PIXELS), Image.Resampling.BILINEAR), dtype=np.float32)
    scaled = (pixels / 255 - np.array(MEAN, dtype=np.float32)) / np.array(STD, dtype=np.float32)
    return torch.from_numpy(scaled).permute(2, 0, 1)


def _compute(model: nn.Module, files: list[tuple[Path, int]], label: str) -> tuple[Tensor, Tensor]:
    import torch

    from immunize.features import released_features

    rows = []
    with torch.no_grad():
        for batch in _batches(files):
            rows.append(released_features(model, torch.stack([_read(path) for path, _ in batch])))
            print(f"\r{label}: {sum(map(len, rows)):,} of {len(files):,} images", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return torch.cat(rows), torch.tensor([label for _, label in files])


def _batches(files: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(files), BATCH):
        yield files[start : start + BATCH]


def _stored(path: Path, key: str) -> tuple[Tensor, Tensor] | None:
    if not path.is_file():
        return None
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        if (file.metadata() or {}).get("key") != key:
            return None
        return file.get_tensor("x"), file.get_tensor("y")


def _store(path: Path, values: tuple[Tensor, Tensor], key: str) -> None:
    from safetensors.torch import save_file

    with whole(path) as partial:
        save_file({"x": values[0].contiguous(), "y": values[1]}, partial, {"key": key})
