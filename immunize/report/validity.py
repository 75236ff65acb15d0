"""Whether the condition numbers of many runs can be trusted: counts from the facts that every record carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from immunize.report.cells import short
from immunize.report.conventions import PARTS
from immunize.report.nulls import infinite
from immunize.report.runs import Runs, measured_on

__all__ = ["TIED", "validity_notes"]

TIED = 1e-6
"""A gap σ_i/σ_{i+1} within this of 1 counts as a tie: Theorem 4.1 asks for unique extreme singular values."""

_SIDES = (("H_P", "kappa_pretrain"), ("H_H", "kappa_harmful"))


def validity_notes(runs: Runs) -> list[str]:
    """One sentence a part of the data: numerical rank, floor hits and ties of H(θ), the gap at the rank cut of K.

    A last one counts the failure signatures that the trainings on `fit` showed, where they showed any.
    """
    notes = [_note(measured, part) for part in PARTS if (measured := measured_on(runs.finished, part))]
    return [*notes, *_signatures(runs)]


def _signatures(runs: Runs) -> list[str]:
    shown: Counter[tuple[str, str]] = Counter()
    for record in runs.records:
        warnings = record.get("training", {}).get("fit", {}).get("warnings", [])
        shown.update((name, record["method"]) for name in {warning["name"] for warning in warnings})
    if not shown:
        return []
    names = sorted({name for name, _ in shown})
    counts = [
        f"`{name}` in " + ", ".join(f"{shown[name, m]} of `{m}`" for m in runs.methods if shown[name, m])
        for name in names
    ]
    return [f"Failure signatures while training on `fit`, by runs: {'; '.join(counts)}."]


def _note(records: Sequence[dict[str, Any]], part: str) -> str:
    metrics = [record["metrics"][part] for record in records]
    sides = []
    for name, key in _SIDES:
        facts = [of["spectrum"]["facts"][key] for of in metrics]
        floors = sum(of["released"]["facts"][key]["floor_hit"] for of in metrics)
        tops, bottoms = (sum(_tied(f[gap]) for f in facts) for gap in ("gap_top", "gap_bottom"))
        below = sum(f.get("numerical_rank", f["rank"]) < f["rank"] for f in facts)
        raw = [of["spectrum"]["facts"][f"{key}_baseline"] for of in metrics]
        cut = min(infinite(f["gap_cut"]) for f in raw)
        sides.append(
            f"{name} has numerical rank {_range(f['rank'] for f in facts)} of "
            f"{_range(f['n_features'] for f in facts)}, σ₁ tied in {tops:,} and the smallest σ in {bottoms:,} runs, a "
            f"gap of at least {short(cut)} at the raw data's rank cut, and `released` hits its floor in {floors:,} runs"
            + (f" (in {below:,} runs θ pushes some of the data's singular values below the cut)" if below else "")
        )
    return f"`{part}`, {len(records):,} runs: {'; '.join(sides)}."


def _tied(gap: float | None) -> bool:
    return gap is not None and gap - 1 < TIED


def _range(values: Iterable[int]) -> str:
    found = set(values)
    return f"{min(found)}" if len(found) == 1 else f"{min(found)} to {max(found)}"
