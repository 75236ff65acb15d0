"""The page of many runs: verdicts, means, the Pareto front, heat maps over the pairs, and every pair by itself.

All of it from one frame: a row a run, and place that it was measured at (part, groups or all rows, estimator of κ).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from immunize.errors import UserError
from immunize.records import REPORT
from immunize.report.curves import panels, style_of
from immunize.report.heatmaps import WIDEST, heatmap
from immunize.report.html.page import page
from immunize.report.loading import Record, count_missing, lacking_is_told, load_records, measured, verdict_on
from immunize.report.naming import PARTS, RATIO_HEADS, RATIOS, in_order, pair_label, part_words
from immunize.report.provenance import provenance_rows, settings_table, validity_notes
from immunize.report.runs import Runs, count_text, experiment_of, held_text, measured_on
from immunize.report.summary import named_groups
from immunize.report.table import Table, short, summary_of, summary_text, under
from immunize.report.tradeoff import draw_fronts, with_front
from immunize.report.writing import write_report

_ORDER = ("fit", "held_out", "validation")
MAP_FROM = 3
"""Pairs of data sets from which on a heat map shows more than a table."""
_MOST_LABELS = 12

Settings = Mapping[str, Sequence[Record]]
"""A method, and what was varied about it, to its runs of any status."""


def write_sweep_page(folder: Path, out: Path) -> Path:
    """Write `report.html` of the runs below `folder` into `out`, and return its path.

    Raises:
        UserError: no runs, or records that cannot be read or do not go together.
    """
    with lacking_is_told(f"a record below {folder}"):
        try:
            records = load_records(folder, ("finished", "diverged", "interrupted"))
        except FileNotFoundError as error:
            raise UserError(
                f"{error}; a folder of runs that have ended is needed, html run=<folder> is for one"
            ) from None
        text = sweep_page(records, folder.resolve().name, count_missing(folder, records))
    write_report(out, {REPORT: text})
    return out / REPORT


def sweep_page(records: Sequence[Record], name: str, missing: int = 0) -> str:
    """The document.

    Args:
        records: of runs of any status, of one schema version.
        name: of the sweep.
        missing: how many of its runs have left no record yet.

    Raises:
        KeyError: a record without what every record has.
    """
    settings = settings_of(records)
    numbers = _numbers(settings)
    views = {} if numbers.empty else {str(view): of for view, of in numbers.groupby("view", sort=False)}
    different = not numbers.empty and (numbers.groupby("setting")["data"].agg(frozenset).nunique() > 1)
    names = sorted({experiment_of(record)[0] for record in records})
    runs = Runs(tuple(records), " and ".join(names), any(experiment_of(record)[1] for record in records), ())
    known = runs.finished and all(part in r["metrics"] for part in PARTS for r in measured_on(runs.finished, part))
    return page(
        "sweep.html",
        *(front, log_maps, results),
        title=f"Sweep {name}",
        reduced=runs.reduced,
        runs=runs,
        missing=missing,
        names=", ".join(one for one in names if one != "none"),
        judged=_verdicts(numbers, settings) if views else None,
        different=different,
        views=views,
        settings=settings,
        map_from=MAP_FROM,
        facts=[f"{name}: {text}" for name, text in provenance_rows(runs) if name != "runs"],
        hyper_parameters=settings_table(runs) if len(settings) == len(runs.methods) else None,
        validity=validity_notes(runs) if known else [],
    )


def settings_of(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The runs of each setting, in the order of the tables: by model, then by method, then by what was varied.

    What runs of one method and model on one pair differ in becomes part of the name; seeds do not.
    """
    methods = in_order(record["method"] for record in records)

    def place(of: tuple[str, Any, list[Record]]) -> tuple[Any, ...]:
        _, values, (first, *_) = of
        return first["model"], methods.index(first["method"]), values

    found: dict[str, list[Record]] = {}
    for name, _, runs in sorted(named_groups(records), key=place):
        found.setdefault(name, []).extend(runs)
    return found


def _numbers(settings: Settings) -> pd.DataFrame:
    """(i), (ii) and RIR, and the verdict that is of them: a row a setting, run and view, by part, `spectrum` first."""
    rows = [
        {"setting": name, "method": run["method"], "model": run["model"], "pair": pair_label(run)}
        | {"data": run["data_hash"], "where": (where := part_words(part, protocol))}
        | {"view": f"{where}, {estimator}", "order": (_ORDER.index(part), estimator != "spectrum")}
        | {"verdict": verdict if verdict and verdict["estimator"] == estimator else None}
        | {ratio: of[ratio] for ratio in RATIOS}
        for name, runs in settings.items()
        for run in runs
        for protocol, part, estimator, of in measured(run)
        for verdict in [verdict_on(run, part, protocol)]
    ]
    return pd.DataFrame(rows).sort_values("order", kind="stable") if rows else pd.DataFrame()


