"""What a loader of the caller's gives: the rows that are trained on, those that judge, and features of all of them.

Shapes: N rows of a batch or of all batches, D features.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn

from immunize.errors import UserError
from immunize.features.extract import device_of

log = logging.getLogger(__name__)

Loader = Iterable[Any]

ONE_IN = 5
"""One image of D_P in so many is not trained on, and D_P is judged by it (ours)."""

MOST_FRESH = 0.1
"""Share of D_P's images that two passes may differ in without a word: a shuffling loader may drop its last batch."""


SLOW = 60.0
"""Seconds after which a loader that has not ended is told of, once a pass."""

NO_BATCH = "{}_loader gave no batch; it has to start again each time it is iterated over"


class Batches:
    """What a loader gives, a list too, which Lightning would take for several loaders; labels as int64.

    A batch of one row, as the last one may be, has no spectrum: it is passed over.
    """

    role = "harmful"

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        given = False
        for x, y in self.loader:
            if len(y) > 1:
                given = True
                yield x.clone(), y.clone().long()  # a network may write into x, and autograd keeps y
        if not given:
            raise UserError(NO_BATCH.format(self.role))


class TrainedOn(Batches):
    """The rows of a loader that are trained on: all but those that :func:`set_aside` has D_P judged by.

    Raises:
        UserError: no batch has two such rows.
    """

    role = "pretrain"

    def __iter__(self) -> Iterator[Any]:
        some = False
        for x, y in super().__iter__():
            if int((kept := ~set_aside(x)).sum()) > 1:
                some = True
                yield x[kept], y[kept]
        if not some:
            raise UserError(
                f"no batch of D_P has two rows to train on: one in {ONE_IN}, by a hash, is what D_P is judged by; give "
                "more different images, or larger batches"
            )


def set_aside(x: Tensor) -> Tensor:
    """(N,) bool: the rows that D_P is judged by, the same ones in every pass of a loader, whatever their order.

    As long as it gives the same images in every pass: one that moves or mirrors them is noticed, see `judged_by`.
    """
    return _hashes(x) % ONE_IN == 0


def _hashes(x: Tensor) -> Tensor:
    """(N,) int64: of each row's bytes."""
    rows = x.detach().cpu().contiguous().reshape(len(x), -1).view(torch.uint8).numpy()
    return torch.tensor([zlib.crc32(row) for row in rows])


def not_judged_by(hashes: Tensor) -> Tensor:
    """(N,) bool: the rows that something may be fitted to, all of them where D_P is judged by all or by none."""
    fitted = hashes % ONE_IN != 0
    return fitted if int(fitted.sum()) > 1 else torch.ones_like(fitted)


def judged_by(hashes: Tensor, known: Tensor) -> Tensor:
    """(N,) bool: which rows D_P is judged by; where steps may have seen them, it is said.

    Args:
        hashes: of all rows in the last pass of the loader.
        known: of those in the first one, by which steps were taken.
    """
    judged = hashes % ONE_IN == 0
    fresh = int((~torch.isin(hashes, known)).sum())
    if fresh > len(hashes) * MOST_FRESH:
        log.warning(
            "%d of D_P's %d images were others in the pass before training: if the loader moves or mirrors images, "
            "those that D_P's accuracy is measured on were trained on in another form; give it without augmentation",
            *(fresh, len(hashes)),
        )
    if bool(judged.any()):
        return judged
    log.warning("of D_P's few rows none was set aside: its accuracy is of rows that the method has seen")
    return ~judged


