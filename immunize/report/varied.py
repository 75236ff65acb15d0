"""What was varied in a sweep about a method on the same data, and how a table names it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from immunize.records import whole_config
from immunize.report.naming import pair_title
from immunize.report.runs import flat_settings

__all__ = ["Varied"]

_APART = ("pretrain.", "harmful.", "experiment.", "logger.", "hydra.", "data_root")
"""Settings that say which data, or where things lie: never what a method is compared by."""


class Varied:
    """The settings that differ between the runs of a model and method on one and the same pair of data sets.

    Args:
        groups: of records; those of one group differ in nothing that is compared.
    """

    def __init__(self, groups: Sequence[Sequence[dict[str, Any]]]) -> None:
        by_pair: dict[tuple[tuple[str, str], str], list[dict[str, str]]] = defaultdict(list)
        for group in groups:
            flat = {k: v for k, v in flat_settings(whole_config(group[0])).items() if not k.startswith(_APART)}
            by_pair[_kind(group[0]), pair_title(group[0])].append(flat)
        found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for (kind, _), flats in by_pair.items():
            keys = dict.fromkeys(key for flat in flats for key in flat)
            differing = [key for key in keys if len({flat.get(key) for flat in flats}) > 1]
            found[kind].update(dict.fromkeys(_without_twins(differing, flats)))
        self._keys = {kind: list(keys) for kind, keys in found.items()}
        self._several_models = len({model for model, _ in self._keys}) > 1

    def values_of(self, record: dict[str, Any]) -> tuple[str | None, ...]:
        """The values of what was varied about the method of a record, as JSON; None where it lacks one."""
        flat = flat_settings(whole_config(record))
        return tuple(flat.get(name) for name in self._keys[_kind(record)])

    def name_of(self, record: dict[str, Any]) -> str:
        """The method of a record with what was varied about it, behind the model where there are several."""
        names = [name.removeprefix("objective.") for name in self._keys[_kind(record)]]
        told = (f"{name}={_plain(value)}" for name, value in zip(names, self.values_of(record), strict=True))
        return f"{record['model']}: " * self._several_models + ", ".join([record["method"], *told])

    @staticmethod
    def in_order(values: tuple[str | None, ...]) -> list[tuple[int, float, str]]:
        """A key that sorts values: numbers by their size, before everything else."""
        return [_by_value(value) for value in values]


def _kind(record: dict[str, Any]) -> tuple[str, str]:
    return record["model"], record["method"]


def _without_twins(keys: Sequence[str], flats: Sequence[dict[str, str]]) -> list[str]:
    """Settings that always change together with an earlier one say nothing more: a method repeats what its row has."""
    seen: dict[tuple[str | None, ...], str] = {}
    for key in sorted(keys, key=lambda k: (not k.startswith("objective."), k)):
        seen.setdefault(tuple(flat.get(key) for flat in flats), key)
    return list(seen.values())


def _by_value(text: str | None) -> tuple[int, float, str]:
    value = None if text is None else json.loads(text)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, str(text)


def _plain(text: str | None) -> str:
    if text is None:
        return "none"
    value = json.loads(text)
    return f"{value:g}" if isinstance(value, float) else str(value)
