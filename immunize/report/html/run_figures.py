"""The figures of one run: training curves, spectra, norm ratios, and the probes of a deep network."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from immunize.errors import UserError
from immunize.report.cells import NOTHING, short
from immunize.report.html.elements import Html, join
from immunize.report.html.page import Section, note
from immunize.report.html.plot import SLOTS, Chart, Line, figure
from immunize.report.html.scales import LINEAR, LOG, STEPS, Axis
from immunize.report.html.tables import Cell, data_table
from immunize.report.html.views import part_name
from immunize.report.sources import METRICS

__all__ = ["norm_ratio_section", "probe_section", "read_log", "spectra_section", "training_section"]

_ROLES = {"pretrain": ("D_P", "H_P"), "harmful": ("D_H", "H_H")}
_WHICH = {"immunized": ("immunized", 0), "identity": ("identity", 1), "theta_0": ("θ_0", 1)}
_POINTS = 240
"""About as many points of a training curve are drawn; more cannot be told apart."""

_TRAINING = {
    "Loss and the terms it is the weighted sum of": ("loss", "term/"),
    "Ratios and RIR, `spectrum`": ("RIR", "ratio_harmful", "ratio_pretrain"),
    "Condition numbers, `spectrum`": ("kappa_pretrain", "kappa_harmful"),
    "D_P's accuracy, percent": ("accuracy_pretrain",),
    "What a ridge probe can learn (correlation)": ("separability_",),
    "Regularizers of the whole data": ("R_well", "R_ill"),
}
"""Charts, and what the names of their columns begin with."""
_NAMES = {"ratio_harmful": "(i) harmful", "ratio_pretrain": "(ii) pretrain", "kappa_harmful": "κ(H_H)"}
_NAMES |= {"kappa_pretrain": "κ(H_P)", "R_well": "R_well(H_P)", "R_ill": "R_ill(H_H)"}

Curve = tuple[list[float], list[float]]


def read_log(folder: Path) -> dict[str, Curve] | None:
    """Column -> (steps, values) of the training's log in a run's folder; None where there is none.

    Rows that are not numbers are left out, as a run that was killed may leave half of one.

    Raises:
        UserError: it is not a log of a training.
    """
    path = folder / METRICS
    if not path.is_file():
        return None
    found: dict[str, Curve] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if "step" not in (reader.fieldnames or []):
                raise UserError(f"{path} is not the log of a training: it has no column 'step'")
            for row in reader:
                step = _parsed(row["step"])
                for name, text in row.items():
                    value = _parsed(text) if isinstance(name, str) and name != "step" else None
                    if step is not None and value is not None:
                        steps, values = found.setdefault(name, ([], []))
                        steps.append(step)
                        values.append(value)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as the log of a training: {error}") from None
    return found


def training_section(log: Mapping[str, Curve] | None, record: dict[str, Any]) -> Section:
    """What was logged while the model was trained on `fit`.

    Args:
        log: from :func:`read_log`.
        record: of the run.
    """
    charts = (
        [] if log is None else [c for title, names in _TRAINING.items() if (c := _training_chart(title, names, log))]
    )
    told = [note(_steps_text(record))]
    if charts:
        caption = (
            "The training on `fit`, from the log beside the record; axes are logarithmic where all numbers allow it."
        )
        if "accuracy_pretrain" in (log or {}):
            caption += " A network is watched on the same few hundred images throughout."
        told.append(figure("training-figure", caption, charts))
    else:
        told.append(note(f"No training curves: the folder holds no `{METRICS}`. Runs with `logger=csv` leave one."))
    return Section("training", "Training", join(told))


def spectra_section(record: dict[str, Any]) -> Section:
    """Singular values of H_P and H_H, before and after."""
    charts = []
    for part, roles in record.get("spectra", {}).items():
        for role, (_, side) in _ROLES.items():
            lines = []
            for which, of in sorted(roles[role].items(), key=lambda item: _WHICH[item[0]][1]):
                name, slot = _WHICH[which]
                lines.append(Line(name, slot, of["index"], of["sigma"]))
            k = max(len(line.x) and int(line.x[-1]) for line in lines)
            x, y = Axis("index i of σ_i", LINEAR, 1, max(k, 2)), Axis(f"σ_i({side})", LOG)
            charts.append(Chart(f"{side}, {part_name(part)}", x, y, lines))
    if charts:
        caption = (
            "The k singular values of H that κ is over, largest first: κ is the height from the first to the last. "
            "Long spectra are thinned between their ends."
        )
        content = figure("spectra-figure", caption, charts)
    else:
        content = join([note(_NO_SPECTRA), _extremes(record)])
    return Section("spectra", "Singular spectra", content)


def norm_ratio_section(record: dict[str, Any]) -> Section | None:
    """Figure 1 of the paper for this run; None for deep networks, whose probes are measured by accuracy."""
    if "metrics_groups" in record:
        return None
    charts = []
    for part, roles in record.get("curves", {}).get("norm_ratio", {}).items():
        for role, (data, _) in _ROLES.items():
            found = {which: curve for which, curve in roles[role].items() if curve is not None}
            lines = [Line(*_WHICH[which], curve["steps"], curve["ratio"]) for which, curve in found.items()]
            if lines:
                title = f"{data}, {part_name(part)}"
                low = max(min(min(line.y) for line in lines), 1e-6)
                charts.append(Chart(title, Axis("gradient steps", STEPS), Axis("norm ratio", LOG, low, 1.3), lines))
    caption = (
        "How far a linear probe still is from its optimum, ‖w_t − w*‖²/‖w_0 − w*‖², by gradient descent with exact "
        "line search. To the right is harder to learn."
    )
    shown = figure("norm-ratio-figure", caption, charts) if charts else note("The record holds no norm-ratio curves.")
    return Section("norm-ratio", "Norm ratio of a linear probe", join([_steps_table(record), shown]))


def probe_section(record: dict[str, Any]) -> Section | None:
    """Accuracy of linear probes on a deep network's features; None for linear extractors."""
    if "metrics_groups" not in record:
        return None
    charts = []
    for optimizer, roles in record.get("curves", {}).get("probe", {}).items():
        for role in reversed(_ROLES):
            lines = [Line(*_WHICH[which], of["steps"], of["accuracy"]) for which, of in roles[role].items()]
            title = f"{_ROLES[role][0]}, {optimizer}"
            charts.append(Chart(title, Axis("steps", LOG), Axis("held-out accuracy, %", LINEAR, 0), lines))
    caption = "A new linear classifier on frozen features, trained on `fit` and measured on `held out`."
    shown = figure("probe-figure", caption, charts) if charts else note("The record holds no probe curves.")
    return Section("probes", "Linear probes", join([_milestones(record), shown]))


