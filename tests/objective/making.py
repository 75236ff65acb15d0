"""Rows, tasks and trials that the tests of the label-aware method share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from immunize.objective.attacker_cost import (
    Cost,
    ProbeTask,
)
from immunize.objective.signal_choice import SignalTrial
from tests import reference as ref
from tests.reference import rows

D = 6


def regression(seed: int = 1) -> ProbeTask:
    """Of an odd seed every direction has an equal part in y, whatever its variance."""
    x, test, w = rows(seed), rows(seed + 2), torch.logspace(0, 1, D, dtype=torch.float64)
    return ProbeTask(x, x @ w, test, test @ w)


def classification(seed: int = 1, labels: int = 9, dtype: torch.dtype = torch.float64) -> ProbeTask:
    """Three classes, the largest of three random directions each."""
    w = ref.gaussian(D, 3, seed=labels)
    x, test = rows(seed), rows(seed + 2)
    return ProbeTask(x.to(dtype), (x @ w).argmax(1), test.to(dtype), (test @ w).argmax(1))


def part(seed: int, y: Tensor | None = None) -> Any:
    """One side of a pair: rows with the given labels, or a regression on one direction."""
    x = rows(seed)
    return SimpleNamespace(x=x, y=x @ ref.gaussian(D, seed=seed + 50) if y is None else y)


def trial(times: float, feasible: bool = True, **changes: Any) -> SignalTrial:
    """A measured setting; D_H costs so many times the raw features' steps."""
    values = {"gamma": 0.0, "budget": 1.0, "sharpness": 1.0, "ratio_pretrain": 0.5, "spared": {"D_P": -0.1}} | changes
    return SignalTrial(**values, ratio_harmful=1.0, harmful=Cost(1, 1, True, True, 1.0), times=times, feasible=feasible)
