"""The report of `experiment=table_attacks`: tables, figures and README of attacked runs, from attack records alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, mean
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from immunize.config import config_dir
from immunize.report.attacks import one_run
from immunize.report.attacks.one_run import interval_of, middle
from immunize.report.attacks.records import CONTROL, KINDS, THETA_0, Attacks, Group, load_attacks, with_earlier
from immunize.report.curves import frameless, panels, style_of
from immunize.report.provenance import made_with, versions_of
from immunize.report.table import NOTHING, short
from immunize.report.templates import filled_in
from immunize.report.writing import write_report

OWN_SCALES = ("defence", "t4")
"""First words of the pages of `make table_defence` and `make table_t4`, whose runs have scales of their own."""
_WIDTH = 0.8
"""Of a tier's place, shared by the methods."""
_MARKERS = {"pretrain": "o", "benign": "s"}
_LIMITS = (-0.15, 1.25)
_LETTER, _PATCH, _LINE = 0.085, 0.75, 0.2
"""Inches of a legend: a letter of its names, what stands beside a name, the height of a line."""


def report_attacks(folder: Path, out: Path | None, *, keep: bool = False) -> str:
    """Write the report and return what to print.

    Args:
        folder: attack records below it, or one that holds `results.csv.gz`.
        out: where to write README.md, table.md, results.csv.gz and the figures; None prints. Named
            attacks_<scale>, or attacks_<scale>_<name> with the runs against one D_H or of one model; likewise
            defence_.
        keep: the runs in `out` that `folder` has not stay in the table.

    Raises:
        FileNotFoundError: no attack record in the folder, or nothing to keep.
        ValueError: records that do not belong into one table.
    """
    records = load_attacks(folder)
    attacks = Attacks.of(with_earlier(records, load_attacks(out)) if keep and out is not None else records)
    text = attack_tables(attacks)
    if out is not None:
        figures = {name: figure for name, (_, draw) in FIGURES.items() if (figure := draw(attacks)) is not None}
        page = _readme(attacks, out.name, text, {name: FIGURES[name][0] for name in figures})
        write_report(out, {"table.md": text, "README.md": page}, records=attacks.records, figures=figures)
    return text


def attack_tables(attacks: Attacks) -> str:
    """For every kind of model and data: verdicts, scores, steps, the tasks that should stay easy, and repairs.

    Every cell is over the runs of a method and their tasks. A tier *held* in a run if the task stayed at least twice as
    costly (and ten steps) or five points less accurate than from θ_0, by more than the accident of the test rows
    (docs/attacks.md). On harmful tasks that is the aim; on all others it is damage, measured by the same rule.
    """
    return filled_in(
        "attack_tables.md",
        *(fmean, times, one_run.horizon_cells, one_run.interval_text, one_run.paid_text),
        attacks=attacks,
        **{"words": KINDS, "theta_0": THETA_0, "control": CONTROL, "quantities": one_run.HORIZON_COLUMNS},
    )


def times(flops: Sequence[float | None], base: float) -> str:
    """The median over the base, and in how many cases there is a number: "1.3 × (3/3)"."""
    cost = middle(flops)
    if math.isnan(cost):
        return NOTHING
    there = f"{len(flops) - flops.count(None)}/{len(flops)}"
    return f"never ({there})" if math.isinf(cost) else f"{short(cost / base)} × ({there})"


def _readme(attacks: Attacks, name: str, text: str, figures: dict[str, str]) -> str:
    # The command is read off the folder's name, <table>_<scale>[_<model>][_<D_H, or a word of the methods>]: a record
    # says of which run, grid and data it is, but neither the scale nor what was asked for of its runs.
    table = next((one for one in OWN_SCALES if name.startswith(one)), "attacks")
    scale, _, some = name.removeprefix(f"{table}_").partition("_")
    models = {record["model"] for record in attacks.records}
    model = max((one for one in models if some.startswith(one)), key=len, default="")
    rest = some.removeprefix(model).removeprefix("_")
    methods = any(rest in method.split("_") for method in attacks.methods)
    of_rest = f"methods={','.join(attacks.methods)}" if methods else f"harmful={rest}"
    part = " ".join([f"models={model}"] * bool(model) + [of_rest] * bool(rest))
    of_scale = "" if (table, scale) == ("attacks", "linear") else f" SCALE={scale}"
    whole = not some
    if table in OWN_SCALES:
        scale = f"{table}_{scale}"
        whole = whole and Path(config_dir(), "experiment", f"{scale}.yaml").is_file()  # or another target has its runs
    return filled_in(
        "attacks.md",
        attacks=attacks,
        name=name,
        scale=scale,
        attacked=f"outputs/attacks_{scale}{'_' * bool(some)}{some}",
        part=part,
        target=f" `make table_{table}{of_scale}`, that is" if whole else "",
        paired=all(record["config"]["seeds"] == [record["seed"]] for record in attacks.records),
        made_with=[*made_with(attacks.records), *_cells(attacks), versions_of(attacks.records)],
        **{"control": CONTROL, "words": KINDS},
        figures=figures,
        text=text,
    )


