"""Table 3 from records: RIR_θ0 by groups and pooled, the accuracy on D_P, the paper's numbers, verdicts and probes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from immunize.config import config_dir
from immunize.report.cells import NOTHING, short, summary_text
from immunize.report.conventions import HARDER_BY, NO_HARDER, PARTS, RATIOS
from immunize.report.expected import expected_runs, swept
from immunize.report.layout import Table
from immunize.report.naming import pair_title
from immunize.report.nulls import infinite
from immunize.report.published import ACCURACY, THETA_0, Published, cell, elsewhere
from immunize.report.results import COLUMNS, held_text
from immunize.report.runs import FAST, NetworkSetting, Runs, experiment_of

__all__ = ["SCALES", "by_setting", "completeness", "table3_tables"]

SCALES = {"table3": "", "table3_small": "small", "table3_digits": "digits"}
"""`experiment.name` of the presets of Table 3 to their SCALE."""

MOST_POINTS = 1
"""Points of D_P accuracy that (c) lets go, as :mod:`immunize.evaluation` has it."""

KINDS = {"metrics_groups": "20 × 100 groups", "metrics": "pooled"}
_LEFT = ("", ("network", "data", "method", "runs"))
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


def _title(settings: Sequence[NetworkSetting], text: str) -> str:
    return settings[0].runs.mark(f"{text}, {how(settings)}")


def _rows(settings: Sequence[NetworkSetting]) -> list[tuple[NetworkSetting, str, list[str]]]:
    """Setting, method, and the cells that name the row."""
    return [
        (one, method, [f"`{one.model}`", one.title, f"`{method}`", one.runs.count_text(method)])
        for one in settings
        for method in one.runs.methods
    ]


def _ratios(settings: Sequence[NetworkSetting], kind: str, estimator: str, notes: Sequence[str]) -> Table:
    rows = []
    for one, method, row in _rows(settings):
        for part in PARTS:
            row += [summary_text([one.ratios(method, (kind, part, estimator), name)]) for name in RATIOS]
        row += [_interval(one, method, kind, estimator), *_accuracy(one, method)]
        rows.append(row)
    about = {
        "metrics_groups": "The paper's protocol: (i), (ii) and RIR are each the mean over 20 groups of 100 images, so "
        "that RIR is not (i)/(ii). `fit`: images θ was immunized on; `held_out`: images it never saw.",
        "metrics": "κ over all images of the part.",
    }
    return Table(
        _title(settings, f"RIR_θ0, {KINDS[kind]}, by `{estimator}`"),
        f"table3-{kind.replace('metrics', 'pooled').replace('pooled_groups', 'groups')}-{estimator}",
        [
            _LEFT,
            *((f"{part}, {estimator}", COLUMNS) for part in PARTS),
            ("held_out", ("95 % of RIR",)),
            ("D_P accuracy, %", ("θ_0", "after ↑")),
        ],
        rows,
        [
            about[kind],
            "95 %: bootstrap interval of RIR within a run (images or groups resampled), geometric means of its ends "
            "over the runs.",
            *notes,
        ],
    )


def _comparison(settings: Sequence[NetworkSetting], published: Sequence[Published]) -> Table:
    quantities = (*RATIOS, ACCURACY)
    rows, notes = [], []
    for one in settings:
        before = {run["seed"]: run[ACCURACY]["before"] for run in one.runs.finished}
        own = [summary_text([list(before.values())])] if before else [NOTHING]
        left = [f"`{one.model}`", one.title, "θ_0", str(len(before))]
        rows.append(
            [*left, *("1" for _ in RATIOS), *own, *(cell(published, THETA_0, of, one.published) for of in quantities)]
        )
        for _, method, row in _rows([one]):
            row += [summary_text([one.ratios(method, ("metrics_groups", "fit", "released"), n)]) for n in RATIOS]
            row.append(_accuracy(one, method)[1])
            rows.append([*row, *(cell(published, method, quantity, one.published) for quantity in quantities)])
        notes += elsewhere(one, published)
    if not published:
        notes.append("There is no published column: the file of published numbers is missing.")
    elif SCALES[settings[0].runs.name]:
        notes.append(
            "The published numbers are of ImageNet and of timm's weights at 224 px; these runs are not, so that the "
            "columns can be compared in their signs and orders alone."
        )
    return Table(
        _title(settings, "Comparison with the paper: 20 × 100 groups of `fit`, by `released`"),
        "table3-released",
        [
            _LEFT,
            ("here", (*COLUMNS, "D_P acc. % ↑")),
            *([("paper, Table 3", (*COLUMNS, "D_P acc. % ↑"))] if published else []),
        ],
        rows if published else [row[: -len(quantities)] for row in rows],
        [
            "`released`: κ as the paper's released code computes it, with which its tables were made; in groups of "
            "fewer images than features it is σ₁/1e-06, whatever the conditioning. θ_0's own ratios are 1 by "
            "definition; `none` is trained on the supervised loss alone.",
            *notes,
        ],
    )


def _verdicts(settings: Sequence[NetworkSetting]) -> Table:
    places = [(f"{KINDS[kind]}, {part}", kind.replace("metrics", "verdicts"), part) for kind in KINDS for part in PARTS]
    rows = []
    for one, method, left in _rows(settings):
        row = left
        for _, key, part in places:
            found = [run[key] if part == "fit" else run[key]["held_out"] for run in one.runs.of_method(method)]
            row += held_text(found)
        rows.append(row)
    return Table(
        _title(settings, "Runs in which Definition 3.1 holds, by `spectrum`"),
        "table3-verdicts",
        [_LEFT, *((heading, ("(a)", "(b)", "(c)", "all")) for heading, _, _ in places)],
        rows,
        [
            f"(a) the harmful task is harder, (i) ≥ {HARDER_BY:g}; (b) the pre-training task is no harder, (ii) ≤ "
            f"{NO_HARDER:g}; (c) the accuracy on held-out images of D_P fell by {MOST_POINTS} point or less. The paper "
            "gives no thresholds, these are ours."
        ],
    )


def _probes(settings: Sequence[NetworkSetting], role: str) -> Table:
    shown = [
        (optimizer, step)
        for optimizer, steps in _PROBES
        for step in steps
        if any(one.probes(None, optimizer, role, step) for one in settings)
    ]
    rows = []
    for one in settings:
        runs = len(one.runs.seeds)
        left = [[f"`{one.model}`", one.title, "θ_0", str(runs)], *(row for of, _, row in _rows([one]) if of is one)]
        for method, row in zip((None, *one.runs.methods), left, strict=True):
            rows.append([*row, *(summary_text([one.probes(method, o, role, s)]) for o, s in shown)])
    name, aim = {"harmful": ("D_H", "low"), "pretrain": ("D_P", "high")}[role]
    return Table(
        _title(settings, f"Accuracy of a linear probe on {name}, %"),
        f"table3-probe-{role}",
        [_LEFT, *((optimizer, [_steps_text(s) for o, s in shown if o == optimizer]) for optimizer in _unique(shown))],
        rows,
        [
            "A new linear classifier on the frozen features, trained on `fit`, measured on `held_out`, after the given "
            f"steps; to be {aim}. gd: logistic loss, full batch, step 1/L, the paper's attacker; sgd: batches of 256, "
            "momentum 0.9; adam: full batch; least_squares: squared loss, full batch, step 1/L.",
        ],
    )


def _unique(shown: Sequence[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(optimizer for optimizer, _ in shown))


def _steps_text(step: str) -> str:
    return "at the end" if step == "end" else f"{step} steps"


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
        rir = {m: {r["seed"]: _rir(r, kind) for r in one.runs.of_method(m)} for m in one.runs.methods}
        ours = rir.pop("ours", {})
        counts = []
        for method, of in rir.items():
            common = sorted(ours.keys() & of.keys())
            if common:
                counts.append(f"{sum(ours[s] > of[s] for s in common)}/{len(common)} against `{method}`")
        if counts:
            notes.append(
                f"{one.model}, {one.title}: seeds in which `ours` has the larger `held_out` RIR: {', '.join(counts)}."
            )
    return notes


def _rir(record: dict[str, object], kind: str) -> float:
    value = record[kind]["held_out"]["spectrum"]["rir"]  # type: ignore[index]
    return infinite(value)


def _gaps(settings: Sequence[NetworkSetting]) -> list[str]:
    """How clear the rank cut is, over all finished runs."""
    facts = [
        (numbers["facts"][key], key)
        for one in settings
        for run in one.runs.finished
        for numbers in (run["metrics"][part]["spectrum"] for part in PARTS)
        for key in ("kappa_harmful", "kappa_harmful_baseline", "kappa_pretrain", "kappa_pretrain_baseline")
    ]
    if not facts:
        return []
    ranks = [f["rank"] for f, _ in facts]
    gaps = [infinite(f["gap_cut"]) for f, _ in facts]
    return [
        f"Numerical rank {min(ranks)} to {max(ranks)} of {facts[0][0]['n_features']} features; the smallest gap at the "
        f"rank cut is {short(min(gaps))}. Where features are nearly dead the cut decides κ: see `ridge` beside it."
    ]


def _ridge_note(settings: Sequence[NetworkSetting]) -> str:
    rhos = sorted({f"{run['config']['rho']:g}" for one in settings for run in one.runs.finished})
    return f"`ridge`: κ of H + ρ·tr(H)/D·I, ρ = {', '.join(rhos)}: fine-tuning with weight decay."
