"""Features of θ_0 and of the immunized network on every image that is measured, one pass of the trunk for both.

Those of θ_0 are the same in every run of a sweep and are kept in a folder. Where several processes share a run,
each computes its share of the images, and the first one gets them all, and keeps θ_0's for the next run of as many.

Shapes: N samples, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import Dataset, Subset

from immunize.data import ROLES, Role
from immunize.data.images.image_set import ImageSet
from immunize.data.images.pair import ImagePair
from immunize.evaluation import check_group_size
from immunize.evaluation.deep import PARTS
from immunize.features import DeepExtractor, Features, extract
from immunize.features.extract import cache_place
from immunize.objective import Head, world_size
from immunize.processes import is_first

Measured = dict[str, dict[str, dict[str, tuple[Tensor, Tensor]]]]
"""which ("immunized", "theta_0") -> part ("fit", "held_out") -> role -> (x (N, D), y (N,))."""


def measured_sets(
    pair: ImagePair, selection: str | None, group_size: int, most: int | None, *, whole: tuple[str, ...] = ()
) -> dict[str, dict[Role, Dataset[Any]]]:
    """Part -> role -> images, all through the transform of evaluation.

    Args:
        pair: set up.
        selection: "validation" puts the images set aside from `fit` in the place of the held-out ones.
        group_size: images in a group of the evaluation.
        most: images of each part and role; None takes all.
        whole: parts that are not cut to these.

    Raises:
        UserError: a part of a data set that has fewer; now, and not after the training.
    """
    sets: dict[str, dict[Role, Any]] = {part: {} for part in PARTS}
    for stream, role in enumerate(ROLES):
        splits = pair.measured(role, selection)
        sets["fit"][role], sets["held_out"][role] = splits.fit, splits.held_out
        for number, part in enumerate(PARTS):
            if part not in whole:
                sets[part][role] = sets[part][role].drawn(most, stream, number)
    ends = torch.tensor(list(pair.harmful_sets.values())).cumsum(0)
    for part, roles in sets.items():
        check_group_size(len(roles["pretrain"]), part, "pretrain", group_size)
        of_set = torch.bucketize(roles["harmful"].labels, ends, right=True)
        for count in torch.bincount(of_set, minlength=len(ends)).tolist():
            check_group_size(count, part, "harmful", group_size)
    return sets


def both_features(
    net: DeepExtractor | None,
    reference: DeepExtractor,
    sets: dict[str, dict[Role, Dataset[Any]]],
    device: torch.device,
    *,
    batch_size: int,
    workers: int,
    cache_dir: Path | None,
    images: dict[str, dict[Role, Any]],
    cached: bool,
    shares: int = 1,
    theta_0: dict[tuple[str, Role], Features] | None = None,
) -> Measured | None:
    """Features of both networks on the same images; None in every process but the first.

    Args:
        net: the immunized network; None where nothing was trained: θ_0's features then stand for its own.
        reference: θ_0, with the same trunk.
        sets: part -> role -> a data set of images, or of trunk outputs.
        device: where to compute.
        batch_size: images at once.
        workers: processes that read images.
        cache_dir: where θ_0's features are kept; None keeps none.
        images: those in `sets`, whose fingerprints tell what is kept from what is kept of others.
        cached: the sets hold trunk outputs.
        shares: how many processes a single one is to stand for, share after share: other batches round differently.
        theta_0: by part and role, θ_0's features that one process has computed before; new ones are added.
    """
    moved = [] if net is None else [net.to(device)]
    dtype = reference.dtype if net is None else net.dtype  # a trainer's precision is that of the network it has moved
    reference.to(device, dtype)
    compute = partial(extract, dtype=dtype, device=device, batch_size=batch_size, workers=workers)
    count = max(shares, world_size())
    facts = {"trunk": "kept" if cached else "computed", **reference.cache_facts()} if cache_dir is not None else {}
    if count > 1:
        facts["shares"] = count  # they round differently
    kept = {} if theta_0 is None or count > 1 else theta_0
    out: Measured = {"immunized": {}, "theta_0": {}}
    for part, roles in sets.items():
        for role, rows in roles.items():
            place = None
            if cache_dir is not None:
                key = {"images": images[part][role].fingerprint, **facts}
                place = cache_place(cache_dir, key, dtype, device, batch_size)
            known = kept.get((part, role))
            if known is not None and known.x.dtype != dtype:
                known = None
            if known is None and place is not None and is_first():
                known = place.load()
            first_knows = [known is not None]
            if world_size() > 1:  # others may not see its disk
                distributed.broadcast_object_list(first_knows)
            wanted = [*moved, *([] if first_knows[0] else [reference])]
            found = known
            if wanted:
                found = _shared(partial(compute, _side_by_side(wanted, cached=cached)), rows, shares)
            if found is None:
                continue
            each = torch.split(found.x, reference.n_features, dim=1)
            if known is None:
                known = Features(each[-1].contiguous(), found.y)
                if place is not None:
                    place.save(known)
            kept[part, role] = known
            out["immunized"].setdefault(part, {})[role] = (each[0].contiguous(), found.y)
            out["theta_0"].setdefault(part, {})[role] = (known.x, known.y)
    _tell_of_unreadable(sets)
    return out if out["immunized"] else None


def by_set(features: Measured, sets: dict[str, int]) -> dict[str, Measured]:
    """The features of D_P with those of each harmful data set, by the set's name.

    Args:
        features: of all harmful data sets together, whose labels are counted one after the other.
        sets: classes of each, by its name; one for a D_H that is a single data set.
    """
    if len(sets) == 1:
        return dict.fromkeys(sets, features)
    found: dict[str, Measured] = {}
    first = 0
    for name, classes in sets.items():
        for which, parts in features.items():
            for part, roles in parts.items():
                x, y = roles["harmful"]
                mine = (y >= first) & (y < first + classes)
                of_set = {"pretrain": roles["pretrain"], "harmful": (x[mine], y[mine] - first)}
                found.setdefault(name, {}).setdefault(which, {})[part] = of_set
        first += classes
    return found


def unusable(features: Measured, which: str) -> tuple[str, float] | None:
    """The data set of which a network's features have no spectrum, with NaN if they are not finite, 0 if all zero.

    Args:
        features: of both networks.
        which: "immunized" or "theta_0".
    """
    for roles in features[which].values():
        for role, (x, _) in roles.items():
            if not bool(torch.isfinite(x).all()):
                return role, math.nan
            if not bool(x.any()):
                return role, 0.0
    return None


def head_of(layer: nn.Linear) -> Head:
    """A network's classifier, on the CPU."""
    weight, bias = layer.weight.detach().cpu().T, layer.bias
    return Head(weight, None if bias is None else bias.detach().cpu())


