"""What made the runs of an experiment, as the head of its README: all of it from the records."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from immunize.records import whole_config
from immunize.report.loading import infinite
from immunize.report.naming import LAMBDAS, PARTS, data_name, fit_rows
from immunize.report.runs import Runs, measured_on
from immunize.report.table import NOTHING, Table, short, span
from immunize.report.templates import facts_in, filled_in

_SHOWN = ("python", "immunize", "torch", "lightning", "numpy", "hydra-core")
TIED = 1e-6
"""A gap σ_i/σ_{i+1} within this of 1 counts as a tie: Theorem 4.1 asks for unique extreme singular values."""
_SIDES = (("H_P", "kappa_pretrain"), ("H_H", "kappa_harmful"))
_NOT_SETTINGS = ("_target_", "name", "seed", *LAMBDAS)


def provenance_rows(runs: Runs) -> list[tuple[str, str]]:
    """Runs, commits, dates, machines, wall time, memory, data, versions: names, and texts with code in backticks."""
    hashes = sorted({str(record["data_hash"]) for record in runs.records})
    return facts_in(
        "provenance.txt",
        *(counted, data_name, made_with, rows_in_fit, versions_of),
        runs=runs,
        names=sorted({f"{record['pretrain']} and {record['harmful']}" for record in runs.records}),
        hashes=hashes,
        digest=hashlib.sha256("".join(hashes).encode()).hexdigest(),
    )


def made_with(records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Commits, dates, machines, threads, wall time and memory of any records, a row of the README's head each."""
    starts = [datetime.fromisoformat(record["started"]) for record in records]
    ends = [start + timedelta(seconds=record["seconds"]) for start, record in zip(starts, records, strict=True)]
    return facts_in(
        "made_with.txt",
        *(counted, duration, span),
        records=records,
        dates=[record["started"][:10] for record in records],
        machines=[machine_name(record["hardware"]) for record in records],
        whole=(max(ends) - min(starts)).total_seconds(),
    )


def versions_of(records: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """The row of the README's head that names the versions."""
    told = (", ".join(f"{name} {record['versions'].get(name)}" for name in _SHOWN) for record in records)
    return "versions", counted(told)


def settings_table(runs: Runs) -> Table:
    """The hyper-parameters of every method, from its records' configuration, and what a run took."""
    rows = []
    for method in runs.methods:
        found = [record for record in runs.records if record["method"] == method]
        config = found[0]["config"]
        objective, clip = config["objective"], config.get("trainer", {}).get("gradient_clip_val")
        extras = [f"{k}={v}" for k, v in sorted(config["method"].items()) if k not in _NOT_SETTINGS]
        balance = next(filter(None, map(_balance, found)), {})
        extras += [f"balance_{name}={balance[name]:g}" for name in ("multiplier", "every") if name in balance]
        rate, epochs, size, optimizer = (NOTHING,) * 4
        if "learning_rate" in objective:  # else it takes no steps
            rate, epochs = short(objective["learning_rate"]), f"{objective['epochs']:,}"
            size = "all rows" if objective["batch_size"] is None else f"{objective['batch_size']:,}"
            optimizer = objective["optimizer"]["_target_"].rpartition(".")[2]
            optimizer += "" if clip is None else f", gradients clipped to norm {clip:g}"
        weights = (_weight(name, found) for name in LAMBDAS)
        own = ", ".join(f"`{extra}`" for extra in extras) or NOTHING
        steps = short(np.median([record["training"]["fit"]["steps"] for record in found]))
        seconds = short(np.median([record["seconds"] for record in found]))
        rows.append([f"`{method}`", rate, *weights, epochs, size, optimizer, own, steps, seconds])
    columns = ("method", "η", "λ_P", "λ_H", "epochs", "batch", "optimizer", "own settings", "steps", "seconds a run")
    notes = ["Epochs as configured, steps as done; steps and seconds are medians over the runs."]
    if any(map(_balance, runs.records)):
        notes.append("λ from a balance of gradient norms (C.2) differ by run: their medians.")
    return Table("Hyper-parameters", columns, rows, notes)


def validity_notes(runs: Runs) -> list[str]:
    """One sentence a part of the data: numerical rank, floor hits and ties of H(θ), the gap at the rank cut of K.

    A last one counts the failure signatures that the trainings on `fit` showed, where they showed any.
    """
    shown: Counter[tuple[str, str]] = Counter()
    for record in runs.records:
        warnings = record["training"]["fit"].get("warnings", [])
        shown.update((name, record["method"]) for name in {warning["name"] for warning in warnings})
    signatures = {name: {m: shown[name, m] for m in runs.methods if shown[name, m]} for name, _ in sorted(shown)}
    metrics = {part: [run["metrics"][part] for run in measured_on(runs.finished, part)] for part in PARTS}
    told = filled_in("validity.txt", conditioning, span, sides=_SIDES, metrics=metrics, signatures=signatures)
    return told.splitlines()


def conditioning(metrics: Sequence[dict[str, Any]], key: str) -> dict[str, Any]:
    """In how many runs something is the matter with the κ of a key, and its `facts` in all of them."""
    facts = [of["spectrum"]["facts"][key] for of in metrics]
    return {
        "facts": facts,
        **{gap: sum(f[gap] is not None and f[gap] - 1 < TIED for f in facts) for gap in ("gap_top", "gap_bottom")},
        "below": sum(f.get("numerical_rank", f["rank"]) < f["rank"] for f in facts),
        "floors": sum(of["released"]["facts"][key]["floor_hit"] for of in metrics),
        "cut": min(infinite(of["spectrum"]["facts"][f"{key}_baseline"]["gap_cut"]) for of in metrics),
    }


def _weight(name: str, records: Sequence[dict[str, Any]]) -> str:
    """λ that the runs of a method had: as configured, or the median of what the balance set."""
    configured = whole_config(records[0])["method"].get(name)
    if configured is None:
        return NOTHING
    set_by_balance = [of["weights"][name.removeprefix("lambda_")] for record in records if (of := _balance(record))]
    return f"{short(np.median(set_by_balance))} (balance)" if set_by_balance else short(configured)


def _balance(record: dict[str, Any]) -> dict[str, Any]:
    """The balance of gradient norms in a run, with the `weights` that it set, by term; none where it set none."""
    found: dict[str, Any] = record["training"]["fit"].get("balance", {})
    return found if found.get("weights") else {}


def counted(texts: Iterable[Any]) -> str:
    """Different texts with the number of their runs; the number is left out where there is one text."""
    counts = Counter(map(str, texts))
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{text} ({count:,} runs)" for text, count in counts.most_common())


def machine_name(hardware: dict[str, Any]) -> str:
    """Processor, cores, memory, system and accelerators of a record, in words."""
    accelerators = ", ".join(hardware["accelerators"])
    text = f"{hardware['processor']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB, {hardware['system']}"
    return f"{text}, {accelerators}" if accelerators else text


def duration(seconds: float) -> str:
    """In the unit that it is told in best."""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3 * 3600 else f"{seconds / 3600:.1f} h"


def rows_in_fit(runs: Runs, role: str) -> str:
    """How many each run was immunized with of D_P or D_H."""
    return span(fit_rows(record["data"][role]) for record in runs.records)
