"""Heads that first-order attackers train on features: linear, linear behind BatchNorm, one hidden layer.

Shapes: N samples, D features, H hidden units, C outputs, R heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from immunize.errors import UserError
from immunize.evaluation.attacks.factoring import Array
from immunize.evaluation.products import products

__all__ = ["HEADS", "flops_per_row", "new_head", "outputs_of", "quotient", "statistics"]

HEADS = ("linear", "batchnorm", "mlp")


def new_head(kind: str, n_features: int, n_outputs: int, hidden: int, seed: int) -> nn.Module:
    """A head at its start: linear layers behind features at zero, a hidden layer as PyTorch draws it.

    Args:
        kind: one of `HEADS`.
        n_features: D.
        n_outputs: C.
        hidden: H, of "mlp" alone.
        seed: of the hidden layer.

    Raises:
        UserError: an unknown kind.
    """
    if kind not in HEADS:
        raise UserError(f"unknown head {kind!r}; there are {', '.join(HEADS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last = nn.Linear(hidden if kind == "mlp" else n_features, n_outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if kind == "linear":
            return last
        if kind == "batchnorm":
            return nn.Sequential(nn.BatchNorm1d(n_features), last)
        return nn.Sequential(nn.Linear(n_features, hidden), nn.ReLU(), last)


def statistics(kind: str, n_features: int) -> nn.Module:
    """What a head does to features before any weight of its own: BatchNorm's statistics, or nothing.

    They depend on the rows seen so far and on no weight, so heads that see the same rows can share them.
    """
    return nn.BatchNorm1d(n_features, affine=False) if kind == "batchnorm" else nn.Identity()


def outputs_of(kind: str, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """Of R heads for the same rows, with one product of matrices where these meet the weights.

    Args:
        kind: one of `HEADS`.
        parameters: of `new_head`, in its order, those of all heads stacked: (R, ...).
        x: (N, D), as `statistics` leaves them.

    Returns:
        (R, C, N), which PyTorch's cross-entropy takes; what is not finite in one head stays in that head.
    """
    *first, weight, bias = parameters
    if kind == "mlp":
        hidden = products(x, first[0].flatten(0, 1), first[1].flatten())
        return torch.baddbmm(bias[:, :, None], weight, hidden.T.view(*first[1].shape, -1).relu())
    if kind == "batchnorm":  # (γ∘x + β)Wᵀ + b = x(γ∘W)ᵀ + (Wβ + b)
        gamma, beta = first
        weight, bias = weight * gamma[:, None], bias + (weight @ beta[:, :, None])[:, :, 0]
    return _affine(weight, bias, x)


def _affine(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """(R, O, D) and (R, O) on (N, D): (R, O, N)."""
    return torch.addmm(bias.reshape(-1, 1), weight.flatten(0, 1), x.T).view(*bias.shape, -1)


def quotient(x: Array, size: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """x/size, divided in float64 and rounded once, without a float64 copy of the rows."""
    found = torch.empty(x.shape, dtype=dtype)
    np.divide(x, size, out=found.numpy(), casting="same_kind")
    return found


def flops_per_row(kind: str, n_features: int, n_outputs: int, hidden: int) -> float:
    """Of one forward and backward pass; the gradient with respect to the features themselves is not needed."""
    if kind == "mlp":
        return 4.0 * n_features * hidden + 6.0 * hidden * n_outputs
    return (6.0 if kind == "batchnorm" else 4.0) * n_features * n_outputs
