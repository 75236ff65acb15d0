"""Processes that share a batch: rows of all, means over all, and their gradients."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from immunize.objective import ranks
from tests import reference as ref


class Group:
    """`torch.distributed` of rank 1 of 3, where the others have made zeros."""

    ReduceOp = SimpleNamespace(MIN="min", SUM="sum")

    def __init__(self, others: float = 0.0) -> None:
        self.others, self.reduced = others, []

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return 3

    def get_rank(self) -> int:
        return 1

    def all_gather(self, parts: list[Tensor], own: Tensor) -> None:
        for index, part in enumerate(parts):
            part.copy_(own if index == 1 else torch.full_like(own, self.others))

    def all_reduce(self, value: Tensor, op: str = "sum") -> None:
        self.reduced.append(value.clone())
        if op == "min":
            value.copy_(torch.minimum(value, torch.full_like(value, self.others)))
        else:
            value.add_(2 * self.others)


def test_one_process_shares_with_nobody() -> None:
    x = torch.ones(2, 3)
    assert ranks.world_size() == 1
    assert ranks.gather_rows(x) is x
    (mean,) = ranks.mean_over_ranks([x])
    assert mean is x
    assert ranks.all_finite(torch.tensor(1.0))
    assert not ranks.all_finite(torch.tensor(math.nan))


def test_rows_of_all_processes_in_order_and_a_gradient_times_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "distributed", Group(7.0))
    assert ranks.world_size() == 3
    x = ref.gaussian(2, 3, seed=1).requires_grad_()
    whole = ranks.gather_rows(x)
    assert torch.equal(whole, torch.cat([torch.full((2, 3), 7.0).double(), x, torch.full((2, 3), 7.0).double()]))
    weights = ref.gaussian(6, 3, seed=2)
    (slope,) = torch.autograd.grad((whole * weights).sum(), x)
    assert torch.equal(slope, 3 * weights[2:4])


@pytest.mark.parametrize("size", [2, 3])
def test_every_process_has_every_so_manieth_sample_of_the_batch(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "get_world_size", lambda self: size)
    monkeypatch.setattr(ranks, "distributed", Group())
    assert ranks.own_of(torch.tensor([1, 2, 7, 9])).tolist() == {2: [0, 3, 4], 3: [0, 2]}[size]


def test_a_mean_over_processes_and_its_derivatives_are_means(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(4.0)
    monkeypatch.setattr(ranks, "distributed", group)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (mean,) = ranks.mean_over_ranks([x])
    assert mean.tolist() == pytest.approx([3.0, 10 / 3])
    (slope,) = torch.autograd.grad((mean**2).sum(), x, create_graph=True)
    assert slope.tolist() == pytest.approx([(6 + 8) / 3, (20 / 3 + 8) / 3])
    (second,) = torch.autograd.grad(slope[0], x)
    assert second.tolist() == pytest.approx([14 / 3, 40 / 9])
    assert len(group.reduced) >= 3


@pytest.mark.parametrize(("others", "value", "finite"), [(1, 2.0, True), (0, 2.0, False), (1, math.nan, False)])
def test_a_value_is_finite_where_it_is_in_every_process(
    others: int, value: float, finite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "distributed", Group(others))
    assert ranks.all_finite(torch.tensor(value, requires_grad=True)) is finite


@pytest.mark.parametrize("missing", ["is_available", "is_initialized"])
def test_without_a_process_group_there_is_one_process(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    monkeypatch.setattr(group, missing, lambda: False)
    monkeypatch.setattr(ranks, "distributed", group)
    assert ranks.world_size() == 1
