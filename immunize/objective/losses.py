"""Supervised losses L of Table 4, by name; means over samples.

"mse" and "bce" take (scores (N,), targets (N,)); "ce" takes (logits (N, C), labels (N,)).
"""

from __future__ import annotations

import functools

from torch import Tensor
from torch.nn import functional

from immunize.objective.base import TaskLoss

__all__ = ["LOSSES", "divergence", "task_loss"]

LOSSES: dict[str, TaskLoss] = {
    "mse": functional.mse_loss,
    "bce": functional.binary_cross_entropy_with_logits,
    "ce": functional.cross_entropy,
}


def task_loss(name: str, label_smoothing: float = 0.0) -> TaskLoss:
    """Look a loss up.

    Args:
        name: one of `LOSSES`.
        label_smoothing: share of the target that "ce" spreads over all classes; the other losses know none.

    Raises:
        ValueError: unknown name, or smoothing outside [0, 1) or of another loss than "ce".
    """
    if name not in LOSSES:
        raise ValueError(f"unknown objective.loss {name!r}; there are {', '.join(LOSSES)}")
    if not label_smoothing:
        return LOSSES[name]
    if name != "ce" or not 0 <= label_smoothing < 1:
        raise ValueError(f"objective.label_smoothing={label_smoothing} has to be in [0, 1), and 0 but for loss=ce")
    return functools.partial(functional.cross_entropy, label_smoothing=label_smoothing)


def divergence(wanted: Tensor, found: Tensor) -> Tensor:
    """Mean over samples of KL(softmax(wanted) ‖ softmax(found)), logits (N, C): how far answers are from θ_0's."""
    known = wanted.log_softmax(1)
    return (known.exp() * (known - found.log_softmax(1))).sum(1).mean()
