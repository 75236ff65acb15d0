"""The page of many runs: verdicts, means, the Pareto front, heat maps over the pairs, and every pair by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from immunize.errors import UserError
from immunize.records import SWEEP
from immunize.report.cells import NOTHING
from immunize.report.conventions import PARTS
from immunize.report.html.elements import Html, join, tag
from immunize.report.html.page import REDUCED, Section, note, page, write_page
from immunize.report.html.run_page import REPORT
from immunize.report.html.settings import Setting, count_text, finished, settings_of
from immunize.report.html.sweep_figures import MAP_FROM, heat_maps, means_table, pareto_front, summary_cell
from immunize.report.html.tables import Cell, data_table, from_layout, key_values
from immunize.report.html.views import View, views_of
from immunize.report.loading import load_records, own_runs
from immunize.report.provenance import provenance_rows, settings_table
from immunize.report.reading import lacking_is_told
from immunize.report.runs import Runs, experiment_of, measured_on
from immunize.report.validity import validity_notes

__all__ = ["sweep_page", "write_sweep_page"]

_STATUSES = ("finished", "diverged", "interrupted")
_VERDICTS = ("a", "b", "c")


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
    return write_page(text, out / REPORT)


def sweep_page(records: Sequence[dict[str, Any]], name: str, missing: int = 0) -> str:
    """The document.

    Args:
        records: of runs of any status, of one schema version.
        name: of the sweep.
        missing: how many of its runs have left no record yet.

    Raises:
        KeyError: a record without what every record has.
    """
    settings, views = settings_of(records), views_of(records)
    told = _completeness(records, settings, missing)
    if not views:
        sections = [Section("verdicts", "Verdicts", note(f"{told} Nothing was evaluated, and there is no verdict."))]
    else:
        measured = [setting for setting in settings if setting.finished]
        sections = [
            _verdicts(settings, views),
            Section(
                "means", "Results by setting", join([*_caution(measured), _choice(views), _means(measured, views)])
            ),
            Section("front", "Pareto front of (i) against (ii)", _front(measured, views)),
            _maps(measured, views),
        ]
        if any(len(setting.pairs) > 1 for setting in measured):
            sections.append(Section("pairs", "Every pair", _every_pair(measured, views)))
    sections.append(_provenance(records, settings, told))
    reduced = any(experiment_of(record)[1] for record in records)
    names = ", ".join(sorted({experiment_of(record)[0] for record in records} - {"none"}))
    lead = join(
        [
            tag("p", REDUCED, class_="banner") if reduced else None,
            tag("p", told, *([" Experiment: ", tag("code", names), "."] if names else [])),
        ]
    )
    return page(f"Sweep {name}", lead, sections)


def _completeness(records: Sequence[dict[str, Any]], settings: Sequence[Setting], missing: int) -> str:
    counts = Counter(record["status"] for record in records)
    parts = [f"{counts[status]:,} {status}" for status in _STATUSES if counts[status]]
    parts += [f"{missing:,} without a record yet"] if missing else []
    pairs = len({pair for setting in settings for pair in setting.pairs})
    seeds = len({record["seed"] for record in records})
    return (
        f"{len(records) + missing:,} runs: {', '.join(parts)}; "
        f"{pairs} pair{'s' if pairs > 1 else ''} of data sets, {seeds} seed{'s' if seeds > 1 else ''}."
    )


def _verdicts(settings: Sequence[Setting], views: Sequence[View]) -> Section:
    judged = [view for view in views if any(view.verdicts(run) for s in settings for run in s.finished)]
    rows = []
    for setting in settings:
        cells = [Cell(setting.name), Cell(count_text(setting.runs), len(setting.finished))]
        for view in judged:
            found = [of for run in setting.finished if (of := view.verdicts(run)) is not None]
            cells += [_count([bool(of[v]) for of in found]) for v in _VERDICTS]
            cells.append(_count([all(of[v] for v in _VERDICTS) for of in found]))
        rows.append(cells)
    columns = ["setting", "runs", *(f"{v} {view.where}" for view in judged for v in ("(a)", "(b)", "(c)", "all:"))]
    by = ", ".join(dict.fromkeys(view.estimator for view in judged))
    caption = f"In how many finished runs each verdict of Definition 3.1 holds, by {by}"
    table = data_table(caption, columns, rows, sortable=True)
    how = (
        "(a) the harmful task became harder, (b) the pre-training task did not, (c) it can still be done. `fit` is "
        "what the models were immunized on, `held out` what they never saw."
    )
    return Section("verdicts", "Verdicts", join([table, note(how)]))


def _count(passed: Sequence[bool]) -> Cell:
    if not passed:
        return Cell(NOTHING)
    text = f"{sum(passed):,}/{len(passed):,}"
    full = {len(passed): "pass", 0: "fail"}.get(sum(passed))
    return Cell(tag("span", text, class_=full) if full else text, sum(passed) / len(passed))


def _choice(views: Sequence[View]) -> Html:
    """The choice of part and estimator, for all sections that depend on it; shown by the script."""
    options = [tag("option", view.title, value=view.key) for view in views]
    label = tag(
        "label",
        "Part and estimator, here and below ",
        tag("select", *options, data_views=True),
        class_="control",
        hidden=True,
    )
    return tag("div", label)


def _caution(settings: Sequence[Setting]) -> list[Html]:
    """Where a sweep is not complete, means may be of different data."""
    if len({frozenset(run["data_hash"] for run in setting.finished) for setting in settings}) == 1:
        return []
    text = "The settings were not run on the same pairs of data sets: their means are not of the same data."
    return [tag("p", text, class_="banner")]


def _means(settings: Sequence[Setting], views: Sequence[View]) -> Html:
    how = (
        "Mean over the pairs of the mean over the seeds ± the same of the standard deviation (n − 1). Where outliers "
        "make the mean, the median and the geometric mean stand beside it."
    )
    tables = (tag("div", means_table(settings, view), data_view=view.key) for view in views)
    return join([*tables, note(how)])


def _front(settings: Sequence[Setting], views: Sequence[View]) -> Html:
    return join(tag("div", pareto_front(f"front-{view.key}", settings, view), data_view=view.key) for view in views)


def _maps(settings: Sequence[Setting], views: Sequence[View]) -> Section:
    maps = {view: heat_maps(settings, view) for view in views}
    if all(found is None for found in maps.values()):
        content = note(f"No heat map: it needs {MAP_FROM} pairs of data sets or more.")
    else:
        content = join(tag("div", found or note("Too few pairs."), data_view=v.key) for v, found in maps.items())
    return Section("pairs-map", "Heat map of pairs", content)


def _every_pair(settings: Sequence[Setting], views: Sequence[View]) -> Html:
    """One row a setting and pair: both ratios and RIR where Definition 3.1 is judged first, RIR by every view."""
    first = views[0]
    wheres = [(first, "ratio_harmful", "(i) ↑"), (first, "ratio_pretrain", "(ii) ↓")]
    wheres += [(view, "rir", "RIR ↑") for view in views]
    rows = []
    for setting in settings:
        for pair, runs in setting.pairs.items():
            cells = [Cell(setting.name), Cell(pair), Cell(count_text(runs), len(finished(runs)))]
            for view, name, _ in wheres:
                numbers = [of[name] for run in runs if (of := view.of(run)) is not None]
                cells.append(summary_cell([numbers]))
            rows.append(cells)
    columns = ["setting", "pair", "runs", *(f"{name} {view.title}" for view, _, name in wheres)]
    return data_table("Mean ± standard deviation over the seeds", columns, rows, names=2, sortable=True)


def _provenance(records: Sequence[dict[str, Any]], settings: Sequence[Setting], told: str) -> Section:
    names = sorted({experiment_of(record)[0] for record in records})
    runs = Runs(tuple(records), " and ".join(names), any(experiment_of(record)[1] for record in records), ())
    facts = [("runs", told), *(row for row in provenance_rows(runs) if row[0] != "runs")]
    parts: list[Html] = [key_values(facts)]
    if all("config_hash" in record for record in records) and len(settings) == len(runs.methods):
        parts.append(from_layout(settings_table(runs)))
    if runs.finished and all(
        part in record["metrics"] for part in PARTS for record in measured_on(runs.finished, part)
    ):
        parts += [tag("h3", "Can the condition numbers be trusted?"), *(note(text) for text in validity_notes(runs))]
    commands = "\n".join(dict.fromkeys(_sweep_command(record) for record in records))
    parts += [
        tag("h3", "Reproduce"),
        tag("details", tag("summary", "The command of every run"), tag("pre", tag("code", commands), tabindex="0")),
    ]
    return Section("provenance", "Provenance", join(parts))


def _sweep_command(record: dict[str, Any]) -> str:
    return str(record.get("command"))