def features_of(backbones: Sequence[nn.Module], loader: Loader, role: str) -> tuple[list[Tensor], Tensor, Tensor]:
    """Features (N, D) of all rows, by each network, labels (N,), and hashes of the rows of D_P (N,), on the CPU.

    Args:
        backbones: the networks.
        loader: of (inputs, labels).
        role: whose it is: "pretrain", or "harmful", of which hashes are 0.

    Raises:
        UserError: the loader gives nothing, something other than (inputs, labels), or what a network does not take.
    """
    devices = [device_of(backbone.eval()) for backbone in backbones]
    found: list[list[Tensor]] = [[] for _ in backbones]
    labels: list[Tensor] = []
    hashes: list[Tensor] = []
    with torch.no_grad():
        for x, y in batches(loader, role):
            for rows, backbone, device in zip(found, backbones, devices, strict=True):
                features = output_of(backbone, x.to(device).clone(), role).cpu()
                rows.append(features.float() if features.dtype == torch.bfloat16 else features)  # NumPy has none
            labels.append(y.cpu() if y.is_floating_point() else y.cpu().long())
            hashes.append(_hashes(x) if role == "pretrain" else torch.zeros(len(y), dtype=torch.int64))
    if max(map(len, labels)) < 2:
        raise UserError(f"every batch of {role}_loader has one row, which has no spectrum; give larger batches")
    return [torch.cat(rows) for rows in found], torch.cat(labels), torch.cat(hashes)


def output_of(backbone: nn.Module, x: Tensor, role: str) -> Tensor:
    """What a network of the caller's makes of inputs.

    Raises:
        UserError: it does not take them, or gives something else than a tensor.
    """
    try:
        found = backbone(x)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UserError(
            f"{role}_loader: the backbone does not take its inputs, {tuple(x.shape)} {x.dtype}: {str(error).strip()}"
        ) from error
    if not isinstance(found, Tensor):
        raise UserError(f"the backbone has to return one tensor (N, D), it returns {type(found).__name__}")
    return found


def batches(loader: Loader, role: str) -> Iterator[tuple[Tensor, Tensor]]:
    """What a loader gives, checked.

    Args:
        loader: of (inputs, labels).
        role: whose it is, for messages.

    Raises:
        UserError: nothing, or something other than (inputs, labels) of as many rows.
    """
    known, since = 0, time.monotonic()
    endless = not length_hint(loader)  # as far as it says
    for batch in loader:
        if not isinstance(batch, Sequence) or len(batch) != 2:
            size = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
            unlabelled = "; for a D_H without labels give zeros: method=ours and method=closed_form do not look at them"
            raise UserError(
                f"{role}_loader has to give (inputs, labels) batches, it gives a {type(batch).__name__}{size}"
                f"{unlabelled if role == 'harmful' else ''}"
            )
        x, y = batch
        if isinstance(y, int | str) or (isinstance(y, Tensor) and y.ndim == 0):
            raise UserError(
                f"{role}_loader has to give batches, and not single images: put a DataLoader around the data set"
            )
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            kinds = f"{type(x).__name__} and {type(y).__name__}"
            raise UserError(f"{role}_loader: inputs and labels have to be tensors, they are {kinds}")
        if len(x) != len(y):
            raise UserError(f"{role}_loader: a batch has {len(x)} inputs and {len(y)} labels")
        known += len(y)
        if endless and time.monotonic() - since > SLOW:
            endless = False
            log.warning("%s_loader has given %d rows and goes on; it has to end, as a pass does", role, known)
        if len(y):
            yield x, y
    if not known:
        raise UserError(NO_BATCH.format(role))


def check_loaders(loaders: Mapping[str, Any]) -> None:
    """Refuse what gives its batches once, or is several loaders.

    Args:
        loaders: by role, which is named.

    Raises:
        UserError: it is.
    """
    for role, loader in loaders.items():
        if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
            raise UserError(f"{role}_loader has to give batches, such as a DataLoader, it is {type(loader).__name__}")
        if isinstance(loader, Iterator):
            raise UserError(f"{role}_loader is over after one pass; give what starts again, such as a DataLoader")
        if isinstance(loader, list | tuple) and any(map(_is_loader, loader)):
            raise UserError(
                f"{role}_loader holds several loaders, and one is wanted: put the data sets together, with labels "
                f"counted on from one to the next, such as with torch.utils.data.ConcatDataset"
            )


def _is_loader(given: Any) -> bool:
    """Whether it gives batches, and is none."""
    if isinstance(given, Sequence):
        return len(given) > 0 and isinstance(given[0], Sequence)
    return isinstance(given, Iterable) and not isinstance(given, Tensor | Mapping)
