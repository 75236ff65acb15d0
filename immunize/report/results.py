"""The tables of an experiment with many runs (Tables 1 and 2, Figure 2 of the paper), every cell from records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from immunize.report.loading import infinite, verdict_on
from immunize.report.naming import HARDER_BY, NO_HARDER, PARTS, RATIOS
from immunize.report.published import Published, cell, differences, find
from immunize.report.runs import Runs, measured_on
from immunize.report.table import NOTHING, Table, share, short, summary_of, under

COLUMNS = ("(i) ↑", "(ii) ↓", "RIR ↑")
HELD = ("(a)", "(b)", "(c)", "all")
THRESHOLD = "0.1"
"""The norm ratio of Eq. (16) that the probe has to reach."""

SPREADS = (("fit", "spectrum"), ("fit", "released"), ("held_out", "spectrum"), ("held_out", "ridge"))
"""Where the distribution of RIR over pairs is shown."""
WORST = 3

TIED = 1e-6
"""A gap σ_i/σ_{i+1} within this of 1 counts as a tie: Theorem 4.1 asks for unique extreme singular values."""
_SIDES = (("H_P", "kappa_pretrain"), ("H_H", "kappa_harmful"))
_LEAST = 3
"""Pairs below which a rank correlation says nothing."""
NOT_PUBLISHED = "There is no published column: the file of published numbers is missing."
VERDICTS = (
    f"(a) the harmful task is harder, (i) ≥ {HARDER_BY:g}; (b) the pre-training task is no harder, (ii) ≤ "
    f"{NO_HARDER:g}; (c) {{}}. The paper gives no thresholds, these are ours."
)


def result_tables(runs: Runs, published: Sequence[Published]) -> list[Table]:
    """Headline, comparison with the paper, ridge, verdicts, steps and, for more than one pair, the spread over pairs.

    Args:
        runs: of one experiment.
        published: the paper's numbers; none leaves the comparison without their column, and the table says so.
    """
    rhos = sorted({f"{run['config']['rho']:g}" for run in runs.finished})
    spectrum = [
        "`spectrum`: κ as the paper defines it, Eq. (1), over the numerical rank. `fit`: the data θ was immunized "
        "with; `held_out`: data it never saw.",
        "Where the standard deviation over all runs exceeds their mean, the median and the geometric mean follow.",
        runs.completeness(),
        *validity_notes(runs),
    ]
    ridge = ["`ridge`: κ of H + ρ·tr(H)/D·I, fine-tuning with weight decay."]
    tables = [
        _ratios(runs, "Immunization by `spectrum`", "spectrum", spectrum),
        _comparison(runs, published),
        _ratios(runs, f"Immunization by `ridge`, ρ = {', '.join(rhos)}", "ridge", ridge),
        _verdicts(runs),
        _steps(runs),
    ]
    return [*tables, *(_spread(runs, *where) for where in SPREADS)] if len(runs.pairs) > 1 else tables


def how(runs: Runs) -> str:
    """What the two numbers of a cell are."""
    if len(runs.seeds) < 2:
        over = f"the {len(runs.pairs)} pairs" if len(runs.pairs) > 1 else "one run"
        return f"mean over {over}, no spread: there is one seed" if len(runs.pairs) > 1 else over
    if len(runs.pairs) == 1:
        return f"mean ± standard deviation (n − 1) over {runs.seeds_text()}"
    return (
        f"mean over {len(runs.pairs)} pairs of mean ± standard deviation (n − 1) over {runs.seeds_text()}, the "
        "convention of the paper's Table 2"
    )


def _by_method(
    runs: Runs, title: str, columns: Sequence[str], cells: Callable[[str], Iterable[str]], notes: Sequence[str] = ()
) -> Table:
    """A row a method: its name, how many runs it has, and its cells."""
    rows = [[f"`{method}`", runs.count_text(method), *cells(method)] for method in runs.methods]
    return Table(runs.mark(title), ["method", "runs", *columns], rows, notes)


def _ratios(
    runs: Runs,
    title: str,
    estimator: str,
    notes: Sequence[str],
    *,
    before: Sequence[str] = (),
    published: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Table:
    """(i), (ii) and RIR on both parts, behind the published ones."""
    columns = [c for part in PARTS for c in under(f"{part}, {estimator}, {runs.size_text(part)}", COLUMNS)]

    def cells(method: str) -> list[str]:
        return [
            *published.get(method, ()),
            *(runs.text(method, part, estimator, name) for part in PARTS for name in RATIOS),
        ]

    return _by_method(runs, f"{title}, {how(runs)}", [*before, *columns], cells, notes)


def _comparison(runs: Runs, published: Sequence[Published]) -> Table:
    sources = ", ".join(dict.fromkeys(p.source for p in published if p.quantity in RATIOS))
    notes = [
        "`released`: κ as the paper's released code computes it, with which its tables were made; on rank-deficient "
        "data it is σ₁/1e-06 whatever the conditioning.",
        *(_relative_spreads(runs, published)),
        *differences(runs, published),
        *([] if sources else [NOT_PUBLISHED]),
    ]
    theirs = under(f"paper, {sources}", COLUMNS) if sources else []
    title = "Comparison with the paper by `released`"
    found = {m: [cell(published, m, name) for name in RATIOS if sources] for m in runs.methods}
    return _ratios(runs, title, "released", notes, before=theirs, published=found)


def _verdicts(runs: Runs) -> Table:
    columns = [c for part in PARTS for c in under(f"{part}, spectrum, {runs.size_text(part)}", HELD)]
    return _by_method(
        runs,
        "Runs in which Definition 3.1 holds, by `spectrum`",
        columns,
        lambda method: (text for part in PARTS for text in held_text(runs.verdicts(method, part))),
        [VERDICTS.format("the pre-training task can still be solved as well")],
    )


def _steps(runs: Runs) -> Table:
    columns = [c for part in PARTS for c in under(f"{part}, {runs.size_text(part)}", ("D_P: I → θ", "D_H: I → θ"))]
    return _by_method(
        runs,
        f"Probe steps to norm ratio {THRESHOLD} (gradient descent, exact line search), median of the runs",
        columns,
        lambda method: (
            " → ".join(_middle_steps(runs, method, part, role, which) for which in ("identity", "immunized"))
            for part in PARTS
            for role in ("pretrain", "harmful")
        ),
        [
            "I: the probe on the raw data; θ: on the immunized features. > : the median run does not get there within "
            "the steps of the probe. D_P should take no longer with θ, D_H much longer.",
        ],
    )


def _spread(runs: Runs, part: str, estimator: str) -> Table:
    def cells(method: str) -> list[str]:
        by_pair = runs.numbers(method, part, estimator, "rir")
        means = _means(runs, method, part, estimator)
        if not means:
            return [NOTHING] * 7
        worst = sorted(means, key=lambda pair: means[pair])[:WORST]
        above = sum(all(v is None or v > 1 for v in values) for values in by_pair.values())
        return [
            *(short(_quantile(list(means.values()), q)) for q in (0, 0.25, 0.5, 0.75, 1)),
            share(above, len(means)),
            ", ".join(f"{pair} ({short(means[pair])})" for pair in worst),
        ]

    columns = ("min", "25 %", "median", "75 %", "max", "pairs with RIR > 1 at every seed", "worst pairs")
    title = f"RIR over the {len(runs.pairs)} pairs on `{part}` by `{estimator}`, mean over seeds of each pair"
    return _by_method(runs, title, under(f"{part}, {estimator}, {runs.size_text(part)}", columns), cells)


def _relative_spreads(runs: Runs, published: Sequence[Published]) -> list[str]:
    theirs = find(published, "ours", "rir")
    ours = summary_of(list(runs.numbers("ours", "fit", "released", "rir").values()))
    if theirs is None or not theirs.std or ours is None or ours.spread is None:
        return []
    return [
        f"RIR of `ours`: {ours.mean / theirs.value:.3g} times the paper's; its standard deviation is "
        f"{ours.spread / ours.mean:.1%} of its mean here, {theirs.std / theirs.value:.1%} in the paper."
    ]


def verdict_counts(records: Iterable[dict[str, Any]], part: str) -> str:
    """In how many of the runs that were measured on a part (a), (b) and (c) hold: "3/3 2/3 3/3"."""
    found = [of for record in records if (of := verdict_on(record, part)) is not None]
    return " ".join(held_text(found)[:3]) if found else NOTHING


def held_text(found: Sequence[dict[str, Any]]) -> list[str]:
    """In how many of the verdicts each of (a), (b) and (c) holds, and all."""
    counts = [*(sum(v[name] for v in found) for name in "abc"), sum(all(v[name] for name in "abc") for v in found)]
    return [share(count, len(found)) for count in counts]


def _middle_steps(runs: Runs, method: str, part: str, role: str, which: str) -> str:
    steps, limits = [], set()
    for run in runs.of_method(method, part):
        if found := run["steps_to_norm_ratio"][part][role][which]:  # empty where there is nothing to learn
            steps.append(infinite(found[THRESHOLD]))
            limits.add(run["config"]["probe_steps"])
    if not steps:
        return NOTHING
    middle = float(np.median(steps))
    return f"{middle:,.0f}" if math.isfinite(middle) else f"> {max(limits):,}"


def _quantile(values: Sequence[float], q: float) -> float:
    """As numpy's, but infinities give infinities instead of NaN."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low if low == high else low + (at - math.floor(at)) * (high - low)


