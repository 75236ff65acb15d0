"""The loaders of somebody who calls `immunize.immunize`: features of all rows, and which rows D_P is judged by.

Sees every room; no room sees it. Shapes: N samples, D features.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from immunize.errors import UserError
from immunize.features import device_of

__all__ = ["ONE_IN", "Loader", "TrainedOn", "answers", "features_of"]

Loader = Iterable[Any]

ONE_IN = 5
"""One image of D_P in so many is not trained on, and D_P is judged by it (ours)."""


class TrainedOn:
    """The rows of a loader that are trained on: all but those that :func:`set_aside` has D_P judged by."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for x, y in self.loader:
            if int((kept := ~set_aside(x)).sum()) > 1:
                yield x[kept], y[kept]


def set_aside(x: Tensor) -> Tensor:
    """(N,) bool: the rows that D_P is judged by, the same ones in every pass of a loader, whatever their order."""
    rows = x.detach().cpu().contiguous().flatten(1).view(torch.uint8).numpy()
    return torch.tensor([zlib.crc32(row) % ONE_IN == 0 for row in rows])


def features_of(backbones: Sequence[nn.Module], loader: Loader) -> tuple[list[Tensor], Tensor, Tensor]:
    """Features (N, D) of all rows, by each network, labels (N,), and which rows are set aside (N,), on the CPU.

    Raises:
        UserError: the loader gives nothing, or something other than (inputs, labels).
    """
    devices = [device_of(backbone.eval()) for backbone in backbones]
    found: list[list[Tensor]] = [[] for _ in backbones]
    labels: list[Tensor] = []
    aside: list[Tensor] = []
    with torch.no_grad():
        for batch in loader:
            if not isinstance(batch, Sequence) or len(batch) != 2:
                raise UserError("a loader has to give (inputs, labels) batches")
            for rows, backbone, device in zip(found, backbones, devices, strict=True):
                rows.append(backbone(batch[0].to(device)).cpu())
            labels.append(batch[1].cpu())
            aside.append(set_aside(batch[0]))
    if not labels:
        raise UserError("a loader gave no batch; it has to start again each time it is iterated over")
    if min(len(of_batch) for of_batch in labels) < 2:
        raise UserError("a loader gives a batch of one row, which has no spectrum; drop_last=True leaves it out")
    judged = torch.cat(aside)
    return [torch.cat(rows) for rows in found], torch.cat(labels), judged if bool(judged.any()) else ~judged


def answers(x: Tensor, head: nn.Linear) -> Tensor:
    """The class that a classifier gives each row, (N,), on the CPU."""
    with torch.no_grad():
        given: Tensor = head(x.to(head.weight)).argmax(1).cpu()
    return given