def _groups(values: pd.DataFrame, ratio: str) -> list[list[float | None]]:
    return [[v if math.isfinite(v) else None for v in of] for _, of in values.groupby("pair", sort=False)[ratio]]


def _verdicts(numbers: pd.DataFrame, settings: Settings) -> Table:
    numbers = numbers.dropna(subset="verdict")
    found = {place: list(of) for place, of in numbers.groupby(["where", "setting"])["verdict"]}
    wheres = numbers["where"].unique()
    rows = [
        [name, count_text(runs), *(text for where in wheres for text in held_text(found.get((where, name), [])))]
        for name, runs in settings.items()
    ]
    by = ", ".join(dict.fromkeys(of["estimator"] for of in numbers["verdict"]))
    heads = ("(a)", "(b)", "(c)", "all:")
    columns = ["setting", "runs", *(column for where in wheres for column in under(where, heads))]
    return Table(f"In how many finished runs each verdict of Definition 3.1 holds, by {by}", columns, rows)


def results(view: str, numbers: pd.DataFrame, settings: Settings, keys: Sequence[str]) -> Table:
    """A row a setting, or a setting and pair: how many runs it has, and its means."""
    found = dict(list(numbers.groupby([*keys], sort=False)))
    rows = []
    for name, runs in settings.items():
        for key in dict.fromkeys((name, pair_label(run))[: len(keys)] for run in runs):
            of = found.get(key, numbers[:0])
            rirs = summary_of(_groups(of, "rir"))
            cells = [summary_text(_groups(of, ratio)) for ratio in RATIOS]
            counts = [str(of["pair"].nunique())] if len(keys) == 1 else []
            counts.append(count_text([run for run in runs if pair_label(run) in key[1:] or len(keys) == 1]))
            rows.append([*key, *counts, *cells, short(None if rirs is None else rirs.geometric)])
    columns = (*keys, *(["pairs"] if len(keys) == 1 else []), "runs", *RATIO_HEADS.values(), "RIR, geo. mean")
    return Table(f"Mean ± standard deviation{' of every pair' * (len(keys) > 1)}: {view}", columns, rows)


def front(view: str, numbers: pd.DataFrame) -> tuple[Figure, Table]:
    """(i) against (ii): every run, or pair, a small dot, every setting a large one; what no other beats is joined."""
    i, ii, _ = RATIOS
    several = numbers["pair"].nunique() > 1
    logs = numbers.assign(**{ratio: np.log(numbers[ratio]) for ratio in (i, ii)})
    keys = ["model", "method", "setting"]
    small = np.exp(logs.groupby([*keys, "pair"], sort=False)[[i, ii]].mean()).reset_index() if several else numbers
    points = with_front(np.exp(logs.groupby(keys, sort=False)[[i, ii]].mean()).reset_index(), ["model"])
    figure, ((axis,),) = panels((7, 4.6), 1, 1)
    for (method, name), of in small.groupby(["method", "setting"], sort=False):
        axis.plot(of[ii], of[i], ".", color=style_of(method)[0], markersize=3, alpha=0.4)
        mean = points[points["setting"] == name].iloc[0]
        if np.isfinite([mean[i], mean[ii]]).all():
            axis.plot(mean[ii], mean[i], "o", color=style_of(method)[0], markersize=7)
    draw_fronts(axis, points, "model")  # networks of different kinds begin elsewhere
    axis.set(xlabel="(ii), to be small", ylabel="(i), to be large", title=view)
    labelled = points[np.isfinite(points[[i, ii]]).all(axis=1)] if len(points) <= _MOST_LABELS else points[:0]
    for _, of in labelled.groupby([np.log10(labelled[ratio]).round(1) for ratio in (i, ii)]):  # in one place
        y, x = of[[i, ii]].iloc[0]
        right, top = x**2 > np.prod(axis.get_xlim()), y**2 > np.prod(axis.get_ylim())  # of the frame
        place = {"xytext": (-6 if right else 6, -6 if top else 6), "va": "top" if top else "bottom"}
        place |= {"ha": "right" if right else "left", "textcoords": "offset points"}
        names = "\n".join(textwrap.fill(name, WIDEST) for name in of["setting"])
        axis.annotate(names, (x, y), fontsize=8, parse_math=False, **place)
    rows = [[p["setting"], short(p[i]), short(p[ii]), "yes" if p["on_front"] else ""] for _, p in points.iterrows()]
    return figure, Table("Geometric means", ("setting", RATIO_HEADS[i], RATIO_HEADS[ii], "on the front"), rows)


def log_maps(view: str, numbers: pd.DataFrame) -> Figure:
    """log(RIR) of every pair, one map a setting on one scale."""
    with np.errstate(divide="ignore"):
        logs = np.log(numbers.groupby(["setting", "pair"], sort=False)["rir"].mean())
    panels = {str(name): of.droplevel("setting").to_dict() for name, of in logs.groupby("setting", sort=False)}
    return heatmap(panels, f"log(RIR), {view}", sides=("D_P", "D_H"))
