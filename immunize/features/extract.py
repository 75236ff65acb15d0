"""A data set through a network once: features, or trunk outputs, in memory and on disk.

A run out of memory halves its batches and goes on. A file in the cache is found by a key that holds everything that
changes the array: weights, layer, transform, data, precision, library versions; and it is only used where the whole key
stored in it is the same.

Shapes: N samples, D features, h (N, ...).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from immunize.errors import UserError
from immunize.files import write_tensors
from immunize.threads import available_memory

if TYPE_CHECKING:
    from immunize.features.deep import DeepExtractor

logger = logging.getLogger(__name__)


class Features(NamedTuple):
    """What a network made of a data set, in its order, on the CPU: `x` (N, ...) and the labels `y` (N,) int64."""

    x: Tensor
    y: Tensor


class Place(NamedTuple):
    """Where one array is kept: the file, and the whole key as text, which the file holds too."""

    path: Path
    text: str

    def load(self) -> Features | None:
        """What the file holds if it belongs to this key; None if it does not, is not there, or cannot be read."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "pt") as file:
                if (file.metadata() or {}).get("key") != self.text:
                    return None
                return Features(file.get_tensor("x"), file.get_tensor("y"))
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError) as error:
            logger.warning("%s cannot be read (%s) and is made anew", self.path, error)
            return None

    def save(self, features: Features) -> None:
        """Write the file whole or not at all; where that cannot be done (a full disk) the run goes on without."""
        try:
            write_tensors(self.path, features._asdict(), {"key": self.text})
        except OSError as error:
            logger.warning("features could not be kept in %s: %s", self.path.parent, error)


