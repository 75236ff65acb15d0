"""Tables 1, 2 and 3 from records: linear extractors, a row a method, and networks, a row a network, D_H and method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from immunize.report.loading import infinite, verdict_on
from immunize.report.naming import PARTS, RATIOS, pair_title
from immunize.report.provenance import validity_notes
from immunize.report.published import ACCURACY, THETA_0, Published, cell, compared, elsewhere, find, network_pair
from immunize.report.runs import Runs, expected_runs, experiment_of, swept
from immunize.report.table import NOTHING, share, short, summary_of, summary_text
from immunize.report.templates import filled_in

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
_PROBES = {"gd": ("30", "300", "1000"), "sgd": ("300", "1000"), "adam": ("300",), "least_squares": ("1000", "end")}
"""Optimizers, and the steps after which accuracies are shown."""


def linear_tables(runs: Runs, published: Sequence[Published]) -> str:
    """Headline, comparison with the paper, ridge, verdicts, steps and, for more than one pair, the spread over pairs.

    Args:
        runs: of one experiment.
        published: the paper's numbers; none leaves the comparison without their column, and the table says so.
    """
    return filled_in(
        "linear.md",
        runs=runs,
        at=lambda *by: [", ".join([part, *by, runs.size_text(part)]) for part in PARTS],
        validity=validity_notes(runs),
        sources=", ".join(dict.fromkeys(p.source for p in published if p.quantity in RATIOS)),
        cell=partial(cell, published),
        theirs=find(published, "ours", "rir"),
        ours=summary_of(list(runs.numbers("ours", "fit", "released", "rir").values())),
        compared=compared(runs, published),
        rhos=_rhos([runs]),
        held_text=held_text,
        middle_steps=partial(_middle_steps, runs),
        spreads=SPREADS if len(runs.pairs) > 1 else [],
        spread=partial(_spread, runs),
    )


def _rhos(of: Sequence[Runs]) -> str:
    return ", ".join(sorted({f"{run['config']['rho']:g}" for runs in of for run in runs.finished}))


def _spread(runs: Runs, method: str, part: str, estimator: str) -> list[str]:
    """Quartiles of the means of the pairs, how many pairs are above 1 at every seed, and the pairs with the least."""
    by_pair = runs.numbers(method, part, estimator, "rir")
    means = pair_means(runs, method, part, estimator)
    above = sum(all(v is None or v > 1 for v in values) for values in by_pair.values())
    worst = ", ".join(f"{pair} ({short(means[pair])})" for pair in sorted(means, key=lambda pair: means[pair])[:WORST])
    quartiles = (short(_quantile(list(means.values()), q)) for q in (0, 0.25, 0.5, 0.75, 1))
    return [*quartiles, share(above, len(means)), worst or NOTHING]


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
    """As numpy's, but infinities give infinities instead of NaN, which is that of no values."""
    if not values:
        return math.nan
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
    cuts = [
        run["metrics"][part]["spectrum"]["facts"][f"kappa_{side}"]
        for runs in settings
        for run in runs.finished
        for part in PARTS
        for side in ("harmful", "harmful_baseline", "pretrain", "pretrain_baseline")
    ]
    return filled_in(
        "networks.md",
        settings=settings,
        scale=SCALES[settings[0].name],
        kinds=KINDS,
        wins=lambda kind: _wins(settings, kind),
        completeness=completeness(settings),
        cuts=cuts,
        gaps=[infinite(of["gap_cut"]) for of in cuts],
        published=published,
        cell=partial(cell, published),
        network_pair=network_pair,
        elsewhere=[note for runs in settings for note in elsewhere(runs, published)],
        rhos=_rhos(settings),
        held_text=held_text,
        most_points=MOST_POINTS,
        accuracy=lambda of, when: summary_text([[run[ACCURACY][when] for run in of]]),
        interval=_interval,
        probes=lambda role: [
            (optimizer, step)
            for optimizer, steps in _PROBES.items()
            for step in steps
            if any(_probed(runs, THETA_0, role, optimizer, step) for runs in settings)
        ],
        probed=_probed,
    )


def _probed(runs: Runs, method: str, role: str, optimizer: str, step: str) -> list[float]:
    """The accuracies of a probe after so many steps, one a run; of θ_0, which is a method here, once a seed."""
    of, which = (runs.once_a_seed, THETA_0) if method == THETA_0 else (runs.of_method(method), "immunized")
    found = (run["probe_accuracy"].get(optimizer, {}).get(role, {}).get(which, {}).get(step) for run in of)
    return [value for value in found if value is not None]


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
