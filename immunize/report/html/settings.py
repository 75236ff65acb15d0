"""Which settings a sweep compares, and what they are called: a method, and what else was varied about it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from immunize.report.naming import in_order, pair_title
from immunize.report.runs import flat_settings
from immunize.report.summary import groups_of

__all__ = ["Setting", "settings_of"]

_OF_DATA = ("pretrain.", "harmful.")
_APART = (*_OF_DATA, "experiment.", "logger.", "hydra.", "data_root")
"""Settings that say which data, or where things lie: never what a method is compared by."""


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
        return [record for record in self.runs if record["status"] == "finished"]

    def count_text(self) -> str:
        """How many runs: "5", or "3 + 2 diverged"."""
        counts = {status: sum(r["status"] == status for r in self.runs) for status in ("diverged", "interrupted")}
        return " + ".join([f"{len(self.finished):,}", *(f"{n:,} {status}" for status, n in counts.items() if n)])


def settings_of(records: Sequence[dict[str, Any]]) -> list[Setting]:
    """The settings in the order of the tables: by model, then by method.

    What runs of one method and model on one pair differ in becomes part of the name; seeds do not.
    """
    groups = groups_of(records)
    varied = _varied(groups)
    found: dict[tuple[str, str, tuple[str | None, ...]], dict[str, list[dict[str, Any]]]] = {}
    for group in groups:
        first = group[0]
        flat = flat_settings(first["config"])
        key = (*_kind(first), tuple(flat.get(name) for name in varied[_kind(first)]))
        found.setdefault(key, {}).setdefault(pair_title(first), []).extend(group)
    methods = in_order(method for _, method, _ in found)
    several = len({model for model, _, _ in found}) > 1
    settings = []
    for key in sorted(found, key=lambda key: (key[0], methods.index(key[1]), [_by_value(v) for v in key[2]])):
        model, method, values = key
        names = [name.removeprefix("objective.") for name in varied[model, method]]
        told = [method, *(f"{name}={_plain(value)}" for name, value in zip(names, values, strict=True))]
        settings.append(Setting(f"{model}: " * several + ", ".join(told), method, model, found[key]))
    return settings


def _kind(record: dict[str, Any]) -> tuple[str, str]:
    return record["model"], record["method"]


def _varied(groups: Sequence[Sequence[dict[str, Any]]]) -> dict[tuple[str, str], list[str]]:
    """Settings that differ between the runs of a model and method on one and the same pair."""
    by_pair: dict[tuple[tuple[str, str], str], list[dict[str, str]]] = defaultdict(list)
    for group in groups:
        flat = {k: v for k, v in flat_settings(group[0]["config"]).items() if not k.startswith(_APART)}
        by_pair[_kind(group[0]), pair_title(group[0])].append(flat)
    found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for (kind, _), flats in by_pair.items():
        keys = dict.fromkeys(key for flat in flats for key in flat)
        differing = [key for key in keys if len({flat.get(key) for flat in flats}) > 1]
        found[kind].update(dict.fromkeys(_without_twins(differing, flats)))
    return {kind: list(keys) for kind, keys in found.items()}


def _without_twins(keys: Sequence[str], flats: Sequence[dict[str, str]]) -> list[str]:
    """Settings that always change together with an earlier one say nothing more: a method repeats what its row has."""
    seen: dict[tuple[str | None, ...], str] = {}
    for key in sorted(keys, key=lambda k: (not k.startswith("objective."), k)):
        seen.setdefault(tuple(flat.get(key) for flat in flats), key)
    return list(seen.values())


def _by_value(text: str | None) -> tuple[int, float, str]:
    """Numbers by their size, before everything else."""
    value = None if text is None else json.loads(text)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, str(text)


def _plain(text: str | None) -> str:
    if text is None:
        return "none"
    value = json.loads(text)
    return f"{value:g}" if isinstance(value, float) else str(value)
