"""The tables of an experiment with many runs (Tables 1 and 2 of the paper), every cell from records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from immunize.report.cells import NOTHING, short, summary_of, summary_text
from immunize.report.conventions import HARDER_BY, NO_HARDER, PARTS, RATIOS
from immunize.report.layout import Table
from immunize.report.nulls import infinite
from immunize.report.published import Published, cell, differences, find
from immunize.report.runs import Runs
from immunize.report.validity import validity_notes

__all__ = ["COLUMNS", "held_text", "result_tables"]

COLUMNS = ("(i) ↑", "(ii) ↓", "RIR ↑")
THRESHOLD = "0.1"
"""The norm ratio of Eq. (16) that the probe has to reach."""


SPREADS = (("fit", "spectrum"), ("fit", "released"), ("held_out", "spectrum"), ("held_out", "ridge"))
"""Where the distribution of RIR over pairs is shown."""
WORST = 3


def result_tables(runs: Runs, published: Sequence[Published]) -> list[Table]:
    """Headline, comparison with the paper, ridge, verdicts, steps and, for more than one pair, the spread over pairs.

    Args:
        runs: of one experiment.
        published: the paper's numbers; none leaves the comparison without their column, and the table says so.
    """
    tables = [_headline(runs), _comparison(runs, published), _ridge(runs), _verdicts(runs), _steps(runs)]
    return [*tables, *(_spread(runs, *where) for where in SPREADS)] if len(runs.pairs) > 1 else tables


def how(runs: Runs) -> str:
    """What the two numbers of a cell are."""
    if len(runs.seeds) < 2:
        over = f"the {len(runs.pairs)} pairs" if len(runs.pairs) > 1 else "one run"
        return f"mean over {over}, no spread: there is one seed" if len(runs.pairs) > 1 else over
    if len(runs.pairs) == 1:
        return f"mean ± standard deviation (n − 1) over {len(runs.seeds)} seeds"
    return (
        f"mean over {len(runs.pairs)} pairs of mean ± standard deviation (n − 1) over {len(runs.seeds)} seeds, the "
        "convention of the paper's Table 2"
    )


def _headline(runs: Runs) -> Table:
    notes = [
        "`spectrum`: κ as the paper defines it, Eq. (1), over the numerical rank. `fit`: the data θ was immunized "
        "with; `held_out`: data it never saw.",
        "Where the standard deviation over all runs exceeds their mean, the median and the geometric mean follow.",
        runs.completeness(),
        *validity_notes(runs),
    ]
    return Table(
        runs.mark(f"Immunization by `spectrum`, {how(runs)}"),
        f"{runs.name}-spectrum",
        [("", ("method", "runs")), *(_ratio_group(runs, part, "spectrum") for part in PARTS)],
        [_ratio_row(runs, method, [(part, "spectrum") for part in PARTS]) for method in runs.methods],
        notes,
    )


def _comparison(runs: Runs, published: Sequence[Published]) -> Table:
    sources = ", ".join(dict.fromkeys(p.source for p in published if p.quantity in RATIOS))
    notes = [
        "`released`: κ as the paper's released code computes it, with which its tables were made; on rank-deficient "
        "data it is σ₁/1e-06 whatever the conditioning.",
        *(_relative_spreads(runs, published)),
        *differences(runs, published),
    ]
    groups: list[tuple[str, Sequence[str]]] = [("", ("method", "runs"))]
    rows = [_ratio_row(runs, method, [(part, "released") for part in PARTS]) for method in runs.methods]
    if sources:
        groups.append((f"paper, {sources}", COLUMNS))
        rows = [
            [*row[:2], *(cell(published, method, name) for name in RATIOS), *row[2:]]
            for method, row in zip(runs.methods, rows, strict=True)
        ]
    else:
        notes.append("There is no published column: the file of published numbers is missing.")
    groups += [_ratio_group(runs, part, "released") for part in PARTS]
    title = runs.mark(f"Comparison with the paper by `released`, {how(runs)}")
    return Table(title, f"{runs.name}-released", groups, rows, notes)


def _ridge(runs: Runs) -> Table:
    rhos = sorted({f"{run['config']['rho']:g}" for run in runs.finished})
    return Table(
        runs.mark(f"Immunization by `ridge`, ρ = {', '.join(rhos)}, {how(runs)}"),
        f"{runs.name}-ridge",
        [("", ("method", "runs")), *(_ratio_group(runs, part, "ridge") for part in PARTS)],
        [_ratio_row(runs, method, [(part, "ridge") for part in PARTS]) for method in runs.methods],
        ["`ridge`: κ of H + ρ·tr(H)/D·I, fine-tuning with weight decay."],
    )


def _verdicts(runs: Runs) -> Table:
    rows = []
    for method in runs.methods:
        row = [f"`{method}`", runs.count_text(method)]
        for part in PARTS:
            finished = runs.of_method(method, part)
            found = [run["verdicts"] if part == "fit" else run["verdicts"]["held_out"] for run in finished]
            row += held_text(found)
        rows.append(row)
    return Table(
        runs.mark("Runs in which Definition 3.1 holds, by `spectrum`"),
        f"{runs.name}-verdicts",
        [
            ("", ("method", "runs")),
            *((f"{part}, spectrum, {runs.size_text(part)}", ("(a)", "(b)", "(c)", "all")) for part in PARTS),
        ],
        rows,
        [
            f"(a) the harmful task is harder, (i) ≥ {HARDER_BY:g}; (b) the pre-training task is no harder, (ii) ≤ "
            f"{NO_HARDER:g}; (c) the pre-training task can still be solved as well. The paper gives no thresholds, "
            "these are ours."
        ],
    )


def _steps(runs: Runs) -> Table:
    groups: list[tuple[str, Sequence[str]]] = [("", ("method", "runs"))]
    groups += [(f"{part}, {runs.size_text(part)}", ("D_P: I → θ", "D_H: I → θ")) for part in PARTS]
    rows = []
    for method in runs.methods:
        row = [f"`{method}`", runs.count_text(method)]
        for part in PARTS:
            for role in ("pretrain", "harmful"):
                sides = [_middle_steps(runs, method, part, role, which) for which in ("identity", "immunized")]
                row.append(" → ".join(sides))
        rows.append(row)
    return Table(
        runs.mark(f"Probe steps to norm ratio {THRESHOLD} (gradient descent, exact line search), median of the runs"),
        f"{runs.name}-steps",
        groups,
        rows,
        [
            "I: the probe on the raw data; θ: on the immunized features. > : the median run does not get there within "
            "the steps of the probe. D_P should take no longer with θ, D_H much longer.",
        ],
    )


def _spread(runs: Runs, part: str, estimator: str) -> Table:
    rows = []
    for method in runs.methods:
        by_pair = runs.numbers(method, part, estimator, "rir")
        # what is not finite is infinite: κ of the harmful task beyond floating point
        means = {p: float(np.mean([infinite(v) for v in values])) for p, values in by_pair.items()}
        if not means:
            rows.append([f"`{method}`", runs.count_text(method), *[NOTHING] * 7])
            continue
        worst = sorted(means, key=lambda pair: means[pair])[:WORST]
        above = sum(all(v is None or v > 1 for v in values) for values in by_pair.values())
        rows.append(
            [
                f"`{method}`",
                runs.count_text(method),
                *(short(_quantile(list(means.values()), q)) for q in (0, 0.25, 0.5, 0.75, 1)),
                _share(above, len(means)),
                ", ".join(f"{pair} ({short(means[pair])})" for pair in worst),
            ]
        )
    return Table(
        runs.mark(f"RIR over the {len(runs.pairs)} pairs on `{part}` by `{estimator}`, mean over seeds of each pair"),
        f"{runs.name}-pairs-{part.replace('_', '-')}-{estimator}",
        [
            ("", ("method", "runs")),
            (
                f"{part}, {estimator}, {runs.size_text(part)}",
                ("min", "25 %", "median", "75 %", "max", "pairs with RIR > 1 at every seed", "worst pairs"),
            ),
        ],
        rows,
    )


def _ratio_group(runs: Runs, part: str, estimator: str) -> tuple[str, Sequence[str]]:
    return f"{part}, {estimator}, {runs.size_text(part)}", COLUMNS


def _ratio_row(runs: Runs, method: str, wheres: Sequence[tuple[str, str]]) -> list[str]:
    cells = [summary_text(list(runs.numbers(method, *where, name).values())) for where in wheres for name in RATIOS]
    return [f"`{method}`", runs.count_text(method), *cells]


def _relative_spreads(runs: Runs, published: Sequence[Published]) -> list[str]:
    theirs = find(published, "ours", "rir")
    ours = summary_of(list(runs.numbers("ours", "fit", "released", "rir").values()))
    if theirs is None or not theirs.std or ours is None or ours.spread is None:
        return []
    return [
        f"RIR of `ours`: {ours.mean / theirs.value:.3g} times the paper's; its standard deviation is "
        f"{ours.spread / ours.mean:.1%} of its mean here, {theirs.std / theirs.value:.1%} in the paper."
    ]


def held_text(found: Sequence[dict[str, Any]]) -> list[str]:
    """In how many of the verdicts each of (a), (b) and (c) holds, and all."""
    counts = [*(sum(v[name] for v in found) for name in "abc"), sum(all(v[name] for name in "abc") for v in found)]
    return [_share(count, len(found)) for count in counts]


def _share(count: int, total: int) -> str:
    return f"{count}/{total}" if total else NOTHING


def _middle_steps(runs: Runs, method: str, part: str, role: str, which: str) -> str:
    steps, limits = [], set()
    for run in runs.of_method(method, part):
        if found := run["steps_to_norm_ratio"][part][role][which]:  # empty where there is nothing to learn
            reached = found[THRESHOLD]
            steps.append(math.inf if reached is None else float(reached))
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