def _training_chart(title: str, starts: Sequence[str], log: Mapping[str, Curve]) -> Chart | None:
    names = [name for name in log if any(name == s or (s[-1] in "/_" and name.startswith(s)) for s in starts)]
    lines = []
    for slot, name in enumerate(sorted(names, key=lambda n: (n != "loss", n))[:SLOTS]):
        steps, values = log[name]
        every = max(1, math.ceil(len(steps) / _POINTS))
        kept = [i for i in range(len(steps)) if i % every == 0 or i == len(steps) - 1]
        bare = name.removeprefix("term/").removeprefix("separability_")
        lines.append(Line(_NAMES.get(bare, bare), slot, [steps[i] for i in kept], [values[i] for i in kept]))
    if not lines:
        return None
    positive = all(value > 0 for line in lines for value in line.y)
    heading = title.replace("`", "")
    return Chart(heading, Axis("optimizer steps"), Axis("", LOG if positive else LINEAR), lines)


def _steps_text(record: dict[str, Any]) -> str:
    parts = []
    for name, facts in (record.get("training") or {}).items():
        text = f"`{name.replace('_', '-')}`: {facts['steps']:,} steps in {short(facts['seconds'])} s"
        if facts["steps"] == 0 and "closed_form" in facts:
            text = f"`{name.replace('_', '-')}`: computed in closed form, no steps"
        parts.append(text)
    return "; ".join(parts) + "." if parts else "The record says nothing of the training."


_NO_SPECTRA = (
    "The record holds no spectra: it was written by an earlier version, or comes from a `results.csv.gz`. What it "
    "keeps of them are their ends; `python -m immunize.train` with `overwrite=true` records them."
)


def _extremes(record: dict[str, Any]) -> Html:
    before = "θ_0" if "metrics_groups" in record else "identity"
    rows = []
    for part, estimators in record["metrics"].items():
        facts = next(iter(estimators.values()))["facts"]
        for role, (_, side) in _ROLES.items():
            for name, key in ((before, f"kappa_{role}_baseline"), ("immunized", f"kappa_{role}")):
                of = facts[key]
                numbers = [of[n] for n in ("sigma_max", "sigma_min", "gap_top", "gap_bottom")]
                shown = [Cell(short(v)) for v in numbers]
                rows.append([Cell(part_name(part)), Cell(side), Cell(name), Cell(f"{of['rank']}"), *shown])
    columns = ["part", "matrix", "features", "k", "σ_1", "σ_k", "σ_1/σ_2", "σ_(k−1)/σ_k"]
    return data_table("Ends of the spectra", columns, rows, names=3)


def _steps_table(record: dict[str, Any]) -> Html | None:
    limit = record["config"].get("probe_steps")
    rows = []
    for part, roles in record.get("steps_to_norm_ratio", {}).items():
        for role, of in roles.items():
            thresholds = dict.fromkeys([*of.get("identity", {}), *of.get("immunized", {})])
            for threshold in thresholds:
                cells = [_steps(of[which][threshold], limit) for which in ("identity", "immunized")]
                rows.append([Cell(part_name(part)), Cell(_ROLES[role][0]), Cell(threshold), *cells])
    if not rows:
        return None
    columns = ["part", "data", "norm ratio", "steps, identity", "steps, immunized"]
    return data_table("Steps until the norm ratio is first at or below a threshold", columns, rows, names=2)


def _steps(value: int | None, limit: int | None) -> Cell:
    if value is None:
        return Cell("never" if limit is None else f"> {limit:,}", math.inf)
    return Cell(f"{value:,}", value)


def _milestones(record: dict[str, Any]) -> Html | None:
    found: dict[str, Any] = record.get("probe_accuracy", {})
    rows = []
    steps = list(dict.fromkeys(_steps_of(found)))
    for optimizer, roles in found.items():
        for role in reversed(_ROLES):
            for which in ("theta_0", "immunized"):
                of = roles[role][which]
                values = [Cell(f"{of[s]:.1f}" if s in of else NOTHING, of.get(s)) for s in steps]
                rows.append([Cell(optimizer), Cell(_ROLES[role][0]), Cell(_WHICH[which][0]), *values])
    if not rows:
        return None
    columns = ["optimizer", "data", "features", *(f"after {s}" if s != "end" else "at the end" for s in steps)]
    return data_table("Accuracy of a linear probe after some steps, held-out, %", columns, rows, names=3)


def _steps_of(found: dict[str, Any]) -> Iterable[str]:
    every = {s for roles in found.values() for of in roles.values() for one in of.values() for s in one}
    return sorted(every, key=lambda s: math.inf if s == "end" else int(s))


def _parsed(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
