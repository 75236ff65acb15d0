"""In how many pairs of digits each method immunizes, beside the paper's count, and how alike the two Figures 2 are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from immunize.report.cells import NOTHING, short
from immunize.report.layout import Table
from immunize.report.nulls import infinite
from immunize.report.published import Published, find
from immunize.report.runs import Runs

__all__ = ["digit_means", "log_means", "success_table"]

_LEAST = 3
"""Pairs below which a rank correlation says nothing."""


def success_table(runs: Runs, wheres: Sequence[tuple[str, str]], published: Sequence[Published]) -> Table:
    """Pairs with a mean RIR over seeds of at least 1, by method; notes on the paper's cells where there are any.

    Args:
        runs: on pairs of digits.
        wheres: (part, estimator) of the columns.
        published: with `failed_pairs` and `log_rir` rows.
    """
    rows = []
    for method in runs.methods:
        failed = find(published, method, "failed_pairs")
        total = len({p.pair for p in published if p.method == method and p.quantity == "log_rir"})
        row = [f"`{method}`", runs.count_text(method)]
        row += [_successes(log_means(runs, method, *where)) for where in wheres]
        row.append(NOTHING if failed is None else f"{total - failed.value:.0f}/{total}")
        rows.append(row)
    columns = [f"{part}, {estimator}" for part, estimator in wheres]
    notes = [
        runs.completeness(),
        *(note for method in runs.methods for note in _against_paper(runs, method, published)),
    ]
    if any(p.quantity == "log_rir" for p in published):
        notes.append(
            "The paper's cells were read from the text of its PDF, which keeps no minus signs. That the mean of "
            "exp(cell) is the mean RIR of its Table 2 says that there are none, so that in the paper too these RIR are "
            "at least 1; what its text and colours call a failure must be a small RIR."
        )
    if not published:
        notes.append("There is no published column: the file of published numbers is missing.")
    return Table(
        runs.mark(f"Pairs with RIR ≥ 1, mean RIR over {len(runs.seeds)} seeds"),
        f"{runs.name}-success",
        [("", ("method", "runs")), (runs.size_text(), columns), ("paper", ("§5.1, not failed",))],
        rows,
        notes,
    )


def log_means(runs: Runs, method: str, part: str, estimator: str) -> dict[str, float]:
    """Natural logarithm of the mean RIR over seeds, by pair; infinite where the RIR of a run is.

    That the paper's Fig. 2 shows the logarithm of the mean follows from its own numbers: the mean of exp(cell) over
    the 90 cells is the mean RIR of its Table 2, for all four methods.
    """
    found = {}
    for pair, numbers in runs.numbers(method, part, estimator, "rir").items():
        mean = float(np.mean([infinite(v) for v in numbers]))
        found[pair] = math.log(mean) if mean > 0 else -math.inf
    return found


def digit_means(runs: Runs, method: str, part: str, estimator: str) -> dict[str, float]:
    """The same of all 90 pairs of digits; NaN for those without a finished run.

    Raises:
        ValueError: pairs that are not two digits.
    """
    every = dict.fromkeys((f"{p}→{h}" for p in range(10) for h in range(10) if p != h), math.nan)
    found = log_means(runs, method, part, estimator)
    if others := sorted(found.keys() - every.keys()):
        raise ValueError(f"a heat map needs pairs of digits; the runs hold {others[0]}")
    return every | found


def _successes(values: Mapping[str, float]) -> str:
    return f"{sum(value >= 0 for value in values.values())}/{len(values)}" if values else NOTHING


def _against_paper(runs: Runs, method: str, published: Sequence[Published]) -> list[str]:
    cells = {p.pair: p.value for p in published if p.method == method and p.quantity == "log_rir"}
    if not cells:
        return []
    failed = find(published, method, "failed_pairs")
    text = (
        f"`{method}`: the paper's {len(cells)} cells are {min(cells.values()):.2f} to {max(cells.values()):.2f}, the "
        f"mean of exp(cell) is {short(float(np.mean(np.exp(list(cells.values())))))}"
    )
    if failed is not None and (below := sum(value < 0 for value in cells.values())) != failed.value:
        text += f"; {below} of them are below 0, but its text counts {failed.value:.0f} failures"
    ours = log_means(runs, method, "fit", "released")
    common = sorted(pair for pair in cells.keys() & ours.keys() if math.isfinite(ours[pair]))
    if len(common) >= _LEAST:
        mine = [ours[pair] for pair in common]
        same = _rank_correlation(mine, [cells[pair] for pair in common])
        text += f". Rank correlation with ours (`released`, `fit`) {same:.2f}"
        swapped = ["→".join(reversed(pair.split("→"))) for pair in common]
        if all(pair in cells for pair in swapped):
            text += f", with D_P and D_H exchanged {_rank_correlation(mine, [cells[pair] for pair in swapped]):.2f}"
    return [text + "."]


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's; NaN where all are tied."""
    from scipy.stats import spearmanr  # a second of import time, for this one report

    return math.nan if 1 in (len(set(one)), len(set(other))) else float(spearmanr(one, other).statistic)
