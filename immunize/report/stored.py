"""Records of many runs in one file that pandas reads in a line: `pandas.read_csv("results.csv.gz")`.

A row a run, a column a leaf of its record, called by its path: `metrics/fit/spectrum/rir`. Nothing is lost but curves
and spectra, which are left out. A cell that is empty is a key that the record does not have; else it is the JSON of the
value, a text as it is where nothing else could be meant by it. Imports no other room and no torch.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from immunize.files import whole

RESULTS = "results.csv.gz"
SEPARATOR = "/"
_LEFT_OUT = ("curves", "spectra")
_DATA_ROOT = "<data_root>"
_Record = dict[str, Any]


def write_results(records: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write `results.csv.gz` into `out`; :func:`read_results` gives the records back.

    The folder of the data sets, which says something about a machine and nothing about a number, becomes "<data_root>".
    Equal records give equal bytes.

    Args:
        records: whose keys hold no "/".
        out: a folder, made if it is not there.
    """
    import pandas as pd

    rows = [{path: _text(value) for path, value in leaves(_kept(record))} for record in records]
    text = pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
    with whole(out / RESULTS) as partial, partial.open("wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
        packed.write(text.encode())


def read_results(path: Path) -> list[_Record]:
    """The records in a file of :func:`write_results`.

    Raises:
        ValueError: it was cut off or damaged, or is no such file.
    """
    import pandas as pd

    try:
        text = gzip.decompress(path.read_bytes()).decode()
        cells = pd.read_csv(io.StringIO(text), dtype=str, na_filter=False)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as results: {error}. It was cut off or damaged") from None
    records: list[_Record] = [{} for _ in cells.index]
    for name in cells.columns:
        *outer, last = name.split(SEPARATOR)
        known: dict[str, Any] = {}
        for record, cell in zip(records, cells[name], strict=True):
            if cell:
                if cell not in known:
                    known[cell] = _value(cell)
                place = record
                for key in outer:
                    place = place.setdefault(key, {})
                place[last] = known[cell]
    return records


def leaves(record: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of everything in a record that is no further dictionary; an empty one is a leaf."""
    for key, value in record.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}{SEPARATOR}")
        else:
            yield f"{above}{key}", value


def _kept(record: Mapping[str, Any]) -> _Record:
    kept = {key: value for key, value in record.items() if key not in _LEFT_OUT}
    root = kept.get("config", {}).get("data_root")
    return _replaced(kept, root) if isinstance(root, str) and len(root) > 1 and "/" in root else kept


def _replaced(value: Any, root: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, root) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, root) for item in value]
    return value.replace(root, _DATA_ROOT) if isinstance(value, str) else value


def _text(value: Any) -> str:
    plain = isinstance(value, str) and value != "" and _value(value) == value
    return value if plain else json.dumps(value, ensure_ascii=False)


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell
