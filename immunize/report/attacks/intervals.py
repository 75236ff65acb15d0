"""Differences to θ_0 and retention over seeds, with 95 % intervals. Imports no other room and no torch.

An attack record has for every seed a value and its standard error over the test rows. Seeds of one data set mostly
share these rows, so that what the rows are to blame for does not average out, and what the seeds add does:

    mean ± 1.96 sqrt(mean(error²) + var(values)/k)        var with k - 1; of one seed only its rows count
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, variance

from immunize.report.cells import NOTHING

__all__ = ["Interval", "interval_of", "interval_text"]

_CONFIDENCE = 1.96

Estimates = Mapping[str, Sequence[float | None]]
"""Two columns, "values" and "errors", one number a seed; None where θ_0 learns nothing."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and where it may lie.

    Attributes:
        mean: over the seeds that have a number.
        low: 2.5 % of all draws of seeds and rows lie below.
        high: and above.
    """

    mean: float
    low: float
    high: float


def interval_of(found: Estimates | None) -> Interval | None:
    """Over the seeds; None without a number, or of a record from before there were any."""
    pairs = [] if found is None else zip(found["values"], found["errors"], strict=True)
    known = [(value, error) for value, error in pairs if value is not None and error is not None]
    if not known:
        return None
    values = [value for value, _ in known]
    of_seeds = variance(values) / len(values) if len(values) > 1 else 0.0
    half = _CONFIDENCE * math.sqrt(mean(error**2 for _, error in known) + of_seeds)
    return Interval(mean(values), mean(values) - half, mean(values) + half)


def interval_text(found: Estimates | None) -> str:
    """Such as "0.47 (0.41 to 0.53)"."""
    interval = interval_of(found)
    if interval is None:
        return NOTHING
    return f"{interval.mean:z.2f} ({interval.low:z.2f} to {interval.high:z.2f})".replace("-", "−")
