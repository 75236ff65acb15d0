"""`make search_housing`, `make search_mnist`: each method's hyper-parameters for Tables 1 and 2, from records.

    python -m experiments.search experiment=search_housing runs=outputs/search_housing out=experiments/search_housing

Writes results.csv (every configuration) and README.md into `out` and, unless the search was a reduced one, the rows
that the presets take, conf/objective/tuned/linear_<data>/<method>.yaml. `keep=true` keeps the rows of methods that
`out` has and the runs have not, with the commits that made them: a method's search can be made again alone.

A configuration's score is the mean of log RIR on the validation rows, by `released` and by `ridge`, over pairs and
seeds; a run that diverged makes it the worst. Configurations that immunize there come first: by the same means (i) ≥ 2
and (ii) ≤ 1, conditions (a) and (b) of Definition 3.1. Then come those with (b) alone: RIR by itself would take any
price on D_P for a larger one on D_H, or an easier D_P and no harder D_H.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from experiments.reporting import key_values, machine_of, readme
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError
from immunize.report.naming import HARDER_BY, NO_HARDER
from immunize.report.table import Table

ROOT = Path(__file__).parents[1]
SEARCHED = {
    "objective.learning_rate": "η",
    "objective.lambda_ill": "λ_H",
    "method.inner_learning_rate": "inner η",
    "method.budget": "B",
}
"""Settings that a search may vary, and what they are called."""

DECIDES = ("released", "ridge")
"""The estimators that choose: those that no rank cut decides."""

SEARCHES = ("search_housing", "search_mnist")
ARGUMENTS = {"experiment", "runs", "out"}
RESULTS = "results.csv"

BESIDE = ("spectrum",)
"""Shown beside them. On few rows it is decided at the rank cut and jumps by orders of magnitude."""

LOGS = {name: f"mean_log_rir_{name}_validation" for name in (*DECIDES, *BESIDE)}
LOG_II = "mean_log_ii_validation"

CONTINUES = "The same command again continues it"


@entry_point
def main() -> None:
    """Read the records and write what was chosen."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> None:
    """See the module's note.

    Raises:
        UserError: a bad argument, or a search that is not complete.
    """
    name, records, out, keep = asked(arguments, SEARCHES)
    trials = trials_of(records)
    again = set(trials["method"])
    if keep:
        trials = with_earlier(trials, out / RESULTS)
    best = best_of(trials)
    data = name.removeprefix("search_")
    reduced = any(record["config"]["experiment"]["reduced"] for record in records)
    out.mkdir(parents=True, exist_ok=True)
    told = trials.drop(columns="rest").assign(chosen=["yes" if at in best.index else "" for at in trials.index])
    told[list(SEARCHED)] = told[list(SEARCHED)].map(lambda value: "" if pd.isna(value) else _number(value))
    told.to_csv(out / RESULTS, index=False, float_format="%.6g", lineterminator="\n")
    readme = readme_of(name, records, trials, best, reduced)
    (out / "README.md").write_text(readme, encoding="utf-8")
    folder = (out if reduced else ROOT / "conf" / "objective") / "tuned" / f"linear_{data}"
    folder.mkdir(parents=True, exist_ok=True)
    for _, row in best[best["method"].isin(again)].iterrows():
        text = yaml_of(row, trials[trials["method"] == row["method"]], data)
        (folder / f"{row['method']}.yaml").write_text(text, encoding="utf-8")
    print(readme, end="")


def asked(arguments: Sequence[str], searches: Collection[str]) -> tuple[str, list[dict[str, Any]], Path, bool]:
    """The search, the records of its runs, the folder of results, and whether what is there is kept.

    Args:
        arguments: of the command line.
        searches: that there are.

    Raises:
        UserError: a bad argument.
        SystemExit: a search that is not complete.
    """
    given = key_values(arguments, {*ARGUMENTS, "keep"}, needed=ARGUMENTS)
    name, keep = given["experiment"], given.get("keep", "false")
    if name not in searches:
        raise UserError(f"experiment={name}: there are {', '.join(searches)}")
    if keep not in ("true", "false"):
        raise UserError(f"keep={keep}: it is one of true, false")
    return name, own_records(Path(given["runs"])), Path(given["out"]), keep == "true"


def earlier_results(path: Path, **options: Any) -> pd.DataFrame:
    """A `results.csv`, read with these options of pandas.

    Raises:
        UserError: there is no such file.
    """
    if not path.is_file():
        raise UserError(f"keep=true: there is no {path} to keep anything of")
    return pd.read_csv(path, **options)


def own_records(runs: Path) -> list[dict[str, Any]]:
    """The records of a sweep's own runs that are over, in the order of the sweep.

    Args:
        runs: folder of the sweep.

    Raises:
        SystemExit: there is none, or one is not over.
    """
    listed = runs / "sweep.json"
    own = json.loads(listed.read_text(encoding="utf-8"))["runs"] if listed.is_file() else []
    paths = [path for digest in own if (path := runs / digest / "record.json").is_file()]
    records: list[dict[str, Any]] = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    over = [record for record in records if record["status"] in ("finished", "diverged")]
    if not over:
        raise SystemExit(f"there is no record in {runs}; run the search first")
    if len(over) < len(own):
        raise SystemExit(f"the search is not complete: {len(over)} of {len(own)} runs are over. {CONTINUES}")
    return over


