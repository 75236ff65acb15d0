"""The numbers of a record by where they were measured: kind, part of the data and estimator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "View", "part_name", "parts_of", "views_of"]

KINDS = {
    "groups": ("metrics_groups", "verdicts_groups", "groups"),
    "all": ("metrics", "verdicts", ""),
}
"""Kind to its keys in a record, of numbers and of verdicts, and to what is said of it: mean over small groups of rows,
which records of deep networks have, as in the paper's Table 3; and all rows of a part."""

_ORDER = ("fit", "held_out", "validation")


@dataclass(frozen=True, order=True)
class View:
    """Where a number was measured.

    Attributes:
        part: "fit", "held_out" or "validation".
        estimator: of κ.
        kind: of `KINDS`.
    """

    part: str
    estimator: str
    kind: str = "all"

    @property
    def key(self) -> str:
        """For attributes of HTML."""
        return f"{self.kind}-{self.part}-{self.estimator}"

    @property
    def where(self) -> str:
        """The part, and whether in groups, as a user reads it."""
        about = KINDS[self.kind][2]
        return part_name(self.part) + (f", {about}" if about else "")

    @property
    def title(self) -> str:
        """As a user reads it."""
        return f"{self.where}, {self.estimator}"

    def of(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The numbers of a record; None where it was not measured there."""
        found: dict[str, Any] | None = record.get(KINDS[self.kind][0], {}).get(self.part, {}).get(self.estimator)
        return found

    def verdicts(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Definition 3.1 by this estimator on this part; None where it was judged by another one, or not at all."""
        of = record.get(KINDS[self.kind][1])
        found: dict[str, Any] | None = of if of is None or self.part == "fit" else of.get(self.part)
        return found if found is not None and found["estimator"] == self.estimator else None


def views_of(records: Iterable[dict[str, Any]]) -> list[View]:
    """Every view that a record has, `fit` first, the estimators in the order of the records."""
    found: dict[View, None] = {}
    for record in records:
        for kind, (metrics, *_) in KINDS.items():
            for part, estimators in record.get(metrics, {}).items():
                found.update((View(part, estimator, kind), None) for estimator in estimators)
    return sorted(found, key=lambda view: _ORDER.index(view.part) if view.part in _ORDER else len(_ORDER))


def parts_of(record: dict[str, Any]) -> list[str]:
    """Parts of the data that were measured, `fit` first."""
    return list(dict.fromkeys(view.part for view in views_of([record])))


def part_name(part: str) -> str:
    """As a user reads it."""
    return part.replace("_", " ")
