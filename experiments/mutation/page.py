"""Results of a mutation run as a table: a row a file, the score, and how sure of it a sample leaves us."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from scipy.stats import binomtest

from experiments.mutation.killing import INVALID, KILLED, TIMEOUT
from experiments.mutation.mutants import Mutant

__all__ = ["interval", "survivors", "table", "totals"]

Row = dict[str, str]
Counts = dict[str, str | int | float]
NOTICED = (KILLED, TIMEOUT)


def interval(noticed: int, tried: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    found = binomtest(noticed, tried).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def totals(mutants: Iterable[Mutant], rows: Sequence[Row]) -> list[Counts]:
    """Counts of each file.

    Args:
        mutants: all there are.
        rows: of those that were tried.
    """
    everything = list(mutants)
    counts: list[Counts] = []
    for path in sorted({mutant.path for mutant in everything}):
        own = [mutant for mutant in everything if mutant.path == path]
        status = Counter(row["status"] for row in rows if row["file"] == path)
        tried = status.total() - status[INVALID]
        noticed = sum(status[one] for one in NOTICED)
        counts.append(
            {
                "file": path,
                "mutants": sum(not mutant.text for mutant in own),
                "text": sum(mutant.text for mutant in own),
                "tried": tried,
                "killed": status[KILLED],
                "timeout": status[TIMEOUT],
                "survived": tried - noticed,
                "score": noticed / tried if tried else math.nan,
            }
        )
    return counts


def table(counts: Sequence[Counts]) -> str:
    """The table of experiments/mutation/method.md."""
    lines = [
        "| file | mutants | tried | killed | of them timeouts | survived | score |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    names = ("mutants", "tried", "killed", "timeout", "survived")
    whole = {name: sum(int(row[name]) for row in counts) for name in names}
    noticed = whole["killed"] + whole["timeout"]
    last: Counts = {"file": "**all**", **whole, "score": noticed / whole["tried"]}
    for row in [*counts, last]:
        name = str(row["file"]).removeprefix("immunize/")
        killed = int(row["killed"]) + int(row["timeout"])
        score = "–" if math.isnan(float(row["score"])) else f"{100 * float(row['score']):.1f} %"
        cells = (name, row["mutants"], row["tried"], killed, row["timeout"], row["survived"], score)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if whole["tried"] < whole["mutants"]:
        low, high = interval(noticed, whole["tried"])
        lines += [
            "",
            f"A random sample, stratified by file; 95 % interval of the score {100 * low:.1f} to {100 * high:.1f} %.",
        ]
    return "\n".join(lines) + "\n"


def survivors(rows: Iterable[Row]) -> str:
    """A Markdown list of what no test has noticed, by file."""
    lines, path = [], ""
    for row in rows:
        if row["status"] in (*NOTICED, INVALID):
            continue
        if row["file"] != path:
            path = row["file"]
            lines += ["", f"`{path}`", ""]
        lines.append(f"- `{row['key']}` line {row['line']}, `{row['function']}`: `{row['before']}` → `{row['after']}`")
    return "\n".join(lines).strip() + "\n"
