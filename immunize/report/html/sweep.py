"""The page of many runs: verdicts, means, the Pareto front, heat maps over the pairs, and every pair by itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from immunize.errors import UserError
from immunize.records import SWEEP
from immunize.report.curves import style_of
from immunize.report.heatmaps import heatmap
from immunize.report.html.page import Block, Choice, Folded, Picture, Section, page, write_page
from immunize.report.html.run import KINDS
from immunize.report.loading import infinite, lacking_is_told, load_records, own_runs
from immunize.report.naming import HARDER_BY, NO_HARDER, PARTS, RATIOS, in_order, pair_label, pair_title
from immunize.report.provenance import provenance_rows, settings_table
from immunize.report.results import validity_notes
from immunize.report.runs import Runs, experiment_of, held_out_text, measured_on
from immunize.report.summary import Varied, groups_of
from immunize.report.table import NOTHING, Groups, Table, short, summary_of, summary_text, under
from immunize.report.tradeoff import geometric_means, on_front, ratios_of

_STATUSES = ("finished", "diverged", "interrupted")
_COLUMNS = ("(i) ↑", "(ii) ↓", "RIR ↑")
_ORDER = ("fit", "held_out", "validation")
MAP_FROM = 3
"""Pairs of data sets from which on a heat map shows more than a table."""
_MOST_LABELS = 12

Record = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A method with its settings, on every pair of data sets that it was run on.

    Attributes:
        name: unique in the sweep: the method, and what was varied about it.
        method: its name.
        model: that of all its runs.
        pairs: "D_P against D_H" to its runs, one a seed, of any status.
    """

    name: str
    method: str
    model: str
    pairs: dict[str, list[Record]]

    @property
    def runs(self) -> list[Record]:
        """All of them, of any status."""
        return [record for of in self.pairs.values() for record in of]

    @property
    def finished(self) -> list[Record]:
        """Those that have numbers."""
        return [record for record in self.runs if record["status"] == "finished"]


@dataclass(frozen=True)
class View:
    """Where a number was measured: a key of `KINDS`, a part of the data, and an estimator of κ."""

    kind: str
    part: str
    estimator: str

    @property
    def where(self) -> str:
        """The part, and whether in groups, as a user reads it."""
        return self.part.replace("_", " ") + KINDS[self.kind][1]

    @property
    def title(self) -> str:
        """As a user reads it."""
        return f"{self.where}, {self.estimator}"

    def of(self, runs: Sequence[Record]) -> list[Record]:
        """The numbers of the runs that were measured there."""
        found = (run.get(self.kind, {}).get(self.part, {}).get(self.estimator) for run in runs)
        return [one for one in found if one is not None]

    def verdicts(self, runs: Sequence[Record]) -> list[Record]:
        """Definition 3.1 by this estimator on this part, of the runs that were judged by it."""
        every = (run.get(KINDS[self.kind][0]) or {} for run in runs)
        found = (of if self.part == "fit" else of.get(self.part) for of in every)
        return [one for one in found if one and one["estimator"] == self.estimator]

    def groups(self, setting: Setting, name: str) -> Groups:
        """A number of its finished runs, one group a pair."""
        groups = ([one[name] for one in self.of(runs)] for runs in setting.pairs.values())
        return [group for group in groups if group]


