"""Files of runs, read and changed behind the package's back."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the content of a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_at(content: Any, keys: Sequence[Any], change: Callable[[Any], Any]) -> None:
    """Change what these keys lead to, which has to be another value afterwards."""
    *way, last = keys
    for key in way:
        content = content[key]
    before, content[last] = content[last], change(content[last])
    assert content[last] != before, keys


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table, each column's name to its cell."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def strict_json(path: Path) -> Any:
    """The content of a JSON file that has no NaN and no infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
