"""Many records in a small file, without losing a digit: what runs share is written once, beside them.

`results.jsonl` holds one line a run; `common.json` what all runs of one status, of one method or on one pair of data
sets have in common. A record is put together again by merging the three over its line. What a record says twice is
written once: the validity facts of κ, but for two of them the same under every estimator of a part, and (i) and (ii),
which a verdict repeats. Curves and spectra are left out.
"""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from immunize.files import write_text
from immunize.records import merged

__all__ = ["COMMON", "RESULTS", "pack", "unpack", "write_results"]

RESULTS, COMMON = "results.jsonl", "common.json"
_Record = dict[str, Any]

_LAYERS: dict[str, Callable[[_Record], str]] = {
    "status": lambda r: str(r["status"]),
    "method": lambda r: f"{r['status']} {r['method']}",
    "data_hash": lambda r: f"{r['status']} {r.get('data_hash')}",
}
"""What runs are grouped by, and the key of a run's group."""
_KEPT = ("status", "method", "data_hash")
"""Every line keeps these: they find its groups."""
_REPEATED = ("ratio_harmful", "ratio_pretrain")
"""What a verdict repeats of the numbers of its estimator."""
_LEFT_OUT = ("curves", "spectra")
_DATA_ROOT = "<data_root>"


def write_results(records: Sequence[_Record], out: Path) -> None:
    """Write `results.jsonl` and `common.json` into `out`; :func:`unpack` gives the records back.

    What is left out are curves and spectra. The folder of the data sets, which says something about a machine and
    nothing about a number, becomes "<data_root>".
    """
    lines, common = pack([_without_data_root(record) for record in records])
    out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
    write_text(out / RESULTS, text)
    layers = json.dumps(common, sort_keys=True, indent=1, ensure_ascii=False)
    write_text(out / COMMON, layers + "\n")


def pack(records: Sequence[_Record]) -> tuple[list[_Record], dict[str, dict[str, _Record]]]:
    """Lines, and what they share: layer to group to the common part of its records."""
    lines = [_said_once({key: value for key, value in record.items() if key not in _LEFT_OUT}) for record in records]
    common: dict[str, dict[str, _Record]] = {}
    for layer, key_of in _LAYERS.items():
        groups: dict[str, list[int]] = defaultdict(list)
        for index, record in enumerate(records):
            groups[key_of(record)].append(index)
        shared = {
            key: _shared([{k: v for k, v in lines[i].items() if k not in _KEPT} for i in members])
            for key, members in groups.items()
            if len(members) > 1
        }
        common[layer] = {key: tree for key, tree in shared.items() if tree}
        for index, record in enumerate(records):
            lines[index] = _less(lines[index], common[layer].get(key_of(record), {}))
    return lines, common


def unpack(line: _Record, common: dict[str, dict[str, _Record]]) -> _Record:
    """The record that a line stands for.

    Raises:
        KeyError: the line lacks what finds its groups.
    """
    record: _Record = {}
    for layer, key_of in _LAYERS.items():
        record = merged(record, common.get(layer, {}).get(key_of(line), {}))
    return _said_everywhere(merged(record, line))


def _same(values: Sequence[Any]) -> bool:
    # as JSON, where 1, 1.0 and true are three values
    return len({json.dumps(value, sort_keys=True) for value in values}) == 1


def _shared(trees: Sequence[_Record]) -> _Record:
    common: _Record = {}
    for key in set.intersection(*(set(tree) for tree in trees)):
        values = [tree[key] for tree in trees]
        if all(isinstance(value, dict) and value for value in values):
            if inner := _shared(values):
                common[key] = inner
        elif _same(values):
            common[key] = values[0]
    return common


def _less(tree: _Record, common: _Record) -> _Record:
    left: _Record = {}
    for key, value in tree.items():
        if key not in common:
            left[key] = value
        elif isinstance(value, dict) and value and (inner := _less(value, common[key])):
            left[key] = inner
    return left


def _said_once(record: _Record) -> _Record:
    """Move what the estimators of a part agree on to `metrics.<part>.facts`, and drop what verdicts repeat."""
    record = copy.deepcopy(record)
    for of_part in _parts(record):
        with_facts = [of for of in of_part.values() if of and "facts" in of]
        if len(with_facts) > 1 and (facts := _shared([of["facts"] for of in with_facts])):
            for of in with_facts:
                of["facts"] = _less(of["facts"], facts)
            of_part["facts"] = facts
    for verdict, numbers in _verdicts(record):
        for name in _REPEATED:
            if name in verdict and _same([verdict[name], numbers.get(name)]):
                del verdict[name]
    return record


def _parts(record: _Record) -> Iterator[_Record]:
    """The numbers of each part, estimator by estimator; those of a deep extractor also by groups."""
    for kind in ("metrics", "metrics_groups"):
        yield from (record.get(kind) or {}).values()


def _verdicts(record: _Record) -> Iterator[tuple[_Record, _Record]]:
    """Each verdict with the numbers of its part and estimator."""
    of_fit, metrics = record.get("verdicts") or {}, record.get("metrics") or {}
    verdicts: dict[str, _Record] = {"fit": of_fit, "held_out": of_fit.get("held_out") or {}}
    for part, verdict in verdicts.items():
        numbers = metrics.get(part, {}).get(verdict.get("estimator"))
        if numbers is not None:
            yield verdict, numbers


def _said_everywhere(record: _Record) -> _Record:
    for of_part in _parts(record):
        if (facts := of_part.pop("facts", None)) is not None:
            for of in of_part.values():
                of["facts"] = merged(facts, of.get("facts", {}))
    for verdict, numbers in _verdicts(record):
        verdict |= {name: numbers[name] for name in _REPEATED if name in numbers and name not in verdict}
    return record


def _without_data_root(record: _Record) -> _Record:
    root = record.get("config", {}).get("data_root")
    return _replaced(record, root) if isinstance(root, str) and len(root) > 1 and "/" in root else record


def _replaced(value: Any, root: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, root) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, root) for item in value]
    return value.replace(root, _DATA_ROOT) if isinstance(value, str) else value