def cache_place(
    cache_dir: Path, key: Mapping[str, Any], dtype: torch.dtype, device: torch.device, batch_size: int
) -> Place:
    """The place of an array. Batch size, device, layout and number of threads are in its key: they change the rounding.

    Args:
        cache_dir: the folder.
        key: what the caller knows; text, numbers, and lists and dictionaries of them.
        dtype: of the array.
        device: where it is computed.
        batch_size: B.

    Raises:
        ValueError: an empty key.
        TypeError: a key of other things.
    """
    from importlib.metadata import version

    if not key:
        raise ValueError("a cache needs a key that says what the array depends on")

    known = {
        "dtype": str(dtype),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "batch_size": batch_size,
        "channels_last": device.type == "cpu",
        "versions": {package: version(package) for package in ("immunize", "torch", "torchvision", "timm", "pillow")},
    }
    text = json.dumps({"array": known, "of": dict(key)}, sort_keys=True)
    return Place(cache_dir / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors", text)


MEMORY_SHARE = 0.8
"""Of the memory that is available, what trunk outputs may take."""


def extract(
    function: Callable[[Tensor], Tensor],
    dataset: Dataset[Any],
    *,
    batch_size: int = 256,
    workers: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    cache_dir: Path | None = None,
    key: Mapping[str, Any] | None = None,
) -> Features:
    """Outputs of a network on every sample of a data set.

    Args:
        function: a batch (B, ...) → (B, ...): an extractor, or its trunk. Runs without autograd.
        dataset: map-style, of (tensor, label).
        batch_size: samples at once; halved, for good, whenever the memory does not suffice.
        workers: processes that load samples.
        dtype: of the result.
        device: where `function` runs; None is where its parameters are, or else the CPU.
        cache_dir: folder of the cache; None for none.
        key: with `cache_dir`, everything that the array depends on beside what is known here: the network
            (`DeepExtractor.cache_facts`), the data set and its split. Strings, numbers, and lists and dictionaries of
            them.

    Returns:
        outputs and labels.

    Raises:
        UserError: an empty data set.
        ValueError: a cache without a key.
        TypeError: a key of other things than text and numbers.
        RuntimeError: one sample alone does not fit into the memory.
    """
    device = torch.device(device) if device is not None else device_of(function)
    place = None if cache_dir is None else cache_place(cache_dir, key or {}, dtype, device, batch_size)
    if place is not None and (found := place.load()) is not None:
        return found
    # A generator of its own: a loader draws one number a pass, which would otherwise be one of the run's.
    loader = DataLoader(dataset, batch_size, num_workers=workers, generator=torch.Generator())
    features = _compute(function, loader, dtype, device)
    if place is not None:
        place.save(features)
    return features


def cached_trunk(
    extractor: DeepExtractor,
    dataset: Dataset[Any],
    *,
    batch_size: int = 256,
    workers: int = 0,
    device: torch.device | str | None = None,
    cache_dir: Path | None = None,
    key: Mapping[str, Any] | None = None,
) -> TensorDataset:
    """The frozen part of a network done once: a data set of (h, label) in place of (image, label).

    Args:
        extractor: one that is split; its trunk's outputs stay right while the trainable part moves.
        dataset: map-style, of (image, label), without random augmentation, which would be frozen along.
        batch_size: as for :func:`extract`, also the following.
        workers: processes that load images.
        device: where the trunk runs, to which the extractor is moved; None is where it is.
        cache_dir: folder of the cache on disk.
        key: what the images depend on; the extractor's part is added here.

    Returns:
        a data set in the same order, in memory.

    Raises:
        UserError: the network is in one piece, or its outputs do not fit into the memory.
    """
    if not extractor.split:
        raise UserError(
            f"objective.cache_frozen: the frozen part of {extractor.name} cannot be cut off "
            f"({extractor.no_split_reason}); set it to false"
        )
    count, available = _count(dataset), available_memory()
    first = torch.as_tensor(dataset[0][0])[None].to(device_of(extractor), extractor.dtype)
    needed = count * math.prod(extractor.trunk(first).shape[1:]) * torch.float32.itemsize
    logger.info("frozen outputs of %d images: %.2f GiB in memory", count, needed / 1024**3)
    if available is not None and needed > MEMORY_SHARE * available:
        raise UserError(
            f"the frozen outputs of {count} images take {needed / 1024**3:.1f} GiB, "
            f"{available / 1024**3:.1f} GiB are available: choose smaller images (model.image_size), or set "
            f"objective.cache_frozen=false"
        )
    if device is not None:
        extractor.to(device)
    facts = None if cache_dir is None else {**(key or {}), **extractor.cache_facts("trunk")}
    h, y = extract(
        lambda images: extractor.trunk(images.to(extractor.dtype)),
        dataset,
        batch_size=batch_size,
        workers=workers,
        device=device_of(extractor),
        cache_dir=cache_dir,
        key=facts,
    )
    return TensorDataset(h, y)


def _compute(
    function: Callable[[Tensor], Tensor], loader: DataLoader[Any], dtype: torch.dtype, device: torch.device
) -> Features:
    count = _count(loader.dataset)
    x: Tensor | None = None
    y = torch.empty(count, dtype=torch.int64)
    done, limit = 0, count
    for images, labels in loader:
        y[done : done + len(labels)] = labels
        waiting = images
        while len(waiting):
            rows = waiting[:limit]
            try:
                with torch.no_grad():
                    output = function(rows.to(device)).to("cpu", dtype)
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                if len(rows) == 1:
                    raise RuntimeError(f"one sample alone does not fit into the memory of {device}") from error
                error.with_traceback(None)  # which holds on to the tensors that did not fit
                torch.cuda.empty_cache()
                limit = len(rows) // 2
                logger.warning("out of memory on %s: going on with batches of %d", device, limit)
                continue
            if x is None:
                x = torch.empty((count, *output.shape[1:]), dtype=dtype)
            x[done : done + len(rows)] = output
            done, waiting = done + len(rows), waiting[limit:]
    assert x is not None
    return Features(x, y)


def _is_out_of_memory(error: BaseException) -> bool:
    said = str(error).lower()
    known = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(words in said for words in known)


def _count(dataset: Any) -> int:
    """How many samples there are.

    Raises:
        UserError: none.
    """
    count: int = len(dataset)
    if count == 0:
        raise UserError("there are no images to extract features from")
    return count


def device_of(function: Any) -> torch.device:
    """Where a module's parameters are; the CPU for what has none."""
    first = next(function.parameters(), None) if isinstance(function, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


SHARE, UNKNOWN = 0.4, 2**30
"""Of the memory that is available, what is kept at most, and bytes where that is not known."""

GROWTH = 2
"""Times as many images as a pass has: more different ones than that come from a loader that changes them each time."""


class Once(nn.Module):
    """The same outputs as a trunk's, each computed once as long as memory suffices; on the CPU alone.

    An image that was seen in a batch of other images gives what it gave there, which may differ in rounding.

    Args:
        trunk: from images to h, one row for each, by the values of that image alone.
        images: about how many different ones there are; None is not known yet. Where far more come, none comes back:
            all is forgotten, and the trunk works as before.
        limit: bytes of outputs that are kept; None is `SHARE` of what is available.

    Attributes:
        computed: images that the trunk has been given.
    """

    def __init__(self, trunk: nn.Module, images: int | None = None, limit: int | None = None) -> None:
        super().__init__()
        available = available_memory()
        self.trunk, self.images = trunk, images
        self.limit = limit if limit is not None else UNKNOWN if available is None else int(SHARE * available)
        self.computed = self._bytes = 0
        self._different = 0
        self._kept: dict[bytes, Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        """H of images, without autograd."""
        if images.device.type != "cpu" or self._change_each_time():
            return self._compute(images)
        keys = [_digest(image) for image in images]
        new = {key: index for index, key in enumerate(keys) if key not in self._kept}
        if len(new) == len(keys):
            h = self._compute(images)
            self._keep(dict(zip(keys, h, strict=True)))
            return h
        rows = {key: self._kept[key] for key in keys if key not in new}
        if new:
            computed = dict(zip(new, self._compute(images[list(new.values())]), strict=True))
            self._keep(computed)
            rows |= computed
        return torch.stack([rows[key] for key in keys])

    def __deepcopy__(self, memo: object) -> Once:
        """Itself: what is frozen is the same in every copy of a network."""
        return self

    def _change_each_time(self) -> bool:
        return self.images is not None and self._different > GROWTH * self.images

    def _compute(self, images: Tensor) -> Tensor:
        self.computed += len(images)
        h: Tensor = self.trunk(images)
        return h

    def _keep(self, rows: dict[bytes, Tensor]) -> None:
        for key, row in rows.items():
            if self._bytes + row.nbytes > self.limit:
                return
            self._bytes += row.nbytes
            self._different += 1
            self._kept[key] = row.clone()  # not a view, which would keep its whole batch
        if self._change_each_time():
            self._kept.clear()


def _digest(image: Tensor) -> bytes:
    """Of shape, type and bytes."""
    digest = hashlib.sha256(f"{tuple(image.shape)} {image.dtype}".encode())
    digest.update(image.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()
