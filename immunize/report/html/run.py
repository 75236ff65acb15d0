"""The page of one run, from its record and what lies beside it: attack record and training log."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from immunize.errors import UserError
from immunize.records import ATTACK_CELLS, ATTACK_RECORD, METRICS, REPORT, diverged_cross_fit, read_immunized
from immunize.report import loading
from immunize.report.attacks.one_run import grid_parts, interval_text, verdict_sentence
from immunize.report.attacks.page import best_figure
from immunize.report.attacks.records import Attacks, collected
from immunize.report.curves import draw_norm_ratio, panels, probe_bands, probe_figure
from immunize.report.html.page import page
from immunize.report.loading import judged, measured
from immunize.report.naming import data_name, part_words, run_title
from immunize.report.one_run import aims_at_kappa, each_set, sets_shown, warning_lines
from immunize.report.provenance import provenance_rows
from immunize.report.runs import Runs, experiment_of
from immunize.report.table import Table
from immunize.report.writing import write_report

_NOT_ENDED = "An attack on this run was begun and has not ended; the same command goes on where it stopped."
_NOT_OF_ONE_RUN = ("runs", "methods", "seeds")
_TRAINING = {
    "loss and its terms": "^loss$|^term/",
    "RIR, (i) and (ii), spectrum": "^(RIR|ratio_harmful|ratio_pretrain)$",
    "condition numbers, spectrum": "^kappa_(pretrain|harmful)$",
    "D_P's accuracy, percent": "^accuracy_pretrain$",
    "what a ridge probe can learn (correlation)": "^separability_",
    "regularizers of the whole data": "^R_(well|ill)$",
}
"""Panels, and the names of their columns."""


def write_run_page(folder: Path, out: Path) -> Path:
    """Write `report.html` of the run in `folder` into `out`, and return its path.

    Raises:
        UserError: no record, or one that cannot be read or lacks what every record has.
    """
    record, log = read_immunized(folder), read_log(folder)
    begun = (folder / ATTACK_CELLS).is_dir()
    with loading.lacking_is_told(f"the record in {folder}"):
        try:
            with loading.lacking_is_told(ATTACK_RECORD):
                attack = loading.read_attack(folder, record)
                if attack is not None:
                    loading.check_same_checkpoint(folder, attack)
                text = run_page(record, attack, log, _NOT_ENDED if begun else None)
        except UserError as error:  # also of a run that was done again; what the record lacks is lacking again
            text = run_page(record, None, log, f"{error}.".removeprefix(f"{folder}/"))
    write_report(out, {REPORT: text})
    return out / REPORT


def run_page(
    record: dict[str, Any],
    attack: dict[str, Any] | None,
    log: pd.DataFrame | None,
    attack_problem: str | None = None,
) -> str:
    """The document.

    Args:
        record: of `immunize.train`, finished or not.
        attack: of `immunize.attack` on that run; None leaves the attacks out, and the page says so.
        log: of the training, see :func:`read_log`.
        attack_problem: why an attack record that is there is not shown.

    Raises:
        KeyError: a record without what every record has.
    """
    of_one = Runs((record,), *experiment_of(record), ())
    grid: dict[str, Any] = {}
    if attack is not None:
        told = {task: f"{of['kind']} task, {of['about']}" for task, of in attack["tasks"].items()}
        sentences = [f"{of}: {verdict_sentence(attack, task)}" for task, of in told.items()]
        attacks = Attacks.of([collected(attack)])
        grid = grid_parts(attack) | {"sentences": sentences, "best": best_figure(attacks), "kept": _kept(attacks)}
    return page(
        "run.html",
        *(aims_at_kappa, data_name, diverged_cross_fit, judged, measured, warning_lines),
        title=run_title(record),
        reduced=of_one.reduced,
        record=record,
        sets=sets_shown(each_set(record)),
        curves=_training(log),
        singular=_spectra(record),
        probes=_probes(record, of_one),
        attack=attack,
        attack_problem=attack_problem,
        **grid,
        facts=[f"{name}: {text}" for name, text in provenance_rows(of_one) if name not in _NOT_OF_ONE_RUN],
        configuration=json.dumps(record["config"], indent=1, ensure_ascii=False),
    )


def read_log(folder: Path) -> pd.DataFrame | None:
    """The training's log in a run's folder, a row a step; None where there is none.

    Cells that are no numbers are NaN, as a run that was killed may leave half of a row.

    Raises:
        UserError: it is not a log of a training.
    """
    path = folder / METRICS
    if not path.is_file():
        return None
    try:
        log = pd.read_csv(path, on_bad_lines="skip", index_col=False).apply(pd.to_numeric, errors="coerce")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as the log of a training: {error}") from None
    if "step" not in log:
        raise UserError(f"{path} is not the log of a training: it has no column 'step'")
    return log.replace([math.inf, -math.inf], math.nan)


def _kept(attacks: Attacks) -> Table:
    """Retention by tier of the one run that was attacked, a row a task."""
    (record,), (group,) = attacks.records, attacks.groups
    rows = [
        [f"`{task}`", "near 0" if record["tasks"][task]["kind"] == "harmful" else "near 1"]
        + [interval_text(found["immunized"].get(tier, {}).get("retention")) for tier in group.tiers]
        for task, found in record["results"].items()
    ]
    return Table(attacks.mark("Retention by tier"), ("task", "wanted", *group.tiers), rows)


def _training(log: pd.DataFrame | None) -> Figure | None:
    if log is None:
        return None
    by_step = log.set_index("step").dropna(axis="columns", how="all")
    groups = {title: by_step.filter(regex=names) for title, names in _TRAINING.items()}
    groups = {title: shown for title, shown in groups.items() if not shown.empty}
    if not groups:
        return None
    rows, columns = math.ceil(len(groups) / 3), min(len(groups), 3)
    figure = Figure(figsize=(4.6 * columns, 3.2 * rows), layout="constrained")
    for index, (title, shown) in enumerate(groups.items(), start=1):
        axis = figure.add_subplot(rows, columns, index)
        for name, line in shown.items():
            known = line.dropna()
            axis.plot(known.index.to_list(), known.to_list(), label=str(name).removeprefix("term/"))
        bounded = shown.columns.str.match("accuracy|separability").any()  # where differences count, and not ratios
        scale = "linear" if bounded or (shown <= 0).any(axis=None) else "log"
        axis.set(title=title, xlabel="optimizer steps", yscale=scale)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    return figure


def _spectra(record: dict[str, Any]) -> Figure | None:
    found = record.get("spectra", {})
    if not found:
        return None
    figure, grid = panels((9.2, 3.2 * len(found)), len(found), 2)
    for axes, (part, roles) in zip(grid, found.items(), strict=True):
        for axis, (role, side) in zip(axes, (("pretrain", "H_P"), ("harmful", "H_H")), strict=True):
            for which, of in roles[role].items():
                axis.plot(of["index"], of["sigma"], "-" if which == "immunized" else "--", label=which)
            axis.set(title=f"{side}, {part_words(part)}", xlabel="index i of σ_i", ylabel=f"σ_i({side})", yscale="log")
            axis.grid(alpha=0.3)
    for axis in grid[0]:
        axis.legend(fontsize=8)
    return figure


def _probes(record: dict[str, Any], of_one: Runs) -> list[Figure]:
    """How fast a linear probe learns; none without curves."""
    curves = record.get("curves", {})
    if "metrics_groups" not in record:
        return [draw_norm_ratio(record)] if "norm_ratio" in curves else []
    bands = probe_bands([of_one]).groupby("optimizer", sort=False) if "probe" in curves else []
    return [probe_figure(shown) for _, shown in bands]
