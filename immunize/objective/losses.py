"""Supervised losses L of Table 4, by name: (logits (N,), targets (N,)) to a scalar mean over samples."""

from __future__ import annotations

from torch.nn import functional

from immunize.objective.base import TaskLoss

__all__ = ["LOSSES", "task_loss"]

LOSSES: dict[str, TaskLoss] = {"mse": functional.mse_loss, "bce": functional.binary_cross_entropy_with_logits}


def task_loss(name: str) -> TaskLoss:
    """Look a loss up.

    Raises:
        ValueError: unknown name.
    """
    if name not in LOSSES:
        raise ValueError(f"unknown objective.loss {name!r}; there are {', '.join(LOSSES)}")
    return LOSSES[name]
