"""Published numbers, from `published.csv`, and what differs from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from immunize.report.naming import RATIO_NAMES, RATIOS
from immunize.report.runs import Runs
from immunize.report.table import NOTHING, short, summary_of, with_spread

ACCURACY = "pretrain_accuracy"
THETA_0 = "theta_0"
"""What a published row of no method at all, "Init. θ_0", has for one."""
_ALL = ("source", "method", "name", "quantity", "value", "std")
_QUANTITIES = (*RATIOS, ACCURACY, "log_rir", "failed_pairs")
_JUDGED = ("rir", "ratio_pretrain")
_OWN = (("pretrain_digit", "harmful_digit"), ("architecture", "harmful"))
"""Further columns of tables of linear models, and of networks."""


@dataclass(frozen=True)
class Published:
    """One published number.

    Attributes:
        source: the table, figure, section or publication it stands in.
        method: as `method` is called here; another name for a method that is not here.
        name: as its source calls it.
        quantity: `ratio_harmful` (i), `ratio_pretrain` (ii), `rir`, `log_rir` of a pair, `failed_pairs`, or
            `pretrain_accuracy` (percent).
        pair: "3→8", or empty for a number over all data; network and D_H, "vit→cars", for a number on a network.
        value: the number.
        std: what follows ±.
    """

    source: str
    method: str
    name: str
    quantity: str
    pair: str
    value: float
    std: float | None


Compared = tuple[str, Sequence[Published], Sequence[float], bool, bool]
"""A method, its published RIR and (ii), ours, and whether it succeeds there, and here."""


class Publications(list[Published]):
    """What a `published.csv` holds."""

    @property
    def sources(self) -> str:
        """Where the ratios stand."""
        return ", ".join(dict.fromkeys(one.source for one in self if one.quantity in RATIOS))

    def find(self, method: str, quantity: str, pair: str = "") -> Published | None:
        """The number of a method over all data, or on a pair; None where nothing was published."""
        return next((p for p in self if (p.method, p.quantity, p.pair) == (method, quantity, pair)), None)

    def cell(self, method: str, quantity: str, pair: str = "") -> str:
        """The same as text."""
        found = self.find(method, quantity, pair)
        return NOTHING if found is None else with_spread(found.value, found.std)

    def elsewhere(self, runs: Runs) -> list[str]:
        """What others report on this network and D_H by methods that are not here."""
        names = RATIO_NAMES | {ACCURACY: "D_P accuracy in %"}
        by_source: dict[str, list[str]] = {}
        for p in self:
            if p.pair == network_pair(runs) and p.method not in (THETA_0, *runs.methods):
                by_source.setdefault(f"{p.name} ({p.source})", []).append(f"{names[p.quantity]} {short(p.value)}")
        where = " on ".join(network_pair(runs).split("→"))
        return [f"Also published for {where}: {source}, {', '.join(told)}." for source, told in by_source.items()]

    def compared(self, runs: Runs) -> list[Compared]:
        """Of every method that was published: its RIR and (ii), ours, and whether it succeeds there, and here.

        A method succeeds where its mean RIR is above 1 and its mean (ii) is not, so that the pre-training task became
        no harder. Ours are by `released` on `fit`, as the published numbers are.
        """
        found: list[Compared] = []
        for method in runs.methods:
            theirs = [one for name in _JUDGED if (one := self.find(method, name)) is not None]
            groups = [list(runs.numbers(method, "fit", "released", name).values()) for name in _JUDGED]
            ours = [summary.mean for of in groups if (summary := summary_of(of)) is not None]
            if len(theirs) == len(ours) == len(_JUDGED):
                then, now = (rir > 1 and ratio <= 1 for rir, ratio in ([one.value for one in theirs], ours))
                found.append((method, theirs, ours, then, now))
        return found


def read_published(path: Path) -> Publications:
    """The rows of a `published.csv`; none where the file is missing.

    Raises:
        ValueError: other columns, or a row with a value that is not a number, by the number of its line.
    """
    if not path.is_file():
        return Publications()
    import pandas as pd

    rows = pd.read_csv(path, dtype=str, na_filter=False)
    sides = next((own for own in _OWN if {*_ALL, *own} == {*rows.columns}), None)
    if sides is None:
        raise ValueError(f"{path} needs the columns {', '.join(_ALL)}, and {' or '.join(map(' and '.join, _OWN))}")
    found = Publications()
    for line, row in enumerate(rows.to_dict("records"), start=2):
        pair = "→".join(filter(None, (row.pop(side) for side in sides)))
        if row["quantity"] not in _QUANTITIES:
            raise ValueError(f"{path}, line {line}: unknown quantity {row['quantity']!r}")
        try:
            numbers = {"value": float(row["value"]), "std": float(row["std"]) if row["std"] else None}
            found.append(Published(**{**row, **numbers}, pair=pair))
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    return found


def network_pair(runs: Runs) -> str:
    """What a network and D_H are called among published numbers."""
    first = runs.records[0]
    architecture = (first.get("network") or {}).get("architecture", first["model"])  # in timm, or a module's class
    return f"{architecture}→{first['harmful']}"
