"""Networks under the grid: released features of every data set, extracted once, and the network itself for T4.

θ_0 is what the immunization started from, a public network; the control is θ_0 with a random orthogonal map appended.
Every data set is a task of its own classes: D_H the harmful one, D_P the pre-training task, and `benign` names others.
The attacker has the images of `fit` and is measured on those of `held_out`.

Sees every room; no room sees it. Shapes: N images, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from immunize.attacking.images import ImageTask, image_task
from immunize.attacking.targets import EXTRACTORS, Pointed, Task, random_rotation, split_rows, wanted_tasks
from immunize.building import build
from immunize.checkpoints import check_owner
from immunize.data import ROLES
from immunize.data.images import ImagePair, ImageSource, as_image_source
from immunize.errors import CheckpointError, DataError, MissingDataError, UserError
from immunize.evaluation.attacks import AttackData, Network, Rows
from immunize.evaluation.attacks.network import flops_of
from immunize.features import (
    DeepExtractor,
    Features,
    Released,
    StageOutputs,
    load_weights,
    released_network,
    state_digest,
)
from immunize.records import file_digest
from immunize.running.deep_assembling import build_network

__all__ = ["DeepTarget", "deep_target"]

NO_BENIGN = "none was named (benign=[...]), so nothing is known of what else was made hard"


@dataclass(frozen=True)
class DeepTarget:
    """A network as the grid sees it.

    Attributes:
        facts: for the record.
        cfg: the composed configuration.
        networks: "theta_0" and "immunized".
        image_tasks: those that are wanted, by name.
        places: of every data set by name, part of its draws; these do not hang on what is wanted.
        device: where networks compute.
    """

    facts: dict[str, Any]
    cfg: DictConfig
    networks: dict[str, Released]
    image_tasks: dict[str, ImageTask]
    places: dict[str, int]
    device: torch.device

    @property
    def has_network(self) -> bool:
        """Its weights can be moved."""
        return True

    def tasks(self, seed: int) -> dict[str, Task]:
        """Every wanted task by name, split with this seed."""
        return {name: self._task(task, seed, self.places[name]) for name, task in self.image_tasks.items()}

    def _task(self, task: ImageTask, seed: int, place: int) -> Task:
        stays, aside, _ = split_rows(len(task.fit), self.cfg, (seed, place), held_out=True)
        parts = [np.sort(stays), np.sort(aside), len(task.fit) + np.arange(len(task.held_out))]
        theta_0 = self.networks["theta_0"]
        rotation = random_rotation(theta_0.net.n_features, seed)
        turned = Released(theta_0.net, torch.from_numpy(rotation).float())
        networks = dict(zip(EXTRACTORS, (theta_0, self.networks["immunized"], turned), strict=True))

        def rows(extractor: str) -> tuple[Rows, Rows, Rows]:
            turning = extractor == "random_orthogonal"
            x, y = _together(task.features["theta_0" if turning else extractor])
            train, validation, test = (Rows(x[part] @ rotation if turning else x[part], y[part]) for part in parts)
            return train, validation, test

        reference = AttackData(*rows("theta_0"), task.n_classes)

        def seen_by(extractor: str) -> AttackData:
            network = _network(task, networks[extractor], parts, extractor, self.device)
            return AttackData(*rows(extractor), task.n_classes, reference=reference, network=network)

        return Task(task.kind, task.about, reference, seen_by)


def deep_target(
    cfg: DictConfig, pointed: Pointed, features: Path | None, tell: Callable[[str], None] = lambda text: None
) -> DeepTarget:
    """The network that the configuration points at, with the features of every task.

    Args:
        cfg: composed (`conf/attack.yaml`).
        pointed: the run or checkpoint.
        features: the folder in which features are kept; None keeps none, and computes all.
        tell: gets a line for every data set.

    Raises:
        UserError: missing data, data that are not those of the run, weights that cannot be had or do not fit, a θ_0
            that is not the run's.
    """
    sources = {role: as_image_source(build(pointed.nodes[role])) for role in ROLES}
    for source in sources.values():
        source.require()
    theta_0 = _theta_0(cfg, pointed, sources["pretrain"].n_classes)
    transform = theta_0.transform()
    pair = ImagePair(sources["pretrain"], sources["harmful"], batch_size=2, transform_eval=transform)
    pair.setup()
    if pointed.record and pair.data_hash != pointed.record["data_hash"]:
        raise CheckpointError("the data are not those of the run: their hash differs from the record's")
    networks = {"theta_0": Released(theta_0), "immunized": _immunized(theta_0, pointed)}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for network in networks.values():
        network.net.to(device)
    example = torch.zeros(1, *theta_0.data_config["input_size"], device=device)
    stages = {name: StageOutputs(network, example) for name, network in networks.items()}
    named = {"harmful": (sources["harmful"], pair.measured("harmful"))}
    named["pretrain"] = (sources["pretrain"], pair.measured("pretrain"))
    for name, source in _benign(cfg, pointed, sources).items():
        named[f"benign_{name}"] = (source, source.splits(transform, transform))
    tasks, places = {}, {name: place for place, name in enumerate(named)}
    for name in wanted_tasks(cfg, named):
        source, splits = named[name]
        parts = enumerate((splits.fit, splits.held_out))
        sets = [images.drawn(cfg.images, places[name], part) for part, images in parts]
        tell(f"{name}: features of {len(sets[0]):,} + {len(sets[1]):,} images")
        tasks[name] = image_task(name, source, sets, networks, stages, workers=cfg.workers, folder=features)
    facts = _facts(pointed, sources, networks, pair.data_hash, example)
    facts["benign"] = [name for name in named if name.startswith("benign_")] or NO_BENIGN
    return DeepTarget(facts, cfg, networks, tasks, places, device)


# --- networks -----------------------------------------------------------------------------------------------------


def _theta_0(cfg: DictConfig, pointed: Pointed, n_classes: int) -> DeepExtractor:
    """θ_0, from `reference` or from where the run had it."""
    nodes = OmegaConf.create(OmegaConf.to_container(pointed.nodes, resolve=True))
    assert isinstance(nodes, DictConfig)
    if cfg.reference is not None:
        nodes.model.checkpoint = cfg.reference
    weights = nodes.model.get("checkpoint")
    if weights is not None and not Path(weights).expanduser().is_file():
        raise CheckpointError(f"θ_0's weights are not at {weights}: name their file with reference=<file>")
    if pointed.record:
        return build_network(nodes, n_classes)
    if nodes.model.checkpoint is None and not nodes.model.pretrained:
        raise UserError("there is no θ_0 to compare with: give its weights with reference=<file>")
    nodes.seed = 0
    return build_network(nodes, None)  # its classifier is that of the weights, whatever the data


def _immunized(theta_0: DeepExtractor, pointed: Pointed) -> Released:
    """The released network; in a run, what was not trained has to be θ_0's."""
    state = load_weights(pointed.path)
    immunized = released_network(theta_0, state, str(pointed.path))
    if not pointed.record:
        return immunized
    check_owner(pointed.path, pointed.record["config_hash"])
    moved = {*pointed.record["network"]["trained"]}
    ids = {id(parameter) for parameter in theta_0.head_parameters()}
    moved |= {name for name, parameter in theta_0.network.named_parameters() if id(parameter) in ids}
    before, after = theta_0.full_state_dict(), immunized.net.full_state_dict()
    for name, value in before.items():
        if name not in moved and not torch.equal(value, after[name]):
            raise CheckpointError(
                f"this θ_0 is not the one that the run started from: {name} differs in {pointed.path}, though it was "
                f"never trained; give the right weights with reference=<file>"
            )
    return immunized


