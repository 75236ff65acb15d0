"""κ, its two ratios and RIR of a run: beside each the part, the estimator, the rank and whether it hit its floor."""

from __future__ import annotations

from typing import Any

from immunize.report.cells import NOTHING, short
from immunize.report.html.elements import Html, join, tag
from immunize.report.html.page import Section, note
from immunize.report.html.tables import Cell, data_table, number
from immunize.report.html.views import View, part_name, views_of
from immunize.report.nulls import infinite, with_infinities

__all__ = ["ratios_section"]

_SIDES = (("H_H", "kappa_harmful"), ("H_P", "kappa_pretrain"))
_HOW = (
    "`spectrum` is σ_1/σ_k over the k singular values of H that are not zero, Eq. (1); `released` is what the paper's "
    "code computes; `ridge` has both ends raised by ρ·tr(H)/D, as weight decay does. RIR = (i)/(ii). k is the rank out "
    "of so many columns; floor: where the estimator's own constant, and not the data, is what κ was divided by."
)


def ratios_section(record: dict[str, Any]) -> Section:
    """The table of all condition numbers of a finished run."""
    views = views_of([record])
    before = "θ_0" if "metrics_groups" in record else "identity"
    columns = ["part", "rows", "estimator", "(i) harmful ↑", "(ii) pretrain ↓", "RIR ↑"]
    intervals = any((view.of(record) or {}).get("interval") for view in views)
    columns += ["95 % of RIR"] if intervals else []
    columns += [f"{what} {side}" for side, _ in _SIDES for what in (f"κ, {before} → θ:", "k:")]
    rows = [_row(view, record, intervals=intervals) for view in views]
    table = data_table("Condition numbers, before and after immunization", columns, rows, names=3)
    return Section("ratios", "Condition numbers and RIR", join([table, note(_HOW), *_groups_note(record)]))


def _row(view: View, record: dict[str, Any], *, intervals: bool) -> list[Cell]:
    found = view.of(record)
    assert found is not None
    groups = f"{found['n_groups']} × {found['group_size']}" if "n_groups" in found else _rows(found)
    cells = [Cell(part_name(view.part)), Cell(groups), Cell(view.estimator)]
    numbers = with_infinities(found)
    cells += [number(numbers[name]) for name in ("ratio_harmful", "ratio_pretrain", "rir")]
    if intervals:
        cells.append(_interval((found.get("interval") or {}).get("rir")))
    for _, key in _SIDES:
        kappas = " → ".join(short(numbers[name]) for name in (f"{key}_baseline", key))
        facts, raw = found["facts"][key], found["facts"][f"{key}_baseline"]
        rank = join([f"{facts['rank']} of {facts['n_features']}", _floor(raw, facts)])
        cells += [Cell(kappas), Cell(rank, facts["rank"])]
    return cells


def _rows(found: dict[str, Any]) -> str:
    facts = found["facts"]
    return f"D_P {facts['kappa_pretrain']['n_samples']:,}, D_H {facts['kappa_harmful']['n_samples']:,}"


def _floor(before: dict[str, Any], after: dict[str, Any]) -> Html | None:
    hit = [name for name, facts in (("before", before), ("after", after)) if facts["floor_hit"]]
    return tag("small", "floor both" if len(hit) == 2 else f"floor {hit[0]}") if hit else None


def _interval(ends: list[float | None] | None) -> Cell:
    if not ends:
        return Cell(NOTHING)
    low, high = ends
    return Cell(f"{short(low)} to {short(infinite(high))}", low)


def _groups_note(record: dict[str, Any]) -> list[Html]:
    if "metrics_groups" not in record:
        return []
    return [note("Rows written as 20 × 100: means over groups of 100 rows each, the protocol of the paper's Table 3.")]
