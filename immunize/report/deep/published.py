"""Published numbers on deep networks: the paper's Table 3, and others' on the same pairs, from `published.csv`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from immunize.report.cells import NOTHING, short, with_spread
from immunize.report.conventions import RATIOS
from immunize.report.deep.settings import DeepSetting
from immunize.report.published import rows_of

__all__ = ["ACCURACY", "DeepPublished", "cell", "elsewhere", "read_deep_published"]

ACCURACY = "pretrain_accuracy"
PUBLISHED_COLUMNS = ("source", "architecture", "harmful", "method", "name", "quantity", "value", "std")


@dataclass(frozen=True)
class DeepPublished:
    """One published number on a deep network.

    Attributes:
        source: table or publication.
        architecture: timm's name.
        harmful: D_H as `conf/harmful` calls it.
        method: as `method` is called here; another name for a method that is not here.
        name: as its source calls it.
        quantity: `ratio_harmful`, `ratio_pretrain`, `rir` or `pretrain_accuracy` (percent).
        value: the number.
        std: what follows ±.
    """

    source: str
    architecture: str
    harmful: str
    method: str
    name: str
    quantity: str
    value: float
    std: float | None


def read_deep_published(path: Path) -> list[DeepPublished]:
    """The rows of Table 3's `published.csv`; none where the file is missing.

    Raises:
        ValueError: columns other than `PUBLISHED_COLUMNS`, or a value that is not a number.
    """
    return rows_of(path, PUBLISHED_COLUMNS, _published_row)


def cell(one: DeepSetting, method: str, quantity: str, published: Sequence[DeepPublished]) -> str:
    """The number of a method on the network and D_H of a setting, as text."""
    key = (one.architecture, one.harmful, method, quantity)
    for p in published:
        if (p.architecture, p.harmful, p.method, p.quantity) == key:
            return with_spread(p.value, p.std)
    return NOTHING


def elsewhere(one: DeepSetting, published: Sequence[DeepPublished]) -> list[str]:
    """What others report on this network and D_H by methods that are not here."""
    names = {"rir": "RIR", ACCURACY: "D_P accuracy in %", "ratio_harmful": "(i)", "ratio_pretrain": "(ii)"}
    by_source: dict[str, list[str]] = {}
    for p in published:
        if (p.architecture, p.harmful) == (one.architecture, one.harmful) and p.method not in one.runs.methods:
            by_source.setdefault(f"{p.name} ({p.source})", []).append(f"{names[p.quantity]} {short(p.value)}")
    return [
        f"Also published for {one.architecture} on {one.harmful}: {k}, {', '.join(v)}." for k, v in by_source.items()
    ]


def _published_row(row: dict[str, str]) -> DeepPublished:
    if row["quantity"] not in (*RATIOS, ACCURACY):
        raise ValueError(f"unknown quantity {row['quantity']!r}")
    return DeepPublished(
        source=row["source"],
        architecture=row["architecture"],
        harmful=row["harmful"],
        method=row["method"],
        name=row["name"],
        quantity=row["quantity"],
        value=float(row["value"]),
        std=float(row["std"]) if row["std"] else None,
    )
