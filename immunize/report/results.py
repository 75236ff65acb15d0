"""Tables 1, 2 and 3 from records: linear extractors, a row a method, and networks, a row a network, D_H and method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from immunize.report.loading import infinite
from immunize.report.naming import PARTS, pair_title
from immunize.report.provenance import validity_notes
from immunize.report.published import THETA_0, Publications, network_pair
from immunize.report.runs import Runs, expected_runs, experiment_of, swept
from immunize.report.table import NOTHING, share, short, summary_of
from immunize.report.templates import filled_in

SPREADS = (("fit", "spectrum"), ("fit", "released"), ("held_out", "spectrum"), ("held_out", "ridge"))
"""Where the distribution of RIR over pairs is shown."""
WORST = 3

SCALES = {"table3": "", "table3_small": "small", "table3_digits": "digits"}
"""`experiment.name` of the presets of Table 3 to their SCALE."""
MOST_POINTS = 1
"""Points of D_P accuracy that (c) lets go, as :mod:`immunize.evaluation` has it."""
_PROBES = {"gd": ("30", "300", "1000"), "sgd": ("300", "1000"), "adam": ("300",), "least_squares": ("1000", "end")}
"""Optimizers, and the steps after which accuracies are shown."""


def linear_tables(runs: Runs, published: Publications) -> str:
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
        published=published,
        ours=summary_of(list(runs.numbers("ours", "fit", "released", "rir").values())),
        rhos=_rhos([runs]),
        spreads=SPREADS if len(runs.pairs) > 1 else [],
        spread=partial(_spread, runs),
    )


def _rhos(of: Sequence[Runs]) -> str:
    return ", ".join(sorted({f"{run['config']['rho']:g}" for runs in of for run in runs.finished}))


def _spread(runs: Runs, method: str, part: str, estimator: str) -> list[str]:
    """Quartiles of the means of the pairs, how many pairs are above 1 at every seed, and the pairs with the least."""
    by_pair = runs.numbers(method, part, estimator, "rir")
    means = runs.pair_means(method, part, estimator)
    above = sum(all(v is None or v > 1 for v in values) for values in by_pair.values())
    worst = ", ".join(f"{pair} ({short(means[pair])})" for pair in sorted(means, key=lambda pair: means[pair])[:WORST])
    quartiles = (short(_quantile(list(means.values()), q)) for q in (0, 0.25, 0.5, 0.75, 1))
    return [*quartiles, share(above, len(means)), worst or NOTHING]


def _quantile(values: Sequence[float], q: float) -> float:
    """As numpy's, but infinities give infinities instead of NaN, which is that of no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low if low == high else low + (at - math.floor(at)) * (high - low)


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


def network_tables(settings: Sequence[Runs], published: Publications) -> str:
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
        *(network_pair, swept, won),
        settings=settings,
        scale=SCALES[settings[0].name],
        cuts=cuts,
        gaps=[infinite(of["gap_cut"]) for of in cuts],
        published=published,
        rhos=_rhos(settings),
        most_points=MOST_POINTS,
        probes=lambda role: [
            (optimizer, step)
            for optimizer, steps in _PROBES.items()
            for step in steps
            if any(probed(runs, THETA_0, role, optimizer, step) for runs in settings)
        ],
        probed=probed,
    )


def probed(runs: Runs, method: str, role: str, optimizer: str, step: str) -> list[float]:
    """The accuracies of a probe after so many steps, one a run; of θ_0, which is a method here, once a seed."""
    of, which = (runs.once_a_seed, THETA_0) if method == THETA_0 else (runs.of_method(method), "immunized")
    found = (run["probe_accuracy"].get(optimizer, {}).get(role, {}).get(which, {}).get(step) for run in of)
    return [value for value in found if value is not None]


def won(runs: Runs, kind: str) -> dict[str, list[bool]]:
    """By other method, whether `ours` has the larger held-out RIR, a seed each; by a key of `PROTOCOLS`."""
    rir = {
        method: {run["seed"]: infinite(run[kind]["held_out"]["spectrum"]["rir"]) for run in runs.of_method(method)}
        for method in runs.methods
    }
    ours = rir.pop("ours", {})
    better = {method: [ours[seed] > of[seed] for seed in ours.keys() & of.keys()] for method, of in rir.items()}
    return {method: of for method, of in better.items() if of}