def with_earlier(trials: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The configurations, and those in a `results.csv` of methods that were not searched again."""
    earlier = earlier_results(path).drop(columns="chosen").assign(rest=lambda of: of["score"])
    kept = earlier[~earlier["method"].isin(trials["method"])]
    order = list(dict.fromkeys([*earlier["method"], *trials["method"]]))
    return pd.concat([kept, trials]).sort_values(
        "method", key=lambda of: of.map(order.index), kind="stable", ignore_index=True
    )


def trials_of(records: list[dict[str, Any]]) -> pd.DataFrame:
    """The configurations of every method, those of a method in the order of their settings.

    Args:
        records: of all runs that are over.

    Returns:
        a row a configuration: `method`, `SEARCHED` (NaN where the method's grid does not vary it), `runs`, `failed`,
        `score` (mean log RIR by `DECIDES`), the same by each estimator, mean log (ii), `rest`, the score of the
        runs that have one, and what made the runs.

    Raises:
        SystemExit: a configuration lacks runs that others have.
    """
    runs = pd.DataFrame([_run_of(record) for record in records])
    for key in SEARCHED:
        varied = runs.groupby("method")[key].transform("nunique", dropna=False) > 1
        runs[key] = runs[key].where(varied)
    groups = runs.groupby(["method", *SEARCHED], dropna=False, sort=False)
    trials = groups.agg(
        runs=("score", "size"),
        failed=("score", lambda score: (score == -math.inf).sum()),
        score=("score", "mean"),
        **{name: (name, "mean") for name in (*LOGS.values(), LOG_II)},
        rest=("score", lambda score: score[score > -math.inf].mean()),
        parts=("part", frozenset),
        commits=("commit", lambda commits: " ".join(sorted(set(commits)))),
        date=("date", "min"),
        machine=("machine", "first"),
    ).reset_index()
    order = dict.fromkeys(runs["method"])
    trials = trials.sort_values(list(SEARCHED), kind="stable")
    trials = trials.sort_values("method", key=lambda of: of.map(list(order).index), kind="stable", ignore_index=True)
    if lacking := (trials["parts"] != frozenset(runs["part"])).sum():
        raise SystemExit(
            f"the search is not complete: {lacking} of {len(trials)} configurations lack runs. {CONTINUES}"
        )
    return trials.drop(columns="parts")


def best_of(trials: pd.DataFrame) -> pd.DataFrame:
    """The configuration of each method that is chosen: by (a) with (b), (b), the score, and the fewest that failed."""
    rank = trials.assign(immunizes=harder(trials) & spared(trials), spares=spared(trials))
    rank = rank.assign(there=-rank["failed"], rest=rank["rest"].fillna(-math.inf))
    ranked = rank.sort_values(["immunizes", "spares", "score", "there", "rest"], ascending=False, kind="stable")
    return trials.loc[sorted(ranked.groupby("method").head(1).index)]


def harder(trials: Any) -> Any:
    """(a): whether (i) ≥ 2, by its mean logarithm, which is log RIR's and log (ii)'s together."""
    return trials["score"] + trials[LOG_II] >= math.log(HARDER_BY)


def spared(trials: Any) -> Any:
    """(b): whether (ii) ≤ 1, likewise."""
    return trials[LOG_II] <= math.log(NO_HARDER)


def facts_of(trials: pd.DataFrame, command: str) -> list[tuple[str, str]]:
    """What made the configurations: command, commits, dates and machines."""
    dates = sorted(set(trials["date"]))
    commits = sorted({commit for of in trials["commits"] for commit in of.split()})
    return [
        ("command", f"`{command}`"),
        ("commit", ", ".join(commits)),
        ("date", " to ".join(dict.fromkeys((dates[0], dates[-1])))),
        ("machine", "; ".join(sorted(set(trials["machine"])))),
    ]


def readme_of(name: str, records: list[dict[str, Any]], trials: pd.DataFrame, best: pd.DataFrame, reduced: bool) -> str:
    """What was searched, how, and what was chosen."""
    first = records[0]
    counts = trials["method"].value_counts()
    again = [f"`{method}`" for method in dict.fromkeys(record["method"] for record in records)]
    a_method = f"{counts.min()}" + (f" to {counts.max()}" if counts.nunique() > 1 else "")
    parts = sorted({_part(record) for record in records})
    fraction = first["config"]["objective"]["validation_fraction"]
    facts = [
        *facts_of(trials, f"make {name}{' FAST=1' if reduced else ''}"),
        ("time", f"{sum(record['seconds'] for record in records):.0f} s of runs of {', '.join(again)}"),
        (
            "runs",
            f"{trials['runs'].sum()}: {a_method} configurations a method, each on "
            f"{'; '.join(f'{data} seed {seed}' for data, seed in parts)}",
        ),
        (
            "split",
            f"θ is fitted on {1 - fraction:.0%} of the `fit` rows and judged on the other {fraction:.0%}; held-out "
            "rows are not looked at",
        ),
        (
            "score",
            f"mean of log RIR by {_both()} on the validation rows; a run that diverged makes it the worst. "
            "Configurations that immunize there come first, by the same means: (i) ≥ 2 and (ii) ≤ 1, (a) and (b) of "
            "Definition 3.1; then those with (ii) ≤ 1",
        ),
    ]
    rows = []
    for _, trial in best.iterrows():
        of = trials[trials["method"] == trial["method"]]
        settings = _settings(trial)
        edges = [SEARCHED[key] for key, value in settings.items() if value in (of[key].min(), of[key].max())]
        chosen = ", ".join(f"{SEARCHED[key]} = {_number(value)}" for key, value in settings.items())
        told = ["yes" if holds(trial) else "no" for holds in (harder, spared)]
        told.append(f"{of['failed'].sum()} of {of['runs'].sum()}")
        row = [f"`{trial['method']}`", _grid(of), chosen, f"{trial['score']:.3g}", *told, ", ".join(edges) or "no"]
        rows.append(row)
    columns = ["method", "grid", "chosen", f"mean log RIR by {_both()}, validation", "(i) ≥ 2 there", "(ii) ≤ 1 there"]
    columns += ["failed runs of all", "chosen at the edge of its grid"]
    body = [
        Table("", columns, rows).markdown(heading=False),
        "Every configuration is in results.csv.",
        "",
    ]
    mark = " (reduced: nothing is to be chosen by it)" if reduced else ""
    return readme(f"{name}: hyper-parameters by a validation split{mark}", facts, body)


def yaml_of(trial: pd.Series[Any], trials: pd.DataFrame, data: str) -> str:
    """A row of hyper-parameters, naming where it comes from."""
    title = {"housing": "House Prices", "mnist": "MNIST pairs"}[data]
    source = f"chosen by experiment=search_{data} (experiments/search_{data})"
    lines = [
        "# @package _global_",
        f"# {title}, linear model, method={trial['method']}: objective=tuned/linear_{data}/{trial['method']}",
        f"# Source: {source}, by the mean log RIR by",
        f"# {_both()} on a validation split of `fit`, rows with (i) ≥ 2 and (ii) ≤ 1 there first; grid:",
        f"# {_grid(trials)}.",
        "defaults:",
        f"  - /objective/linear_{data}@objective",
        "  - _self_",
    ]
    for node in ("objective", "method"):
        found = {key.partition(".")[2]: value for key, value in _settings(trial).items() if key.startswith(node)}
        lines += [f"{node}:", *(f"  {key}: {_number(value)}" for key, value in found.items())] if found else []
    return "\n".join(lines) + "\n"


def _settings(trial: pd.Series[Any]) -> dict[str, float]:
    return {key: float(trial[key]) for key in SEARCHED if pd.notna(trial[key])}


def _run_of(record: dict[str, Any]) -> dict[str, Any]:
    logs = {name: _log_rir(record, name) for name in LOGS}
    log_ii = math.inf
    if -math.inf not in (logs[name] for name in DECIDES):
        log_ii = fmean(math.log(record["metrics"]["validation"][name]["ratio_pretrain"]) for name in DECIDES)
    nodes = {key: record["config"][key.partition(".")[0]].get(key.partition(".")[2]) for key in SEARCHED}
    return {
        "method": record["method"],
        "part": _part(record),
        **{key: math.nan if value is None else float(value) for key, value in nodes.items()},
        "score": fmean(logs[name] for name in DECIDES),
        **{LOGS[name]: value for name, value in logs.items()},
        LOG_II: log_ii,
        "commit": str(record["git_commit"]),
        "date": record["started"][:10],
        "machine": machine_of(record),
    }


def _both() -> str:
    return " and ".join(f"`{name}`" for name in DECIDES)


def _grid(trials: pd.DataFrame) -> str:
    values = {SEARCHED[key]: sorted(set(trials[key].dropna())) for key in SEARCHED}
    return ", ".join(f"{name} in {{{', '.join(map(_number, of))}}}" for name, of in values.items() if of) or "none"


def _part(record: dict[str, Any]) -> tuple[str, int]:
    digits = record["config"]["harmful"].get("pair")
    return (record["harmful"] if digits is None else f"{record['harmful']} {digits}"), record["seed"]


def _log_rir(record: dict[str, Any], estimator: str) -> float:
    if record["status"] != "finished":
        return -math.inf
    rir = record["metrics"]["validation"][estimator]["rir"]
    return math.log(rir) if rir is not None and rir > 0 else -math.inf


def _number(value: float) -> str:
    """As YAML reads it as a number again, the same one."""
    if 1e-4 <= value < 1e4:
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="0", exp_digits=2)


if __name__ == "__main__":
    main()
