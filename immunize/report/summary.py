"""A table of many runs of any kind, from their records: runs that differ in the seed alone stand together."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from immunize.report.naming import data_name, pair_title, part_words, run_title
from immunize.report.one_run import carried_over
from immunize.report.runs import EXPERIMENT_STATUSES, flat_settings, held_out_text, theta_0_of, verdict_counts
from immunize.report.table import Table, markdown_of, summary_of, summary_text, to_print, to_read
from immunize.report.writing import write_report

_COLUMNS = {
    "(i) ↑": ("spectrum", "ratio_harmful"),
    "(ii) ↓": ("spectrum", "ratio_pretrain"),
    "RIR ↑": ("spectrum", "rir"),
    "RIR ↑, released": ("released", "rir"),
    "RIR ↑, ridge": ("ridge", "rir"),
}
"""Headings, with the estimator and the number below each."""
_WORDS = ("method", "runs", "part", "(a) (b) (c)")


def summary_tables(records: Iterable[dict[str, Any]], *, wide: bool = False) -> list[Table]:
    """A table a pair of data sets, best RIR first: a row for runs that differ in nothing but the seed, and part.

    Cells are mean ± standard deviation (n - 1) over the seeds; what was varied about a method stands beside its name.

    Args:
        records: of runs.
        wide: with what only runs of networks have.
    """
    groups = sorted(named_groups(records), key=lambda of: _by_rir(of[-1]))
    more = _OF_NETWORKS if wide and any("pretrain_accuracy" in run for *_, runs in groups for run in runs) else {}
    tables = []
    for data, of_data in itertools.groupby(groups, lambda of: _data(of[-1][0])):
        rows = [
            [name, held_out_text(runs), part_words(part)]
            + [summary_text([_numbers(runs, part, *number)]) for number in _COLUMNS.values()]
            + [summary_text([numbers(runs, part)]) for numbers in more.values()]
            + [verdict_counts(runs, part)]
            for name, _, runs in of_data
            for part in dict.fromkeys(part for run in runs for part in run["metrics"])
        ]
        tables.append(Table(data, (*_WORDS[:3], *_COLUMNS, *more, _WORDS[3]), rows))
    return tables


def show_summary(records: Iterable[dict[str, Any]], console: Console | None = None) -> None:
    """Print :func:`summary_tables` for a screen."""
    console = to_read(console)
    for table in summary_tables(records):
        shown = to_print(table, _WORDS)
        shown.columns[0].min_width, shown.columns[0].overflow = 11, "fold"
        shown.columns[-1].no_wrap = True
        console.print(shown)


def groups_of(records: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Runs that differ in nothing but the seed, and in the θ_0 that belongs to it, together.

    Raises:
        ValueError: a run is there twice.
    """
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    known: set[tuple[Any, ...]] = set()
    for record in records:
        row = _but_for_the_seed(record)
        run = row, record["seed"], record.get("config_hash"), theta_0_of(record)
        if record["status"] in EXPERIMENT_STATUSES:  # an interrupted one may have been done again elsewhere
            if run in known:
                raise ValueError(
                    f"the run {run_title(record)} is there twice: its folder was copied, or it was done again in "
                    "another one; move one of the two away"
                )
            known.add(run)
        groups[row].append(record)
    return [part for group in groups.values() for part in _of_one_theta_0_a_seed(group)]


