"""Tables of a page: wide ones scroll by themselves, long ones are sorted by their columns' buttons and filtered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from immunize.report.cells import NOTHING, short
from immunize.report.html.elements import Html, coded, join, tag
from immunize.report.layout import Table

__all__ = ["Cell", "data_table", "from_layout", "key_values", "number", "word"]


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and what it is sorted by.

    Attributes:
        shown: text, in which code stands between backticks; or markup.
        value: a number to sort by; None sorts by the text, and last where the other cells are numbers.
    """

    shown: str
    value: float | None = None


def number(value: float | None) -> Cell:
    """A number in three digits, and what it is sorted by; None is one that is not there."""
    return Cell(short(value), value)


def word(passed: bool) -> Cell:
    """A verdict, as a word and a colour."""
    return Cell(tag("span", "holds" if passed else "fails", class_="pass" if passed else "fail"), float(passed))


def data_table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, names: int = 1, sortable: bool = False
) -> Html:
    """A table.

    Args:
        caption: what the numbers are.
        columns: their headings.
        rows: cells from left to right.
        names: the first so many columns are names, aligned to the left; the very first heads its row.
        sortable: with a button in every heading, and a filter above where there are many rows.
    """
    heads = [
        tag("th", tag("button", name, type="button") if sortable else name, scope="col", class_=_kind(i, names))
        for i, name in enumerate(columns)
    ]
    body = [tag("tr", *(_cell(cell, i, names) for i, cell in enumerate(row))) for row in rows]
    table = tag(
        "table",
        tag("caption", coded(caption)),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *body),
        class_="sortable" if sortable else None,
    )
    scrolled = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)
    if not sortable or len(rows) < _LONG:
        return scrolled
    label = tag("label", "Filter rows ", tag("input", type="search", class_="filter"), class_="control")
    return tag("div", label, tag("span", f"{len(rows)} rows", class_="count", role="status"), scrolled, class_="long")


def from_layout(table: Table) -> Html:
    """A table of another report, with its notes."""
    columns = [f"{name} {group}".strip() for group, names in table.groups for name in names]
    rows = [[Cell(text) for text in row] for row in table.rows]
    return join([data_table(table.title, columns, rows), *(tag("p", coded(n), class_="note") for n in table.notes)])


def key_values(pairs: Sequence[tuple[str, str]]) -> Html:
    """Names and texts, in which code stands between backticks."""
    return tag("dl", *(join([tag("dt", name), tag("dd", coded(text))]) for name, text in pairs))


_LONG = 25
"""Rows from which on a table has a filter."""


def _kind(index: int, names: int) -> str:
    return "name" if index < names else "number"


def _cell(cell: Cell, index: int, names: int) -> Html:
    shown = cell.shown if isinstance(cell.shown, Html) else coded(cell.shown or NOTHING)
    value = None if cell.value is None or math.isnan(cell.value) else f"{cell.value:.17g}".replace("inf", "Infinity")
    if index == 0:
        return tag("th", shown, scope="row", class_="name", data_value=value)
    return tag("td", shown, class_=_kind(index, names), data_value=value)
