"""Networks under the grid: released features of every data set, extracted once, and the network itself for T4.

θ_0 is what the immunization started from, a public network; the control is θ_0 with a random orthogonal map appended.
Every data set is a task of its own classes: D_H the harmful one, D_P the pre-training task, and `benign` names others.
The attacker has the images of `fit` and is measured on those of `held_out`, or on a part of these if the others are its
own; of a run with selection=validation it has those that the run was trained on, and is measured on those that the run
was judged by, and of `benign` data sets as many of their `fit`.

Features are kept in a folder by a key of everything they depend on (`features.extract`), so that another run of the
grid, or another immunization of the same θ_0, finds them; those of another model have another key.

Sees every room; no room sees it. Shapes: N images, D features.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset

from immunize.attack_grid.target import EXTRACTORS, GridPlan, Pointed, Target, Task, random_rotation
from immunize.checkpoints import check_owner
from immunize.data import ROLES, SourceBase
from immunize.data.images.image_set import ImageSet, ImageSplits
from immunize.data.images.pair import ImagePair, without_aside
from immunize.data.images.source import ImageSource, as_image_source
from immunize.errors import CheckpointError, DataError, MissingDataError
from immunize.evaluation.attacks import AttackData, Rows
from immunize.evaluation.attacks.network import Inputs, Network, flops_of
from immunize.features.append import Released, StageOutputs, released_network
from immunize.features.deep import DeepExtractor
from immunize.features.extract import Features, extract
from immunize.features.weights import load_weights, state_digest
from immunize.pipeline.assemble import as_extractor

BATCH_SIZE = 256
"""Images at once when features are computed; halved where memory does not suffice."""

NO_BENIGN = "none was named (benign=[...]), so nothing is known of what else was made hard"


class ImageTask:
    """A data set as a task.

    Args:
        source: the data set.
        sets: its images for training and for measuring, through the networks' transform.
        networks: "theta_0" and "immunized"; their devices compute.
        stages: of each of them.
        workers: processes that read images.
        folder: in which features are kept; None keeps none.

    Attributes:
        features: of each network on both sets, in this order.
        images: all of them, those for training first.
        trunk_outputs: of the same, through each network's trunk.
        stage_outputs: what each network's stages make of the images.
    """

    def __init__(
        self,
        source: ImageSource,
        sets: Sequence[ImageSet],
        networks: Mapping[str, Released],
        stages: Mapping[str, StageOutputs],
        *,
        workers: int,
        folder: Path | None,
    ) -> None:
        self.source, (self.fit, self.held_out) = source, sets
        self.features = {
            which: [_features(released, part, workers, folder) for part in sets] for which, released in networks.items()
        }
        self.images = Inputs.of_images(ConcatDataset([*sets]))
        trunks: dict[str, Inputs] = {}
        self.trunk_outputs: dict[str, Inputs] = {}
        for which, released in networks.items():  # a run and its θ_0 have one trunk
            digest = str(released.net.cache_facts("trunk")["weights"])
            self.trunk_outputs[which] = trunks.setdefault(digest, self.images.through(released.net.trunk))
        self.stage_outputs = {which: self.images.through(of) for which, of in stages.items()}


@dataclass(frozen=True)
class NetworkTarget(Target):
    """A network as the grid sees it.

    Attributes:
        networks: "theta_0" and "immunized".
        stages: of each of them.
        image_tasks: those that are wanted, by name.
        places: of every data set by name, part of its draws; these do not depend on what is wanted.
    """

    device: torch.device
    networks: dict[str, Released]
    stages: dict[str, StageOutputs]
    image_tasks: dict[str, ImageTask]
    places: dict[str, int]

    def tasks(self, seed: int) -> dict[str, Task]:
        """Every wanted task by name, split with this seed."""
        return {name: self._task(name, task, seed) for name, task in self.image_tasks.items()}

    def _task(self, name: str, task: ImageTask, seed: int) -> Task:
        classes = _labels(task.features["theta_0"])
        drawn = self.plan.split(len(task.fit), len(task.held_out), (seed, self.places[name]), classes)
        parts = [np.sort(part) for part in drawn]
        digest = hashlib.sha256(json.dumps([part.tolist() for part in parts]).encode()).hexdigest()
        theta_0, n_classes = self.networks["theta_0"], task.source.n_classes
        rotation = random_rotation(theta_0.net.n_features, seed)
        turned = Released(theta_0.net, torch.from_numpy(rotation).float())
        networks = dict(zip(EXTRACTORS, (theta_0, self.networks["immunized"], turned), strict=True))

        def rows(extractor: str) -> tuple[Rows, Rows, Rows]:
            turning = extractor == "random_orthogonal"
            x, y = _together(task.features["theta_0" if turning else extractor])
            train, validation, test = (Rows(x[part] @ rotation if turning else x[part], y[part]) for part in parts)
            return train, validation, test

        reference = AttackData(*rows("theta_0"), n_classes)

        def seen_by(extractor: str) -> AttackData:
            released, which = networks[extractor], "immunized" if extractor == "immunized" else "theta_0"
            network = Network(
                whole=released.whole,
                tail=released.tail,
                trunk=released.net.trunk,
                images=task.images,
                trunk_outputs=task.trunk_outputs[which],
                train=parts[0],
                validation=parts[1],
                test=parts[2],
                key=" ".join((released.key, task.fit.fingerprint, task.held_out.fingerprint, digest)),
                device=self.device,
                stages=self.stages[which],
                stage_outputs=task.stage_outputs[which],
            )
            return AttackData(*rows(extractor), n_classes, reference=reference, network=network)

        return Task(name.partition("_")[0], f"{task.source.name}, {n_classes} classes", reference, seen_by)


def network_target(
    pointed: Pointed,
    plan: GridPlan,
    *,
    new_theta_0: Callable[[int], Any],
    benign: Mapping[str, Callable[[], SourceBase]],
    images: int | None,
    workers: int,
    features: Path | None,
    tell: Callable[[str], None],
) -> NetworkTarget:
    """The network that is pointed at, with the features of every task.

    Args:
        pointed: the run or checkpoint.
        plan: how images are split, and which tasks are wanted.
        new_theta_0: from the number of classes of D_P to θ_0.
        benign: make the third data sets, by name.
        images: most of each split of a data set; None for all.
        workers: processes that read images.
        features: the folder in which features are kept; None keeps none, and computes all.
        tell: gets a line for every data set.

    Raises:
        UserError: missing data, data that are not those of the run, weights that cannot be had or do not fit, a θ_0
            that is not the run's.
    """
    sources = {role: as_image_source(pointed.new_source(role)) for role in ROLES}
    for source in sources.values():
        source.require()
    theta_0 = as_extractor(new_theta_0(sources["pretrain"].n_classes))
    transform = theta_0.transform()
    both = (sources["pretrain"], sources["harmful"])
    pair = ImagePair(*both, batch_size=2, transform_eval=transform, **pointed.aside)
    pair.setup()
    facts = pointed.facts(sources, pair.data_hash)
    networks = {"theta_0": Released(theta_0), "immunized": _immunized(theta_0, pointed)}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for network in networks.values():
        network.net.to(device)
    example = torch.zeros(1, *theta_0.data_config["input_size"], device=device)
    stages = {name: StageOutputs(network, example) for name, network in networks.items()}
    named: dict[str, tuple[ImageSource, ImageSplits]] = {
        role: (sources[role], pair.measured(role, pointed.selection)) for role in reversed(ROLES)
    }
    for name, source in _benign(benign, sources).items():
        splits = source.splits(transform, transform)
        if pointed.selection is not None:  # as D_H's: no held-out image is looked at
            stays, aside = without_aside(splits, **pointed.aside, role="harmful")
            splits = stays._replace(held_out=aside)
        named[f"benign_{name}"] = (source, splits)
    tasks, places = {}, {name: place for place, name in enumerate(named)}
    for name in plan.wanted(named):
        source, splits = named[name]
        parts = enumerate((splits.fit, splits.held_out))
        sets = [of_part.drawn(images, places[name], part) for part, of_part in parts]
        tell(f"{name}: features of {len(sets[0]):,} + {len(sets[1]):,} images")
        tasks[name] = ImageTask(source, sets, networks, stages, workers=workers, folder=features)
    with torch.no_grad():
        flops = flops_of(lambda: theta_0(example))
    facts |= {
        "theta_0_sha256": state_digest(theta_0.full_state_dict()),
        "n_features": theta_0.n_features,
        "appended_map": networks["immunized"].map is not None,
        "flops_per_image": flops,
        "benign": [name for name in named if name.startswith("benign_")] or NO_BENIGN,
    }
    return NetworkTarget(facts, plan, device, networks, stages, tasks, places)


# --- networks -----------------------------------------------------------------------------------------------------


def _immunized(theta_0: DeepExtractor, pointed: Pointed) -> Released:
    """The released network; in a run, what was not trained has to be θ_0's."""
    state = load_weights(pointed.path)
    immunized = released_network(theta_0, state, str(pointed.path))
    if not pointed.record:
        return immunized
    check_owner(pointed.path, pointed.record["config_hash"])
    if (name := theta_0.moved_weight(state, tail=immunized.map is None)) is not None:
        raise CheckpointError(
            f"this θ_0 is not the one that the run started from: {name} differs in {pointed.path}, though it was "
            f"never trained; give the right weights with reference=<file>"
        )
    return immunized


# --- data ---------------------------------------------------------------------------------------------------------


def _benign(
    benign: Mapping[str, Callable[[], SourceBase]], sources: Mapping[Any, ImageSource]
) -> dict[str, ImageSource]:
    """The third data sets, which are neither D_P nor D_H."""
    taken = {source.file_hash(): role for role, source in sources.items()}
    found = {}
    for name, new_source in benign.items():
        try:
            source = as_image_source(new_source())
            source.require()
        except MissingDataError as error:
            raise MissingDataError(f"benign={name}: {error}") from None
        if source.file_hash() in taken:
            raise DataError(f"benign={name} is the {taken[source.file_hash()]} data set itself; choose a third one")
        found[name] = source
    return found


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


def _together(both: Sequence[Features]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return torch.cat([features.x for features in both]).double().numpy(), _labels(both)


def _labels(both: Sequence[Features]) -> np.ndarray[Any, Any]:
    return torch.cat([features.y for features in both]).numpy()
