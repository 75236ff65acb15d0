"""Writes table.md here: a run a row, κ by 20 × 100 groups of held-out images, from these records and table3_small's."""

from pathlib import Path

from immunize.files import write_text
from immunize.report.cells import short
from immunize.report.layout import Table
from immunize.report.loading import load_records

HERE = Path(__file__).parent
COLUMNS = ("D_H", "`method.precondition`", "seed", "(i) ↑", "(ii) ↓", "RIR ↑", "(b)", "D_P accuracy ↑", "gd", "adam")
NOTES = [
    "(i), (ii), RIR: κ of D_H and of D_P and their ratio, against θ_0, by 20 × 100 groups of held-out images.",
    "gd, adam: a probe of D_H after 300 steps, held out, %; θ_0's are those of table3_small.",
]


def table() -> str:
    """Runs of `ours` side by side, both ways."""
    records = load_records(HERE) + [r for r in load_records(HERE.parent / "table3_small") if r["method"] == "ours"]
    rows = []
    for record in records:
        ratios, probes = record["metrics_groups"]["held_out"]["spectrum"], record["probe_accuracy"]
        numbers = [short(ratios[name]) for name in ("ratio_harmful", "ratio_pretrain", "rir")]
        verdict = "holds" if record["verdicts_groups"]["held_out"]["b"] else "fails"
        accuracies = [probes[name]["harmful"]["immunized"]["300"] for name in ("gd", "adam")]
        after = [f"{value:.2f}" for value in (record["pretrain_accuracy"]["after"], *accuracies)]
        key = record["harmful"], record["config"]["method"]["precondition"], str(record["seed"])
        rows.append([*key, *numbers, verdict, *after])
    return Table("", "precondition-small", [("", COLUMNS)], sorted(rows), NOTES).markdown(heading=False)


if __name__ == "__main__":
    write_text(HERE / "table.md", table())
