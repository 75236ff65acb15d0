"""Files of runs, changed behind the package's back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from immunize.records import RECORD


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the content of a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def rewrite_record(folder: Path, **values: Any) -> None:
    """Give keys of a run's record other values."""
    edit_json(folder / RECORD, lambda record: record.update(values))
