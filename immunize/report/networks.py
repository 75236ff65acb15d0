"""Table 3 from records: RIR_θ0 by groups and pooled, the accuracy on D_P, the paper's numbers, verdicts and probes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from immunize.config import config_dir
from immunize.report.loading import infinite
from immunize.report.naming import PARTS, RATIOS, pair_title
from immunize.report.published import ACCURACY, THETA_0, Published, cell, elsewhere
from immunize.report.results import COLUMNS, HELD, NOT_PUBLISHED, VERDICTS, held_text
from immunize.report.runs import FAST, NetworkSetting, Runs, expected_runs, experiment_of, swept
from immunize.report.table import NOTHING, Table, short, summary_text, under

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


def by_setting(records: Sequence[dict[str, Any]]) -> list[NetworkSetting]:
    """The settings of an experiment, sorted by network and data.

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
    found = []
    for (model, title), of in sorted(groups.items()):
        runs = Runs.of(of, name, expected_runs(name, of))
        network = of[0].get("network") or {}
        found.append(NetworkSetting(model, str(network.get("architecture", model)), str(of[0]["harmful"]), title, runs))
    return found


def completeness(settings: Sequence[NetworkSetting]) -> list[str]:
    """One sentence a setting on its runs, and one on settings of the preset of which there is none."""
    notes = [f"{one.model}, {one.title}: {one.runs.completeness()}" for one in settings]
    first = settings[0].runs
    preset = f"{first.name}{FAST if first.reduced else ''}.yaml"
    params = swept(Path(config_dir()) / "experiment" / preset)
    meant = max(len(params.get("model", [])), 1) * max(len(params.get("harmful", [])), 1)
    if meant > len(settings):
        notes.append(f"There are runs of {len(settings)} of {meant} pairs of network and D_H.")
    return notes


def table3_tables(settings: Sequence[NetworkSetting], published: Sequence[Published]) -> list[Table]:
    """Groups and pooled by `spectrum`, the comparison with the paper, both by `ridge`, verdicts, probes.

    Args:
        settings: from :func:`by_setting`.
        published: from :func:`immunize.report.published.read_published`.
    """
    return [
        _ratios(settings, "metrics_groups", "spectrum", [*_wins(settings, "metrics_groups"), *completeness(settings)]),
        _ratios(settings, "metrics", "spectrum", [*_wins(settings, "metrics"), *_gaps(settings)]),
        _comparison(settings, published),
        *(_ratios(settings, kind, "ridge", [_ridge_note(settings)]) for kind in KINDS),
        _verdicts(settings),
        *(_probes(settings, role) for role in ("harmful", "pretrain")),
    ]


def how(settings: Sequence[NetworkSetting]) -> str:
    """What the two numbers of a cell are, and the scale of the experiment."""
    seeds = max(len(one.runs.seeds) for one in settings)
    over = f"mean ± standard deviation (n − 1) over {seeds} seeds" if seeds > 1 else "one seed"
    scale = SCALES[settings[0].runs.name]
    return f"{over}, scale `{scale}`" if scale else over


def _table(
    settings: Sequence[NetworkSetting],
    title: str,
    columns: Sequence[str],
    cells: Callable[[NetworkSetting, str], Iterable[str]],
    notes: Sequence[str],
    *,
    before: Callable[[NetworkSetting], Iterable[str]] | None = None,
) -> Table:
    """A row a setting and method, and one of θ_0 before those of a setting where `before` has its cells."""
    rows = []
    for one in settings:
        left = [f"`{one.model}`", one.title]
        rows += [] if before is None else [[*left, "θ_0", *before(one)]]
        rows += [[*left, f"`{m}`", one.runs.count_text(m), *cells(one, m)] for m in one.runs.methods]
    title = settings[0].runs.mark(f"{title}, {how(settings)}")
    return Table(title, ["network", "data", "method", "runs", *columns], rows, notes)


def _ratios(settings: Sequence[NetworkSetting], kind: str, estimator: str, notes: Sequence[str]) -> Table:
    about = {
        "metrics_groups": "The paper's protocol: (i), (ii) and RIR are each the mean over 20 groups of 100 images, so "
        "that RIR is not (i)/(ii). `fit`: images θ was immunized on; `held_out`: images it never saw.",
        "metrics": "κ over all images of the part.",
    }
    columns = [c for part in PARTS for c in under(f"{part}, {estimator}", COLUMNS)]
    columns += ["95 % of RIR held_out", *under("D_P accuracy, %", ("θ_0", "after ↑"))]

    def cells(one: NetworkSetting, method: str) -> list[str]:
        found = [one.runs.text(method, part, estimator, name, kind) for part in PARTS for name in RATIOS]
        return [*found, _interval(one, method, kind, estimator), *_accuracy(one, method)]

    interval = (
        "95 %: bootstrap interval of RIR within a run (images or groups resampled), geometric means of its ends over "
        "the runs."
    )
    title = f"RIR_θ0, {KINDS[kind]}, by `{estimator}`"
    return _table(settings, title, columns, cells, [about[kind], interval, *notes])


