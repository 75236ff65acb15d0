"""A table of many runs, from their records: one row a method, mean ± standard deviation over seeds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from immunize.report.naming import data_name

__all__ = ["load_records", "summary_table", "write_summary"]

_APART = ("seed", "method", "data_root", "logger", "log_every", "monitor_every", "threads", "overwrite")

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


def load_records(folder: Path) -> list[dict[str, Any]]:
    """Every finished record below a folder (`record.json`), or in its `results.jsonl`, sorted by data, method and seed.

    Args:
        folder: a multirun folder, or one with a `results.jsonl`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file is not a record, or the records are of different schema versions.
    """
    collected = folder / "results.jsonl"
    if collected.is_file():
        records = [_parsed(line, collected) for line in collected.read_text(encoding="utf-8").splitlines()]
    else:
        records = [_parsed(path.read_text(encoding="utf-8"), path) for path in folder.rglob("record.json")]
    finished = [record for record in records if record.get("status") == "finished"]
    if not finished:
        raise FileNotFoundError(f"{folder} holds no finished record")
    if len(versions := {record.get("schema_version") for record in finished}) > 1:
        raise ValueError(f"{folder} mixes records of schema versions {sorted(map(str, versions))}")
    return sorted(finished, key=lambda r: (_data(r), r["method"], r["seed"]))


def summary_table(records: Iterable[dict[str, Any]]) -> str:
    """Markdown: one row for runs that differ in nothing but the seed, mean ± standard deviation (n - 1) over them."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        groups[_but_for_the_seed(record)].append(record)
    header = ["data", "method", "runs", *(f"{name} {part} {est}" for name, part, est, _ in _COLUMNS), "(a) (b) (c) fit"]
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    lines += ["| " + " | ".join(_row(runs)) + " |" for runs in sorted(groups.values(), key=_by_rir)]
    return "\n".join(lines) + "\n"


def write_summary(records: list[dict[str, Any]], out: Path) -> None:
    """Write `results.jsonl` (one record a line, without the curves) and `table.md` into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    slim = ({key: value for key, value in record.items() if key != "curves"} for record in records)
    (out / "results.jsonl").write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in slim), encoding="utf-8")
    (out / "table.md").write_text(summary_table(records), encoding="utf-8")


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a record: {error}") from None
    if not isinstance(record, dict) or "status" not in record:
        raise ValueError(f"{path} is not a record of immunize.train")
    return record


def _data(record: dict[str, Any]) -> str:
    return " | ".join(dict.fromkeys((data_name(record, "pretrain"), data_name(record, "harmful")))).replace("|", "→")


def _but_for_the_seed(record: dict[str, Any]) -> str:
    """What runs of one row have in common: data and configuration, less the seed and where things lie."""
    config = {key: value for key, value in record["config"].items() if key not in _APART}
    method = {key: value for key, value in record["config"].get("method", {}).items() if key != "seed"}
    return json.dumps([record["data_hash"], method, config], sort_keys=True)


def _by_rir(runs: list[dict[str, Any]]) -> tuple[str, float]:
    return _data(runs[0]), -float(np.mean(_numbers(runs, "fit", "spectrum", "rir")))


def _row(runs: list[dict[str, Any]]) -> Iterator[str]:
    yield from (_data(runs[0]), runs[0]["method"], str(len(runs)))
    for _, part, estimator, name in _COLUMNS:
        values = _numbers(runs, part, estimator, name)
        spread = f" ± {_short(values.std(ddof=1))}" if len(values) > 1 else ""
        yield f"{_short(values.mean())}{spread}"
    yield " ".join(f"{sum(r['verdicts'][v] for r in runs)}/{len(runs)}" for v in "abc")


def _numbers(runs: list[dict[str, Any]], part: str, estimator: str, name: str) -> Any:
    return np.array([run["metrics"][part][estimator][name] for run in runs], dtype=np.float64)


def _short(value: float) -> str:
    """Three significant digits, thousands separated, powers of ten from a million up."""
    if not np.isfinite(value):
        return str(value)
    if value != 0 and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
