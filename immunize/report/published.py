"""The paper's numbers, from `published.csv`, and what differs from them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from immunize.report.cells import short, summary_of
from immunize.report.runs import Runs

__all__ = ["Published", "differences", "read_published", "rows_of"]

T = TypeVar("T")

COLUMNS = ("source", "method", "name", "quantity", "pretrain_digit", "harmful_digit", "value", "std")


@dataclass(frozen=True)
class Published:
    """One number of the paper.

    Attributes:
        source: the table, figure or section it stands in.
        method: as `method` is called here.
        name: as the paper calls it.
        quantity: `ratio_harmful` (i), `ratio_pretrain` (ii), `rir`, `log_rir` of a pair, `failed_pairs`.
        pair: "3→8", or empty for a number over all data.
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


def read_published(path: Path) -> list[Published]:
    """The rows of a `published.csv`; none where the file is missing.

    Raises:
        ValueError: columns other than `COLUMNS`, or a value that is not a number.
    """
    return rows_of(path, COLUMNS, _row)


def rows_of(path: Path, columns: Sequence[str], parse: Callable[[dict[str, str]], T]) -> list[T]:
    """The rows of a table of published numbers; none where the file is missing.

    Args:
        path: a CSV.
        columns: what its header has to be.
        parse: of one row.

    Raises:
        ValueError: other columns, or a row that `parse` refuses, with the number of its line.
    """
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != tuple(columns):
            raise ValueError(f"{path} needs the columns {', '.join(columns)}")
        try:
            return [parse(row) for row in reader]
        except ValueError as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def find(published: Sequence[Published], method: str, quantity: str) -> Published | None:
    """The number over all data of a method; None where the paper has none."""
    return next((p for p in published if (p.method, p.quantity, p.pair) == (method, quantity, "")), None)


def differences(runs: Runs, published: Sequence[Published]) -> list[str]:
    """Sentences on every method that fails in the paper but not here, or the reverse; and which come out as there.

    A method succeeds where its mean RIR is above 1 and its mean (ii) is not, so that the pre-training task became no
    harder. Ours are by `released` on `fit`, as the published numbers are.
    """
    sentences, alike = [], []
    for method in runs.methods:
        rir, ratio = (find(published, method, quantity) for quantity in ("rir", "ratio_pretrain"))
        ours = [
            summary_of(list(runs.numbers(method, "fit", "released", quantity).values()))
            for quantity in ("rir", "ratio_pretrain")
        ]
        if rir is None or ratio is None or ours[0] is None or ours[1] is None:
            continue
        then = rir.value > 1 and ratio.value <= 1
        if then == (ours[0].mean > 1 and ours[1].mean <= 1):
            alike.append(f"`{method}` ({'succeeds' if then else 'fails'})")
            continue
        where = "fails here but not in the paper" if then else "fails in the paper but not here"
        sentences.append(
            f"`{method}` {where}: RIR is {short(rir.value)} in {rir.source} and {short(ours[0].mean)} here, (ii) is "
            f"{short(ratio.value)} and {short(ours[1].mean)}."
        )
    if alike:
        sentences.append(
            f"By RIR > 1 and (ii) ≤ 1 (`released`, `fit`) these come out as in the paper: {', '.join(alike)}."
        )
    return sentences


def _row(row: dict[str, str]) -> Published:
    digits = row["pretrain_digit"], row["harmful_digit"]
    return Published(
        source=row["source"],
        method=row["method"],
        name=row["name"],
        quantity=row["quantity"],
        pair="→".join(digits) if all(digits) else "",
        value=float(row["value"]),
        std=float(row["std"]) if row["std"] else None,
    )
