"""Puts each table of results into README.md and the pages of docs/, at the places that name its file.

A place is what stands between the lines `<!-- table: FILE -->` and `<!-- /table -->`.

`FILE#2` is the second table of FILE, without its heading and notes.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"(<!-- table: ([^#\s]+)(?:#(\d+))? -->\n).*?(<!-- /table -->)", re.DOTALL)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def pages() -> list[Path]:
    """README.md, and the pages of docs/ that have places for tables."""
    return [
        path
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        if PLACE.search(path.read_text(encoding="utf-8"))
    ]


def with_tables(page: str) -> str:
    """A page with every table as its file has it."""
    return PLACE.sub(lambda m: f"{m[1]}{table(ROOT / m[2], m[3])}{m[4]}", page)


def table(path: Path, number: str | None) -> str:
    """A file, or one of the tables in it, counted from 1."""
    text = path.read_text(encoding="utf-8")
    return text if number is None else TABLE.findall(text)[int(number) - 1]


def main() -> None:
    """Rewrite the pages."""
    for path in pages():
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
