"""Tables 1, 2 and 3 from records: linear extractors, a row a method, and networks, a row a network, D_H and method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from immunize.report.loading import infinite, verdict_on
from immunize.report.naming import PARTS, RATIO_HEADS, RATIOS, pair_title
from immunize.report.provenance import validity_notes
from immunize.report.published import ACCURACY, THETA_0, Published, cell, compared, elsewhere, find, network_pair
from immunize.report.runs import Runs, expected_runs, experiment_of, swept
from immunize.report.table import NOTHING, Table, share, short, summary_of, summary_text, under
from immunize.report.templates import filled_in

HELD = ("(a)", "(b)", "(c)", "all")
THRESHOLD = "0.1"
"""The norm ratio of Eq. (16) that the probe has to reach."""

SPREADS = (("fit", "spectrum"), ("fit", "released"), ("held_out", "spectrum"), ("held_out", "ridge"))
"""Where the distribution of RIR over pairs is shown."""
WORST = 3

SCALES = {"table3": "", "table3_small": "small", "table3_digits": "digits"}
"""`experiment.name` of the presets of Table 3 to their SCALE."""
MOST_POINTS = 1
"""Points of D_P accuracy that (c) lets go, as :mod:`immunize.evaluation` has it."""
KINDS = {"metrics_groups": "20 × 100 groups", "metrics": "pooled"}
_PROBES = (
    ("gd", ("30", "300", "1000")),
    ("sgd", ("300", "1000")),
    ("adam", ("300",)),
    ("least_squares", ("1000", "end")),
)


def rows_of(
    of: Sequence[Runs],
    columns: Sequence[str],
    cells: Callable[[Runs, str], Iterable[str]],
    before: Callable[[Runs], Iterable[str]] | None = None,
) -> str:
    """A Markdown table, a row a method: its name, how many runs it has, and its cells; of networks behind their names.

    Args:
        of: the runs of linear extractors, or those of every network and pair of data sets.
        columns: headings of the cells.
        cells: of a method.
        before: of θ_0, in a row before the others of a network.
    """
    networks = of[0].name in SCALES
    rows: list[list[str]] = []
    for runs in of:
        left = [f"`{runs.model}`", runs.title] if networks else []
        rows += [] if before is None else [[*left, "θ_0", *before(runs)]]
        rows += [[*left, f"`{m}`", runs.count_text(m), *cells(runs, m)] for m in runs.methods]
    head = ["network", "data"] if networks else []
    return Table("", [*head, "method", "runs", *columns], rows).markdown(heading=False)


def _both_parts(columns: Sequence[str], *by: str, runs: Runs | None = None, before: Sequence[str] = ()) -> list[str]:
    """Columns of both parts; `runs` of linear extractors are counted in their headings."""
    sizes = {part: [] if runs is None else [runs.size_text(part)] for part in PARTS}
    return [c for part, size in sizes.items() for c in under(", ".join([*before, part, *by, *size]), columns)]


def _numbers(runs: Runs, method: str, estimator: str, kind: str = "metrics") -> list[str]:
    return [runs.text(method, part, estimator, name, kind) for part in PARTS for name in RATIOS]


def _rhos(of: Sequence[Runs]) -> str:
    return ", ".join(sorted({f"{run['config']['rho']:g}" for runs in of for run in runs.finished}))


def linear_tables(runs: Runs, published: Sequence[Published]) -> str:
    """Headline, comparison with the paper, ridge, verdicts, steps and, for more than one pair, the spread over pairs.

    Args:
        runs: of one experiment.
        published: the paper's numbers; none leaves the comparison without their column, and the table says so.
    """

    def ratios(estimator: str, sources: str = "") -> str:
        theirs = under(f"paper, {sources}", RATIO_HEADS) if sources else []
        return rows_of(
            [runs],
            [*theirs, *_both_parts(RATIO_HEADS, estimator, runs=runs)],
            lambda _, m: [*(cell(published, m, of) for of in RATIOS if sources), *_numbers(runs, m, estimator)],
        )

    sources = ", ".join(dict.fromkeys(p.source for p in published if p.quantity in RATIOS))
    return filled_in(
        "linear.md",
        runs=runs,
        ratios=ratios,
        validity=validity_notes(runs),
        sources=sources,
        comparison=ratios("released", sources),
        theirs=find(published, "ours", "rir"),
        ours=summary_of(list(runs.numbers("ours", "fit", "released", "rir").values())),
        compared=compared(runs, published),
        rhos=_rhos([runs]),
        held=_verdicts([runs], _both_parts(HELD, "spectrum", runs=runs), ["metrics"]),
        steps=_steps(runs),
        spreads=SPREADS if len(runs.pairs) > 1 else [],
        spread=lambda part, estimator: _spread(runs, part, estimator),
    )


def _verdicts(of: Sequence[Runs], columns: Sequence[str], kinds: Iterable[str]) -> str:
    places = [(kind, part) for kind in kinds for part in PARTS]
    return rows_of(
        of, columns, lambda runs, m: (text for kind, part in places for text in held_text(runs.verdicts(m, part, kind)))
    )


def _steps(runs: Runs) -> str:
    return rows_of(
        [runs],
        _both_parts(("D_P: I → θ", "D_H: I → θ"), runs=runs),
        lambda _, method: (
            " → ".join(_middle_steps(runs, method, part, role, which) for which in ("identity", "immunized"))
            for part in PARTS
            for role in ("pretrain", "harmful")
        ),
    )


def _spread(runs: Runs, part: str, estimator: str) -> str:
    def cells(_: Runs, method: str) -> list[str]:
        by_pair = runs.numbers(method, part, estimator, "rir")
        means = pair_means(runs, method, part, estimator)
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
    return rows_of([runs], under(f"{part}, {estimator}, {runs.size_text(part)}", columns), cells)


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


def pair_means(runs: Runs, method: str, part: str, estimator: str) -> dict[str, float]:
    """The mean RIR over seeds, by pair; infinite where that of a run is: κ of D_H beyond floating point."""
    found = runs.numbers(method, part, estimator, "rir")
    return {pair: float(np.mean([infinite(v) for v in numbers])) for pair, numbers in found.items()}


def by_setting(records: Sequence[dict[str, Any]]) -> list[Runs]:
    """The runs of each network on each pair of data sets, sorted by both.

    Args:
        records: finished and diverged runs of one of `SCALES`.

    Raises:
        ValueError: records that may not be put into one table, see :meth:`Runs.of`; or of linear extractors.
    """
    names = {experiment_of(record)[0] for record in records}
    if len(names) != 1 or not names <= SCALES.keys():
        raise ValueError(
            f"Table 3 needs runs of one of {', '.join(SCALES)}; these are of {', '.join(sorted(names))}; report each "
            "from a folder of its own"
        )
    name = names.pop()
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        if record["status"] == "finished" and "metrics_groups" not in record:
            raise ValueError(f"Table 3 is of deep networks; there is a run of {record['model']!r}")
        groups.setdefault((record["model"], pair_title(record)), []).append(record)
    return [Runs.of(of, name, expected_runs(name, of)) for _, of in sorted(groups.items())]


def completeness(settings: Sequence[Runs]) -> list[str]:
    """One sentence a setting on its runs, and one on settings of the preset of which there is none."""
    notes = [f"{runs.model}, {runs.title}: {runs.completeness()}" for runs in settings]
    params = swept(settings[0].preset)
    meant = max(len(params.get("model", [])), 1) * max(len(params.get("harmful", [])), 1)
    if meant > len(settings):
        notes.append(f"There are runs of {len(settings)} of {meant} pairs of network and D_H.")
    return notes


def network_tables(settings: Sequence[Runs], published: Sequence[Published]) -> str:
    """Groups and pooled by `spectrum`, the comparison with the paper, both by `ridge`, verdicts, probes.

    Args:
        settings: from :func:`by_setting`.
        published: from :func:`immunize.report.published.read_published`.
    """
    return filled_in(
        "networks.md",
        settings=settings,
        scale=SCALES[settings[0].name],
        kinds=KINDS,
        ratios_of=lambda kind, estimator: _network_ratios(settings, kind, estimator),
        wins=lambda kind: _wins(settings, kind),
        completeness=completeness(settings),
        gaps=_gaps(settings),
        published=published,
        comparison=_network_comparison(settings, published),
        elsewhere=[note for runs in settings for note in elsewhere(runs, published)],
        rhos=_rhos(settings),
        held=_verdicts(settings, [c for kind in KINDS.values() for c in _both_parts(HELD, before=[kind])], KINDS),
        most_points=MOST_POINTS,
        probes=lambda role: _probes(settings, role),
    )


def _network_ratios(settings: Sequence[Runs], kind: str, estimator: str) -> str:
    columns = [*_both_parts(RATIO_HEADS, estimator), "95 % of RIR held_out"]
    return rows_of(
        settings,
        [*columns, *under("D_P accuracy, %", ("θ_0", "after ↑"))],
        lambda runs, m: [
            *_numbers(runs, m, estimator, kind),
            _interval(runs, m, kind, estimator),
            *(_accuracy(runs.of_method(m), when) for when in ("before", "after")),
        ],
    )


def _network_comparison(settings: Sequence[Runs], published: Sequence[Published]) -> str:
    def theirs(runs: Runs, method: str) -> list[str]:
        return [cell(published, method, of, network_pair(runs)) for of in (*RATIOS, ACCURACY) if published]

    def before(runs: Runs) -> list[str]:
        once = runs.once_a_seed
        return [str(len(once)), *("1" for _ in RATIOS), _accuracy(once, "before"), *theirs(runs, THETA_0)]

    def cells(runs: Runs, method: str) -> list[str]:
        ours = [runs.text(method, "fit", "released", name, "metrics_groups") for name in RATIOS]
        return [*ours, _accuracy(runs.of_method(method), "after"), *theirs(runs, method)]

    names = (*RATIO_HEADS, "D_P acc. % ↑")
    columns = [*under("here", names), *(under("paper, Table 3", names) if published else [])]
    return rows_of(settings, columns, cells, before)


def _probes(settings: Sequence[Runs], role: str) -> str:
    def values(runs: Runs, method: str | None, optimizer: str, step: str) -> list[float]:
        """One a run; of θ_0, once a seed, where the method is None."""
        of, which = (runs.once_a_seed, "theta_0") if method is None else (runs.of_method(method), "immunized")
        found = (run["probe_accuracy"].get(optimizer, {}).get(role, {}).get(which, {}).get(step) for run in of)
        return [value for value in found if value is not None]

    places = [(optimizer, step) for optimizer, steps in _PROBES for step in steps]
    shown = [where for where in places if any(values(runs, None, *where) for runs in settings)]

    def cells(runs: Runs, method: str | None) -> list[str]:
        return [summary_text([values(runs, method, *where)]) for where in shown]

    columns = [f"{'at the end' if step == 'end' else f'{step} steps'} {optimizer}" for optimizer, step in shown]
    return rows_of(settings, columns, cells, lambda runs: [str(len(runs.seeds)), *cells(runs, None)])


def _accuracy(runs: Sequence[dict[str, Any]], when: str) -> str:
    return summary_text([[run[ACCURACY][when] for run in runs]])


def _interval(runs: Runs, method: str, kind: str, estimator: str) -> str:
    ends = [run[kind]["held_out"][estimator]["interval"]["rir"] for run in runs.of_method(method)]
    if not ends:
        return NOTHING
    if any(low is None or high is None or not low > 0 for low, high in ends):
        return "unbounded"
    low, high = (math.exp(sum(math.log(end[side]) for end in ends) / len(ends)) for side in (0, 1))
    return f"{short(low)} to {short(high)}"


def _wins(settings: Sequence[Runs], kind: str) -> list[tuple[Runs, dict[str, list[bool]]]]:
    """By network and other method, whether `ours` has the larger held-out RIR, a seed each; by a key of `KINDS`."""
    found = []
    for runs in settings:
        rir = {
            m: {r["seed"]: infinite(r[kind]["held_out"]["spectrum"]["rir"]) for r in runs.of_method(m)}
            for m in runs.methods
        }
        ours = rir.pop("ours", {})
        better = {method: [ours[seed] > of[seed] for seed in ours.keys() & of.keys()] for method, of in rir.items()}
        found.append((runs, {method: of for method, of in better.items() if of}))
    return found


def _gaps(settings: Sequence[Runs]) -> list[str]:
    """How clear the rank cut is, over all finished runs."""
    facts = [
        run["metrics"][part]["spectrum"]["facts"][f"kappa_{side}"]
        for runs in settings
        for run in runs.finished
        for part in PARTS
        for side in ("harmful", "harmful_baseline", "pretrain", "pretrain_baseline")
    ]
    if not facts:
        return []
    ranks = [f["rank"] for f in facts]
    return [
        f"Numerical rank {min(ranks)} to {max(ranks)} of {facts[0]['n_features']} features; the smallest gap at the "
        f"rank cut is {short(min(infinite(f['gap_cut']) for f in facts))}. Where features are nearly dead the cut "
        "decides κ: see `ridge` beside it."
    ]
