"""The reports of experiments: which records each reads, and the files it writes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from immunize.records import RESULTS, whole_config
from immunize.report.attacks.page import report_attacks
from immunize.report.curves import LINES, csv_of, read_bands
from immunize.report.heatmaps import heatmap, log_means, success_table
from immunize.report.loading import load_records, sort_key
from immunize.report.provenance import provenance_rows, settings_table
from immunize.report.published import read_published
from immunize.report.results import SCALES, by_setting, linear_tables, network_tables
from immunize.report.runs import EXPERIMENT_STATUSES, Runs, expected_runs, swept
from immunize.report.templates import filled_in
from immunize.report.tradeoff import TradeOff, tradeoff_figure, tradeoff_tables
from immunize.report.writing import write_report

_PANELS = (("fit", "spectrum"), ("fit", "released"), ("held_out", "ridge"))
"""What the heat maps are drawn for."""
_PAPERS = ("ill_only", "imma", "opt_kappa", "ours")
"""The four heat maps of the paper's Fig. 2, in its order."""


@dataclass(frozen=True)
class Request:
    """What `python -m immunize.report experiment=...` was asked for.

    Attributes:
        name: of the experiment, a key of `EXPERIMENTS`.
        folder: of runs, or one that holds `results.csv.gz`.
        out: where to write; None prints only.
        published: the paper's numbers; the file may be missing.
        keep: what `out` has and `folder` has not stays in the table: runs of one of attacks, methods of another.
    """

    name: str
    folder: Path
    out: Path | None
    published: Path
    keep: bool = False

    @property
    def records(self) -> list[dict[str, Any]]:
        """Those of runs that have an outcome."""
        return load_records(self.folder, EXPERIMENT_STATUSES)


def report_experiment(request: Request) -> str:
    """Write the report and return what to print.

    Raises:
        FileNotFoundError: no finished record in the folder.
        ValueError: an unknown experiment, records that do not belong into one report, or reduced runs that would be
            written over the committed results.
    """
    if request.name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {request.name!r}; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[request.name](request)


def _table(request: Request) -> str:
    runs = _runs(request, request.name, keep=request.keep)
    return _write(request, [runs], linear_tables(runs, read_published(request.published)), kept=True)


def _curves(request: Request) -> str:
    file, columns, bands_of, draw = LINES[request.name]
    drawn_before = request.folder / file
    if request.out is not None and drawn_before.is_file() and not (request.folder / RESULTS).is_file():
        write_report(request.out, {}, figures=draw(read_bands(drawn_before, columns)))
        return f"drawn again from {drawn_before}\n"
    of = [_runs(request, "table1")] if request.name == "fig1" else by_setting(request.records)
    bands = bands_of(of)
    if request.out is None:
        curves = bands.groupby(list(columns[: columns.index("runs")]))
        return f"{len(curves)} curves; out=<folder> draws them\n"
    return _write(request, of, "", lambda: draw(bands), more={file: csv_of(bands)})


def _fig2(request: Request) -> str:
    runs = _runs(request, "table2")
    runs.check_finished()
    papers = [method for method in _PAPERS if method in runs.methods]
    groups = {"": papers, "_more": [method for method in runs.methods if method not in papers]}

    sides = ("pre-training digit, $D_P$", "harmful digit, $D_H$")

    def draw() -> dict[str, Figure]:
        figures = {}
        for (part, estimator), (suffix, methods) in itertools.product(_PANELS, groups.items()):
            if panels := {method: log_means(runs, method, part, estimator) for method in methods}:
                title = runs.mark(f"log(RIR) by {estimator} on {part}, mean RIR over {runs.seeds_text()}")
                figures[f"log_rir_{estimator}_{part}{suffix}"] = heatmap(panels, title, sides=sides)
        return figures

    return _write(request, [runs], success_table(runs, _PANELS, read_published(request.published)), draw)


def _table3(request: Request) -> str:
    settings = by_setting(request.records)
    return _write(request, settings, network_tables(settings, read_published(request.published)), kept=True)


def _tradeoff(request: Request) -> str:
    trade = TradeOff.of(request.records)
    text = tradeoff_tables(trade)
    # Further digits are the processor's.
    more = {"tradeoff.csv": trade.points().to_csv(index=False, float_format="%.12g", lineterminator="\r\n")}
    return _write(request, [trade.runs], text, lambda: {"tradeoff": tradeoff_figure(trade)}, kept=True, more=more)


def _runs(request: Request, experiment: str, keep: bool = False) -> Runs:
    records = request.records
    if keep and request.out is not None:
        again = {record["method"] for record in records}
        earlier = load_records(request.out, EXPERIMENT_STATUSES)
        records = sorted([*records, *(one for one in earlier if one["method"] not in again)], key=sort_key)
    return Runs.of(records, experiment, expected_runs(experiment, records))


def _write(
    request: Request,
    of: Sequence[Runs],
    text: str,
    draw: Callable[[], Mapping[str, Figure]] = lambda: {},
    *,
    kept: bool = False,
    more: Mapping[str, str] = {},
) -> str:
    """Figures, README.md and, where they are `kept`, records and `table.md`; returns the text.

    Args:
        request: whose `out` is None where nothing is to be written.
        of: the runs, or those of several networks.
        text: tables.
        draw: the figures, by the names of their files without suffix.
        kept: whether the records belong to this experiment, and not to the one that its runs are of.
        more: further files.

    Raises:
        ValueError: reduced runs would be written over the committed results.
    """
    runs, out = of[0], request.out
    if out is None:
        return text
    if runs.reduced and out.resolve() == request.published.parent.resolve():
        raise ValueError(f"reduced runs are not written into {out}, where the full results are; choose out=")
    figures = draw()
    page = filled_in(
        "experiment.md",
        name=request.name,
        runs=runs,
        networks=of if runs.name in SCALES else [],
        swept=swept,
        scale=SCALES.get(runs.name, ""),
        figures=figures,
        text=text,
        objective=whole_config(runs.records[0])["objective"],
        facts_of=provenance_rows,
        settings_of=lambda one: settings_table(one).markdown(),
    )
    texts = {**more, **({"table.md": text} if kept else {}), "README.md": page}
    records = [record for one in of for record in one.records] if kept else None
    write_report(out, texts, records=records, figures=figures)
    return text


EXPERIMENTS: dict[str, Callable[[Request], str]] = {
    **{"table1": _table, "table2": _table, "fig1": _curves, "fig2": _fig2},
    "sweep_lambda": _tradeoff,
    **{"table3": _table3, "fig3": _curves},
    "table_attacks": lambda request: report_attacks(request.folder, request.out, keep=request.keep),
}
"""`experiment=` of `python -m immunize.report` to what writes its report."""