def _network(
    task: ImageTask, released: Released, parts: list[np.ndarray[Any, Any]], extractor: str, device: torch.device
) -> Network:
    which = "immunized" if extractor == "immunized" else "theta_0"
    return Network(
        whole=released.whole,
        tail=released.tail,
        trunk=released.net.trunk,
        images=task.images,
        trunk_outputs=task.trunk_outputs[which],
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        key=f"{released.key} {task.fit.fingerprint} {task.held_out.fingerprint}",
        device=device,
        stages=task.stages[which],
        stage_outputs=task.stage_outputs[which],
    )


# --- data ---------------------------------------------------------------------------------------------------------


def _benign(cfg: DictConfig, pointed: Pointed, sources: dict[Any, ImageSource]) -> dict[str, ImageSource]:
    """The third data sets, which are neither D_P nor D_H."""
    taken = {source.file_hash(): role for role, source in sources.items()}
    found = {}
    for name, node in (cfg.benign or {}).items():
        own = OmegaConf.merge(node, {"data_root": pointed.nodes.data_root} if "data_root" in node else {})
        assert isinstance(own, DictConfig)
        try:
            source = as_image_source(build(own))
            source.require()
        except MissingDataError as error:
            raise MissingDataError(f"benign={name}: {error}") from None
        if source.file_hash() in taken:
            raise DataError(f"benign={name} is the {taken[source.file_hash()]} data set itself; choose a third one")
        found[str(name)] = source
    return found


def _together(both: tuple[Features, Features]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x: Tensor = torch.cat([features.x for features in both]).double()
    return x.numpy(), torch.cat([features.y for features in both]).numpy()


def _facts(
    pointed: Pointed, sources: dict[Any, ImageSource], networks: dict[str, Released], data_hash: str, example: Tensor
) -> dict[str, Any]:
    record, net = pointed.record, networks["theta_0"].net
    with torch.no_grad():
        flops = flops_of(lambda: net(example))
    return {
        "model": pointed.nodes.model.name,
        "method": record.get("method"),
        "pretrain": sources["pretrain"].name,
        "harmful": sources["harmful"].name,
        "run_seed": record.get("seed"),
        "run_config_hash": record.get("config_hash"),
        "data": {role: source.describe() for role, source in sources.items()},
        "data_hash": data_hash,
        "checkpoint_sha256": file_digest(pointed.path),
        "theta_0_sha256": state_digest(net.full_state_dict()),
        "n_features": net.n_features,
        "appended_map": networks["immunized"].map is not None,
        "flops_per_image": flops,
    }
