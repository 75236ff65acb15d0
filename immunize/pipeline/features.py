"""The images that a network is measured on, and their features: by several processes, of several harmful data sets.

Behind the map that a method computes as well, for runs and for `immunize.immunize` alike.

Shapes: N samples, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import Dataset, Subset

from immunize.data import ROLES, Role
from immunize.data.images.image_set import ImageSet
from immunize.data.images.pair import ImagePair
from immunize.data.images.source import rows_of_sets
from immunize.errors import UserError
from immunize.evaluation import check_group_size
from immunize.evaluation.deep import PARTS
from immunize.features.append import AppendedHead, append_map
from immunize.features.deep import DeepExtractor
from immunize.features.extract import Features
from immunize.objective import Head, Objective, world_size
from immunize.objective.erase import distilled
from immunize.spectrum.condition import check_varying
from immunize.spectrum.separability import share_right

Measured = dict[str, dict[str, dict[str, Features]]]
"""which ("immunized", "theta_0") -> part ("fit", "held_out") -> role -> x (N, D) and y (N,)."""


def measured_sets(
    pair: ImagePair, selection: str | None, group_size: int, most: int | None
) -> dict[str, dict[Role, Dataset[Any]]]:
    """Part -> role -> images, all through the transform of evaluation.

    Args:
        pair: set up.
        selection: "validation" puts the images set aside from `fit` in the place of the held-out ones.
        group_size: images in a group of the evaluation.
        most: images of each part and role; None takes all.

    Raises:
        UserError: a part of a data set that has fewer; now, and not after the training.
    """
    sets: dict[str, dict[Role, Any]] = {part: {} for part in PARTS}
    for stream, role in enumerate(ROLES):
        for number, (part, images) in enumerate(zip(PARTS, pair.measured(role, selection), strict=True)):
            sets[part][role] = images.drawn(most, stream, number)
    for part, roles in sets.items():
        check_group_size(len(roles["pretrain"]), part, "pretrain", group_size)
        for rows in rows_of_sets(roles["harmful"].labels.numpy(), pair.harmful_sets.values()):
            check_group_size(len(rows), part, "harmful", group_size)
    return sets


def by_set(features: Measured, sets: dict[str, int]) -> dict[str, Measured]:
    """The features of D_P with those of each harmful data set, by the set's name.

    Args:
        features: of all harmful data sets together, whose labels are counted one after the other.
        sets: classes of each, by its name; one for a D_H that is a single data set.
    """
    if len(sets) == 1:
        return dict.fromkeys(sets, features)
    found: dict[str, Measured] = {name: {which: {} for which in features} for name in sets}
    firsts = [0, *accumulate(sets.values())]
    for which, parts in features.items():
        for part, roles in parts.items():
            x, y = roles["harmful"]
            for name, rows, first in zip(sets, rows_of_sets(y.numpy(), sets.values()), firsts, strict=False):
                mine = torch.from_numpy(rows)
                of_set = {"pretrain": roles["pretrain"], "harmful": Features(x[mine], y[mine] - first)}
                found[name][which][part] = of_set
    return found


def head_of(layer: nn.Linear) -> Head:
    """A network's classifier, on the CPU."""
    weight, bias = layer.weight.detach().cpu().T, layer.bias
    return Head(weight, None if bias is None else bias.detach().cpu())


def accuracy(rows: tuple[Tensor, Tensor], head: Head) -> float:
    """Share of rows whose label has the largest logit, percent."""
    x, y = rows
    return 100 * float(share_right(head(x.to(head.weight.dtype)), y))


def side_by_side(networks: list[DeepExtractor], *, cached: bool) -> Callable[[Tensor], Tensor]:
    """Images → the features of each network (B, D), one beside the other; they share the trunk.

    Args:
        networks: those.
        cached: they get outputs of the trunk instead of images.
    """
    first = networks[0]

    def features(x: Tensor) -> Tensor:
        h = x.to(first.dtype) if cached else first.trunk(x.to(first.dtype))
        return torch.cat([network.features(h) for network in networks], dim=1)

    return features


def shared(compute: Callable[[Any], Features], images: Any, stands_for: int) -> Features | None:
    """Outputs on all images: every process does its share, and the first puts them together, the others get None.

    Args:
        compute: a data set to its features.
        images: all of them.
        stands_for: how many processes a single one stands for, share after share: other batches round differently.
    """

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


def tell_of_unreadable(sets: dict[str, dict[Role, Dataset[Any]]]) -> None:
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


# --- behind a map that a method computes --------------------------------------------------------------------------


def append_computed(
    objective: Objective,
    network: nn.Module,
    pretrain: Features,
    harmful: Features,
    *,
    head: str | None = None,
) -> tuple[nn.Module, AppendedHead, dict[str, Any]]:
    """Append the map that a method computes from features.

    A map with an inverse changes no logit. Behind one without, the classifier is fitted again to repeat θ_0's answers
    on D_P.

    Args:
        objective: the method.
        network: θ_0; it is not changed.
        pretrain: θ_0's features of D_P.
        harmful: of D_H.
        head: of the network, as `append_map` takes it.

    Returns:
        the released network, its map and classifier, and facts.

    Raises:
        UserError: a method for linear models alone, or features that do not allow the map.
    """
    x = pretrain.x.double()
    try:
        check_varying(x, "D_P")
        check_varying(harmful.x, "D_H")
        solved = objective.solve(Features(x, pretrain.y), Features(harmful.x.double(), harmful.y))
        if solved is None:
            raise UserError("this method is made for linear models; for a network choose another, such as closed_form")
        theta, facts = solved
        inverse = torch.linalg.inv(theta) if objective.has_inverse else None
        released = append_map(network, theta, inverse, head=head)
    except (ValueError, RuntimeError) as error:  # LAPACK's errors are runtime errors
        raise UserError(str(error)) from None
    (appended,) = (module for module in released.modules() if isinstance(module, AppendedHead))
    if inverse is None:
        parameters = appended.head
        refitted = distilled(x, theta, head_of(parameters))
        with torch.no_grad():
            parameters.weight.copy_(refitted.weight.T)
            if refitted.bias is not None:
                parameters.bias.copy_(refitted.bias)
    return released, appended, facts


def mapped(features: Measured, appended: AppendedHead) -> Head:
    """Put θ_0's features behind an appended map in the place of the immunized network's.

    Returns:
        the classifier behind the map.
    """
    with torch.no_grad():
        for part, roles in features["theta_0"].items():
            for role, (x, y) in roles.items():
                features["immunized"][part][role] = Features(appended.map(x), y)
    return head_of(appended.head)
