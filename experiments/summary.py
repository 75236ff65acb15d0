"""The main table of the README: RIR of every method on House Prices and MNIST beside the paper's, by record.

    python -m experiments.summary

Reads the records that `make table1` and `make table2` committed, and the published numbers; writes
`experiments/summary.md`. `python -m experiments.readme_tables` puts it into the README.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from immunize.report.cells import NOTHING, Summary, short, summary_of, with_spread
from immunize.report.layout import Table
from immunize.report.loading import load_records
from immunize.report.naming import in_order
from immunize.report.published import Published, find, read_published
from immunize.report.runs import EXPERIMENT_STATUSES, Runs

__all__ = ["Source", "main", "summary_table"]

ROOT = Path(__file__).parent
PATH = ROOT / "summary.md"
EXPERIMENTS = (("House Prices", "table1"), ("MNIST, 90 pairs", "table2"))
COLUMNS = (("released", "fit"), ("spectrum", "held_out"))
"""Estimator and part: the paper's protocol, and its definition of κ on unseen rows."""


@dataclass(frozen=True)
class Source:
    """One experiment of the table.

    Attributes:
        title: of its columns.
        runs: its records.
        published: the paper's numbers.
    """

    title: str
    runs: Runs
    published: Sequence[Published]

    @classmethod
    def of(cls, title: str, name: str, folder: Path) -> Source:
        """Read an experiment's committed results.

        Args:
            title: of its columns.
            name: of the experiment.
            folder: with `results.csv.gz` and `published.csv`.

        Raises:
            FileNotFoundError: no finished record in it.
            ValueError: records that do not belong into one table.
        """
        records = load_records(folder, EXPERIMENT_STATUSES)
        return cls(title, Runs.of(records, name), read_published(folder / "published.csv"))

    def cells(self, method: str) -> list[str]:
        """The paper's RIR, and ours by every column; the middle where outliers make the mean."""
        theirs = find(self.published, method, "rir")
        groups = (list(self.runs.numbers(method, part, estimator, "rir").values()) for estimator, part in COLUMNS)
        return [
            NOTHING if theirs is None else with_spread(theirs.value, theirs.std),
            *(_cell(summary) if (summary := summary_of(group)) else NOTHING for group in groups),
        ]


def summary_table(sources: Sequence[Source]) -> Table:
    """One row a method, three columns an experiment."""
    methods = in_order({method for source in sources for method in source.runs.methods})
    kinds = ("paper", *(f"`{estimator}`, {part}" for estimator, part in COLUMNS))
    columns = [f"{source.title}: {kind}" for source in sources for kind in kinds]
    return Table(
        "RIR of every method",
        "summary",
        [("", ("method", *columns))],
        [[f"`{method}`", *(cell for source in sources for cell in source.cells(method))] for method in methods],
        [
            "Mean ± standard deviation over seeds, for MNIST averaged over the pairs as in the paper. *Median of the "
            "runs* where their standard deviation exceeds their mean.",
            *(f"{source.title}: {source.runs.completeness()}" for source in sources),
        ],
    )


def _cell(summary: Summary) -> str:
    if summary.outlying:
        return f"*{short(summary.median)}*"
    return with_spread(summary.mean, summary.spread)


def main() -> None:
    """Write the table."""
    table = summary_table([Source.of(title, name, ROOT / name) for title, name in EXPERIMENTS])
    PATH.write_text(table.markdown(), encoding="utf-8")
    print(PATH)


if __name__ == "__main__":
    main()
