"""Curves with a band around them, as a CSV beside the figure: one line a point, from which it can be drawn again."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from immunize.files import whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["read_bands", "write_bands"]

Band = TypeVar("Band", bound="DataclassInstance")

_ARRAYS = ("steps", "mean", "low", "high")
_POINT = ("step", "mean", "low", "high")
_READ: dict[str, Callable[[str], Any]] = {"bool": lambda text: text == "true", "int": int, "str": str}


def write_bands(kind: type[Band], bands: Sequence[Band], path: Path) -> None:
    """The numbers of a figure: what tells its curves apart, a column a field, and a point.

    Args:
        kind: a dataclass whose last fields are the arrays `steps`, `mean`, `low` and `high`, (T,) each; the others are
            `bool`, `int` or `str`.
        bands: instances of it.
        path: of the CSV.
    """
    labels = _labels(kind)
    with whole(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*labels, *_POINT])
        for band in bands:
            values = [getattr(band, name) for name in labels]
            texts = [str(value).lower() if isinstance(value, bool) else value for value in values]
            for step, *rest in zip(*(getattr(band, name) for name in _ARRAYS), strict=True):
                writer.writerow([*texts, int(step), *map(float, rest)])


def read_bands(kind: type[Band], path: Path) -> list[Band]:
    """What :func:`write_bands` wrote.

    Raises:
        ValueError: other columns, or a value that is not a number.
    """
    labels = _labels(kind)
    columns = (*labels, *_POINT)
    points: dict[tuple[Any, ...], list[list[float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != columns:
            raise ValueError(f"{path} needs the columns {', '.join(columns)}")
        for row in reader:
            key = tuple(read(row[name]) for name, read in labels.items())
            points.setdefault(key, []).append([float(row[name]) for name in _POINT])
    return [kind(*key, *np.array(values, dtype=np.float64).T) for key, values in points.items()]


def _labels(kind: type[Band]) -> dict[str, Callable[[str], Any]]:
    """The fields before the arrays, and how each is read."""
    return {field.name: _READ[str(field.type)] for field in fields(kind) if field.name not in _ARRAYS}
