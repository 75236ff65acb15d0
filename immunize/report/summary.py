"""A table of many runs of any kind, from their records: runs that differ in the seed alone stand together."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from immunize.config import NOT_HASHED
from immunize.files import write_text
from immunize.records import whole_config
from immunize.report.cells import NOTHING, summary_of, summary_text
from immunize.report.layout import Table
from immunize.report.loading import load_records
from immunize.report.naming import data_name
from immunize.report.runs import held_out_text
from immunize.report.stored import write_results
from immunize.report.terminal import printed_table, to_read
from immunize.report.varied import Varied

__all__ = ["groups_of", "load_records", "show_summary", "summary_table", "write_summary"]

_APART = (*NOT_HASHED, "seed", "method")

# header, part, estimator, number
_COLUMNS = [
    ("(i) ↑", "fit", "spectrum", "ratio_harmful"),
    ("(ii) ↓", "fit", "spectrum", "ratio_pretrain"),
    ("RIR ↑", "fit", "spectrum", "rir"),
    ("RIR ↑", "fit", "released", "rir"),
    ("RIR ↑", "fit", "ridge", "rir"),
    ("RIR ↑", "held_out", "spectrum", "rir"),
    ("RIR ↑", "held_out", "ridge", "rir"),
]


# header, estimator, number
_SHOWN = [
    ("(i) ↑", "spectrum", "ratio_harmful"),
    ("(ii) ↓", "spectrum", "ratio_pretrain"),
    ("RIR ↑", "spectrum", "rir"),
    ("RIR ↑, released", "released", "rir"),
    ("RIR ↑, ridge", "ridge", "rir"),
]


def show_summary(records: Iterable[dict[str, Any]], console: Console | None = None) -> None:
    """Print :func:`summary_table` for a screen: a table a pair of data sets, a row a part of the data."""
    console = to_read(console)
    groups = sorted(groups_of(records), key=_by_rir)
    varied = Varied(groups)
    for data, of_data in itertools.groupby(groups, lambda runs: _data(runs[0])):
        table = printed_table(data)
        table.add_column("method", min_width=11, overflow="fold")
        for column in ("runs", "part"):
            table.add_column(column)
        for header, _, _ in _SHOWN:
            table.add_column(header, justify="right")
        table.add_column("(a) (b) (c)", no_wrap=True)
        for runs in of_data:
            named = [varied.name_of(runs[0]), held_out_text(runs)]
            for part in dict.fromkeys(part for run in runs for part in run["metrics"]):
                numbers = (_numbers(runs, part, estimator, name) for _, estimator, name in _SHOWN)
                cells = (summary_text([of_part]) for of_part in numbers)
                table.add_row(*named, part.replace("_", " "), *cells, _verdicts(runs, part))
                named = ["", ""]
            table.add_section()
        console.print(table)


def summary_table(records: Iterable[dict[str, Any]]) -> str:
    """Markdown: one row for runs that differ in nothing but the seed, mean ± standard deviation (n - 1) over them.

    What was varied about a method stands beside its name.
    """
    columns = [
        "data",
        "method",
        "runs",
        *(f"{name} {part} {est}" for name, part, est, _ in _COLUMNS),
        "(a) (b) (c) fit",
    ]
    groups = sorted(groups_of(records), key=_by_rir)
    varied = Varied(groups)
    rows = [list(_row(runs, varied.name_of(runs[0]))) for runs in groups]
    return Table("", "summary", [("", columns)], rows).markdown(heading=False)


def groups_of(records: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Runs that differ in nothing but the seed, together."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        groups[_but_for_the_seed(record)].append(record)
    return list(groups.values())


def write_summary(records: Sequence[dict[str, Any]], out: Path) -> None:
    """Write `results.csv.gz` (see :mod:`immunize.report.stored`) and `table.md` into `out`."""
    table = summary_table(records)
    write_results(records, out)
    write_text(out / "table.md", table)


def _data(record: dict[str, Any]) -> str:
    return " → ".join(dict.fromkeys((data_name(record, "pretrain"), data_name(record, "harmful"))))


def _but_for_the_seed(record: dict[str, Any]) -> str:
    """What runs of one row have in common: data and configuration, less the seed and where things lie."""
    config = {key: value for key, value in whole_config(record).items() if key not in _APART}
    method = {key: value for key, value in record["config"].get("method", {}).items() if key != "seed"}
    return json.dumps([record["data_hash"], record["harmful"], method, config], sort_keys=True)


def _by_rir(runs: list[dict[str, Any]]) -> tuple[str, float]:
    summary = summary_of([_numbers(runs, "fit", "spectrum", "rir")])
    return _data(runs[0]), 0.0 if summary is None else -summary.mean


def _row(runs: list[dict[str, Any]], setting: str) -> Iterator[str]:
    yield from (_data(runs[0]), setting, held_out_text(runs))
    for _, part, estimator, name in _COLUMNS:
        numbers = _numbers(runs, part, estimator, name)
        yield summary_text([numbers]) if numbers else NOTHING
    yield _verdicts(runs, "fit")


def _verdicts(runs: list[dict[str, Any]], part: str) -> str:
    found = [run["verdicts"] if part == "fit" else run["verdicts"][part] for run in runs if part in run["metrics"]]
    return " ".join(f"{sum(of[v] for of in found)}/{len(found)}" for v in "abc")


def _numbers(runs: list[dict[str, Any]], part: str, estimator: str, name: str) -> list[float | None]:
    """Of the runs that were measured on the part."""
    return [run["metrics"][part][estimator][name] for run in runs if part in run["metrics"]]