def _cells(attacks: Attacks) -> list[tuple[str, str]]:
    """How many cells the runs computed, and how many lay there; no row where a record is older than that."""
    origins = [record["cells"] for record in attacks.records if "cells" in record]
    if len(origins) < len(attacks.records):
        return []
    known: Counter[str] = sum((Counter(of["known"]) for of in origins), Counter())
    found = "".join(f"; {n:,} known, of commit {commit}, not in the wall time" for commit, n in known.items())
    return [("cells", f"{sum(of['computed'] for of in origins):,} computed{found}")]


def best_figure(attacks: Attacks) -> Figure:
    """Best score by tier from θ_0 and through every method, a row a kind of data, a column a kind of tasks.

    Bars are means over runs, tasks and attackers' seeds, lines go from the least to the largest; dotted is chance.

    Args:
        attacks: of one or more kinds of data.
    """
    kinds = [kind for kind in KINDS if any(kind in group.kinds for group in attacks.groups)]
    size = (4.6 * len(kinds) + 0.4, 2.9 * len(attacks.groups) + 0.7)
    figure, axes = panels(size, len(attacks.groups), len(kinds))
    for row, group in zip(axes, attacks.groups, strict=True):
        for axis, kind in zip(row, kinds, strict=True):
            if kind in group.kinds:
                _bars(axis, group, kind, attacks.methods)
                axis.set_title(group.titled(f"{KINDS[kind]} task"), fontsize=10, loc="left", parse_math=False)
            else:
                axis.set_axis_off()
        row[0].set_ylabel("best score of the tier", fontsize=9)
    honest = ", and the best honest user" if len(kinds) > 1 else ""
    title = f"What the best attacker of each tier reaches{honest}"
    return _titled(figure, attacks, [THETA_0, *attacks.methods], title, fontsize=12)


def plane_figure(attacks: Attacks) -> Figure | None:
    """Retention of honest tasks against that of the harmful one, a row a kind of data, a column a tier that has both.

    A defence belongs to the upper left corner. Lines are 95 % intervals.

    Args:
        attacks: of one or more kinds of data.

    Returns:
        None where there is nothing to draw: harmful tasks alone, or records without retentions, have no such plane.
    """
    places = ((group, kind, tier) for group in attacks.groups for kind in _MARKERS for tier in group.tiers)
    honest = {tier for group, kind, tier in places if group.tried(CONTROL, kind, tier).held}
    if not honest or not all(group.judged_by_intervals for group in attacks.groups):
        return None
    size = (max(4.4, 1.7 * len(honest) + 0.8), 1.9 * len(attacks.groups) + 1.5)  # the title needs so much
    figure, axes = panels(size, len(attacks.groups), len(honest), sharex=True, sharey=True)
    for row, group in zip(axes, attacks.groups, strict=True):
        for axis, tier in zip(row, sorted(honest), strict=True):
            _points(axis, group, tier, attacks.methods)
            axis.set_title(tier, fontsize=10)
        row[0].set_ylabel(f"{group.titled()}\nhonest retention", fontsize=8, parse_math=False)
    for axis in axes[-1]:
        axis.set_xlabel("harmful retention", fontsize=9)
    shapes = [f"{'circle' if kind == 'pretrain' else 'square'}: {KINDS[kind]} task" for kind in _MARKERS]
    title = f"What is left of what θ$_0$ teaches\n({', '.join(shapes)})"
    return _titled(figure, attacks, [*attacks.methods, CONTROL], title)


def horizon_figure(attacks: Attacks) -> Figure | None:
    """Best score so far against steps of attacks that move weights, a row a task, a column an attack.

    Lines are means over runs, from the first step at which all have a score; θ_0 is dashed.

    Args:
        attacks: whose records may have curves of such attacks.

    Returns:
        None where they have none.
    """
    each = []
    for group in attacks.groups:
        for method in (THETA_0, *group.methods):
            alone = {(task, attack): of["horizon"] for (task, _, attack), of in group.by_attack(method).items()}
            curves = {key: of for key, of in alone.items() if of and all("curve" in one for one in of)}
            each.append((group, method, curves))
    rows = list(dict.fromkeys((group.name, task) for group, _, of in each for task, _ in of))
    columns = list(dict.fromkeys(attack for *_, of in each for _, attack in of))
    if not rows:
        return None
    size = (max(4.4, 2.4 * len(columns) + 0.6), 2.1 * len(rows) + 1.0)  # the title needs so much
    figure, axes = panels(size, len(rows), len(columns), sharex=True, sharey="row")
    for group, method, of in each:
        for (task, attack), found in of.items():
            axis = axes[rows.index((group.name, task)), columns.index(attack)]
            steps = np.unique(np.geomspace(1, max(one["last"] for one in found), 200).astype(int))
            line = "--" if method == THETA_0 else "-"
            axis.plot(steps, _mean_curve(found, steps), line, color=_colour(method, attacks.methods), linewidth=1.4)
    for (name, task), row in zip(rows, axes, strict=True):
        first = next(axis for axis in row if axis.lines)  # a task may have other attacks than the rest
        first.set_ylabel(f"{name}\n{task}" if len(attacks.groups) > 1 else task, fontsize=9)
        first.yaxis.set_tick_params(labelleft=True)
        for axis in row:
            axis.set(xscale="log")
            axis.set_ylim(bottom=0)
            frameless(axis, alpha=0.25, linewidth=0.6)
    for attack, column in zip(columns, axes.T, strict=True):
        column[0].set_title(attack, fontsize=9)
        drawn = [axis for axis in column if axis.lines]  # honest users may have fewer attacks than the harmful task
        for axis in {*column} - {*drawn}:
            axis.set_axis_off()
        drawn[-1].set_xlabel("steps", fontsize=9)
        drawn[-1].xaxis.set_tick_params(labelbottom=True)
    return _titled(figure, attacks, [THETA_0, *attacks.methods], "Best score so far of attackers who fine-tune")