def accuracy(rows: tuple[Tensor, Tensor], head: Head) -> float:
    """Share of rows whose label has the largest logit, percent."""
    x, y = rows
    return 100 * float((head(x.to(head.weight.dtype)).argmax(1) == y).double().mean())


def _side_by_side(networks: list[DeepExtractor], *, cached: bool) -> Callable[[Tensor], Tensor]:
    """Images, or trunk outputs, → the features of each network (B, D), one beside the other; they share the trunk."""
    first = networks[0]

    def features(x: Tensor) -> Tensor:
        h = x.to(first.dtype) if cached else first.trunk(x.to(first.dtype))
        return torch.cat([network.features(h) for network in networks], dim=1)

    return features


def _shared(compute: Callable[[Any], Features], images: Any, stands_for: int) -> Features | None:
    """Outputs on all images: every process does its share, and the first puts them together."""

    def share(rank: int, world: int) -> Features:
        mine = images if world == 1 else Subset(images, range(rank, len(images), world))
        return compute(mine)

    world = world_size()
    if world == 1:
        return _together([share(rank, stands_for) for rank in range(stands_for)])
    rank = distributed.get_rank()
    shares: list[Any] | None = [None] * world if rank == 0 else None
    distributed.gather_object(share(rank, world), shares)
    return None if shares is None else _together(shares)


def _tell_of_unreadable(sets: dict[str, dict[Role, Dataset[Any]]]) -> None:
    """Every process has read its share of the images; the first, which writes the record, is told what others saw."""
    if world_size() == 1:
        return
    for rows in (rows for roles in sets.values() for rows in roles.values()):
        if isinstance(rows, ImageSet):
            seen: list[Any] | None = [None] * world_size() if distributed.get_rank() == 0 else None
            distributed.gather_object(rows.unreadable.numpy(), seen)
            for other in seen or ():
                rows.unreadable.logical_or_(torch.from_numpy(other))


def _together(shares: list[Features]) -> Features:
    """All rows in their order, of which share r has r, r + W, ..."""
    if len(shares) == 1:
        return shares[0]
    count = sum(len(share.y) for share in shares)
    x = torch.empty((count, *shares[0].x.shape[1:]), dtype=shares[0].x.dtype)
    y = torch.empty(count, dtype=shares[0].y.dtype)
    for start, share in enumerate(shares):
        x[start :: len(shares)], y[start :: len(shares)] = share
    return Features(x, y)
