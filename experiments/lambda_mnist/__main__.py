"""`make lambda_mnist`: what a larger λ_H buys on MNIST, and at which price, from records (docs/tradeoff.md).

    python -m immunize.train experiment=lambda_mnist
    python -m experiments.lambda_mnist runs=outputs/lambda_mnist out=experiments/lambda_mnist

Writes table.md, README.md and the records (results.jsonl) into `out`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from experiments.reporting import key_values
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError
from immunize.report.cells import short
from immunize.report.layout import Table
from immunize.report.loading import load_records
from immunize.report.naming import pair_label
from immunize.report.packing import write_results
from immunize.report.provenance import made_with, versions_of

NAME = "lambda_mnist"
SHOWN = (("fit", "spectrum"), ("held_out", "spectrum"), ("held_out", "ridge"))


@entry_point
def main() -> None:
    """Write what was found; the last line of stdout is the folder."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """See the module's note.

    Raises:
        UserError: a bad argument, no finished run, or runs that differ in more than pair, λ_H and seed.
    """
    given = key_values(arguments, {"runs", "out"})
    out = Path(given.get("out", f"experiments/{NAME}"))
    try:
        records = load_records(Path(given.get("runs", f"outputs/{NAME}")))
    except (FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from None
    text = table_of(records).markdown(heading=False)
    out.mkdir(parents=True, exist_ok=True)
    write_results(records, out)
    (out / "table.md").write_text(text, encoding="utf-8")
    (out / "README.md").write_text(readme_of(records, text), encoding="utf-8")
    print(out)
    return out


def table_of(records: Sequence[dict[str, Any]]) -> Table:
    """A row a pair and λ_H: (i) and RIR, geometric means over the seeds, and in how many runs (a) holds."""
    groups: dict[tuple[str, float], list[dict[str, Any]]] = defaultdict(list)
    settings = set()
    for record in records:
        objective = record["config"]["objective"]
        groups[pair_label(record), objective["lambda_ill"]].append(record)
        settings.add((record["method"], *(str(value) for key, value in objective.items() if key != "lambda_ill")))
    if len(settings) > 1:
        raise UserError("these runs differ in more than pair, λ_H and seed: report each sweep from a folder of its own")
    rows = []
    for (pair, weight), of in sorted(groups.items()):
        row = [pair, f"{weight:.0e}", f"{len(of)}"]
        for part, estimator in SHOWN:
            ratios = [record["metrics"][part][estimator] for record in of]
            row += [short(geometric_mean([ratio[name] for ratio in ratios])) for name in ("ratio_harmful", "rir")]
        verdicts = [record["verdicts"] for record in of]
        for own in (verdicts, [both["held_out"] for both in verdicts]):
            row.append(f"{sum(bool(one['a']) for one in own)}/{len(of)}")
        rows.append(row)
    columns = [
        ("", ("pair", "λ_H", "runs")),
        *((f"{part}, {estimator}", ("(i) ↑", "RIR ↑")) for part, estimator in SHOWN),
        *((f"{part}, spectrum", ("(a)",)) for part in ("fit", "held_out")),
    ]
    return Table("", NAME.replace("_", "-"), columns, rows, ["Geometric means over the seeds."])


def readme_of(records: Sequence[dict[str, Any]], text: str) -> str:
    """Command, machine and table."""
    facts = [("runs", f"{len(records)}"), *made_with(records), versions_of(records)]
    return "\n".join(
        [
            "# Condition (a) on MNIST: what a larger λ_H buys",
            "",
            f"Rebuilt by `make {NAME}`, that is",
            "",
            "```bash",
            f"python -m immunize.train experiment={NAME}",
            f"python -m experiments.{NAME} runs=outputs/{NAME} out=experiments/{NAME}",
            "```",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {key} | {value} |" for key, value in facts),
            "",
            text,
        ]
    )


if __name__ == "__main__":
    main()
