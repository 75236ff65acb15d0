"""What commands print their tables on: at most 100 columns, in a terminal, a pipe or a log. Imports no other room."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["WIDTH", "printed_table", "to_read"]

WIDTH = 100
"""Columns of a pipe or a log, where nothing is gained by wrapping at 80; every table fits."""


def to_read(console: Console | None = None) -> Console:
    """The console to print on, stdout by default; only a terminal has a width of its own. Sentences wrap there too."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def printed_table(title: str) -> Table:
    """A table without columns, as narrow as it can be read."""
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
