"""Loaders over rows that lie in memory: whole data set at once, or shuffled mini-batches (Alg. 1, line 2).

A sampler hands the data set the indices of a whole batch, so a batch costs one indexing operation and there is nothing
to collate row by row. All of it runs in the main process: a worker would have to copy what is already in memory.

Shapes: N samples, B batch size, D features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset

from immunize.data.parts import Part

__all__ = ["WholeSampler", "batch_loader", "whole_loader"]


class WholeSampler(Sampler[slice]):
    """Asks for all rows at once, a given number of times.

    A slice and not a list of indices: indexing with it gives views, so that a full batch copies nothing.

    Args:
        passes: how many times.
    """

    def __init__(self, passes: int) -> None:
        self.passes = passes

    def __iter__(self) -> Iterator[slice]:
        return iter([slice(None)] * self.passes)

    def __len__(self) -> int:
        return self.passes


def whole_loader(part: Part, passes: int) -> DataLoader[Any]:
    """All rows as one batch, `passes` times.

    Args:
        part: (N, D) and (N,).
        passes: number of batches.

    Returns:
        a loader of tuples (x, y), (N, D) and (N,) views of the part; do not write into them.
    """
    return _loader(part, WholeSampler(passes), torch.Generator())


def batch_loader(part: Part, batch_size: int, seed: int) -> DataLoader[Any]:
    """Shuffled mini-batches, one pass.

    The incomplete last batch is dropped, except where it is the only one: few rows make a noisy spectrum.

    Args:
        part: (N, D) and (N,).
        batch_size: B.
        seed: of the order, which differs from pass to pass but not from loader to loader.

    Returns:
        a loader of tuples (x, y), (B, D) and (B,).
    """
    generator = torch.Generator().manual_seed(seed)
    order = RandomSampler(range(len(part)), generator=generator)
    drop_last = len(part) >= batch_size
    # The loader draws a number of its own on every pass; without a second generator it would take it from the global
    # state and thereby change every random number of the run that is drawn later.
    own = torch.Generator().manual_seed(seed)
    return _loader(part, BatchSampler(order, batch_size, drop_last), own)


def _loader(part: Part, sampler: Sampler[Any], generator: torch.Generator) -> DataLoader[Any]:
    return DataLoader(
        TensorDataset(part.x, part.y), sampler=sampler, batch_size=None, collate_fn=_as_is, generator=generator
    )


def _as_is(batch: Any) -> Any:
    """Keep the tuple; the default would turn it into a list."""
    return batch
