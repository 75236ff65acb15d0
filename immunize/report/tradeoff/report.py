"""The report of `experiment=sweep_lambda`: tables, CSV, figure and README of a trade-off, from records alone."""

from __future__ import annotations

import csv
from pathlib import Path

from immunize.config import config_dir
from immunize.files import whole, write_text
from immunize.records import whole_config
from immunize.report.cells import NOTHING, short
from immunize.report.conventions import PARTS, REDUCED
from immunize.report.layout import Table, write_tables
from immunize.report.loading import load_records
from immunize.report.naming import pair_title
from immunize.report.provenance import provenance
from immunize.report.runs import EXPERIMENT_STATUSES, Runs, measured_on
from immunize.report.stored import write_results
from immunize.report.tradeoff.figure import tradeoff_figure
from immunize.report.tradeoff.points import ESTIMATORS, NAME, TradeOff

__all__ = ["report_tradeoff", "tradeoff_tables", "write_csv"]

VERDICTS_BY = "spectrum"
"""The estimator that the verdicts of a record are by."""


def report_tradeoff(folder: Path, out: Path | None, committed: Path) -> str:
    """Write the report and return what to print.

    Args:
        folder: of runs, or one that holds `results.csv.gz`.
        out: where to write README.md, table.md, table.tex, tradeoff.csv, results.csv.gz and the figure; None prints.
        committed: the folder that reduced runs must not be written into.

    Raises:
        FileNotFoundError: no finished record in the folder.
        ValueError: records that do not belong into one trade-off, or reduced ones for the committed results.
    """
    records = load_records(folder, EXPERIMENT_STATUSES)
    trade = TradeOff.of(records, Path(config_dir()) / "experiment" / f"{NAME}.yaml")
    tables = tradeoff_tables(trade)
    text = "\n".join(table.markdown() for table in tables)
    if out is None:
        return text
    if trade.runs.reduced and out.resolve() == committed.resolve():
        raise ValueError(f"reduced runs are not written into {out}, where the full results are; choose out=")
    out.mkdir(parents=True, exist_ok=True)
    write_results(trade.runs.records, out)
    write_tables(tables, NAME, out)
    write_csv(trade, out / "tradeoff.csv")
    tradeoff_figure(trade, out / "tradeoff")
    write_text(out / "README.md", _readme(trade, text))
    return text


def tradeoff_tables(trade: TradeOff) -> list[Table]:
    """One table an estimator: (i), (ii) and RIR on both parts, the front, and how often Definition 3.1 holds."""
    return [_table(trade, estimator) for estimator in ESTIMATORS]


def write_csv(trade: TradeOff, path: Path) -> None:
    """One row a weight, part and estimator: geometric means, the smallest and the largest seed, the front."""
    columns = [
        *("estimator", "part", "lambda_ratio", "runs", "diverged"),
        *("ratio_harmful", "ratio_harmful_min", "ratio_harmful_max"),
        *("ratio_pretrain", "ratio_pretrain_min", "ratio_pretrain_max", "rir", "on_front"),
    ]
    diverged = {ratio: len(runs.records) - len(runs.finished) for ratio, runs in trade.weights}
    with whole(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for estimator in ESTIMATORS:
            for part in PARTS:
                for p in trade.points(part, estimator):
                    harmful, pretrain = zip(*p.seeds, strict=True)
                    counts = (len(p.seeds), diverged[p.ratio])
                    i, ii = (p.harmful, min(harmful), max(harmful)), (p.pretrain, min(pretrain), max(pretrain))
                    writer.writerow([estimator, part, p.ratio, *counts, *i, *ii, p.rir, int(p.efficient)])


def _table(trade: TradeOff, estimator: str) -> Table:
    with_verdicts = estimator == VERDICTS_BY
    points = {part: {p.ratio: p for p in trade.points(part, estimator)} for part in PARTS}
    rows = []
    for ratio, runs in trade.weights:
        row = [f"{ratio:.3g}", runs.count_text(runs.methods[0])]
        for part in PARTS:
            p = points[part].get(ratio)
            row += [NOTHING] * 4 if p is None else [*map(short, (p.harmful, p.pretrain, p.rir)), _yes(p.efficient)]
            row += [_verdicts(runs, part)] if with_verdicts else []
        rows.append(row)
    columns = ("(i) ↑", "(ii) ↓", "RIR ↑", "front", *(["(a) (b) (c)"] if with_verdicts else []))
    seeds = len(trade.runs.seeds)
    notes = [
        f"Geometric means over {seeds} seeds. front: no other weight has an (i) as large and an (ii) as small. The "
        "weights of the front of `fit` were not chosen by `held_out`.",
        *(["(a) (b) (c): in how many finished runs each verdict of Definition 3.1 holds."] if with_verdicts else []),
        trade.runs.completeness(),
    ]
    title = f"(i) against (ii) over λ_H/λ_P, by `{estimator}`"
    return Table(
        trade.runs.mark(title),
        f"{NAME}-{estimator}",
        [("", ("λ_H/λ_P", "runs")), *((f"{part}, {estimator}", columns) for part in PARTS)],
        rows,
        notes,
    )


def _verdicts(runs: Runs, part: str) -> str:
    finished = measured_on(runs.finished, part)
    found = [run["verdicts"] if part == "fit" else run["verdicts"]["held_out"] for run in finished]
    return " ".join(f"{sum(bool(v[name]) for v in found)}/{len(found)}" for name in "abc") if found else NOTHING


def _yes(efficient: bool) -> str:
    return "yes" if efficient else ""


def _readme(trade: TradeOff, text: str) -> str:
    runs = trade.runs
    title = f"The trade-off between (i) and (ii) over λ_H/λ_P: `{runs.methods[0]}`, {pair_title(runs.records[0])}"
    into = f"outputs/{runs.preset}/report" if runs.reduced else f"experiments/{NAME}"
    config = whole_config(runs.records[0])
    objective = config["objective"]
    batch = "all rows" if objective["batch_size"] is None else f"mini-batches of {objective['batch_size']}"
    lines = [
        f"# {runs.mark(title)}",
        "",
        *([REDUCED, ""] if runs.reduced else []),
        f"Rebuilt by `make {NAME}{' FAST=1' if runs.reduced else ''}`, that is",
        "",
        "```bash",
        f"python -m immunize.train experiment={runs.preset}",
        f"python -m immunize.report experiment={NAME} runs=outputs/{runs.preset} out={into}",
        "```",
        "",
        provenance(runs),
        f"Settings of every run: η = {objective['learning_rate']:g}, {objective['epochs']:,} epochs, {batch}, "
        f"{str(objective['optimizer']['_target_']).rpartition('.')[2]}, λ_P = {objective['lambda_well']:g}; λ_H "
        f"varies. They are not tuned for any one weight, and no weight is selected here: all are shown.",
        "",
        f"![{runs.mark('trade-off')}](tradeoff.png)",
        "",
        "A point is the geometric mean over the seeds of one λ_H/λ_P, a dot one run. Solid: `fit`, with its Pareto "
        "front; hollow: the same weights on rows that θ never saw, joined to the points of the front. Shaded: "
        "(i) ≥ 2 and (ii) ≤ 1, verdicts (a) and (b) of Definition 3.1. `tradeoff.csv` has the numbers.",
        "",
        text,
    ]
    return "\n".join(lines)