def _means(runs: Runs, method: str, part: str, estimator: str) -> dict[str, float]:
    """The mean RIR over seeds, by pair; infinite where that of a run is: κ of D_H beyond floating point."""
    found = runs.numbers(method, part, estimator, "rir")
    return {pair: float(np.mean([infinite(v) for v in numbers])) for pair, numbers in found.items()}


def log_means(runs: Runs, method: str, part: str, estimator: str) -> dict[str, float]:
    """Natural logarithm of the mean RIR over seeds, by pair; infinite where the RIR of a run is.

    That the paper's Fig. 2 shows the logarithm of the mean follows from its own numbers: the mean of exp(cell) over
    the 90 cells is the mean RIR of its Table 2, for all four methods.
    """
    means = _means(runs, method, part, estimator)
    return {pair: math.log(mean) if mean > 0 else -math.inf for pair, mean in means.items()}


def success_table(runs: Runs, wheres: Sequence[tuple[str, str]], published: Sequence[Published]) -> Table:
    """Pairs with a mean RIR over seeds of at least 1, by method; notes on the paper's cells where there are any.

    Args:
        runs: on pairs of digits.
        wheres: (part, estimator) of the columns.
        published: with `failed_pairs` and `log_rir` rows.
    """

    def cells(method: str) -> list[str]:
        failed = find(published, method, "failed_pairs")
        total = len({p.pair for p in published if p.method == method and p.quantity == "log_rir"})
        every = [log_means(runs, method, *where).values() for where in wheres]
        theirs = NOTHING if failed is None else f"{total - failed.value:.0f}/{total}"
        return [*(share(sum(value >= 0 for value in of), len(of)) for of in every), theirs]

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
        notes.append(NOT_PUBLISHED)
    columns = under(runs.size_text(), (", ".join(where) for where in wheres))
    title = f"Pairs with RIR ≥ 1, mean RIR over {runs.seeds_text()}"
    return _by_method(runs, title, [*columns, "§5.1, not failed paper"], cells, notes)


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


