"""In which order images come: a stream of shuffled passes, the same in any number of processes.

Step t of an epoch is batch number ``epoch * steps + t`` of an endless stream: pass 0 of the data set in one random
order, pass 1 in another, and so on, each cut into batches of B and its incomplete rest dropped. So

- the shorter data set repeats until the longer one ends, in a new order each time (C.2 "cycles continuously");
- an epoch that ends with D_H goes on in the longer D_P where the last one stopped, and all of D_P is seen;
- a run that resumes at epoch e reads the same batches as one that was never interrupted;
- of each batch process r of w takes rows r, r + w, ...: w processes together see the batches that one alone would.

Of several harmful data sets a batch holds B images each, one set's after the other's, in an order of its own each.

Random augmentation is drawn from a state of its own for each image of each pass, so it too depends on neither the
number of processes nor that of the workers.

Shapes: N images, B batch size over all processes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from immunize.data.splits import random_generator

__all__ = ["BatchDataset", "Draw", "JointSampler", "StreamSampler", "stream_loader"]

ORDER_STREAM, AUGMENTATION_STREAM = 1, 2


class Draw(NamedTuple):
    """One batch: the number of the pass it belongs to (of several data sets: of the batch), and its rows."""

    number: int
    rows: list[int]


class StreamSampler(Sampler[Draw]):
    """The batches of one epoch, of one process.

    Args:
        n: number of images, N.
        batch_size: B, over all processes; a smaller data set is one batch, of the largest multiple of `world` in N.
        steps: batches an epoch.
        seed: of the orders.
        stream: tells data sets with the same seed apart.
        rank: number of this process.
        world: number of processes.

    Raises:
        ValueError: if B is no multiple of `world`, or N is smaller than that.
    """

    def __init__(
        self, n: int, batch_size: int, steps: int, *, seed: int, stream: int, rank: int = 0, world: int = 1
    ) -> None:
        if batch_size % world or n < world:
            raise ValueError(f"{n} images in batches of {batch_size} cannot be shared by {world} processes")
        self.n, self.steps, self.seed, self.stream, self.rank, self.world = n, steps, seed, stream, rank, world
        self.batch_size = min(batch_size, n - n % world)
        self.epoch = 0
        self.done = (0, 0)

    @property
    def batches_a_pass(self) -> int:
        """Whole batches in one pass over the data set."""
        return self.n // self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration reads; Lightning calls it."""
        self.epoch = epoch

    def leave_out(self, epoch: int, steps: int) -> None:
        """Begin one epoch after so many of its batches, which a training that goes on has seen already."""
        self.done = (epoch, steps)

    def __len__(self) -> int:
        return self.steps

    @property
    def first(self) -> int:
        """The number of the batch that the next iteration begins with, counted over all epochs."""
        return self.epoch * self.steps + (self.done[1] if self.epoch == self.done[0] else 0)

    def __iter__(self) -> Iterator[Draw]:
        order, current = np.empty(0, dtype=np.int64), -1
        for step in range(self.first, (self.epoch + 1) * self.steps):
            number, batch = divmod(step, self.batches_a_pass)
            if number != current:
                order = random_generator(self.seed, ORDER_STREAM, self.stream, number).permutation(self.n)
                current = number
            rows = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield Draw(number, rows[self.rank :: self.world].tolist())


class JointSampler(Sampler[Draw]):
    """Batches of several data sets that lie in one, at each step one of each.

    Args:
        samplers: the orders of each, with the same seed and number of steps.
        rows: where the rows of each lie in the whole, (N,) int64.
    """

    def __init__(self, samplers: Sequence[StreamSampler], rows: Sequence[np.ndarray[Any, np.dtype[np.int64]]]) -> None:
        self.samplers, self.rows = list(samplers), list(rows)
        self.seed, self.stream = samplers[0].seed, samplers[0].stream

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration reads; Lightning calls it."""
        for sampler in self.samplers:
            sampler.set_epoch(epoch)

    def leave_out(self, epoch: int, steps: int) -> None:
        """Begin one epoch after so many of its batches, which a training that goes on has seen already."""
        for sampler in self.samplers:
            sampler.leave_out(epoch, steps)

    def __len__(self) -> int:
        return len(self.samplers[0])

    def __iter__(self) -> Iterator[Draw]:
        for number, draws in enumerate(zip(*self.samplers, strict=True), start=self.samplers[0].first):
            own = [rows[draw.rows] for rows, draw in zip(self.rows, draws, strict=True)]
            yield Draw(number, np.concatenate(own).tolist())


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
            with _random_state(self.seed, AUGMENTATION_STREAM, self.stream, draw.number, row):
                items.append(self.images[row])
        return torch.stack([x for x, _ in items]), torch.tensor([int(y) for _, y in items])


def stream_loader(
    images: Dataset[Any], sampler: StreamSampler | JointSampler, *, workers: int = 0, pin_memory: bool = False
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
        collate_fn=_as_is,
        generator=torch.Generator().manual_seed(sampler.seed),
    )


@contextmanager
def _random_state(*entropy: int) -> Iterator[None]:
    """Seed what transforms draw from (torch, Python and numpy), and put the state of the program back afterwards."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    seeds = np.random.SeedSequence(entropy).generate_state(3)
    torch.default_generator.manual_seed(int(seeds[0]))
    random.seed(int(seeds[1]))
    np.random.seed(int(seeds[2]))  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002


def _as_is(batch: Any) -> Any:
    """Keep the tuple; the default would turn it into a list."""
    return batch
