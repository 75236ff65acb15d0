"""The main tables: RIR of every method beside the paper's, and what fine-tuning brings back of the harmful task.

    python -m experiments.summary

Reads committed records and the published numbers; writes `experiments/summary.md`, from where
`python -m experiments.readme_tables` puts the tables into the README and the pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from immunize.report.attacks.one_run import horizon_cells
from immunize.report.attacks.records import Group, load_attacks, with_earlier
from immunize.report.loading import load_records
from immunize.report.naming import in_order
from immunize.report.published import read_published
from immunize.report.runs import EXPERIMENT_STATUSES, Runs
from immunize.report.table import NOTHING, Groups, Table, markdown_of, short, summary_of, with_spread

ROOT = Path(__file__).parent
PATH = ROOT / "summary.md"
SOURCES = {"House Prices": ROOT / "table1", "MNIST, 90 pairs": ROOT / "table2"}
"""Title to the folder with its records."""
COLUMNS = (("released", "fit"), ("spectrum", "held_out"))
"""Estimator and part: the paper's protocol, and its definition of κ on unseen rows."""

HORIZONS: Mapping[str, Mapping[str, tuple[str, Sequence[str | Path]]]] = {
    "A small ResNet, digits": {
        "last stage": ("last_block", ("t4_rates_digits", "t4_rates_digits_peers")),
        "three stages": ("last_block", ("t4_stages",)),
        "LoRA": ("lora", ("t4_lora_digits_peers", "t4_lora_digits", "t4_fresh_digits")),
        "all weights": ("full_finetune", ("t4_full_digits_peers", "t4_full_digits", "t4_fresh_digits")),
    },
    "ResNet18 at 64 pixels, Caltech-101": {
        "last stage": ("last_block", ("t4_small_deep", "t4_small", "t4_weights_strong", "t4_peers_deep")),
        "three stages": ("last_block", ("t4_stages_caltech101",)),
        "LoRA": ("lora", ("t4_lora_deep",)),
        "all weights": ("full_finetune", ("t4_full_deep", "t4_fresh_caltech101")),
    },
}
"""Title to what moves, the attack that moves it for 1,000 steps at up to 10⁻², and folders."""
SEEDS = 3
"""Other numbers of runs are told."""


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


def horizon_table(title: str, sources: Mapping[str, tuple[str, Sequence[str | Path]]]) -> Table:
    """One row a method: of what θ_0 teaches the share that comes back, and the step at which half has, by what moves.

    Args:
        title: of the table.
        sources: what moves, to the attack and folders, of the committed ones by their names; a method's run of a
            seed is that of the first folder that has it.

    Raises:
        FileNotFoundError: no record in a folder.
    """
    found: dict[str, dict[str, str]] = {}
    for moved, (attack, names) in sources.items():
        records: list[Any] = []
        for name in names:
            those = (of for of in load_attacks(ROOT / name) if attack in of["by_attack"]["harmful"]["immunized"])
            records = with_earlier(records, [*those])
        runs = Group(moved, records)
        for method in runs.methods:
            alone = {(task, name): of["horizon"] for (task, _, name), of in runs.by_attack(method).items()}
            if curves := alone.get(("harmful", attack)):
                _, end, _, half, _ = horizon_cells(curves)
                runs_told = "" if len(curves) == SEEDS else f" ({len(curves)} run{'s' * (len(curves) > 1)})"
                found.setdefault(method, {})[moved] = f"{end}, {half}{runs_told}"
    told = {method: [cells.get(moved, NOTHING) for moved in sources] for method, cells in found.items()}
    rows = [[f"`{method}`", *told[method]] for method in in_order(told.keys())]
    return Table(title, ("method", *sources), rows)


def _cell(groups: Groups) -> str:
    """Mean and spread; the middle where outliers make the mean."""
    summary = summary_of(groups)
    if summary is None:
        return NOTHING
    return f"*{short(summary.median)}*" if summary.outlying else with_spread(summary.mean, summary.spread)


def text() -> str:
    """All tables, in Markdown."""
    return markdown_of([summary_table(SOURCES), *(horizon_table(title, of) for title, of in HORIZONS.items())])


def main() -> None:
    """Write them."""
    PATH.write_text(text(), encoding="utf-8")
    print(PATH)


if __name__ == "__main__":
    main()
