"""A data set of images as a task of the attack grid: features of each network extracted once, and the images for T4.

Features are kept in a folder by a key of everything they depend on (`features.extract`), so that another run of the
grid, or another immunization of the same θ_0, finds them; those of another model have another key.

Sees every room; no room sees it. Shapes: N images, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.utils.data import ConcatDataset

from immunize.data.images import ImageSet, ImageSource
from immunize.evaluation.attacks import Inputs
from immunize.features import Features, Released, StageOutputs, extract

__all__ = ["ImageTask", "image_task"]

BATCH_SIZE = 256
"""Images at once when features are computed; halved where memory does not suffice."""


@dataclass(frozen=True)
class ImageTask:
    """A data set as a task.

    Attributes:
        kind: "harmful", "pretrain" or "benign".
        about: in words.
        n_classes: C.
        fit: images that the attacker has.
        held_out: images that it is measured on.
        features: of "theta_0" and "immunized" on both, in this order.
        images: all of them, `fit` first.
        trunk_outputs: of the same, through each network's trunk.
        stages: of each network.
        stage_outputs: what they make of the images.
    """

    kind: str
    about: str
    n_classes: int
    fit: ImageSet
    held_out: ImageSet
    features: dict[str, tuple[Features, Features]]
    images: Inputs
    trunk_outputs: dict[str, Inputs]
    stages: dict[str, StageOutputs]
    stage_outputs: dict[str, Inputs]


def image_task(
    name: str,
    source: ImageSource,
    sets: Sequence[ImageSet],
    networks: Mapping[str, Released],
    stages: Mapping[str, StageOutputs],
    *,
    workers: int,
    folder: Path | None,
) -> ImageTask:
    """A data set with the features of every network.

    Args:
        name: "harmful", "pretrain" or "benign_<name>".
        source: the data set.
        sets: its images for training and for measuring, through the networks' transform.
        networks: by name; their devices compute.
        stages: of each of them.
        workers: processes that read images.
        folder: in which features are kept; None keeps none.
    """
    fit, held_out = sets
    images = Inputs.of_images(ConcatDataset([fit, held_out]))
    trunks: dict[str, Inputs] = {}
    outputs = {}
    for which, released in networks.items():  # a run and its θ_0 have one trunk
        digest = str(released.net.cache_facts("trunk")["weights"])
        outputs[which] = trunks.setdefault(digest, images.through(released.net.trunk))

    def features(released: Released) -> tuple[Features, Features]:
        return _features(released, fit, workers, folder), _features(released, held_out, workers, folder)

    return ImageTask(
        kind=name.partition("_")[0],
        about=f"{source.name}, {source.n_classes} classes",
        n_classes=source.n_classes,
        fit=fit,
        held_out=held_out,
        features={which: features(released) for which, released in networks.items()},
        images=images,
        trunk_outputs=outputs,
        stages=dict(stages),
        stage_outputs={which: images.through(of) for which, of in stages.items()},
    )


def _features(released: Released, images: ImageSet, workers: int, folder: Path | None) -> Features:
    """What the network releases for the images: (N, D) float32, through its map if it has one."""
    found = extract(
        released.net,
        images,
        batch_size=BATCH_SIZE,
        workers=workers,
        cache_dir=folder,
        key={"images": images.fingerprint, **released.net.cache_facts("features")},
    )
    return Features(released.mapped(found.x), found.y)
