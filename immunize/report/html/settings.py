"""Which settings a sweep compares, and what they are called: a method, and what else was varied about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from immunize.report.naming import in_order, pair_title
from immunize.report.runs import held_out_text
from immunize.report.summary import groups_of
from immunize.report.varied import Varied

__all__ = ["Setting", "count_text", "finished", "settings_of"]


@dataclass(frozen=True)
class Setting:
    """A method with its settings, on every pair of data sets that it was run on.

    Attributes:
        name: unique in the sweep: the method, and what was varied about it.
        method: its name.
        model: that of all its runs.
        pairs: "D_P against D_H" to its runs, one a seed, of any status.
    """

    name: str
    method: str
    model: str
    pairs: dict[str, list[dict[str, Any]]]

    @property
    def runs(self) -> list[dict[str, Any]]:
        """All of them, of any status."""
        return [record for of in self.pairs.values() for record in of]

    @property
    def finished(self) -> list[dict[str, Any]]:
        """Those that have numbers."""
        return finished(self.runs)

    @property
    def measured_pairs(self) -> int:
        """On how many pairs of data sets there are numbers."""
        return sum(bool(finished(of)) for of in self.pairs.values())


def finished(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs that have numbers."""
    return [record for record in runs if record["status"] == "finished"]


def count_text(runs: Sequence[dict[str, Any]]) -> str:
    """How many runs: "5", or "3 + 2 diverged"."""
    counts = {status: sum(r["status"] == status for r in runs) for status in ("diverged", "interrupted")}
    return " + ".join([held_out_text(finished(runs)), *(f"{n:,} {status}" for status, n in counts.items() if n)])


def settings_of(records: Sequence[dict[str, Any]]) -> list[Setting]:
    """The settings in the order of the tables: by model, then by method.

    What runs of one method and model on one pair differ in becomes part of the name; seeds do not.
    """
    groups = groups_of(records)
    varied = Varied(groups)
    found: dict[tuple[str, str, tuple[str | None, ...]], dict[str, list[dict[str, Any]]]] = {}
    for group in groups:
        key = (group[0]["model"], group[0]["method"], varied.values_of(group[0]))
        found.setdefault(key, {}).setdefault(pair_title(group[0]), []).extend(group)
    methods = in_order(method for _, method, _ in found)
    settings = []
    for key in sorted(found, key=lambda key: (key[0], methods.index(key[1]), varied.in_order(key[2]))):
        first = next(iter(found[key].values()))[0]
        settings.append(Setting(varied.name_of(first), key[1], key[0], found[key]))
    return settings
