"""Traces of attacks, and the best that had been reached after so many steps.

The attacker chooses candidate and stopping time by its validation rows. So "best so far" after t steps is the point of
the best validation score among all candidates' first t steps, and its value is that point's test score, which may
therefore fall. An attacker who saves FLOPs chooses otherwise than one who saves steps: there is a curve for each of
`RESOURCES`. What was paid is what the chosen candidate had paid by then; tuning is counted apart.

What fine-tuning over many steps gets back of the task is told by numbers of a whole curve, not of its end. With s(t)
the best score after t steps, s_0 that from θ_0, c the score of the best constant answer and T the last step:

    retention at t      r(t) = (s(t) - c)/(s_0(T) - c)
    area                the mean of r over log t from 1 to T: 1 is θ_0 that is there at once, 0 is never
    steps to a share    the first t with r(t) ≥ .5 or .9
    fine-tuning deviation   1 - s(T)/s_0(T), the score that the attacker lacks in the end, relative to θ_0's

The last one is named after the extrinsic metric of the trap-inducing objective (openreview.net/forum?id=gfAn827WAW),
whose abstract gives no formula: this one is ours.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

LOOKS_PER_DECADE = 10
"""Steps at which a candidate is measured: a factor of 2 in steps spans three of them."""

FIRST_LAP = 10
"""The first lap of a race is this share of the steps, one in ten."""

RESOURCES = ("steps", "seconds", "samples", "flops")
"""Attributes of :class:`Cost`, in their order: what an attacker may want to save."""

ROUNDING = 1e-9
"""Scores are quotients of counts; 0.95 - 0.90 shall count as 5 points, and 0.72 as nine tenths of 0.8."""


@dataclass(frozen=True)
class Cost:
    """What an attacker paid.

    Attributes:
        steps: passes or mini-batches from which a gradient, a curvature product or a statistic was taken.
        seconds: wall time without measuring.
        samples: rows that went through the head, repetitions included.
        flops: multiplications and additions of matrix products and factorizations.
    """

    steps: int = 0
    seconds: float = 0.0
    samples: int = 0
    flops: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in RESOURCES))


@dataclass(frozen=True)
class Point:
    """A candidate at one moment.

    Attributes:
        cost: paid so far.
        validation: score on the attacker's own validation rows; accuracy, or R² for regression.
        test: score on rows it never saw.
        rows: (M,) what each of these adds to it, of mean `test`; None where only the score is known.
    """

    cost: Cost
    validation: float
    test: float
    rows: npt.NDArray[Any] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Trace:
    """One candidate of an attack.

    Attributes:
        label: what sets it apart, such as "lr 0.1, cosine".
        points: in ascending order of steps; empty if it never had a finite output.
        status: "finished" or "diverged"; what a diverging candidate had reached before counts.
        spent: everything it took, measured or not.
        steps: that it was to take; it may have ended before where no later look could have been chosen.
    """

    label: str
    points: tuple[Point, ...]
    status: str
    spent: Cost
    steps: int = 0

    def after(self, setup: Cost, prefix: str = "") -> Trace:
        """The same candidate when something had to be paid before its first step."""
        points = tuple(replace(point, cost=setup + point.cost) for point in self.points)
        steps = setup.steps + self.steps if self.steps else 0
        return replace(self, label=f"{prefix}{self.label}", points=points, spent=setup + self.spent, steps=steps)


@dataclass(frozen=True)
class Curve:
    """Best so far against one resource; a point where the choice changed.

    Attributes:
        points: ascending in the resource, strictly ascending in validation score.
        labels: of the chosen candidates.
        by: the resource, of `RESOURCES`.
    """

    points: tuple[Point, ...]
    labels: tuple[str, ...]
    by: str = "steps"

    @property
    def best(self) -> Point | None:
        """What is reached in the end; None if nothing was."""
        return self.points[-1] if self.points else None

    def cost_of(self, score: float) -> float | None:
        """How much of the resource it took until the test score was at least `score`; None if that never happened."""
        return next((getattr(point.cost, self.by) for point in self.points if point.test >= score - ROUNDING), None)

    def within(self, amount: float) -> Point | None:
        """Where the attacker stands who has less than so much of the resource; None if nothing was reached by then."""
        return next((p for p in reversed(self.points) if getattr(p.cost, self.by) < amount), None)

    def plain(self) -> dict[str, list[Any]]:
        """Columns, for a cell; test rows with the curve against steps alone, by which tiers are judged."""
        columns: dict[str, list[Any]] = {name: [getattr(of.cost, name) for of in self.points] for name in RESOURCES}
        columns |= {name: [getattr(of, name) for of in self.points] for name in ("validation", "test")}
        columns["label"] = list(self.labels)
        if self.by == "steps":
            columns["rows"] = [None if of.rows is None else packed(of.rows) for of in self.points]
        return columns

    @classmethod
    def of_plain(cls, columns: dict[str, list[Any]], by: str = "steps") -> Curve:
        """The curve that `plain` laid out."""
        rows_of = columns.get("rows", [None] * len(columns["test"]))
        numbers = zip(*(columns[name] for name in (*RESOURCES, "validation", "test")), strict=True)
        points = (
            Point(Cost(*costs), validation, test, unpacked(rows) if rows else None)
            for (*costs, validation, test), rows in zip(numbers, rows_of, strict=True)
        )
        return cls(tuple(points), tuple(columns["label"]), by)


def packed(rows: npt.NDArray[Any]) -> str:
    """What each test row adds to a score, as text for a cell: float32."""
    return base64.b64encode(zlib.compress(rows.astype("<f4").tobytes())).decode()


def unpacked(text: str) -> npt.NDArray[Any]:
    """What :func:`packed` packed."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<f4")