def _comparison(settings: Sequence[NetworkSetting], published: Sequence[Published]) -> Table:
    def theirs(one: NetworkSetting, method: str) -> list[str]:
        return [cell(published, method, of, one.published) for of in (*RATIOS, ACCURACY) if published]

    def before(one: NetworkSetting) -> list[str]:
        found = {run["seed"]: run[ACCURACY]["before"] for run in one.runs.finished}
        return [str(len(found)), *("1" for _ in RATIOS), summary_text([list(found.values())]), *theirs(one, THETA_0)]

    def cells(one: NetworkSetting, method: str) -> list[str]:
        ours = [one.runs.text(method, "fit", "released", name, "metrics_groups") for name in RATIOS]
        return [*ours, _accuracy(one, method)[1], *theirs(one, method)]

    notes = [
        "`released`: κ as the paper's released code computes it, with which its tables were made; in groups of "
        "fewer images than features it is σ₁/1e-06, whatever the conditioning. θ_0's own ratios are 1 by "
        "definition; `none` is trained on the supervised loss alone.",
        *(note for one in settings for note in elsewhere(one, published)),
    ]
    if not published:
        notes.append(NOT_PUBLISHED)
    elif SCALES[settings[0].runs.name]:
        notes.append(
            "The published numbers are of ImageNet and of timm's weights at 224 px; these runs are not, so that the "
            "columns can be compared in their signs and orders alone."
        )
    names = (*COLUMNS, "D_P acc. % ↑")
    columns = [*under("here", names), *(under("paper, Table 3", names) if published else [])]
    title = "Comparison with the paper: 20 × 100 groups of `fit`, by `released`"
    return _table(settings, title, columns, cells, notes, before=before)


def _verdicts(settings: Sequence[NetworkSetting]) -> Table:
    places = [(kind, part) for kind in KINDS for part in PARTS]
    return _table(
        settings,
        "Runs in which Definition 3.1 holds, by `spectrum`",
        [c for kind, part in places for c in under(f"{KINDS[kind]}, {part}", HELD)],
        lambda one, method: (
            text for kind, part in places for text in held_text(one.runs.verdicts(method, part, kind))
        ),
        [VERDICTS.format(f"the accuracy on held-out images of D_P fell by {MOST_POINTS} point or less")],
    )


def _probes(settings: Sequence[NetworkSetting], role: str) -> Table:
    shown = [
        (optimizer, step)
        for optimizer, steps in _PROBES
        for step in steps
        if any(one.probes(None, role, optimizer, step) for one in settings)
    ]

    def cells(one: NetworkSetting, method: str | None) -> list[str]:
        return [summary_text([one.probes(method, role, *where)]) for where in shown]

    name, aim = {"harmful": ("D_H", "low"), "pretrain": ("D_P", "high")}[role]
    return _table(
        settings,
        f"Accuracy of a linear probe on {name}, %",
        [f"{'at the end' if step == 'end' else f'{step} steps'} {optimizer}" for optimizer, step in shown],
        cells,
        [
            "A new linear classifier on the frozen features, trained on `fit`, measured on `held_out`, after the given "
            f"steps; to be {aim}. gd: logistic loss, full batch, step 1/L, the paper's attacker; sgd: batches of 256, "
            "momentum 0.9; adam: full batch; least_squares: squared loss, full batch, step 1/L.",
        ],
        before=lambda one: [str(len(one.runs.seeds)), *cells(one, None)],
    )


def _accuracy(one: NetworkSetting, method: str) -> list[str]:
    runs = one.runs.of_method(method)
    return [summary_text([[run[ACCURACY][when] for run in runs]]) for when in ("before", "after")]


def _interval(one: NetworkSetting, method: str, kind: str, estimator: str) -> str:
    ends = [run[kind]["held_out"][estimator]["interval"]["rir"] for run in one.runs.of_method(method)]
    if not ends:
        return NOTHING
    if any(low is None or high is None or not low > 0 for low, high in ends):
        return "unbounded"
    low, high = (math.exp(sum(math.log(end[side]) for end in ends) / len(ends)) for side in (0, 1))
    return f"{short(low)} to {short(high)}"


def _wins(settings: Sequence[NetworkSetting], kind: str) -> list[str]:
    """In how many seeds `ours` has a larger held-out RIR than each other method, by a key of `KINDS`."""
    notes = []
    for one in settings:
        rir = {
            m: {r["seed"]: infinite(r[kind]["held_out"]["spectrum"]["rir"]) for r in one.runs.of_method(m)}
            for m in one.runs.methods
        }
        ours = rir.pop("ours", {})
        common = {method: sorted(ours.keys() & of.keys()) for method, of in rir.items()}
        counts = [
            f"{sum(ours[s] > rir[method][s] for s in seeds)}/{len(seeds)} against `{method}`"
            for method, seeds in common.items()
            if seeds
        ]
        if counts:
            notes.append(
                f"{one.model}, {one.title}: seeds in which `ours` has the larger `held_out` RIR: {', '.join(counts)}."
            )
    return notes


def _gaps(settings: Sequence[NetworkSetting]) -> list[str]:
    """How clear the rank cut is, over all finished runs."""
    facts = [
        run["metrics"][part]["spectrum"]["facts"][key]
        for one in settings
        for run in one.runs.finished
        for part in PARTS
        for key in ("kappa_harmful", "kappa_harmful_baseline", "kappa_pretrain", "kappa_pretrain_baseline")
    ]
    if not facts:
        return []
    ranks = [f["rank"] for f in facts]
    return [
        f"Numerical rank {min(ranks)} to {max(ranks)} of {facts[0]['n_features']} features; the smallest gap at the "
        f"rank cut is {short(min(infinite(f['gap_cut']) for f in facts))}. Where features are nearly dead the cut "
        "decides κ: see `ridge` beside it."
    ]


def _ridge_note(settings: Sequence[NetworkSetting]) -> str:
    rhos = sorted({f"{run['config']['rho']:g}" for one in settings for run in one.runs.finished})
    return f"`ridge`: κ of H + ρ·tr(H)/D·I, ρ = {', '.join(rhos)}: fine-tuning with weight decay."
