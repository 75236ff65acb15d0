"""What processes that share a batch (DDP) exchange so that every number is that of one process with the whole batch.

R_well, R_ill and κ are not sums over samples, so averaging the gradients of each process's own is wrong. Every process
therefore computes them from the features of the whole batch. DDP then averages what the W processes send back through
their own N/W rows, (1/W)Σ_r, where the chain rule has a plain sum: the gradient of gathered rows is multiplied by W.

Without a process group, or in a group of one, everything here is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable


def world_size() -> int:
    """Number of processes that share a batch, W."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def gather_rows(x: Tensor) -> Tensor:
    """The rows of all processes, in the order of their ranks.

    Args:
        x: (N/W, D), equally many rows in each process.

    Returns:
        (N, D); its gradient reaches the own rows W times as large, see the module's note.
    """
    return x if world_size() == 1 else _Gather.apply(x)


def in_order(x: Tensor) -> Tensor:
    """The rows of all processes as :func:`gather_rows`, in the order of the batch, of which each has every W-th row."""
    rows = gather_rows(x)
    return rows.reshape(world_size(), len(x), *x.shape[1:]).transpose(0, 1).reshape(rows.shape)


def own_of(numbers: Tensor) -> Tensor:
    """Where this process has those samples that have these numbers in the batch, (M,) int64; others have the rest."""
    ranks = world_size()
    rank = distributed.get_rank() if ranks > 1 else 0
    return numbers[numbers % ranks == rank] // ranks


def mean_of_all(values: Tensor, count: int) -> Tensor:
    """What DDP makes the mean over all processes' samples, of which this one's are `values` and there are `count`."""
    return values.sum() * (world_size() / count)


def mean_over_ranks(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The mean of each tensor over all processes, differentiable any number of times.

    Its backward pass is the same mean: DDP averages over processes once more, and only so is the sum over them right.
    """
    if world_size() == 1:
        return list(tensors)
    return [_Mean.apply(tensor) for tensor in tensors]


def all_finite(value: Tensor) -> bool:
    """Whether a scalar is finite in every process; all of them get the same answer."""
    finite = torch.isfinite(value.detach())
    if world_size() > 1:
        finite = finite.to(torch.int32)
        distributed.all_reduce(finite, op=distributed.ReduceOp.MIN)
    return bool(finite)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.rows = len(x)
        parts = [torch.empty_like(x) for _ in range(world_size())]
        distributed.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        start = distributed.get_rank() * ctx.rows
        return grad[start : start + ctx.rows] * world_size()


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.detach().clone()
        distributed.all_reduce(total)
        return total / world_size()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Mean.apply(grad)  # type: ignore[no-any-return]
