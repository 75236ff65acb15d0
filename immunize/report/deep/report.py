"""The reports of `experiment=table3` and `experiment=fig3`: what they read, and the files they write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from immunize.files import write_text
from immunize.report.bands import read_bands, write_bands
from immunize.report.conventions import REDUCED
from immunize.report.deep.probe_curves import PROBES, ProbeBand, probe_bands
from immunize.report.deep.probe_figures import probe_figures
from immunize.report.deep.published import read_deep_published
from immunize.report.deep.settings import SCALES, DeepSetting, by_setting, completeness
from immunize.report.deep.table3 import table3_tables
from immunize.report.layout import write_tables
from immunize.report.loading import load_records
from immunize.report.provenance import provenance, settings_table
from immunize.report.runs import EXPERIMENT_STATUSES
from immunize.report.stored import RESULTS, write_results

__all__ = ["report_fig3", "report_table3"]

TITLES = {
    "table3": "Table 3: deep networks, every method",
    "fig3": "Figure 3: accuracy of a linear probe on the harmful task against its steps",
}
_SCALED = (
    "Scale `{}`: other networks and data than the paper's Table 3, small enough for two cores; see the settings below."
)


def report_table3(folder: Path, out: Path | None, published: Path) -> str:
    """Write Table 3 and return what to print.

    Args:
        folder: of runs, or one that holds `results.csv.gz`.
        out: where to write README.md, table.md, table.tex, results.csv.gz; None prints only.
        published: the paper's numbers; the tables say so where the file is missing.

    Raises:
        FileNotFoundError: no finished record in the folder.
        ValueError: records that do not belong into one table, or reduced ones for the committed results.
    """
    settings = by_setting(load_records(folder, EXPERIMENT_STATUSES))
    tables = table3_tables(settings, read_deep_published(published))
    text = "\n".join(table.markdown() for table in tables)
    if out is None:
        return text
    _make(out, settings, published)
    write_results([record for one in settings for record in one.runs.records], out)
    write_tables(tables, "table3", out)
    _write_readme("table3", settings, out, [], text)
    return text


def report_fig3(folder: Path, out: Path | None, published: Path) -> str:
    """Draw Figure 3 and return what to print.

    Args:
        folder: of runs, or one that holds the `probes.csv` of an earlier report, which is then drawn again.
        out: where to write `probes.csv`, the figures and README.md; None prints only.
        published: a file in the folder that reduced runs must not be written into.

    Raises:
        FileNotFoundError: no finished record in the folder.
        ValueError: records that do not belong together, or without curves, or reduced ones for the committed results.
    """
    drawn_before = folder / PROBES
    if out is not None and drawn_before.is_file() and not (folder / RESULTS).is_file():
        out.mkdir(parents=True, exist_ok=True)
        probe_figures(read_bands(ProbeBand, drawn_before), out)
        return f"drawn again from {drawn_before}\n"
    settings = by_setting(load_records(folder, EXPERIMENT_STATUSES))
    bands = probe_bands(settings)
    if out is None:
        return f"{len(bands)} curves; out=<folder> draws them\n"
    _make(out, settings, published)
    write_bands(ProbeBand, bands, out / PROBES)
    note = (
        "Lines are means over the seeds, bands go from the smallest to the largest run; θ_0 is the network before "
        "immunization. The probe is a new linear classifier on frozen features, trained on `fit` and measured on "
        f"`held_out`. `{PROBES}` holds the numbers; with the folder that holds it as runs= the figures are drawn "
        "again.\n"
    )
    _write_readme("fig3", settings, out, probe_figures(bands, out), note)
    return note


def _make(out: Path, settings: Sequence[DeepSetting], published: Path) -> None:
    if settings[0].runs.reduced and out.resolve() == published.parent.resolve():
        raise ValueError(f"reduced runs are not written into {out}, where the full results are; choose out=")
    out.mkdir(parents=True, exist_ok=True)


def _write_readme(name: str, settings: Sequence[DeepSetting], out: Path, figures: Sequence[str], text: str) -> None:
    first = settings[0].runs
    scale, preset = SCALES[first.name], first.preset
    target = f"make {name}" + (f" SCALE={scale}" if scale else "") + (" FAST=1" if first.reduced else "")
    lines = [
        f"# {first.mark(TITLES[name])}",
        "",
        *([REDUCED, ""] if first.reduced else []),
        *([_SCALED.format(scale), ""] if scale else []),
        f"Rebuilt by `{target}`, that is",
        "",
        "```bash",
        f"python -m immunize.train experiment={preset}",
        f"python -m immunize.report experiment={name} runs=outputs/{preset} out=<this folder>",
        "```",
        "",
        *(f"- {note}" for note in completeness(settings)),
        "",
        *(f"![{first.mark(figure.replace('_', ' '))}]({figure}.png)\n" for figure in figures),
        text,
    ]
    for one in settings:
        lines += [f"## Runs: {one.model}, {one.title}", "", provenance(one.runs), settings_table(one.runs).markdown()]
    write_text(out / "README.md", "\n".join(lines))
