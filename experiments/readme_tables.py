"""Puts each table of results into README.md, between its `<!-- table: FILE -->` and `<!-- /table -->` lines."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def with_tables(readme: str) -> str:
    """README.md with every table as its file has it."""
    return PLACE.sub(lambda m: f"{m[1]}{(ROOT / m[2]).read_text(encoding='utf-8')}{m[3]}", readme)


def main() -> None:
    """Rewrite README.md."""
    path = ROOT / "README.md"
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
