"""The order of images: whole passes, the same in any number of processes and workers and after a resume."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from immunize.data.images.pair import Draw, StreamSampler, stream_loader


def sampler(n: int = 10, batch_size: int = 4, steps: int = 2, **options: int) -> StreamSampler:
    return StreamSampler(n, batch_size, steps, **{"seed": 0, "stream": 0} | options)


def epochs(found: StreamSampler, count: int) -> list[Draw]:
    draws = []
    for epoch in range(count):
        found.set_epoch(epoch)
        draws.extend(found)
        assert len(found) == found.steps
    return draws


class Noisy(Dataset[tuple[Tensor, int]]):
    """Item i is i plus what torch, Python and numpy draw, as an augmentation may."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.tensor([row, random.random(), np.random.rand(), float(torch.rand(()))]), row % 3  # noqa: NPY002


def batches(images: Dataset[Any], count: int = 1, workers: int = 0, **options: int) -> list[tuple[Tensor, Tensor]]:
    loader = stream_loader(images, sampler(12, 4, 3, **options), workers=workers)
    read = []
    for epoch in range(count):
        assert isinstance(loader.sampler, StreamSampler)
        loader.sampler.set_epoch(epoch)
        read.extend(loader)
    return read


def test_each_pass_holds_every_image_at_most_once_and_all_but_the_rest() -> None:
    draws = epochs(sampler(n=10, batch_size=4, steps=6), 5)
    passes: dict[int, list[int]] = {}
    for draw in draws:
        assert len(draw.rows) == 4
        passes.setdefault(draw.number, []).extend(draw.rows)
    assert list(passes) == list(range(15))
    assert all(len(rows) == len(set(rows)) == 8 for rows in passes.values())
    assert set().union(*passes.values()) == set(range(10))
    assert len({tuple(rows) for rows in passes.values()}) == 15  # a new order every time


def test_epochs_go_on_where_the_last_one_stopped_however_they_are_cut() -> None:
    assert epochs(sampler(steps=1), 12) == epochs(sampler(steps=3), 4) == epochs(sampler(steps=12), 1)


def test_epoch_depends_on_its_number_seed_and_stream_alone() -> None:
    again = sampler()
    again.set_epoch(3)
    assert list(again) == list(again) == epochs(sampler(), 4)[6:]
    assert list(sampler(seed=1)) != list(sampler()) != list(sampler(stream=1))


@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_the_batches_that_one_would_see(world: int) -> None:
    alone = epochs(sampler(n=11, batch_size=8), 3)
    ranks = [epochs(sampler(n=11, batch_size=8, rank=rank, world=world), 3) for rank in range(world)]
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert {len(part.rows) for part in parts} == {8 // world}
        assert sorted(row for part in parts for row in part.rows) == sorted(whole.rows)
        assert {part.number for part in parts} == {whole.number}


def test_data_set_smaller_than_a_batch_is_one_batch_of_equal_shares() -> None:
    assert sorted(next(iter(sampler(n=3, batch_size=8))).rows) == [0, 1, 2]
    shares = [next(iter(sampler(n=3, batch_size=8, rank=rank, world=2))).rows for rank in (0, 1)]
    assert [len(rows) for rows in shares] == [1, 1]


@pytest.mark.parametrize(("n", "batch_size", "world"), [(10, 5, 2), (1, 2, 2)])
def test_unequal_shares_are_refused(n: int, batch_size: int, world: int) -> None:
    with pytest.raises(ValueError, match="cannot be shared"):
        sampler(n, batch_size, world=world)


def test_augmentation_depends_on_image_and_pass_and_not_on_workers_or_processes() -> None:
    first, again, workers = batches(Noisy(), 2), batches(Noisy(), 2), batches(Noisy(), 2, workers=2)
    for (x, y), *others in zip(first, again, workers, strict=True):
        assert x.shape == (4, 4)
        assert y.dtype == torch.int64
        assert torch.equal(y, x[:, 0].long() % 3)
        assert all(torch.equal(x, other) and torch.equal(y, labels) for other, labels in others)
    rows = torch.cat([x for x, _ in first])
    for column in (1, 2, 3):
        assert len(rows[:, column].unique()) == 24  # 12 images in 2 passes
    shares = [batches(Noisy(), 2, rank=rank, world=2) for rank in (0, 1)]
    together = torch.cat([x for share in shares for x, _ in share])
    assert torch.equal(together[together[:, 1].argsort()], rows[rows[:, 1].argsort()])


def test_reading_leaves_the_random_state_of_the_program_alone() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    batches(Noisy())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # noqa: NPY002


def test_tensors_are_read_a_batch_at_a_time_in_the_same_order() -> None:
    features = TensorDataset(torch.arange(24.0).reshape(12, 2), torch.arange(12))
    for (x, y), (noisy, _) in zip(batches(features, 2), batches(Noisy(), 2), strict=True):
        assert torch.equal(y, noisy[:, 0].long())
        assert torch.equal(x, torch.stack([2.0 * y, 2.0 * y + 1], dim=1))
