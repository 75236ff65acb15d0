"""Numbers as text, and tables of them in Markdown and on a terminal. Imports no other room and no torch.

Runs come in groups, one group a pair of data sets, one number a seed. A mean is the mean over pairs of the mean over
seeds, and what follows ± is the mean over pairs of the standard deviation (n - 1) over seeds: for one pair the usual
mean ± standard deviation, for the 90 pairs of Table 2 its caption ("computed over 3 random seeds and averaged over all
digit pairs").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import rich.table
from rich import box
from rich.console import Console

NOTHING = "–"
"""The cell of a number that is not there, or NaN."""

WIDTH = 100
"""Columns of a pipe or a log, where nothing is gained by wrapping at 80; every table fits."""

Groups = Sequence[Sequence[float | None]]
"""One sequence a pair of data sets, one number a run."""


@dataclass(frozen=True)
class Summary:
    """Numbers of many runs in a few.

    Attributes:
        mean: over pairs of the mean over seeds; of the finite numbers.
        spread: mean over pairs of the standard deviation (n - 1) over seeds; None where no pair has two seeds.
        median: of all runs.
        geometric: geometric mean of all runs; None unless all are positive.
        outlying: the standard deviation over all runs exceeds their mean, so that the mean says little.
    """

    mean: float
    spread: float | None
    median: float
    geometric: float | None
    outlying: bool


def summary_of(groups: Groups) -> Summary | None:
    """Mean, spread and middle; None where there is no finite number.

    Args:
        groups: one sequence a pair of data sets, one number a run; None is a number that is not finite.
    """
    finite = [np.array([v for v in of if v is not None], dtype=np.float64) for of in groups]
    finite = [of for of in finite if len(of)]
    if not finite:
        return None
    values = np.concatenate(finite)
    # of equal numbers exactly 0, which the rounding of their mean would miss
    spreads = [of.std(ddof=1) if np.ptp(of) else 0.0 for of in finite if len(of) > 1]
    mean = float(np.mean([of.mean() for of in finite]))
    return Summary(
        mean=mean,
        spread=float(np.mean(spreads)) if spreads else None,
        median=float(np.median(values)),
        geometric=float(np.exp(np.log(values).mean())) if (values > 0).all() else None,
        outlying=len(values) > 1 and bool(values.std(ddof=1) > abs(values.mean())),
    )


def summary_text(groups: Groups, absent: str = "∞") -> str:
    """Mean ± spread; with the middle of the runs where outliers make the mean, and how many are None: `absent`."""
    summary = summary_of(groups)
    without = sum(value is None for of in groups for value in of)
    if summary is None:
        return absent if without else NOTHING
    text = with_spread(summary.mean, summary.spread)
    if summary.outlying:
        middle = [f"median {short(summary.median)}"]
        if summary.geometric is not None:
            middle.append(f"geo. mean {short(summary.geometric)}")
        text += f" ({', '.join(middle)})"
    return f"{text} ({absent} in {without} of {sum(map(len, groups))})" if without else text


def with_spread(value: float, spread: float | None) -> str:
    """A number and, where there is one, its spread."""
    return short(value) + ("" if spread is None else f" ± {short(spread)}")


def short(value: float | None) -> str:
    """Three significant digits, thousands separated, powers of ten from a million up and below a thousandth.

    An infinite number is "∞". None and NaN are `NOTHING`; where null in a record stands for an infinite number,
    :mod:`immunize.report.loading` says so.
    """
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(value: float) -> str:
    """An accuracy, such as "98.25 %"."""
    return f"{value:.2f} %"


def share(count: int, total: int) -> str:
    """Such as "4/5"; `NOTHING` of none."""
    return f"{count:,}/{total:,}" if total else NOTHING


def span(values: Iterable[Any], form: str = "{:,}") -> str:
    """The least and the largest value, or the only one: "3 to 5", "5"."""
    found = sorted(values)
    return " to ".join(dict.fromkeys(form.format(of) for of in (found[0], found[-1])))


@dataclass(frozen=True)
class Table:
    """A table as text.

    Attributes:
        title: what the numbers are.
        columns: headings; the first columns name the row.
        rows: cells, `code` between backticks.
        notes: sentences below the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self, *, heading: bool = True) -> str:
        """A Markdown table, with its title and notes if `heading`."""
        lines = [f"## {self.title}", ""] if heading else []
        lines += [_line(self.columns), _line(["---"] * len(self.columns)), *map(_line, self.rows)]
        if self.notes and heading:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"


def under(heading: str, names: Iterable[str]) -> list[str]:
    """Columns that one heading stands over."""
    return [f"{name} {heading}".strip() for name in names]


def markdown_of(tables: Iterable[Table]) -> str:
    """Several tables, as `table.md` has them."""
    return "\n".join(table.markdown() for table in tables)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(in_cell, cells)) + " |"


def in_cell(text: str) -> str:
    """A text that may hold what ends a cell of a Markdown table."""
    return text.replace("|", r"\|")


def to_read(console: Console | None = None) -> Console:
    """The console to print on, stdout by default; only a terminal has a width of its own. Sentences wrap there too."""
    console = console or Console(highlight=False, markup=False, emoji=False)  # names are no markup
    if not console.is_terminal:
        console.width = WIDTH
    return console


def to_print(table: Table, left: Sequence[str], *, sections: bool = True) -> rich.table.Table:
    """A table as narrow as it can be read: what a row is called by as the one above is left out.

    Args:
        table: what to print.
        left: columns of words; the others are numbers.
        sections: a line before every row whose first cell is another.
    """
    shown = rich.table.Table(
        title=table.title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False
    )
    for column in table.columns:
        shown.add_column(column, justify="left" if column in left else "right")
    above: Sequence[str] = ()
    for row in table.rows:
        same = sum(1 for _ in takewhile(bool, map(str.__eq__, row, above)))
        if sections and not same:
            shown.add_section()
        shown.add_row(*[""] * same, *row[same:])
        above = row
    return shown
