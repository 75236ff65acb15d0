"""What all attackers that train by mini-batches share: one learning rate and schedule on its way, and the batches.

Shapes: N samples, B batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from immunize.errors import UserError
from immunize.evaluation.attacks.scoring import Meter

__all__ = ["Candidate", "Optimizer", "batches", "check_training"]

Optimizer = Callable[..., torch.optim.Optimizer]
"""From parameters, or groups of them, and `lr` to an optimizer."""


def check_training(optimizer: Optimizer, learning_rates: Sequence[float]) -> None:
    """Refuse before any training what would end it.

    Raises:
        UserError: no learning rate, one that is not positive, or an optimizer that refuses its settings.
    """
    if not learning_rates or min(learning_rates) <= 0:
        raise UserError("the grid of learning rates has to hold at least one number, and positive ones")
    try:  # an optimizer looks at its settings when it gets its parameters
        optimizer([torch.nn.Parameter(torch.zeros(1))], lr=learning_rates[0])
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"optimizer: {error}") from error


class Candidate:
    """One learning rate and schedule on its way.

    Args:
        groups: its groups of an optimizer; their rates are those at the start.
        rate: what to call it by.
        length: steps of a cosine schedule; None keeps the rates.
        meter: notes where it stands.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], rate: float, length: int | None, meter: Meter) -> None:
        self.rate, self.length, self.meter, self.step = rate, length, meter, 0
        self._groups = [(group, group["lr"]) for group in groups]

    @property
    def best(self) -> float:
        """The best validation score so far."""
        return max((point.validation for point in self.meter.points), default=-math.inf)

    def set_rates(self) -> None:
        """To those of the next step."""
        if self.length is not None:
            left = 0.5 * (1 + math.cos(math.pi * self.step / self.length))
            for group, rate in self._groups:
                group["lr"] = rate * left


def batches(n_rows: int, size: int, seed: int) -> Iterator[Tensor | slice]:
    """Endless shuffled mini-batches; the incomplete last one of a pass is left out. All rows where they fit.

    Args:
        n_rows: N.
        size: B.
        seed: of the orders.
    """
    if size >= n_rows:
        return repeat(slice(None))
    return _shuffled(n_rows, size, torch.Generator().manual_seed(seed))


def _shuffled(n_rows: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    while True:
        order = torch.randperm(n_rows, generator=generator)
        yield from torch.split(order[: n_rows - n_rows % size], size)
