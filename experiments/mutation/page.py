"""Results of a mutation run as a table: a row a file, the score, and how sure of it a sample leaves us."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from scipy.stats import binomtest

from experiments.mutation.killing import INVALID, KILLED, TIMEOUT
from experiments.mutation.mutants import Mutant

COUNTS = ["mutants", "tried", "noticed", "timeout", "survived"]


def interval(noticed: int, tried: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    found = binomtest(noticed, tried).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def totals(mutants: Iterable[Mutant], rows: pd.DataFrame) -> pd.DataFrame:
    """Counts of each file, as files.csv has them.

    Args:
        mutants: all there are.
        rows: of those that were tried, with columns `file` and `status`.
    """
    every = pd.DataFrame([(mutant.path, mutant.text) for mutant in mutants], columns=["file", "text"])
    files = every.groupby("file")["text"].agg(mutants=lambda text: (~text).sum(), text="sum")
    status = pd.crosstab(rows["file"], rows["status"]).reindex(files.index, fill_value=0)
    killed, timeout, invalid = (status.get(name, 0) for name in (KILLED, TIMEOUT, INVALID))
    files = files.assign(tried=status.sum(axis=1) - invalid, killed=killed, timeout=timeout)
    files["survived"] = files["tried"] - files["killed"] - files["timeout"]
    return files.assign(score=(files["killed"] + files["timeout"]) / files["tried"]).reset_index()


def table(files: pd.DataFrame) -> str:
    """The table of experiments/mutation/method.md."""
    shown = files.assign(file=files["file"].str.removeprefix("immunize/"), noticed=files["killed"] + files["timeout"])
    shown = shown[["file", *COUNTS]]
    whole = shown[COUNTS].sum()
    lines = [
        "| file | mutants | tried | killed | of them timeouts | survived | score |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, *counts in [*shown.itertuples(index=False, name=None), ("**all**", *whole)]:
        score = f"{100 * counts[2] / counts[1]:.1f} %" if counts[1] else "–"
        lines.append(f"| {' | '.join(map(str, (name, *counts, score)))} |")
    if whole["tried"] < whole["mutants"]:
        low, high = interval(int(whole["noticed"]), int(whole["tried"]))
        told = f"95 % interval of the score {100 * low:.1f} to {100 * high:.1f} %"
        lines += ["", f"A random sample, stratified by file; {told}."]
    return "\n".join(lines) + "\n"


def survivors(rows: pd.DataFrame) -> str:
    """A Markdown list of what no test has noticed, by file."""
    lines = []
    for path, of in rows[~rows["status"].isin([KILLED, TIMEOUT, INVALID])].groupby("file", sort=False):
        lines += ["", f"`{path}`", ""]
        lines += [
            f"- `{row['key']}` line {row['line']}, `{row['function']}`: `{row['before']}` → `{row['after']}`"
            for _, row in of.iterrows()
        ]
    return "\n".join(lines).strip() + "\n"
