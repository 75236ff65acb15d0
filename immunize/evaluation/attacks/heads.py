"""Heads that first-order attackers train on features: linear, linear behind BatchNorm, one hidden layer.

Shapes: D features, H hidden units, C outputs.
"""

from __future__ import annotations

import torch
from torch import nn

from immunize.errors import UserError

__all__ = ["HEADS", "flops_per_row", "new_head"]

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


def flops_per_row(kind: str, n_features: int, n_outputs: int, hidden: int) -> float:
    """Of one forward and backward pass; the gradient with respect to the features themselves is not needed."""
    if kind == "mlp":
        return 4.0 * n_features * hidden + 6.0 * hidden * n_outputs
    return (6.0 if kind == "batchnorm" else 4.0) * n_features * n_outputs
