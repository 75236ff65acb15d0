"""What a sweep shows in one view: means and spreads, the Pareto front of (i) against (ii), heat maps over the pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from immunize.report.cells import Groups, short, summary_of, summary_text
from immunize.report.conventions import HARDER_BY, NO_HARDER
from immunize.report.html.elements import Html, coded, join, tag
from immunize.report.html.page import note
from immunize.report.html.plot import SLOTS, legend
from immunize.report.html.scales import LOG, Axis
from immunize.report.html.scatter import Point, scatter
from immunize.report.html.settings import Setting, count_text
from immunize.report.html.tables import Cell, data_table, number
from immunize.report.html.views import View
from immunize.report.naming import in_order
from immunize.report.pairs import log_means
from immunize.report.runs import Runs
from immunize.report.tradeoff.points import geometric_means, on_front, ratios_of

__all__ = ["MAP_FROM", "heat_maps", "means_table", "pareto_front", "summary_cell"]

MAP_FROM = 3
"""Pairs of data sets from which on a heat map shows more than a table."""

_COLUMNS = (("(i) ↑", "ratio_harmful"), ("(ii) ↓", "ratio_pretrain"), ("RIR ↑", "rir"))
_LEVELS = 8
"""Steps of colour on either side of RIR = 1 that `report.css` has."""
_MOST_LABELS = 12


def means_table(settings: Sequence[Setting], view: View) -> Html:
    """One row a setting: mean ± standard deviation over the seeds, averaged over the pairs, and the geometric mean."""
    several = any(len(setting.pairs) > 1 for setting in settings)
    rows = []
    for setting in settings:
        cells = [Cell(setting.name), *([Cell(f"{setting.measured_pairs}", setting.measured_pairs)] if several else [])]
        cells.append(Cell(count_text(setting.runs), len(setting.finished)))
        for _, name in _COLUMNS:
            cells.append(summary_cell(_groups(setting, view, name)))
        rirs = summary_of(_groups(setting, view, "rir"))
        cells.append(number(None if rirs is None else rirs.geometric))
        rows.append(cells)
    columns = ["setting", *(["pairs"] if several else []), "runs", *(name for name, _ in _COLUMNS), "RIR, geo. mean"]
    return data_table(f"Mean ± standard deviation: {view.title}", columns, rows, sortable=True)


def summary_cell(groups: Groups) -> Cell:
    """Mean and spread, and on a line below what :func:`immunize.report.cells.summary_text` says of outliers."""
    mean, bracket, rest = summary_text(groups).partition(" (")
    found = summary_of(groups)
    shown = join([mean, tag("small", f"({rest}") if bracket else None])
    return Cell(shown, None if found is None else found.mean)


def pareto_front(key: str, settings: Sequence[Setting], view: View) -> Html:
    """(i) against (ii): every run or pair a small dot, every setting a large one, those that no other beats joined."""
    methods = in_order(setting.method for setting in settings)
    slots = {method: min(index, SLOTS - 1) for index, method in enumerate(methods)}
    marks = [mark for setting in settings if (mark := _mark(setting, view)) is not None]
    efficient = _efficient(marks)
    one_pair = all(len(setting.pairs) == 1 for setting in settings)
    faint = [
        Point(ii, i, slots[m.setting.method], m.setting.name, faint=True) for m in marks for i, ii in m.small(one_pair)
    ]
    front = [m for m, on in zip(marks, efficient, strict=True) if on]
    labelled = {m.setting.name for m in front} if len(front) <= _MOST_LABELS else set()
    large = [
        Point(
            *(m.pretrain, m.harmful, slots[m.setting.method], m.setting.name),
            ringed=on,
            label=m.setting.name.removeprefix(f"{m.setting.method}, ") if m.setting.name in labelled else "",
        )
        for m, on in zip(marks, efficient, strict=True)
    ]
    models = dict.fromkeys(m.setting.model for m in front)
    fronts = [sorted((m.pretrain, m.harmful) for m in front if m.setting.model == model) for model in models]
    axes = Axis("(ii), better to the left", LOG), Axis("(i), better upwards", LOG)
    title = f"(i) against (ii): {view.title}"
    drawn = scatter(key, title, axes, [*faint, *large], fronts=fronts, region=(NO_HARDER, HARDER_BY))
    rows = [
        [Cell(m.setting.name), *map(number, (m.harmful, m.pretrain)), Cell("yes" if on else "", float(on))]
        for m, on in zip(marks, efficient, strict=True)
    ]
    table = data_table("Geometric means", ["setting", "(i) ↑", "(ii) ↓", "on the front"], rows, sortable=True)
    what = "a run" if one_pair else "the mean of a pair of data sets"
    caption = (
        f"A large dot is the geometric mean of a setting, a small one {what}. Ringed and joined: no other setting of "
        f"the network has an (i) as large and an (ii) as small. Shaded: (i) ≥ {HARDER_BY:g} and (ii) ≤ "
        f"{NO_HARDER:g}, as verdicts (a) and (b) ask. Infinite ratios are in the table only."
    )
    return tag(
        "figure",
        legend(slots, dots=True) if len(slots) > 1 else None,
        tag("div", drawn, tag("div", table), class_="charts"),
        tag("figcaption", caption),
    )


def heat_maps(settings: Sequence[Setting], view: View) -> Html | None:
    """log(RIR) of every pair, one map a setting on one scale; None where there are too few pairs."""
    values = [_log_means(setting, view) for setting in settings]
    pairs = {pair for found in values for pair in found}
    if len(pairs) < MAP_FROM:
        return None
    finite = [abs(v) for found in values for v in found.values() if math.isfinite(v)]
    limit = max(1.0, max(finite, default=1.0))
    maps = []
    for setting, found in zip(settings, values, strict=True):
        rows, columns = (_ordered({pair.split("→")[side] for pair in found}) for side in (0, 1))
        body = [
            tag("tr", tag("th", row, scope="row"), *(_cell(found, row, column, limit) for column in columns))
            for row in rows
        ]
        head = tag("tr", tag("td", "D_P \\ D_H"), *(tag("th", column, scope="col") for column in columns))
        caption = tag("caption", f"log(RIR), {view.title}: {setting.name}")
        table = tag("table", caption, tag("thead", head), tag("tbody", *body))
        label = f"Heat map of {setting.name}"
        scrolled = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)
        maps.append(tag("div", tag("h3", setting.name), scrolled, class_="map"))
    told = (
        f"Natural logarithm of the mean RIR over the seeds; rows are D_P, columns D_H. Blue: RIR ≥ 1, red: below. One "
        f"scale for all maps of a view, here up to ±{short(limit)}."
    )
    return join([tag("div", *maps, class_="maps"), note(told)])


@dataclass(frozen=True)
class _Mark:
    setting: Setting
    harmful: float
    pretrain: float
    by_pair: Sequence[Sequence[tuple[float, float]]]

    def small(self, one_pair: bool) -> list[tuple[float, float]]:
        """((i), (ii)) of every run where there is one pair of data sets, else the geometric mean of every pair."""
        if one_pair:
            return [run for of in self.by_pair for run in of]
        return [geometric_means(of) for of in self.by_pair]


def _mark(setting: Setting, view: View) -> _Mark | None:
    by_pair = []
    for runs in setting.pairs.values():
        found = [of for run in runs if (of := view.of(run)) is not None]
        if found:
            by_pair.append([ratios_of(of) for of in found])
    if not by_pair:
        return None
    return _Mark(setting, *geometric_means([run for of in by_pair for run in of]), by_pair)


def _efficient(marks: Sequence[_Mark]) -> list[bool]:
    """Whether each is on the front of its own network: those of different ones begin elsewhere."""
    found: dict[str, bool] = {}
    for model in {m.setting.model for m in marks}:
        of = [m for m in marks if m.setting.model == model]
        on = on_front([(m.harmful, m.pretrain) for m in of])
        found.update((m.setting.name, one) for m, one in zip(of, on, strict=True))
    return [found[m.setting.name] for m in marks]


def _groups(setting: Setting, view: View, name: str) -> list[list[float | None]]:
    """A number of the finished runs, one group a pair."""
    groups = [[of[name] for run in runs if (of := view.of(run)) is not None] for runs in setting.pairs.values()]
    return [group for group in groups if group]


def _log_means(setting: Setting, view: View) -> dict[str, float]:
    measured: list[dict[str, Any]] = [
        {**run, "metrics": {view.part: {view.estimator: of}}}
        for run in setting.finished
        if (of := view.of(run)) is not None
    ]
    return log_means(Runs(measured, "", False, ()), setting.method, view.part, view.estimator)


def _ordered(names: set[str]) -> list[str]:
    return sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))


def _cell(found: dict[str, float], row: str, column: str, limit: float) -> Html:
    value = found.get(f"{row}→{column}")
    if value is None:
        return tag("td")
    if math.isnan(value):
        return tag("td", "?")
    share = 1.0 if math.isinf(value) else abs(value) / limit
    level = min(int(share * _LEVELS), _LEVELS - 1)
    text = ("∞" if value > 0 else "−∞") if math.isinf(value) else f"{value:.1f}".replace("-", "−")
    told = f"D_P {row}, D_H {column}: RIR {short(math.exp(value))}"
    return tag("td", coded(text), class_=f"{'n' if value < 0 else 'p'}{level}", title=told)
