"""The table of one run of a deep extractor, from its record. Imports no other room and no torch."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from immunize.report.cells import short
from immunize.report.nulls import infinite, with_infinities
from immunize.report.terminal import printed_table

__all__ = ["show_deep_record"]

_KINDS = {"metrics_groups": "groups", "metrics": "pooled"}
_MILESTONES = ("30", "300", "1000", "end")


def show_deep_record(record: dict[str, Any], console: Console, title: str) -> None:
    """Print RIR_θ0 by groups and pooled, the verdicts, the accuracy on D_P and the probes of one finished run."""
    table = printed_table(f"{record['model']}, {title}")
    for column in ("part", "rows", "estimator"):
        table.add_column(column)
    for column in ("(i) ↑", "(ii) ↓", "RIR ↑", "95 % of RIR"):
        table.add_column(column, justify="right")
    for part in record["metrics"]:
        for kind, name in _KINDS.items():
            for index, (estimator, of) in enumerate(record[kind][part].items()):
                m, (low, high) = with_infinities(of), of["interval"]["rir"]
                table.add_row(
                    *(("", "") if index else (part.replace("_", " "), name)),
                    estimator,
                    *(short(m[key]) for key in ("ratio_harmful", "ratio_pretrain", "rir")),
                    f"{short(low)} to {short(infinite(high))}",
                )
        table.add_section()
    console.print(table)
    accuracy = record["pretrain_accuracy"]
    console.print(f"D_P accuracy on held-out images: {accuracy['before']:.2f} % → {accuracy['after']:.2f} %")
    console.print(
        "Definition 3.1 by spectrum, (a) harmful task harder, (b) pre-training task no harder, (c) still done:"
    )
    for kind, name in _KINDS.items():
        of_fit = record[kind.replace("metrics", "verdicts")]
        for part in record[kind]:
            verdict = of_fit if part == "fit" else of_fit[part]
            console.print(
                f"  {name:6} {part.replace('_', ' '):10} " + "  ".join(f"({v}) {_word(verdict[v])}" for v in "abc")
            )
    console.print("accuracy of a linear probe after some steps, θ_0 → θ, %:")
    for optimizer, roles in record["probe_accuracy"].items():
        for role, of in roles.items():
            steps = [step for step in _MILESTONES if step in of["immunized"]]
            texts = [f"{step}: {of['theta_0'][step]:.1f} → {of['immunized'][step]:.1f}" for step in steps]
            console.print(f"  {optimizer:13} {role:9} " + "   ".join(texts))


def _word(passed: bool) -> str:
    return "[green]yes[/green]" if passed else "[red]no[/red] "
