"""The numbers of a run with a deep net, from its features; and all of them again, from its checkpoint and data.

Sees every room; no room sees it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from immunize.checkpoints import check_owner
from immunize.data import ROLES
from immunize.data.images import ImagePair
from immunize.errors import CheckpointError, DivergedError, UserError
from immunize.evaluation.deep import PARTS, evaluate_deep
from immunize.features import AppendedHead, DeepExtractor, append_map, cached_trunk, load_weights, state_digest
from immunize.features.weights import check_fit
from immunize.objective import Head
from immunize.records import CHECKPOINT
from immunize.running.deep_assembling import build_pair, evaluation_settings, method_of
from immunize.running.measuring import (
    Measured,
    accuracy,
    both_features,
    by_set,
    fingerprints,
    head_of,
    measured_sets,
    unusable,
)
from immunize.spectrum import ZeroMatrixError
from immunize.threads import cpu_threads

__all__ = ["cached_sets", "data_facts", "evaluated", "mapped", "recomputed"]


def data_facts(pair: ImagePair) -> dict[str, Any]:
    """What both data sets are."""
    return {role: pair.source(role).describe() for role in ROLES}


def evaluated(
    cfg: DictConfig, features: Measured, heads: tuple[Head, Head], sets: dict[str, int], *, step: int
) -> dict[str, Any]:
    """The numbers of the record.

    Of several harmful data sets each is evaluated by itself, under "harmful_sets". The numbers beside it are those of
    the weakest, the one with the smallest RIR (pooled, `spectrum`, on images that training never saw): (ii) and the
    accuracy on D_P are the same for all, so that Definition 3.1 by the pooled numbers of that part holds for all sets
    where it holds for that one.

    Args:
        cfg: the composed configuration.
        features: of the images of D_P and of all harmful data sets.
        heads: the classifiers of the released network and of θ_0.
        sets: classes of each harmful data set, by its name.
        step: the last, to be named where the features are of no use.

    Raises:
        DivergedError: the immunized network's features are not finite, or all zero where a spectrum is taken.
        UserError: those of θ_0 are, or there are fewer images than a group.
    """
    if (found := unusable(features, "theta_0")) is not None:
        raise UserError(
            f"θ_0's features of {found[0]} are {'all zero' if found[1] == 0 else 'not finite'}: check the weights and "
            "the transform of model=..., no number of this run would mean anything"
        )
    if (found := unusable(features, "immunized")) is not None:
        raise DivergedError(step, f"features of {found[0]}", found[1])
    held = {which: of["held_out"]["pretrain"] for which, of in features.items()}
    top = {"before": accuracy(held["theta_0"], heads[1]), "after": accuracy(held["immunized"], heads[0])}
    settings = evaluation_settings(cfg)
    try:
        each = {
            name: evaluate_deep(of, top, seed=cfg.seed, settings=settings)
            for name, of in by_set(features, sets).items()
        }
    except ZeroMatrixError:  # of a whole group
        raise DivergedError(step, "features of a group of images", 0.0) from None
    weakest = min(each, key=lambda name: float(each[name]["metrics"][PARTS[1]]["spectrum"]["rir"]))
    numbers = {**each[weakest], "weakest": weakest, "harmful_sets": each} if len(each) > 1 else each[weakest]
    return numbers if cfg.selection is None else _renamed(numbers, PARTS[1], cfg.selection)


def cached_sets(
    cfg: DictConfig, net: DeepExtractor, sets: dict[str, dict[Any, Any]], device: torch.device
) -> dict[str, dict[Any, Any]]:
    """What the frozen trunk makes of the images of `measured_sets`, in their place; `net` is moved to the device.

    Raises:
        UserError: images are augmented, the network is in one piece, or its outputs do not fit into the memory.
    """
    if cfg.objective.augment:
        raise UserError("objective.cache_frozen computes every image once; set objective.augment=false")
    folder = None if cfg.deep.cache_dir is None else Path(cfg.deep.cache_dir).expanduser()
    return {
        part: {
            role: cached_trunk(
                net,
                images,
                batch_size=cfg.deep.batch_size,
                workers=cfg.deep.workers,
                device=device,
                cache_dir=folder,
                key={"images": images.fingerprint},
            )
            for role, images in roles.items()
        }
        for part, roles in sets.items()
    }


def mapped(features: Measured, appended: AppendedHead) -> Head:
    """Put θ_0's features behind an appended map in the place of the immunized network's.

    Returns:
        the classifier behind the map.
    """
    with torch.no_grad():
        for part, roles in features["theta_0"].items():
            for role, (x, y) in roles.items():
                features["immunized"][part][role] = appended.map(x), y
    return Head(appended.head.weight.detach().T, appended.head.bias.detach())


def recomputed(cfg: DictConfig, folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Every number of a finished run again, as it was computed: the same images, batches, threads and shares.

    Args:
        cfg: the configuration of the record, with its data where they lie now.
        folder: the output folder, for the checkpoint.
        record: what the run wrote.

    Raises:
        CheckpointError: a checkpoint that is missing, damaged, of another run, or whose frozen part is not θ_0's; or
            other data.
        UserError: missing data or weights of θ_0.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: the run did not get as far as a checkpoint")
    with cpu_threads(record["hardware"]["threads"]):  # float32 features round differently on another number
        pair, net = build_pair(cfg)
        if pair.data_hash != record["data_hash"]:
            raise CheckpointError("the data are not those of the run: their hash differs from the record's")
        known = record["network"].get("theta_0_sha256")
        if known is not None and state_digest(net.full_state_dict()) != known:
            raise CheckpointError("θ_0 is not that of the run: is model.checkpoint still the file that it began with?")
        state = load_weights(path)
        check_owner(path, record["config_hash"])
        reference = net.reference()
        objective = method_of(cfg, net, pair.n_classes("harmful"))
        appended = None if objective.trains else _appended(net, state, path)
        if appended is None:
            _check_frozen(net.network, state, {name for name, _ in _trained(net)}, path)
        cached = bool(cfg.objective.cache_frozen) and objective.trains
        whole = ("fit",) if cached else ()
        sets: dict[str, dict[Any, Any]] = dict(measured_sets(pair, cfg.selection, cfg.deep, whole=whole).items())
        images, device = fingerprints(cfg, sets), _device(cfg, record)
        if cached:
            sets = cached_sets(cfg, net, sets, device)
        if appended is None:
            net.to(next(value.dtype for value in state.values() if value.is_floating_point()))
            net.load_full_state_dict(state, str(path))
        shares = int(record["training"]["fit"].get("processes") or 1)
        trained = net if appended is None else None
        features = both_features(trained, reference, sets, cfg, device, images=images, cached=cached, shares=shares)
        assert features is not None  # this is the only process
        after = head_of(net) if appended is None else mapped(features, appended)
        steps = record["training"]["fit"]["steps"]
        found = evaluated(cfg, features, (after, head_of(reference)), pair.harmful_sets, step=steps)
        return found | {"data": data_facts(pair)}


def _appended(net: DeepExtractor, state: dict[str, Tensor], path: Path) -> AppendedHead:
    """The map of a checkpoint, and the classifier behind it."""
    identity = torch.eye(net.n_features, dtype=torch.float64)
    released = append_map(net.network.cpu(), identity, identity)
    check_fit(released, state, str(path), net.name)
    ((name, appended),) = (of for of in released.named_modules() if isinstance(of[1], AppendedHead))
    assert isinstance(appended, AppendedHead)
    own = {f"{name}.{inner}" if name else inner for inner in appended.state_dict()}
    _check_frozen(released, state, own, path)
    released.load_state_dict(state)
    return appended


def _trained(net: DeepExtractor) -> list[tuple[str, nn.Parameter]]:
    """What training may change, by the names of the network's state dict."""
    moving = {id(parameter) for _, parameter in net.trainable_parameters()} | set(map(id, net.head_parameters()))
    return [(name, parameter) for name, parameter in net.network.named_parameters() if id(parameter) in moving]


def _check_frozen(network: nn.Module, state: dict[str, Tensor], trained: set[str], path: Path) -> None:
    """What was not trained has to be θ_0's; a state dict that does not fit is the loading's business."""
    for name, value in network.state_dict().items():
        stored = state.get(name)
        if name in trained or stored is None or stored.shape != value.shape:
            continue
        if not torch.equal(stored.to(value.dtype), value.cpu()):
            raise CheckpointError(
                f"{path}: {name} was not trained, but is not θ_0's; is model.checkpoint the file that the run began "
                "with, and this the run's own checkpoint?"
            )


def _device(cfg: DictConfig, record: dict[str, Any]) -> torch.device:
    """Where the run computed its features, if there is such a device here."""
    had = bool(record["hardware"]["accelerators"]) and cfg.trainer.get("accelerator") != "cpu"
    return torch.device("cuda" if had and torch.cuda.is_available() else "cpu")


def _renamed(value: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The same with a key renamed wherever it stands."""
    return {
        (new if key == old else key): _renamed(item, old, new) if isinstance(item, dict) else item
        for key, item in value.items()
    }
