"""`make guard`: how often a network's steps move κ as Theorem 4.3 promises for a step of its last linear map alone.

    python -m immunize.train experiment=guard_digits
    python -m experiments.network_guard experiment=guard_digits runs=outputs/guard_digits out=experiments/guard_digits

Writes table.md, kept.png and .pdf, README.md and the records (results.csv.gz) into `out`, from what `guard=warn`
counted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.reporting import report_runs
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError
from immunize.records import whole_config
from immunize.report.curves import save_figure
from immunize.report.naming import in_order
from immunize.report.table import NOTHING, Table

SETTING = ["method", "precondition"]
OF_TERM = {"well_kept": "κ(H_P) did not rise", "ill_kept": "κ(H_H) did not fall"}
SHARES = OF_TERM | {
    "promises_kept": "both, or the only one",
    "eta_lambda_within_bounds": "ηλ within the bounds",
    "broken_within_bounds": "within them, and broken",
}
NOTES = [
    "Shares of the steps in percent, means over the seeds and, in brackets, the smallest and the largest. H is that of "
    "the features of the step's batch, before and after the step.",
    "The corrected bounds of Theorem 4.3 ([numerics](../../docs/numerics.md)) are those of a plain gradient step of "
    "the last linear map alone, preconditioned, on one regularizer: within them it keeps its promise always. Here "
    "everything below that map moves with it, by SGD with momentum, on the task loss too.",
]


@entry_point
def main() -> None:
    """Write what was counted; the last line of stdout is the folder."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """See the module's note, and :func:`report_runs`."""
    return report_runs(
        arguments,
        "network_guard",
        "How often a network keeps the promise of Theorem 4.3",
        "make guard",
        read=shares_of,
        table_of=table_of,
        draw=draw,
        figure=("kept", "share of the steps that moved κ as promised"),
    )


def shares_of(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """A row a run: `SETTING`, steps, and `SHARES` of them in percent; NaN of a regularizer that the method has not.

    Raises:
        UserError: a run was not guarded.
    """
    rows = []
    for record in records:
        facts = record["training"]["fit"].get("guard")
        if facts is None:
            raise UserError("these runs were not guarded: give them guard=warn")
        weights = whole_config(record)["method"]
        lacking = {name for name in OF_TERM if f"lambda_{name.removesuffix('_kept')}" not in weights}
        found = {name: None if name in lacking else 100 * facts[name] / facts["steps"] for name in SHARES}
        rows.append(
            {"method": record["method"], "precondition": weights["precondition"], "steps": facts["steps"]} | found
        )
    return pd.DataFrame(rows)


def settings_of(shares: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """The runs of every method and preconditioning, in the order of the tables."""
    groups = dict(list(shares.groupby(SETTING, sort=False)))
    order = in_order(shares["method"])
    return [(setting, groups[setting]) for setting in sorted(groups, key=lambda s: (order.index(s[0]), s[1] != "none"))]


def table_of(shares: pd.DataFrame) -> Table:
    """A row a method and preconditioning."""
    rows = [
        [f"`{method}`", precondition, f"{len(of)}", f"{of['steps'].sum()}", *(_cell(of[name]) for name in SHARES)]
        for (method, precondition), of in settings_of(shares)
    ]
    return Table("", ("method", "preconditioned", "runs", "steps", *SHARES.values()), rows, NOTES)


def _cell(values: pd.Series[float]) -> str:
    return NOTHING if values.isna().any() else f"{values.mean():.0f} ({values.min():.0f} to {values.max():.0f})"


def draw(shares: pd.DataFrame, title: str, stem: Path) -> None:
    """Bars of the means, a dot a run; the dashed line is a coin's half."""
    from matplotlib.figure import Figure

    settings = settings_of(shares)
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axis = figure.subplots()
    for offset, (name, label), colour in zip((-0.2, 0.2), OF_TERM.items(), ("#0072B2", "#D55E00"), strict=True):
        known = [(at + offset, of[name]) for at, (_, of) in enumerate(settings) if of[name].notna().all()]
        axis.bar([x for x, _ in known], [of.mean() for _, of in known], 0.38, color=colour, alpha=0.6, label=label)
        for x, of in known:
            axis.plot([x] * len(of), of, "o", color=colour, markersize=4)
    axis.axhline(50, color="0.5", linestyle="--", linewidth=1)
    labels = [f"{method}\n{'plain' if how == 'none' else 'preconditioned'}" for (method, how), _ in settings]
    axis.set_xticks(range(len(settings)), labels, fontsize=8)
    axis.set(ylabel="share of the steps, %", ylim=(0, 104), title=title)
    figure.legend(fontsize=8, loc="outside upper right", ncols=2)
    save_figure(figure, stem)


if __name__ == "__main__":
    main()
