"""Features of θ_0 and of the immunized network on every image that is measured, one pass of the trunk for both.

Where several processes share a run, each computes its share of the images, and the first one gets them all.

Shapes: N samples, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, distributed
from torch.utils.data import Dataset, Subset

from immunize.data import ROLES, Role
from immunize.data.images import ImagePair
from immunize.features import DeepExtractor, Features, extract
from immunize.objective import Head, world_size

__all__ = ["Measured", "accuracy", "both_features", "head_of", "measured_sets", "overflown"]

Measured = dict[str, dict[str, dict[str, tuple[Tensor, Tensor]]]]
"""which ("immunized", "theta_0") -> part ("fit", "held_out") -> role -> (x (N, D), y (N,))."""


def measured_sets(pair: ImagePair, selection: str | None) -> dict[str, dict[Role, Dataset[Any]]]:
    """Part -> role -> images, all through the transform of evaluation.

    Args:
        pair: set up.
        selection: "validation" puts the images set aside from `fit` in the place of the held-out ones.
    """
    sets: dict[str, dict[Role, Dataset[Any]]] = {"fit": {}, "held_out": {}}
    for role in ROLES:
        splits = pair.measured(role)
        aside = pair.validation(role)
        sets["fit"][role] = splits.fit
        sets["held_out"][role] = splits.held_out if selection is None or aside is None else aside
    return sets


def both_features(
    net: DeepExtractor,
    reference: DeepExtractor,
    sets: dict[str, dict[Role, Dataset[Any]]],
    cfg: DictConfig,
    device: torch.device,
    *,
    cached: bool,
) -> Measured | None:
    """Features of both networks on the same images; None in every process but the first.

    Args:
        net: the immunized network.
        reference: θ_0, with the same trunk.
        sets: part -> role -> a data set of images, or of trunk outputs.
        cfg: the composed configuration.
        device: where to compute.
        cached: the sets hold trunk outputs.
    """
    net.to(device)
    reference.to(device)
    d = net.n_features

    def both(x: Tensor) -> Tensor:
        h = x if cached else net.trunk(x.to(net.dtype))
        return torch.cat([net.features(h), reference.features(h)], dim=1)

    out: Measured = {"immunized": {}, "theta_0": {}}
    for part, roles in sets.items():
        for role, images in roles.items():
            found = _shared(both, images, cfg, device)
            if found is None:
                continue
            out["immunized"].setdefault(part, {})[role] = (found.x[:, :d], found.y)
            out["theta_0"].setdefault(part, {})[role] = (found.x[:, d:], found.y)
    return out if out["immunized"] else None


def overflown(features: Measured) -> str | None:
    """The data set of which the immunized network's features contain NaN or infinite values."""
    for roles in features["immunized"].values():
        for role, (x, _) in roles.items():
            if not bool(torch.isfinite(x).all()):
                return role
    return None


def head_of(net: DeepExtractor) -> Head:
    """The network's classifier, on the CPU."""
    weight, bias = net.head.weight.detach().cpu().T, net.head.bias
    return Head(weight, None if bias is None else bias.detach().cpu())


def accuracy(rows: tuple[Tensor, Tensor], head: Head) -> float:
    """Share of rows whose label has the largest logit, percent."""
    x, y = rows
    return 100 * float((head(x.to(head.weight.dtype)).argmax(1) == y).double().mean())


def _shared(
    function: Callable[[Tensor], Tensor], images: Any, cfg: DictConfig, device: torch.device
) -> Features | None:
    """Outputs on all images: every process does its share, and the first puts them together."""
    world, rank = world_size(), distributed.get_rank() if world_size() > 1 else 0
    mine = images if world == 1 else Subset(images, range(rank, len(images), world))
    found = extract(function, mine, batch_size=cfg.deep.batch_size, workers=cfg.deep.workers, device=device)
    if world == 1:
        return found
    shares: list[Any] | None = [None] * world if rank == 0 else None
    distributed.gather_object(found, shares)
    if shares is None:
        return None
    x = torch.empty((len(images), *found.x.shape[1:]), dtype=found.x.dtype)
    y = torch.empty(len(images), dtype=found.y.dtype)
    for start, share in enumerate(shares):
        x[start::world], y[start::world] = share
    return Features(x, y)
