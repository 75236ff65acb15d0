"""The main table of the README: RIR of every method on House Prices and MNIST beside the paper's, by record.

    python -m experiments.summary

Reads the records that `make table1` and `make table2` committed, and the published numbers; writes
`experiments/summary.md`. `python -m experiments.readme_tables` puts it into the README.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from immunize.report.loading import load_records
from immunize.report.naming import in_order
from immunize.report.published import read_published
from immunize.report.runs import EXPERIMENT_STATUSES, Runs
from immunize.report.table import NOTHING, Groups, Table, short, summary_of, with_spread

ROOT = Path(__file__).parent
PATH = ROOT / "summary.md"
SOURCES = {"House Prices": ROOT / "table1", "MNIST, 90 pairs": ROOT / "table2"}
"""Title to the folder with its records."""
COLUMNS = (("released", "fit"), ("spectrum", "held_out"))
"""Estimator and part: the paper's protocol, and its definition of κ on unseen rows."""


def summary_table(sources: Mapping[str, Path]) -> Table:
    """One row a method, three columns an experiment: the paper's RIR, and ours by every column of `COLUMNS`.

    Args:
        sources: title to the committed folder of an experiment, which is called as the experiment is.

    Raises:
        FileNotFoundError: no finished record in a folder.
        ValueError: records that do not belong into one table.
    """
    runs = {title: Runs.of(load_records(folder, EXPERIMENT_STATUSES), folder.name) for title, folder in sources.items()}
    published = {title: read_published(folder / "published.csv") for title, folder in sources.items()}
    methods = in_order({method for of in runs.values() for method in of.methods})
    rows = []
    for method in methods:
        row = [f"`{method}`"]
        for title, of in runs.items():
            row.append(published[title].cell(method, "rir"))
            row += [_cell(list(of.numbers(method, part, estimator, "rir").values())) for estimator, part in COLUMNS]
        rows.append(row)
    kinds = ("paper", *(f"`{estimator}`, {part}" for estimator, part in COLUMNS))
    notes = [
        "Mean ± standard deviation over seeds, for MNIST averaged over the pairs as in the paper. *Median of the "
        "runs* where their standard deviation exceeds their mean.",
        *(f"{title}: {of.completeness()}" for title, of in runs.items()),
    ]
    columns = ("method", *(f"{title}: {kind}" for title in runs for kind in kinds))
    return Table("RIR of every method", columns, rows, notes)


def _cell(groups: Groups) -> str:
    """Mean and spread; the middle where outliers make the mean."""
    summary = summary_of(groups)
    if summary is None:
        return NOTHING
    return f"*{short(summary.median)}*" if summary.outlying else with_spread(summary.mean, summary.spread)


def main() -> None:
    """Write the table."""
    PATH.write_text(summary_table(SOURCES).markdown(), encoding="utf-8")
    print(PATH)


if __name__ == "__main__":
    main()