def _of_one_theta_0_a_seed(group: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The group, or where runs of one seed began at several θ_0, one for each of these."""
    starts = {(record["seed"], theta_0_of(record)) for record in group}
    if len({seed for seed, _ in starts}) == len(starts):
        return [group]
    parts: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for record in group:
        parts[theta_0_of(record)].append(record)
    return list(parts.values())


def write_summary(records: Sequence[dict[str, Any]], out: Path, note: str = "") -> None:
    """Write `results.csv.gz`, and `table.md`, which ends with a note, into `out`."""
    text = markdown_of(summary_tables(records, wide=True)) + (f"\n- {note}\n" if note else "")
    write_report(out, {"table.md": text}, records=records)


def _data(record: dict[str, Any]) -> str:
    return " → ".join(dict.fromkeys((data_name(record, "pretrain"), data_name(record, "harmful"))))


def _but_for_the_seed(record: dict[str, Any]) -> str:
    """What runs of one row have in common: data and settings, less the seeds and where things lie."""
    return json.dumps([_data(record), record["data_hash"], record["method"], sorted(flat_settings(record).items())])


def _by_rir(runs: list[dict[str, Any]]) -> tuple[str, float]:
    summary = summary_of([_numbers(runs, "fit", "spectrum", "rir")])
    return _data(runs[0]), 0.0 if summary is None else -summary.mean


def _numbers(runs: list[dict[str, Any]], part: str, estimator: str, name: str) -> list[float | None]:
    """Of the runs that were measured on the part."""
    return [run["metrics"][part][estimator][name] for run in runs if part in run["metrics"]]


def _carried(runs: list[dict[str, Any]], part: str) -> list[float | None]:
    """The correlation that a ridge probe carries over to other rows of D_H."""
    return [found[part]["harmful"]["after"] for run in runs if part in (found := carried_over(run, [part]))]


def _gained(runs: list[dict[str, Any]], part: str) -> list[float | None]:
    """What D_P's classifier gains on the images that no training saw."""
    accuracies = [run["pretrain_accuracy"] for run in runs if part in run["metrics"] and part != "fit"]
    return [of["after"] - of["before"] for of in accuracies]


_OF_NETWORKS = {"c of D_H ↓": _carried, "D_P, points ↑": _gained}
"""Headings of what only runs of networks have."""


_PLACES = ("experiment.", "logger.", "hydra.", "data_root")
"""Settings that say where things lie: never what a method is compared by."""
_DIGESTS: dict[str, Callable[[dict[str, Any]], Any]] = {"θ_0": theta_0_of, "data": lambda record: record["data_hash"]}
"""What groups may differ in beside their settings."""
_DIGITS = 8
_Place = tuple[int, float, str]


def named_groups(records: Iterable[dict[str, Any]]) -> list[tuple[str, list[_Place], list[dict[str, Any]]]]:
    """The groups of :func:`groups_of`, each with its name and a key that sorts them by what was varied.

    Returns:
        the method with the settings that differ between its runs with one model on one pair of data sets, behind the
        model where there are several; their values, numbers by their size and before everything else; the runs.
    """
    groups = groups_of(records)
    flats = [{k: v for k, v in flat_settings(runs[0]).items() if not k.startswith(_PLACES)} for runs in groups]
    kinds = [(runs[0]["model"], runs[0]["method"]) for runs in groups]
    alike: dict[str, list[tuple[dict[str, Any], dict[str, str]]]] = defaultdict(list)
    for (record, *_), kind, flat in zip(groups, kinds, flats, strict=True):
        alike[json.dumps([kind, pair_title(record), flat], sort_keys=True)].append((record, flat))
    for same in alike.values():
        for name, digest in _DIGESTS.items():
            if len({digest(record) for record, _ in same}) > 1:
                for record, flat in same:
                    flat[name] = json.dumps(str(digest(record))[:_DIGITS])
    by_pair: dict[tuple[tuple[str, str], str], list[dict[str, str]]] = defaultdict(list)
    for runs, kind, flat in zip(groups, kinds, flats, strict=True):
        by_pair[kind, pair_title(runs[0])].append(flat)
    varied: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for (kind, _), of in by_pair.items():
        settings = pd.DataFrame(of)
        differing = settings.columns[settings.nunique(dropna=False) > 1]
        ordered = sorted(differing, key=lambda name: (not name.startswith("objective."), name))
        # one that always changes together with an earlier one says nothing more: a method repeats what its row has
        varied[kind] |= dict.fromkeys(settings[ordered].T.drop_duplicates().index)
    several_models = len({model for model, _ in kinds}) > 1
    found = []
    for runs, (model, method), flat in zip(groups, kinds, flats, strict=True):
        values = {name.removeprefix("objective."): flat.get(name) for name in varied[model, method]}
        told = (f"{name}={_plain(value)}" for name, value in values.items())
        name = f"{model}: " * several_models + ", ".join([method, *told])
        found.append((name, [_by_value(value) for value in values.values()], runs))
    return found


def _by_value(text: str | None) -> _Place:
    value = None if text is None else json.loads(text)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, str(text)


def _plain(text: str | None) -> str:
    if text is None:
        return "none"
    value = json.loads(text)
    short = isinstance(value, float) and float(f"{value:g}") == value  # else six digits would not tell it from others
    return f"{value:g}" if short else str(value)