def best_validation(points: Iterable[Point]) -> float:
    """The best score of a candidate on the attacker's own rows; -inf where there is no point."""
    return max((point.validation for point in points), default=-math.inf)


def best_so_far(labelled: Iterable[tuple[str, Sequence[Point]]], by: str = "steps") -> Curve:
    """The curve of an attacker that has all these candidates at its disposal.

    Of equal validation scores the one counts that took less of the resource, then the one with fewer FLOPs.

    Args:
        labelled: label and points of each candidate.
        by: the resource that the attacker saves, of `RESOURCES`.
    """
    flat = [(point, label) for label, points in labelled for point in points]
    flat.sort(key=lambda item: (getattr(item[0].cost, by), -item[0].validation, item[0].cost.flops))
    points, labels, best = [], [], -math.inf
    for point, label in flat:
        if point.validation > best:
            best = point.validation
            points.append(point)
            labels.append(label)
    return Curve(tuple(points), tuple(labels), by)


def look_steps(last: int, per_decade: int = LOOKS_PER_DECADE) -> list[int]:
    """Steps at which to measure: so many a decade, of `LOOKS_PER_DECADE` all of the first few as well, and the last.

    Args:
        last: 1 or more.
        per_decade: fewer where measuring costs more than training.
    """
    decades = math.ceil(math.log10(last) * per_decade)
    spaced = {round(10 ** (index / per_decade)) for index in range(decades + 1)}
    first = {2, 3, 4} if per_decade == LOOKS_PER_DECADE else set()
    return sorted({step for step in spaced | first if step <= last} | {last})


SHARES = (0.5, 0.9)
"""Of θ_0's end that an attacker wants back."""


def horizon_of(curve: Curve, theta_0: Curve, constant: float, last: int) -> dict[str, Any] | None:
    """Numbers of a curve against steps, for a record; see the module's note.

    Args:
        curve: the attacker's.
        theta_0: the same attacker's, from θ_0.
        constant: c.
        last: T, more than 1.

    Returns:
        "last", T; "area" under the retention curve; "end", r(T); "deviation" of fine-tuning; "steps" to each of
        `SHARES`, None for never; "curve", (step, score) wherever the best score so far changed. None where θ_0 learns
        nothing, or the curve has no point up to T; later ones are left out.
    """
    kept = [point for point in curve.points if point.cost.steps <= last]
    if not kept or theta_0.best is None or not theta_0.best.test > constant or last < 2:
        return None
    learned = theta_0.best.test - constant
    points = [(max(1, point.cost.steps), (point.test - constant) / learned) for point in kept]
    ends = [*(steps for steps, _ in points[1:]), last]
    area = sum(r * math.log(end / start) for (start, r), end in zip(points, ends, strict=True)) / math.log(last)
    steps = [curve.cost_of(constant + share * learned) for share in SHARES]
    return {
        "last": last,
        "area": area,
        "end": points[-1][1],
        "deviation": 1 - kept[-1].test / theta_0.best.test,
        "steps": tuple(None if of is None or of > last else int(of) for of in steps),
        "curve": tuple((int(point.cost.steps), point.test) for point in kept),
    }
