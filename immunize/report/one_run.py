"""The table of one run, from its record. Imports no other room and no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from immunize.records import diverged_cross_fit
from immunize.report.loading import by_harmful_set, infinite, judged, measured, verdict_on, with_infinities
from immunize.report.naming import PROTOCOLS, RATIO_HEADS, RATIOS, part_words, run_title
from immunize.report.table import Table, short, to_print, to_read, under
from immunize.report.templates import filled_in


def show_record(record: dict[str, Any], console: Console | None = None) -> None:
    """Print the numbers, verdicts and warnings of one run, of each harmful data set by itself."""
    console = to_read(console)
    evaluated = bool(record.get("metrics"))
    if not evaluated:
        console.print(f"{run_title(record)}: {record['status']}, not evaluated")
    for one in by_harmful_set(record) if evaluated else ():
        _show_numbers(one, console)
    if lines := warning_lines(record):
        console.print("warnings:")
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    if evaluated and "metrics_groups" not in record:
        console.print(filled_in("not_immunized.txt", aims_at_kappa, record=record), end="")


def _show_numbers(record: dict[str, Any], console: Console) -> None:
    network = "metrics_groups" in record
    rows = []
    for protocol, part, estimator, m in sorted(measured(record), key=lambda of: list(record["metrics"]).index(of[1])):
        if network:
            low, high = m["interval"]["rir"]
            behind = [f"{short(low)} to {short(infinite(high))}"]
        else:
            behind = [f"{short(m[f'{key}_baseline'])} → {short(m[key])}" for key in ("kappa_harmful", "kappa_pretrain")]
        left = [part_words(part), *([PROTOCOLS[protocol]] if network else []), estimator]
        rows.append([*left, *(short(m[key]) for key in RATIOS), *behind])
    left = ["part", *(["rows"] if network else []), "estimator"]
    columns = (*left, *RATIO_HEADS.values())
    columns += ("95 % of RIR",) if network else ("κ(H_H): I → θ", "κ(H_P): I → θ")
    title = f"{record['model']}, {run_title(record)}" if network else run_title(record)
    console.print(to_print(Table(title, columns, rows), left))
    told = filled_in(
        "run.txt",
        *(aims_at_kappa, diverged_cross_fit, judged),
        record=record,
        network=network,
        separability=separability_lines(carried_over(record, record["metrics"])),
    )
    if told:
        console.print(told.rstrip("\n"))


def aims_at_kappa(record: dict[str, Any]) -> bool:
    """Whether (i), (ii) and RIR are the measure of a run's method; of records without a word, of all but `erase`."""
    return bool(record.get("aims_at_kappa", record["method"] != "erase"))


def warning_lines(record: dict[str, Any]) -> list[str]:
    """The failure signatures that the trainings of a run showed, a line each."""
    return [
        f"{one['name']} ({name.replace('_', '-')}, step {one['step']}"
        f"{'' if one['at_end'] else ', no longer at the end'}): {one['text']}"
        for name, facts in (record.get("training") or {}).items()
        for one in facts.get("warnings", [])
    ]


_ESTIMATOR = "spectrum"
_POOLED_FIRST = dict(reversed(PROTOCOLS.items()))


def each_set(record: dict[str, Any]) -> dict[str, Any] | None:
    """Ratios and verdicts by `spectrum` of every harmful data set, and which is the weakest.

    Args:
        record: of a finished run.

    Returns:
        `weakest` and, by name under `sets`, `rows`, `pooled` and `groups` (by part) and `definition_3_1` (by part);
        None where D_H is a single data set.
    """
    if "harmful_sets" not in record:
        return None
    facts = record["data"]["harmful"]["sets"]
    return {
        "weakest": record["weakest"],
        "estimator": _ESTIMATOR,
        "sets": {
            name: {"rows": facts[name]["images"]["fit"], **_numbers(of)} for name, of in record["harmful_sets"].items()
        },
    }


def sets_shown(found: dict[str, Any] | None) -> tuple[str, Table] | None:
    """One sentence on whose numbers the others are, and a table with a row a data set and part.

    Args:
        found: of :func:`each_set`.
    """
    if found is None:
        return None
    name = found["weakest"]
    told = (
        f"{len(found['sets'])} harmful data sets: numbers that name none of them are those of `{name}` "
        f"({found['sets'][name]['rows']:,} rows), the weakest by RIR on images never seen."
    )
    heads = (head for by in _POOLED_FIRST.values() for head in under(by, RATIO_HEADS.values()))
    columns = ("harmful data set", "rows", "part", *heads)
    verdicts = (f"({verdict}) pooled" for verdict in "abc")
    rows = [
        [
            f"`{name}`",
            f"{of['rows']:,}",
            part_words(part),
            *(short(with_infinities(of[by][part])[key]) for by in _POOLED_FIRST.values() for key in RATIOS),
            *("yes" if of["definition_3_1"][part][verdict] else "no" for verdict in "abc"),
        ]
        for name, of in found["sets"].items()
        for part in of["pooled"]
    ]
    return told, Table(f"Each harmful data set, by {found['estimator']}", (*columns, *verdicts), rows)


def _numbers(of: dict[str, Any]) -> dict[str, Any]:
    parts = [part for part in of["metrics"] if part != "validation"]
    ratios = {
        by: {part: {name: of[key][part][_ESTIMATOR][name] for name in RATIOS} for part in parts}
        for key, by in _POOLED_FIRST.items()
    }
    judged = {part: verdict_on(of, part) or {} for part in parts}
    return {**ratios, "definition_3_1": {part: {v: judged[part][v] for v in "abc"} for part in parts}}


ABOUT = "what a ridge probe can learn (correlation on rows that it was not fitted on, at most 1; the best of three ρ)"


def carried_over(record: dict[str, Any], parts: Iterable[str]) -> dict[str, Any]:
    """The best cross-fitted correlation over ρ, before immunizing and after.

    Args:
        record: of a finished run; those of earlier versions have none.
        parts: of the data.

    Returns:
        part -> role -> "before" and "after"; empty for a record without.
    """
    kept = record.get("separability", {})
    return {
        part: {
            role: {
                "after" if which == "immunized" else "before": max(of["cross_fitted"].values())
                for which, of in extractors.items()
            }
            for role, extractors in kept[part].items()
        }
        for part in parts
        if part in kept
    }


def separability_lines(found: dict[str, Any]) -> list[str]:
    """One line a part of the data, and before them what the numbers are; none where there are none.

    Args:
        found: from :func:`carried_over`. A task of one label, with nothing to tell apart, has 0 and no line.
    """
    lines = []
    for part, roles in found.items():
        told = {role: of for role, of in roles.items() if of["before"] or of["after"]}
        if told:
            words = ", ".join(f"{role} {of['before']:.3f} → {of['after']:.3f}" for role, of in told.items())
            lines.append(f"{part_words(part)}: {words}")
    return [f"{ABOUT}, θ_0 → θ:", *lines] if lines else []
