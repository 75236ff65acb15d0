"""D_P and D_H side by side as images: the LightningDataModule of every run with a deep network (§5.2, C.1, C.2).

Each training batch is ``{"pretrain": (x, y), "harmful": (x, y)}``. Where D_H is several data sets, B images of each are
in it, and their labels say which are whose. How long an epoch is: one pass of D_H (of the largest of several), which is
how Table 4 counts them (C.2), or, as for linear models, what CombinedLoader's mode says. The orders
depend on the seed, the epoch and the role, and on nothing else.

In which order images come: step t of an epoch is batch number ``epoch * steps + t`` of an endless stream: pass 0 of the
data set in one random order, pass 1 in another, and so on, each cut into batches of B and its incomplete rest dropped.
So

- the shorter data set repeats until the longer one ends, in a new order each time (C.2 "cycles continuously");
- an epoch that ends with D_H goes on in the longer D_P where the last one stopped, and all of D_P is seen;
- a run that resumes at epoch e reads the same batches as one that was never interrupted;
- of each batch process r of w takes rows r, r + w, ...: w processes together see the batches that one alone would.

Of several harmful data sets a batch holds B images each, one set's after the other's, in an order of its own each.

Random augmentation is drawn from a state of its own for each image of each pass, so it too depends on neither the
number of processes nor that of the workers.

Shapes: N images, B batch size over all processes, C classes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from immunize.data.images.image_set import ImageSet, ImageSplits, Transform
from immunize.data.images.source import as_image_source, rows_of_sets
from immunize.data.pair import Pair, Rows, set_aside
from immunize.data.splits import ROLES, Role, random_generator
from immunize.errors import DataError

ORDER_STREAM, AUGMENTATION_STREAM = 1, 2

Place = tuple[int, int]


class Draw(NamedTuple):
    """One batch: the number of the pass it belongs to (of several data sets: of the batch), and its rows."""

    number: int
    rows: list[int]


class StreamSampler(DistributedSampler[Draw]):
    """The batches of one epoch, of one process; of several data sets that lie in one, at each step a batch of each.

    A `DistributedSampler` by name, so that any Lightning Trainer leaves it in place.

    Args:
        sets: where the rows of each data set lie in the whole, N whole numbers each.
        batch_size: B, over all processes, a multiple of their number; a smaller data set, of an image for each or more,
            is one batch, of the largest such multiple in N.
        steps: batches an epoch.
        seed: of the orders.
        stream: tells data sets with the same seed apart; that of the first set, the others count on.
        place: number of this process, and of all processes.
    """

    def __init__(
        self, sets: Sequence[Any], batch_size: int, steps: int, *, seed: int, stream: int, place: Place = (0, 1)
    ) -> None:
        self.sets: list[Rows] = [np.asarray(rows, dtype=np.int64) for rows in sets]
        self.steps, self.seed, self.stream, (self.rank, self.world) = steps, seed, stream, place
        self.sizes = [min(batch_size, len(rows) - len(rows) % self.world) for rows in self.sets]
        self.epoch = 0
        self.done = (0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration reads; Lightning calls it."""
        self.epoch = epoch

    def leave_out(self, epoch: int, steps: int) -> None:
        """Begin with this epoch, after so many of its batches, which a training that goes on has seen already.

        Lightning calls `set_epoch` only once a loader with workers has asked for its first batches.
        """
        self.epoch, self.done = epoch, (epoch, steps)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Draw]:
        first = self.epoch * self.steps + (self.done[1] if self.epoch == self.done[0] else 0)
        order, current = [np.empty(0, dtype=np.int64)] * len(self.sets), [-1] * len(self.sets)
        for step in range(first, (self.epoch + 1) * self.steps):
            drawn: list[int] = []
            for which, (rows, size) in enumerate(zip(self.sets, self.sizes, strict=True)):
                number, batch = divmod(step, len(rows) // size)
                if number != current[which]:
                    generator = random_generator(self.seed, ORDER_STREAM, self.stream + which, number)
                    order[which], current[which] = generator.permutation(len(rows)), number
                of_all = order[which][batch * size : (batch + 1) * size]
                drawn += rows[of_all[self.rank :: self.world]].tolist()
            yield Draw(number if len(self.sets) == 1 else step, drawn)


class BatchDataset(Dataset[tuple[Tensor, Tensor]]):
    """Whole batches of a data set: `batches[draw]` is ``(x, y)``, (B, ...) and (B,) int64.

    Args:
        images: any map-style data set of (tensor, label).
        seed: of the random augmentation.
        stream: tells data sets with the same seed apart.
    """

    def __init__(self, images: Dataset[Any], seed: int, stream: int) -> None:
        self.images, self.seed, self.stream = images, seed, stream

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        if isinstance(self.images, TensorDataset):  # cached features: nothing random, and one indexing operation
            x, y = self.images[torch.tensor(draw.rows)]
            return x, y
        items = []
        for row in draw.rows:
            entropy = self.seed, AUGMENTATION_STREAM, self.stream, draw.number, row
            with random_state(*np.random.SeedSequence(entropy).generate_state(3).tolist()):
                items.append(self.images[row])
        return torch.stack([x for x, _ in items]), torch.tensor([int(y) for _, y in items])


def stream_loader(
    images: Dataset[Any], sampler: StreamSampler, *, workers: int = 0, pin_memory: bool = False
) -> DataLoader[tuple[Tensor, Tensor]]:
    """A loader of the sampler's batches.

    Args:
        images: any map-style data set of (tensor, label).
        sampler: their order.
        workers: processes that decode; 0: this one. They stay alive between epochs.
        pin_memory: for faster copies to a GPU.
    """
    # The loader draws a number of its own on every epoch; without a generator it would take it from the global state.
    return DataLoader(
        BatchDataset(images, sampler.seed, sampler.stream),
        sampler=sampler,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=pin_memory,
        generator=torch.Generator().manual_seed(sampler.seed),
    )


@contextmanager
def random_state(of_torch: int, of_python: int, of_numpy: int) -> Iterator[None]:
    """Seed what transforms draw from, on the CPU, and put the state of the program back afterwards."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    torch.default_generator.manual_seed(of_torch)
    random.seed(of_python)
    np.random.seed(of_numpy)  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002


class ImagePair(Pair):
    """Both image data sets of an experiment, checked, hashed and batched.

    Args:
        pretrain: D_P; an image source, or one that has images too.
        harmful: D_H.
        batch_size: B, images of each data set in a mini-batch over all processes.
        mode: CombinedLoader's mode; decides about the length of an epoch if `epochs_on` is "longest".
        epochs_on: what an epoch is: "harmful", one pass of D_H, or "longest", what `mode` says: of the longer data set,
            or of the shorter one.
        transform_fit: from a PIL image, mode RGB, to (3, H, W) float32, for training; None: pixels / 255.
        transform_eval: the same for everything that is measured.
        validation_fraction: share of the fit images of each data set that is set aside, 0 to 0.9.
        workers: processes a data set that decode images; 0: the main one.
        pin_memory: for faster copies to a GPU.
        seed: of the validation split, of the orders and of random augmentation.

    Raises:
        DataError: a source without images.
    """

    batch_size: int

    def __init__(
        self,
        pretrain: Any,
        harmful: Any,
        *,
        batch_size: int,
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
        self.epochs_on = epochs_on
        self.transform_fit, self.transform_eval = transform_fit, transform_eval
        self.workers, self.pin_memory = workers, pin_memory
        self._replaced: dict[Role, TensorDataset] = {}
        self._done = (0, 0)

    def setup(self, stage: str | None = None) -> None:
        """Find both data sets, leave unreadable images out, set validation images aside; nothing the second time.

        Args:
            stage: ignored: every stage needs the same images.

        Raises:
            MissingDataError: if a data set is not there.
            DataError: if one cannot be used, or D_P and D_H are the same images.
        """
        _ = self.data_hash, self._read

    @cached_property
    def _read(self) -> dict[Role, tuple[ImageSplits, ImageSet | None]]:
        """The splits of both data sets, and the images set aside from `fit`, through `transform_eval`."""
        for name, part in self.sources["harmful"].parts.items():
            if part.digests == self.sources["pretrain"].digests:
                raise DataError(
                    f"D_P and D_H are the same images ({name}), which cannot be easy and hard to learn at once; "
                    f"choose another data set for D_P: pretrain=<name>"
                )
        splits = {role: self.sources[role].splits(self.transform_fit, self.transform_eval) for role in ROLES}
        self._check_sizes({role: len(of.fit) for role, of in splits.items()})
        found: dict[Role, tuple[ImageSplits, ImageSet | None]] = {role: (of, None) for role, of in splits.items()}
        if self.validation_fraction > 0:
            for role, of in splits.items():
                stays, aside = without_aside(of, self.validation_fraction, seed=self.seed, role=role)
                found[role] = stays, aside.with_transform(self.transform_eval)
        return found

    def splits(self, role: Role) -> ImageSplits:
        """`fit` without validation images, through `transform_fit`; `held_out`, through the other."""
        return self._read[role][0]

    def measured(self, role: Role, selection: str | None = None) -> ImageSplits:
        """The same images, both splits through `transform_eval`: what features are extracted from.

        Args:
            role: whose.
            selection: "validation" puts the images set aside from `fit`, if there are any, in the place of `held_out`.
        """
        splits = self.splits(role).with_transforms(self.transform_eval, self.transform_eval)
        aside = None if selection is None else self.validation(role)
        return splits if aside is None else splits._replace(held_out=aside)

    def validation(self, role: Role) -> ImageSet | None:
        """Images set aside from `fit`, through `transform_eval`; None for a fraction of 0."""
        return self._read[role][1]

    def n_classes(self, role: Role) -> int:
        """C of one data set."""
        return int(self.sources[role].n_classes)

    @property
    def harmful_sets(self) -> dict[str, int]:
        """The data sets that D_H is made of, mostly one, and C of each."""
        parts = self.sources["harmful"].parts
        return {name: part.n_classes for name, part in parts.items()}

    @property
    def data_hash(self) -> str:
        """SHA-256 of both data sets' `file_hash`."""
        return hashlib.sha256("/".join(self.sources[role].file_hash() for role in ROLES).encode()).hexdigest()

    @property
    def steps_per_epoch(self) -> int:
        """Batches an epoch."""
        passes = {role: max(max(len(rows) // self.batch_size, 1) for rows in self.rows_by_set(role)) for role in ROLES}
        if self.epochs_on == "harmful":
            return passes["harmful"]
        return max(passes.values()) if self.mode == "max_size_cycle" else min(passes.values())

    def replace_fit(self, role: Role, dataset: TensorDataset) -> None:
        """Train on something else than the images of `fit`, such as the cached outputs of a frozen trunk.

        Args:
            role: which data set.
            dataset: of (tensor, label); it is read a batch at a time.
        """
        self._replaced[role] = dataset

    def go_on(self, epoch: int, step: int) -> None:
        """Begin an epoch at a step other than its first, for a training that was interrupted there."""
        self._done = (epoch, step)

    def _train_loader(self, role: Role) -> DataLoader[Any]:
        images, steps, rows = self._training_set(role), self.steps_per_epoch, self.rows_by_set(role)
        place = _place()
        if self.batch_size % place[1] or min(map(len, rows)) < place[1]:
            raise DataError(
                f"objective.batch_size={self.batch_size} counts images over all processes and cannot be shared equally "
                f"by {place[1]}; choose a multiple of {place[1]}"
            )
        stream = ROLES.index(role)
        sampler = StreamSampler(rows, self.batch_size, steps, seed=self.seed, stream=stream, place=place)
        sampler.leave_out(*self._done)
        return stream_loader(images, sampler, workers=self.workers, pin_memory=self.pin_memory)

    def labels(self, role: Role) -> Tensor:
        """Of the training images, (N,) int64."""
        images = self._training_set(role)
        found: Tensor = images.tensors[1] if isinstance(images, TensorDataset) else images.labels
        return found

    def rows_by_set(self, role: Role) -> list[Rows]:
        """Indices of the training images of each data set that the role is made of."""
        classes = [part.n_classes for part in self.sources[role].parts.values()]
        return rows_of_sets(self.labels(role).numpy(), classes)

    def _training_set(self, role: Role) -> Any:
        return self._replaced.get(role, self.splits(role).fit)


def _place() -> Place:
    """Number of this process and of all processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def without_aside(
    splits: ImageSplits, validation_fraction: float, *, seed: int, role: Role
) -> tuple[ImageSplits, ImageSet]:
    """The splits without the images that are set aside from `fit`, and these; see `immunize.data.pair.set_aside`."""
    what = f"{len(splits.fit)} images of {splits.fit.what}"
    stays, aside = set_aside(len(splits.fit), validation_fraction, seed=seed, role=role, what=what)
    return ImageSplits(splits.fit.take(stays), splits.held_out), splits.fit.take(aside)
