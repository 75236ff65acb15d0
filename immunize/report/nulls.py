"""Null in a record, which has it for NaN and infinities alike (:func:`immunize.records.write_record`).

A κ is σ_1/σ_k > 0, so that null is an infinite one. (i), (ii) and RIR are quotients of such: ∞/∞ is NaN, every other
null is infinite. Overflow aside, in which σ_1 and σ_k themselves are infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["infinite", "with_infinities"]


def infinite(value: float | None) -> float:
    """A number that is never NaN, from a record."""
    return math.inf if value is None else float(value)


def with_infinities(numbers: Mapping[str, Any]) -> dict[str, float]:
    """(i), (ii) and RIR by one estimator, and the condition numbers behind them as far as the record has them."""
    found = {name: infinite(value) for name, value in numbers.items() if name.startswith("kappa_")}
    for side in ("harmful", "pretrain"):
        found[f"ratio_{side}"] = _quotient(numbers[f"ratio_{side}"], 1.0, found.get(f"kappa_{side}_baseline", 1.0))
    found["rir"] = _quotient(numbers["rir"], found["ratio_harmful"], found["ratio_pretrain"])
    return found


def _quotient(value: float | None, above: float, below: float) -> float:
    if value is None and (math.isnan(above) or not math.isfinite(below)):
        return math.nan
    return infinite(value)