def write_sweep_page(folder: Path, out: Path) -> Path:
    """Write `report.html` of the runs below `folder` into `out`, and return its path.

    Raises:
        UserError: no runs, or records that cannot be read or do not go together.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder")
    try:
        records = load_records(folder, _STATUSES)
        own = own_runs(folder / SWEEP)
        missing = 0 if own is None else len(own - {record.get("config_hash") for record in records})
        with lacking_is_told(f"a record below {folder}"):
            text = sweep_page(records, folder.resolve().name, missing)
    except FileNotFoundError as error:
        raise UserError(f"{error}; a folder of runs that have ended is needed, html run=<folder> is for one") from None
    except ValueError as error:
        raise UserError(str(error)) from None
    return write_page(text, out)


def sweep_page(records: Sequence[Record], name: str, missing: int = 0) -> str:
    """The document.

    Args:
        records: of runs of any status, of one schema version.
        name: of the sweep.
        missing: how many of its runs have left no record yet.

    Raises:
        KeyError: a record without what every record has.
    """
    settings, views = settings_of(records), _views_of(records)
    told = _completeness(records, settings, missing)
    if not views:
        sections = [Section("verdicts", "Verdicts", [f"{told} Nothing was evaluated, and there is no verdict."])]
    else:
        measured = [setting for setting in settings if setting.finished]
        fronts = {view.title: _front(measured, view) for view in views}
        maps = {view.title: _maps(measured, view) for view in views}
        means: dict[str, list[Block]] = {view.title: [_means(measured, view)] for view in views}
        no_map = f"No heat map: it needs {MAP_FROM} pairs of data sets or more."
        sections = [
            Section("verdicts", "Verdicts", [_verdicts(settings, views)]),
            Section("means", "Results by setting", [*_caution(measured), Choice(means), _MEANS]),
            Section("front", "Pareto front of (i) against (ii)", [Choice(fronts)]),
            Section("pairs-map", "Heat map of pairs", [Choice(maps) if any(maps.values()) else no_map]),
        ]
        if any(len(setting.pairs) > 1 for setting in measured):
            sections.append(Section("pairs", "Every pair", [_every_pair(measured, views)]))
    sections.append(_provenance(records, settings, told))
    names = ", ".join(sorted({experiment_of(record)[0] for record in records} - {"none"}))
    lead = [told, *([f"Experiment: `{names}`."] if names else [])]
    return page(f"Sweep {name}", lead, sections, reduced=any(experiment_of(record)[1] for record in records))


def settings_of(records: Sequence[Record]) -> list[Setting]:
    """The settings in the order of the tables: by model, then by method.

    What runs of one method and model on one pair differ in becomes part of the name; seeds do not.
    """
    groups = groups_of(records)
    varied = Varied(groups)
    found: dict[tuple[str, str, tuple[str | None, ...]], dict[str, list[Record]]] = {}
    for group in groups:
        key = (group[0]["model"], group[0]["method"], varied.values_of(group[0]))
        found.setdefault(key, {}).setdefault(pair_title(group[0]), []).extend(group)
    methods = in_order(method for _, method, _ in found)
    settings = []
    for key in sorted(found, key=lambda key: (key[0], methods.index(key[1]), varied.in_order(key[2]))):
        first = next(iter(found[key].values()))[0]
        settings.append(Setting(varied.name_of(first), key[1], key[0], found[key]))
    return settings


_MEANS = (
    "Mean over the pairs of the mean over the seeds ± the same of the standard deviation (n − 1). Where outliers make "
    "the mean, the median and the geometric mean stand beside it."
)


def _views_of(records: Sequence[Record]) -> list[View]:
    found = dict.fromkeys(
        View(kind, part, estimator)
        for record in records
        for kind in KINDS
        for part, estimators in record.get(kind, {}).items()
        for estimator in estimators
    )
    return sorted(found, key=lambda view: (_ORDER.index(view.part), view.estimator != "spectrum"))


def _count_text(runs: Sequence[Record]) -> str:
    """How many runs: "5", or "3 + 2 diverged"."""
    counts = Counter(run["status"] for run in runs)
    finished = held_out_text([run for run in runs if run["status"] == "finished"])
    return " + ".join([finished, *(f"{counts[status]:,} {status}" for status in _STATUSES[1:] if counts[status])])


def _completeness(records: Sequence[Record], settings: Sequence[Setting], missing: int) -> str:
    counts = Counter(record["status"] for record in records)
    parts = [f"{counts[status]:,} {status}" for status in _STATUSES if counts[status]]
    parts += [f"{missing:,} without a record yet"] if missing else []
    pairs = len({pair for setting in settings for pair in setting.pairs})
    seeds = len({record["seed"] for record in records})
    return (
        f"{len(records) + missing:,} runs: {', '.join(parts)}; "
        f"{pairs} pair{'s' if pairs > 1 else ''} of data sets, {seeds} seed{'s' if seeds > 1 else ''}."
    )


def _verdicts(settings: Sequence[Setting], views: Sequence[View]) -> Table:
    judged = [view for view in views if any(view.verdicts(setting.finished) for setting in settings)]
    rows = []
    for setting in settings:
        row = [setting.name, _count_text(setting.runs)]
        for view in judged:
            found = view.verdicts(setting.finished)
            counts = [
                *(sum(bool(of[name]) for of in found) for name in "abc"),
                sum(all(of[n] for n in "abc") for of in found),
            ]
            row += [f"{count:,}/{len(found):,}" if found else NOTHING for count in counts]
        rows.append(row)
    by = ", ".join(dict.fromkeys(view.estimator for view in judged))
    note = (
        "(a) the harmful task became harder, (b) the pre-training task did not, (c) it can still be done. `fit` is "
        "what the models were immunized on, `held out` what they never saw."
    )
    columns = ["setting", "runs", *(c for view in judged for c in under(view.where, ("(a)", "(b)", "(c)", "all:")))]
    return Table(f"In how many finished runs each verdict of Definition 3.1 holds, by {by}", columns, rows, [note])


def _caution(settings: Sequence[Setting]) -> list[Block]:
    """Where a sweep is not complete, means may be of different data."""
    if len({frozenset(run["data_hash"] for run in setting.finished) for setting in settings}) == 1:
        return []
    return ["The settings were not run on the same pairs of data sets: their means are not of the same data."]


def _means(settings: Sequence[Setting], view: View) -> Table:
    rows = []
    for setting in settings:
        groups = {name: view.groups(setting, name) for name in RATIOS}
        rirs = summary_of(groups["rir"])
        pairs = sum(any(run["status"] == "finished" for run in runs) for runs in setting.pairs.values())
        cells = [summary_text(of) for of in groups.values()]
        rows.append(
            [
                setting.name,
                f"{pairs}",
                _count_text(setting.runs),
                *cells,
                short(None if rirs is None else rirs.geometric),
            ]
        )
    columns = ("setting", "pairs", "runs", *_COLUMNS, "RIR, geo. mean")
    return Table(f"Mean ± standard deviation: {view.title}", columns, rows)


def _front(settings: Sequence[Setting], view: View) -> list[Block]:
    """(i) against (ii): every run, or pair, a small dot, every setting a large one; what no other beats is joined."""
    several = any(len(setting.pairs) > 1 for setting in settings)
    points: dict[str, tuple[float, float]] = {}
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axis = figure.subplots()
    for setting in settings:
        by_pair = [[ratios_of(one) for one in found] for runs in setting.pairs.values() if (found := view.of(runs))]
        if not by_pair:
            continue
        points[setting.name] = geometric_means([run for of in by_pair for run in of])
        small = [geometric_means(of) for of in by_pair] if several else [run for of in by_pair for run in of]
        colour = style_of(setting.method)[0]
        axis.plot([ii for _, ii in small], [i for i, _ in small], ".", color=colour, markersize=3, alpha=0.4)
        if all(map(math.isfinite, points[setting.name])):
            i, ii = points[setting.name]
            axis.plot(ii, i, "o", color=colour, markersize=7)
            if len(settings) <= _MOST_LABELS:
                axis.annotate(setting.name, (ii, i), (6, 4), textcoords="offset points", fontsize=8)
    efficient: dict[str, bool] = {}
    for model in {setting.model for setting in settings}:  # networks of different kinds begin elsewhere
        names = [setting.name for setting in settings if setting.model == model and setting.name in points]
        efficient |= dict(zip(names, on_front([points[name] for name in names]), strict=True))
        front = sorted(points[name][::-1] for name in names if efficient[name])
        front = [point for point in front if all(map(math.isfinite, point))]
        axis.plot(
            [ii for ii, _ in front], [i for _, i in front], color="#333333", linewidth=1.2, drawstyle="steps-post"
        )
    axis.set(xscale="log", yscale="log", xlabel="(ii), to be small", ylabel="(i), to be large", title=view.title)
    left, top = axis.get_xlim()[0], axis.get_ylim()[1]
    axis.add_patch(
        Rectangle((left, HARDER_BY), NO_HARDER - left, top - HARDER_BY, color="#009E73", alpha=0.12, zorder=0)
    )
    axis.grid(alpha=0.3)
    rows = [[name, short(i), short(ii), "yes" if efficient[name] else ""] for name, (i, ii) in points.items()]
    caption = (
        f"Large dots: geometric means over {'pairs and ' if several else ''}seeds, joined where no other setting of "
        f"the same network has an (i) as large and an (ii) as small; small ones: {'pairs' if several else 'runs'}. "
        f"Shaded: (i) ≥ {HARDER_BY:g} and (ii) ≤ {NO_HARDER:g}, as verdicts (a) and (b) ask. Infinite ratios are in "
        "the table only."
    )
    table = Table("Geometric means", ("setting", "(i) ↑", "(ii) ↓", "on the front"), rows)
    return [Picture(figure, caption), table]


def _maps(settings: Sequence[Setting], view: View) -> list[Block]:
    """log(RIR) of every pair, one map a setting on one scale; nothing where there are too few pairs."""
    panels = {}
    for setting in settings:
        found: dict[str, float] = {}
        for runs in setting.pairs.values():
            if numbers := [infinite(one["rir"]) for one in view.of(runs)]:
                mean = sum(numbers) / len(numbers)
                found[pair_label(runs[0])] = math.log(mean) if mean > 0 else -math.inf
        panels[setting.name] = found
    if len({pair for found in panels.values() for pair in found}) < MAP_FROM:
        return []
    figure = heatmap(panels, f"log(RIR), {view.title}", sides=("D_P", "D_H"))
    caption = "Natural logarithm of the mean RIR over the seeds. Blue: RIR ≥ 1, red: below. One scale for all maps."
    return [Picture(figure, caption)]


def _every_pair(settings: Sequence[Setting], views: Sequence[View]) -> Table:
    """One row a setting and pair: both ratios and RIR where Definition 3.1 is judged first, RIR by every view."""
    wheres = [*((views[0], name) for name in RATIOS[:2]), *((view, "rir") for view in views)]
    rows = [
        [
            setting.name,
            pair,
            _count_text(runs),
            *(summary_text([[one[n] for one in view.of(runs)]]) for view, n in wheres),
        ]
        for setting in settings
        for pair, runs in setting.pairs.items()
    ]
    names = [f"{_COLUMNS[RATIOS.index(name)]} {view.title}" for view, name in wheres]
    return Table("Mean ± standard deviation over the seeds", ("setting", "pair", "runs", *names), rows)


def _provenance(records: Sequence[Record], settings: Sequence[Setting], told: str) -> Section:
    names = sorted({experiment_of(record)[0] for record in records})
    runs = Runs(tuple(records), " and ".join(names), any(experiment_of(record)[1] for record in records), ())
    facts = [("runs", told), *(row for row in provenance_rows(runs) if row[0] != "runs")]
    blocks: list[Block] = [[f"{name}: {text}" for name, text in facts]]
    if all("config_hash" in record for record in records) and len(settings) == len(runs.methods):
        blocks.append(settings_table(runs))
    if runs.finished and all(
        part in record["metrics"] for part in PARTS for record in measured_on(runs.finished, part)
    ):
        blocks += ["Can the condition numbers be trusted?", validity_notes(runs)]
    commands = dict.fromkeys(str(record.get("command")) for record in records)
    blocks.append(Folded("The command of every run", "\n".join(commands)))
    return Section("provenance", "Provenance", blocks)