FIGURES: dict[str, tuple[str, Callable[[Attacks], Figure | None]]] = {
    "best": ("best score by tier", best_figure),
    "plane": ("retention by tier, harmful and honest", plane_figure),
    "horizon": ("score against steps of fine-tuning", horizon_figure),
}
"""The name of a file, what it shows, and what draws it."""


def _mean_curve(found: Sequence[dict[str, Any]], steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The mean over runs of what each has reached by these steps; NaN before all have something."""
    reached = []
    for one in found:
        at, score = np.array(one["curve"], dtype=np.float64).T
        index = np.searchsorted(at, steps, side="right") - 1
        reached.append(np.where(index < 0, np.nan, score[np.maximum(index, 0)]))
    return np.asarray(np.mean(reached, axis=0))


def _colour(method: str, among: Sequence[str]) -> str:
    return {THETA_0: "#000000", CONTROL: "#BBBBBB"}.get(method) or style_of(method, among)[0]


def _titled(figure: Figure, attacks: Attacks, names: Sequence[str], title: str, fontsize: float = 11) -> Figure:
    """The same with a title, and a legend of these methods that makes room for itself."""
    handles = [Patch(color=_colour(name, attacks.methods), label=name.replace("θ_0", "θ$_0$")) for name in names]
    width, height = figure.get_size_inches()
    columns = min(len(names), max(1, int(width / (_LETTER * max(map(len, names)) + _PATCH))))
    figure.set_size_inches(width, height + _LINE * (-(-len(names) // columns) - 1))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    figure.suptitle(attacks.mark(title), fontsize=fontsize)
    return figure


def _bars(axis: Axes, group: Group, kind: str, among: Sequence[str]) -> None:
    methods, tiers = [THETA_0, *group.methods], group.tiers
    width = _WIDTH / len(methods)
    for place, method in enumerate(methods):
        for index, tier in enumerate(tiers):
            of = group.tried(method, kind, tier).score.values()
            if scores := [score for one in of for score in one if score is not None]:
                x = index + (place - (len(methods) - 1) / 2) * width
                axis.bar(x, mean(scores), 0.9 * width, color=_colour(method, among))
                axis.vlines(x, min(scores), max(scores), color="#444444", linewidth=1)
    if chances := group.chances(kind):
        axis.axhline(mean(chances), color="#444444", linewidth=0.8, linestyle=":")
    low, high = axis.dataLim.intervaly if axis.patches else (0, 1)
    axis.set(xticks=range(len(tiers)), xticklabels=tiers, xlim=(-0.6, len(tiers) - 0.4))
    axis.set(ylim=(max(-1, min(0, low)), 1.05 * high or 1), xlabel="R² below −1 is cut off" if low < -1 else None)
    frameless(axis, axis="y", alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)


def _points(axis: Axes, group: Group, tier: str, among: Sequence[str]) -> None:
    for method in [CONTROL, *group.methods]:
        x = interval_of(group.tried(method, "harmful", tier).retention)
        for kind, marker in _MARKERS.items():
            y = interval_of(group.tried(method, kind, tier).retention)
            if x is None or y is None:
                continue
            colour = _colour(method, among)
            axis.plot([x.low, x.high], [y.mean] * 2, color=colour, linewidth=1)
            axis.plot([x.mean] * 2, [y.low, y.high], color=colour, linewidth=1)
            axis.plot(*np.clip((x.mean, y.mean), *_LIMITS), marker, color=colour, markersize=6)
    axis.axhline(1, color="#888888", linewidth=0.6, linestyle=":")
    axis.axvline(1, color="#888888", linewidth=0.6, linestyle=":")
    axis.set(xlim=_LIMITS, ylim=_LIMITS, aspect="equal")
    frameless(axis, alpha=0.2, linewidth=0.6)