def validity_notes(runs: Runs) -> list[str]:
    """One sentence a part of the data: numerical rank, floor hits and ties of H(θ), the gap at the rank cut of K.

    A last one counts the failure signatures that the trainings on `fit` showed, where they showed any.
    """
    notes = [_note(measured, part) for part in PARTS if (measured := measured_on(runs.finished, part))]
    shown: Counter[tuple[str, str]] = Counter()
    for record in runs.records:
        warnings = record.get("training", {}).get("fit", {}).get("warnings", [])
        shown.update((name, record["method"]) for name in {warning["name"] for warning in warnings})
    counts = [
        f"`{name}` in " + ", ".join(f"{shown[name, m]} of `{m}`" for m in runs.methods if shown[name, m])
        for name in sorted({name for name, _ in shown})
    ]
    return [*notes, *([f"Failure signatures while training on `fit`, by runs: {'; '.join(counts)}."] if counts else [])]


def _note(records: Sequence[dict[str, Any]], part: str) -> str:
    metrics = [record["metrics"][part] for record in records]
    sides = []
    for name, key in _SIDES:
        facts = [of["spectrum"]["facts"][key] for of in metrics]
        floors = sum(of["released"]["facts"][key]["floor_hit"] for of in metrics)
        tops, bottoms = (
            sum(f[gap] is not None and f[gap] - 1 < TIED for f in facts) for gap in ("gap_top", "gap_bottom")
        )
        below = sum(f.get("numerical_rank", f["rank"]) < f["rank"] for f in facts)
        cut = min(infinite(of["spectrum"]["facts"][f"{key}_baseline"]["gap_cut"]) for of in metrics)
        sides.append(
            f"{name} has numerical rank {_range(f['rank'] for f in facts)} of "
            f"{_range(f['n_features'] for f in facts)}, σ₁ tied in {tops:,} and the smallest σ in {bottoms:,} runs, a "
            f"gap of at least {short(cut)} at the raw data's rank cut, and `released` hits its floor in {floors:,} runs"
            + (f" (in {below:,} runs θ pushes some of the data's singular values below the cut)" if below else "")
        )
    return f"`{part}`, {len(records):,} runs: {'; '.join(sides)}."


def _range(values: Iterable[int]) -> str:
    found = set(values)
    return f"{min(found)}" if len(found) == 1 else f"{min(found)} to {max(found)}"
