"""From numbers to places on an axis, and the ticks that tell them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["LINEAR", "LOG", "STEPS", "Axis", "Scale", "scale_of", "tick_text"]

LINEAR, LOG, STEPS = "linear", "log", "steps"
"""`steps` is a logarithm that has a place for step 0, left of step 1."""

_ZERO = 0.35
"""Decades between step 0 and step 1."""
_MOST_TICKS = 7
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    Attributes:
        label: with its unit.
        kind: one of `LINEAR`, `LOG`, `STEPS`.
        low: where it begins; None follows the numbers.
        high: where it ends; None follows the numbers.
    """

    label: str
    kind: str = LINEAR
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Scale:
    """An axis with its range; make it with :func:`scale_of`.

    Attributes:
        axis: what it shows.
        low: its first number.
        high: its last.
    """

    axis: Axis
    low: float
    high: float

    def share(self, value: float) -> float | None:
        """How far along the axis a number lies, from 0 to 1 for those in its range; None if it has no place."""
        place = _warped(value, self.axis.kind)
        if place is None:
            return None
        first, last = _warped(self.low, self.axis.kind), _warped(self.high, self.axis.kind)
        assert first is not None
        assert last is not None
        return (place - first) / (last - first)

    def ticks(self) -> list[float]:
        """Round numbers in the range, at most about seven."""
        if self.axis.kind == LINEAR:
            return _linear_ticks(self.low, self.high)
        positive = self.low if self.low > 0 else 1.0
        ticks = _log_ticks(positive, self.high)
        return [0.0, *ticks] if self.low == 0 else ticks


def scale_of(axis: Axis, values: Iterable[float]) -> Scale:
    """A range that holds every number that the axis has a place for, with some room around them."""
    found = [v for v in values if _warped(v, axis.kind) is not None]
    low = min(found, default=1.0 if axis.kind == LOG else 0.0) if axis.low is None else axis.low
    high = max(found, default=1.0) if axis.high is None else axis.high
    if axis.kind == LINEAR:
        room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
        return Scale(axis, low - room if axis.low is None else low, high + room if axis.high is None else high)
    if high <= low * 1.0001:
        high = max(low, 1.0) * 2
    if axis.kind == STEPS:
        return Scale(axis, low, high)
    room = (high / low) ** 0.04
    return Scale(axis, low / room if axis.low is None else low, high * room if axis.high is None else high)


def tick_text(value: float) -> str:
    """A tick's number: 10⁶ for powers of ten beyond the thousands."""
    if value > 0 and (value >= 1e4 or value <= 1e-3):
        exponent = math.floor(math.log10(value) + 1e-9)
        factor = value / 10.0**exponent
        power = "10" + str(exponent).translate(_SUPERSCRIPT)
        return power if abs(factor - 1) < 1e-9 else f"{factor:.3g}·{power}"
    return f"{value:,.10g}"


def _warped(value: float, kind: str) -> float | None:
    if not math.isfinite(value):
        return None
    if kind == LINEAR:
        return value
    if kind == STEPS and value < 1:
        return -_ZERO * (1 - value) if value >= 0 else None
    return math.log10(value) if value > 0 else None


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / (_MOST_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first >= 2:
        step = math.ceil((last - first + 1) / _MOST_TICKS)
        return [10.0**exponent for exponent in range(first, last + 1) if exponent % step == 0]
    fine = [f * 10.0**e for e in range(first - 1, last + 1) for f in (1, 2, 5)]
    found = [value for value in fine if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    return found if len(found) > 1 else [v for v in _linear_ticks(low, high) if v > 0]
