"""The reports of experiments: which records each reads, and the files it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from immunize.files import write_text
from immunize.report.attacks.report import report_attacks
from immunize.report.bands import read_bands, write_bands
from immunize.report.conventions import PARTS, REDUCED
from immunize.report.curves import (
    CURVES,
    BandCurve,
    curves_by_method_figure,
    curves_figure,
    curves_of,
)
from immunize.report.deep.report import report_fig3, report_table3
from immunize.report.distributions import distribution_figure
from immunize.report.expected import expected_runs
from immunize.report.figures import save_figure
from immunize.report.heatmaps import heatmap
from immunize.report.layout import write_tables
from immunize.report.loading import load_records
from immunize.report.pairs import digit_means, success_table
from immunize.report.provenance import provenance, settings_table
from immunize.report.published import read_published
from immunize.report.results import result_tables
from immunize.report.runs import EXPERIMENT_STATUSES, FAST, Runs
from immunize.report.selection import selection_text
from immunize.report.stored import RESULTS, write_results
from immunize.report.tradeoff.report import report_tradeoff

__all__ = ["EXPERIMENTS", "Request", "report_experiment"]

README = "README.md"
_PANELS = (("fit", "spectrum"), ("fit", "released"), ("held_out", "ridge"))
"""What the distributions over pairs and the heat maps are drawn for."""
_PAPERS = ("ill_only", "imma", "opt_kappa", "ours")
"""The four heat maps of the paper's Fig. 2, in its order."""
TITLES = {
    "table1": "Table 1: House Prices, linear extractor, every method",
    "table2": "Table 2: MNIST, every ordered pair of digits, linear extractor, every method",
    "fig1": "Figure 1: convergence of a linear probe on House Prices",
    "fig2": "Figure 2: log(RIR) of every ordered pair of MNIST digits",
}


@dataclass(frozen=True)
class Request:
    """What `python -m immunize.report experiment=...` was asked for.

    Attributes:
        name: of the experiment, a key of `EXPERIMENTS`.
        folder: of runs, or one that holds `results.csv.gz`.
        out: where to write; None prints only.
        published: the paper's numbers; the file may be missing.
        keep: the runs that `out` has and `folder` has not stay in the table, where it is one of attacks.
    """

    name: str
    folder: Path
    out: Path | None
    published: Path
    keep: bool = False


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
    runs, published = _runs(request, request.name), read_published(request.published)
    tables = result_tables(runs, published)
    text = "\n".join(table.markdown() for table in tables)
    if (out := _out(request, runs)) is None:
        return text
    write_results(runs.records, out)
    write_tables(tables, request.name, out)
    figures = []
    if len(runs.pairs) > 1:
        title = runs.mark(f"RIR over the {len(runs.pairs)} pairs")
        distribution_figure(runs, _PANELS, published, title, out / "distribution")
        figures = ["distribution"]
    _write_readme(request, runs, out, figures, text)
    return text


def _fig1(request: Request) -> str:
    drawn_before = request.folder / CURVES
    if request.out is not None and drawn_before.is_file() and not (request.folder / RESULTS).is_file():
        _draw_curves(read_bands(BandCurve, drawn_before), request.out)
        return f"drawn again from {drawn_before}\n"
    runs = _runs(request, "table1")
    curves = curves_of(runs)
    if (out := _out(request, runs)) is None:
        return f"{len(curves)} curves; out=<folder> draws them\n"
    write_bands(BandCurve, curves, out / CURVES)
    _draw_curves(curves, out)
    note = (
        "Lines are means over the seeds, bands go from the smallest to the largest run; the norm ratio is Eq. (16) of "
        f"the paper. `{CURVES}` holds the numbers; from it alone `python -m immunize.report experiment=fig1 "
        "runs=experiments/fig1 out=experiments/fig1` draws the figures again.\n"
    )
    figures = [f"norm_ratio_{part}{kind}" for part in PARTS for kind in ("", "_by_method")]
    _write_readme(request, runs, out, figures, note)
    return note


def _draw_curves(curves: Sequence[BandCurve], out: Path) -> None:
    for part in PARTS:
        curves_figure(curves, part, out / f"norm_ratio_{part}")
        curves_by_method_figure(curves, part, out / f"norm_ratio_{part}_by_method")


def _fig2(request: Request) -> str:
    runs, published = _runs(request, "table2"), read_published(request.published)
    runs.check_finished()
    text = success_table(runs, _PANELS, published).markdown()
    if (out := _out(request, runs)) is None:
        return text
    figures = []
    for part, estimator in _PANELS:
        groups = {"": [m for m in _PAPERS if m in runs.methods], "_more": [m for m in runs.methods if m not in _PAPERS]}
        for suffix, methods in groups.items():
            if methods:
                title = runs.mark(f"log(RIR) by {estimator} on {part}, mean RIR over {len(runs.seeds)} seeds")
                panels = {method: digit_means(runs, method, part, estimator) for method in methods}
                figures.append(f"log_rir_{estimator}_{part}{suffix}")
                sides = ("pre-training digit, $D_P$", "harmful digit, $D_H$")
                save_figure(heatmap(panels, title, sides=sides), out / figures[-1])
    _write_readme(request, runs, out, figures, text)
    return text


def _tradeoff(request: Request) -> str:
    return report_tradeoff(request.folder, request.out, request.published.parent)


def _table3(request: Request) -> str:
    return report_table3(request.folder, request.out, request.published)


def _fig3(request: Request) -> str:
    return report_fig3(request.folder, request.out, request.published)


def _attacks(request: Request) -> str:
    return report_attacks(request.folder, request.out, keep=request.keep)


def _runs(request: Request, experiment: str) -> Runs:
    records = load_records(request.folder, EXPERIMENT_STATUSES)
    return Runs.of(records, experiment, expected_runs(experiment, records))


def _out(request: Request, runs: Runs) -> Path | None:
    """Where to write, made if it is not there."""
    if request.out is None:
        return None
    if runs.reduced and request.out.resolve() == request.published.parent.resolve():
        raise ValueError(f"reduced runs are not written into {request.out}, where the full results are; choose out=")
    request.out.mkdir(parents=True, exist_ok=True)
    return request.out


def _write_readme(request: Request, runs: Runs, out: Path, figures: Sequence[str], text: str) -> None:
    name, preset = request.name, runs.preset
    target = f"make {name}" + (" FAST=1" if runs.reduced else "")
    into = f"outputs/{name}{FAST}/report" if runs.reduced else f"experiments/{name}"
    lines = [
        f"# {runs.mark(TITLES[name])}",
        "",
        *([REDUCED, ""] if runs.reduced else []),
        f"Rebuilt by `{target}`, that is",
        "",
        "```bash",
        f"python -m immunize.train experiment={preset}",
        f"python -m immunize.report experiment={name} runs=outputs/{preset} out={into}",
        "```",
        "",
        provenance(runs),
        settings_table(runs).markdown(),
        selection_text(runs),
        *(f"![{runs.mark(figure.replace('_', ' '))}]({figure}.png)\n" for figure in figures),
        text,
    ]
    write_text(out / README, "\n".join(lines))


EXPERIMENTS: dict[str, Callable[[Request], str]] = {
    **{"table1": _table, "table2": _table, "fig1": _fig1, "fig2": _fig2},
    "sweep_lambda": _tradeoff,
    **{"table3": _table3, "fig3": _fig3, "table_attacks": _attacks},
}
"""`experiment=` of `python -m immunize.report` to what writes its report."""
