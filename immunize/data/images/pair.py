"""D_P and D_H side by side as images: the LightningDataModule of every run with a deep network (§5.2, C.1, C.2).

Each training batch is ``{"pretrain": (x, y), "harmful": (x, y)}``. Where D_H is several data sets, B images of each are
in it, and their labels say which are whose. How long an epoch is: one pass of D_H (of the largest of several), which is
how Table 4 counts them (C.2), or, as for linear models, what CombinedLoader's mode says. The orders are those of
`sampling`; they depend on the seed, the epoch and the role, and on nothing else.

The Trainer has to be told ``use_distributed_sampler=False``: the order is distributed already.

Shapes: N images, B batch size over all processes, C classes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from immunize.data.images.image_set import ImageSet, ImageSplits, Transform
from immunize.data.images.multi import set_numbers
from immunize.data.images.sampling import JointSampler, StreamSampler, stream_loader
from immunize.data.images.source import as_image_source
from immunize.data.pair import Pair, set_aside
from immunize.data.splits import ROLES, Role
from immunize.errors import DataError

__all__ = ["EPOCHS_ON", "ImagePair", "without_aside"]

EPOCHS_ON = ("harmful", "longest")
"""What an epoch is: one pass of D_H, or what `mode` says: of the longer data set, or of the shorter one."""


class ImagePair(Pair):
    """Both image data sets of an experiment, checked, hashed and batched.

    Args:
        pretrain: D_P; an image source, or one that has images too.
        harmful: D_H.
        batch_size: B, images of each data set in a mini-batch over all processes; None, full-batch, is refused.
        mode: CombinedLoader's mode, one of `immunize.data.pair.MODES`; decides about the length of an epoch if
            `epochs_on` is "longest".
        epochs_on: one of `EPOCHS_ON`.
        transform_fit: from a PIL image, mode RGB, to (3, H, W) float32, for training; None: pixels / 255.
        transform_eval: the same for everything that is measured.
        validation_fraction: share of the fit images of each data set that is set aside, 0 to 0.9.
        workers: processes a data set that decode images; 0: the main one.
        pin_memory: for faster copies to a GPU.
        seed: of the validation split, of the orders and of random augmentation.

    Raises:
        DataError: for values outside these ranges, or a source without images.
    """

    batch_size: int

    def __init__(
        self,
        pretrain: Any,
        harmful: Any,
        *,
        batch_size: int | None,
        mode: str = "max_size_cycle",
        epochs_on: str = "harmful",
        transform_fit: Transform | None = None,
        transform_eval: Transform | None = None,
        validation_fraction: float = 0.0,
        workers: int = 0,
        pin_memory: bool = False,
        seed: int = 0,
    ) -> None:
        sources: dict[Role, Any] = {"pretrain": as_image_source(pretrain), "harmful": as_image_source(harmful)}
        super().__init__(sources, batch_size=batch_size, mode=mode, validation_fraction=validation_fraction, seed=seed)
        if batch_size is None:
            raise DataError(
                "objective.batch_size=null, but images are read in mini-batches only; choose a number such as 64"
            )
        if epochs_on not in EPOCHS_ON:
            raise DataError(f"objective.epochs_on is {epochs_on!r}, but has to be one of {', '.join(EPOCHS_ON)}")
        self.epochs_on = epochs_on
        self.transform_fit, self.transform_eval = transform_fit, transform_eval
        self.workers, self.pin_memory = workers, pin_memory
        self._splits: dict[Role, ImageSplits] = {}
        self._validation: dict[Role, ImageSet] = {}
        self._replaced: dict[Role, Dataset[Any]] = {}
        self._data_hash = ""
        self._done = (0, 0)

    def setup(self, stage: str | None = None) -> None:
        """Find both data sets, leave unreadable images out, set validation images aside; nothing the second time.

        Args:
            stage: ignored: every stage needs the same images.

        Raises:
            MissingDataError: if a data set is not there.
            DataError: if one cannot be used, or D_P and D_H are the same images.
        """
        if self._splits:
            return
        hashes = {role: self.sources[role].file_hash() for role in ROLES}
        harmful = self.sources["harmful"]
        several = {name: part.file_hash() for name, part in harmful.parts.items() if part is not harmful}
        for name, own in (several or {harmful.name: hashes["harmful"]}).items():
            if own == hashes["pretrain"]:
                raise DataError(
                    f"D_P and D_H are the same images ({name}), which cannot be easy and hard to learn at once; "
                    f"choose another data set for D_P: pretrain=<name>"
                )
        splits = {role: self.sources[role].splits(self.transform_fit, self.transform_eval) for role in ROLES}
        self._check_sizes({role: len(of.fit) for role, of in splits.items()})
        if self.validation_fraction > 0:
            for role in ROLES:
                splits[role], aside = without_aside(splits[role], self.validation_fraction, seed=self.seed, role=role)
                self._validation[role] = aside.with_transform(self.transform_eval)
        self._splits = splits
        self._data_hash = hashlib.sha256("/".join(hashes[role] for role in ROLES).encode()).hexdigest()

    def splits(self, role: Role) -> ImageSplits:
        """`fit` without validation images, through `transform_fit`; `held_out`, through the other. After `setup`."""
        if not self._splits:
            raise RuntimeError("call setup() before asking for data")
        return self._splits[role]

    def measured(self, role: Role) -> ImageSplits:
        """The same images, both splits through `transform_eval`: what features are extracted from. After `setup`."""
        return self.splits(role).with_transforms(self.transform_eval, self.transform_eval)

    def validation(self, role: Role) -> ImageSet | None:
        """Images set aside from `fit`, through `transform_eval`; None for a fraction of 0. After `setup`."""
        return self._validation.get(role) if self.splits(role) else None

    def n_classes(self, role: Role) -> int:
        """C of one data set. After `setup`."""
        return self.splits(role).fit.n_classes

    @property
    def harmful_sets(self) -> dict[str, int]:
        """The data sets that D_H is made of, mostly one, and C of each. After `setup`."""
        parts = self.sources["harmful"].parts
        return {name: part.n_classes for name, part in parts.items()} if self.splits("harmful") else {}

    @property
    def data_hash(self) -> str:
        """SHA-256 of both data sets' `file_hash`. After `setup`."""
        return self._data_hash if self._splits else ""

    @property
    def steps_per_epoch(self) -> int:
        """Batches an epoch. After `setup`."""
        passes = {role: max(max(len(rows) // self.batch_size, 1) for rows in self._rows_by_set(role)) for role in ROLES}
        if self.epochs_on == "harmful":
            return passes["harmful"]
        return max(passes.values()) if self.mode == "max_size_cycle" else min(passes.values())

    def replace_fit(self, role: Role, dataset: Dataset[Any]) -> None:
        """Train on something else than the images of `fit`, such as the cached outputs of a frozen trunk.

        Args:
            role: which data set.
            dataset: map-style with a length, of (tensor, label). A `TensorDataset` is read a batch at a time.
        """
        self._replaced[role] = dataset

    def go_on(self, epoch: int, step: int) -> None:
        """Begin an epoch at a step other than its first, for a training that was interrupted there."""
        self._done = (epoch, step)

    def _train_loader(self, role: Role) -> DataLoader[Any]:
        images, steps, rows = self._training_set(role), self.steps_per_epoch, self._rows_by_set(role)
        rank, world = _place()
        if self.batch_size % world or min(map(len, rows)) < world:
            raise DataError(
                f"objective.batch_size={self.batch_size} counts images over all processes and cannot be shared equally "
                f"by {world}; choose a multiple of {world}"
            )
        samplers = [
            StreamSampler(len(own), self.batch_size, steps, seed=self.seed, stream=stream, rank=rank, world=world)
            for stream, own in enumerate(rows, start=ROLES.index(role))
        ]
        sampler = samplers[0] if len(samplers) == 1 else JointSampler(samplers, rows)
        sampler.leave_out(*self._done)
        return stream_loader(images, sampler, workers=self.workers, pin_memory=self.pin_memory)

    def _rows_by_set(self, role: Role) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        """Indices of the training images of each data set that the role is made of."""
        images = self._training_set(role)
        classes = [part.n_classes for part in self.sources[role].parts.values()]
        if len(classes) == 1:
            return [np.arange(len(images), dtype=np.int64)]
        labels = images.tensors[1] if isinstance(images, TensorDataset) else images.labels
        numbers = set_numbers(labels.numpy(), classes)
        return [np.flatnonzero(numbers == number) for number in range(len(classes))]

    def _training_set(self, role: Role) -> Any:
        return self._replaced.get(role, self.splits(role).fit)


def _place() -> tuple[int, int]:
    """Number of this process and of all processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def without_aside(splits: ImageSplits, fraction: float, *, seed: int, role: Role) -> tuple[ImageSplits, ImageSet]:
    """The splits without the images that are set aside from `fit`, and these; see `immunize.data.pair.set_aside`."""
    stays, aside = set_aside(
        len(splits.fit), fraction, seed=seed, role=role, what=f"{len(splits.fit)} images of {splits.fit.what}"
    )
    return ImageSplits(splits.fit.take(stays), splits.held_out), splits.fit.take(aside)
