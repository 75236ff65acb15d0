"""Of a run against several harmful data sets: the numbers of each, beside those of the weakest that stand for all.

Imports no torch.
"""

from __future__ import annotations

from typing import Any

from immunize.report.cells import short
from immunize.report.layout import Table
from immunize.report.nulls import with_infinities

__all__ = ["each_set", "sets_table", "weakest_told"]

_ESTIMATOR = "spectrum"
_RATIOS = ("ratio_harmful", "ratio_pretrain", "rir")
_PROTOCOLS = {"pooled": "metrics", "groups": "metrics_groups"}


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


def weakest_told(found: dict[str, Any]) -> str:
    """One sentence on whose numbers the others are.

    Args:
        found: of :func:`each_set`.
    """
    name = found["weakest"]
    return (
        f"{len(found['sets'])} harmful data sets: numbers that name none of them are those of `{name}` "
        f"({found['sets'][name]['rows']:,} rows), the weakest by RIR on images never seen."
    )


def sets_table(found: dict[str, Any]) -> Table:
    """One row a data set and part.

    Args:
        found: of :func:`each_set`.
    """
    names = ("(i) ↑", "(ii) ↓", "RIR ↑")
    columns = ("harmful data set", "rows", "part", *(f"{name} {by}" for by in _PROTOCOLS for name in names))
    verdicts = (f"({verdict}) pooled" for verdict in "abc")
    rows = [
        [
            f"`{name}`",
            f"{of['rows']:,}",
            part.replace("_", " "),
            *(short(with_infinities(of[by][part])[key]) for by in _PROTOCOLS for key in _RATIOS),
            *("yes" if of["definition_3_1"][part][verdict] else "no" for verdict in "abc"),
        ]
        for name, of in found["sets"].items()
        for part in of["pooled"]
    ]
    title = f"Each harmful data set, by {found['estimator']}"
    return Table(title, "each_set", [("", (*columns, *verdicts))], rows)


def _numbers(of: dict[str, Any]) -> dict[str, Any]:
    parts = [part for part in of["metrics"] if part != "validation"]
    ratios = {
        by: {part: {name: of[key][part][_ESTIMATOR][name] for name in _RATIOS} for part in parts}
        for by, key in _PROTOCOLS.items()
    }
    judged = {part: of["verdicts"] if part == "fit" else of["verdicts"][part] for part in parts}
    return {**ratios, "definition_3_1": {part: {v: judged[part][v] for v in "abc"} for part in parts}}
