"""`make search_housing`, `make search_mnist`: each method's hyper-parameters for Tables 1 and 2, from records.

    python -m experiments.search experiment=search_housing runs=outputs/search_housing out=experiments/search_housing

Writes results.csv (every configuration) and README.md into `out` and, unless the search was a reduced one, the rows
that the presets take, conf/objective/tuned/linear_<data>/<method>.yaml. A configuration's score is the mean of
log RIR on the validation rows, by `released` and by `ridge`, over pairs and seeds; a run that diverged makes it the
worst. Configurations that make the pre-training task no harder there, mean log (ii) ≤ 0 (condition (b) of Definition
3.1), come before the others: RIR alone would take any price on D_P for a larger one on D_H.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.reporting import key_values
from immunize.cli import entry_point, explain_errors

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

ARGUMENTS = {"experiment", "runs", "out"}

BESIDE = ("spectrum",)
"""Shown beside them. On few rows it is decided at the rank cut and jumps by orders of magnitude."""


@dataclass(frozen=True)
class Trial:
    """One configuration of one method.

    Attributes:
        method: its name.
        settings: the settings that the method's grid varies, with their values.
        by_estimator: log RIR by (data, seed), for each of `DECIDES` and `BESIDE`.
        log_pretrain: mean of log (ii) over its runs and `DECIDES`; inf if one has none.
    """

    method: str
    settings: dict[str, float]
    by_estimator: dict[str, dict[tuple[str, int], float]]
    log_pretrain: float

    @property
    def logs(self) -> dict[tuple[str, int], float]:
        """Mean of log RIR by `DECIDES`, by (data, seed); -inf of a run that has none."""
        first = self.by_estimator[DECIDES[0]]
        return {part: sum(self.by_estimator[name][part] for name in DECIDES) / len(DECIDES) for part in first}

    @property
    def failed(self) -> int:
        """Runs that diverged or have no RIR."""
        return sum(value == -math.inf for value in self.logs.values())

    @property
    def score(self) -> float:
        """Mean log RIR."""
        return sum(self.logs.values()) / len(self.logs)

    @property
    def spares(self) -> bool:
        """Whether the pre-training task becomes no harder."""
        return self.log_pretrain <= 0

    @property
    def rank(self) -> tuple[bool, float, int, float]:
        """Larger is better: (b), the score, and where runs of every configuration failed, the fewest of them."""
        rest = [value for value in self.logs.values() if value > -math.inf]
        return self.spares, self.score, -self.failed, sum(rest) / len(rest) if rest else -math.inf


@entry_point
def main() -> None:
    """Read the records and write what was chosen."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> None:
    """See the module's note.

    Raises:
        UserError: a bad argument, or a search that is not complete.
    """
    given = key_values(arguments, ARGUMENTS, needed=ARGUMENTS)
    name, runs, out = given["experiment"], Path(given["runs"]), Path(given["out"])
    records = own_records(runs)
    trials = trials_of(records)
    best = {method: max(of, key=lambda trial: trial.rank) for method, of in trials.items()}
    data = name.removeprefix("search_")
    reduced = any(record["config"]["experiment"]["reduced"] for record in records)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "results.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows_of(trials, best))
    readme = readme_of(name, records, trials, best, reduced)
    (out / "README.md").write_text(readme, encoding="utf-8")
    folder = (out if reduced else ROOT / "conf" / "objective") / "tuned" / f"linear_{data}"
    folder.mkdir(parents=True, exist_ok=True)
    for method, row in best.items():
        text = yaml_of(row, trials[method], data)
        (folder / f"{method}.yaml").write_text(text, encoding="utf-8")
    print(readme, end="")


def own_records(runs: Path) -> list[dict[str, Any]]:
    """The records of a sweep's own runs that are over, in the order of the sweep.

    Args:
        runs: folder of the sweep.

    Raises:
        SystemExit: there is none.
    """
    listed = runs / "sweep.json"
    own = json.loads(listed.read_text(encoding="utf-8"))["runs"] if listed.is_file() else []
    paths = [path for digest in own if (path := runs / digest / "record.json").is_file()]
    records: list[dict[str, Any]] = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    over = [record for record in records if record["status"] in ("finished", "diverged")]
    if not over:
        raise SystemExit(f"there is no record in {runs}; run the search first")
    return over


def trials_of(records: list[dict[str, Any]]) -> dict[str, list[Trial]]:
    """The configurations of every method, those of a method in the order of their settings.

    Args:
        records: of all runs that are over.

    Raises:
        SystemExit: a configuration lacks runs that others have.
    """
    by_method: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        by_method[record["method"]].append(record)
    trials = {}
    for method, of in by_method.items():
        varied = [key for key in SEARCHED if len({_setting(record, key) for record in of}) > 1]
        runs: dict[tuple[float, ...], list[dict[str, Any]]] = defaultdict(list)
        for record in of:
            runs[tuple(_setting(record, key) for key in varied)].append(record)
        trials[method] = [
            Trial(
                method,
                dict(zip(varied, values, strict=True)),
                {
                    name: {_part(record): _log_rir(record, name) for record in runs[values]}
                    for name in (*DECIDES, *BESIDE)
                },
                _log_pretrain(runs[values]),
            )
            for values in sorted(runs)
        ]
    wanted = {_part(record) for record in records}
    lacking = sum(trial.logs.keys() != wanted for of in trials.values() for trial in of)
    if lacking or len({len(of) for of in trials.values()}) > 1:
        counts = ", ".join(f"{method} {len(of)}" for method, of in trials.items())
        raise SystemExit(
            f"the search is not complete: configurations by method: {counts}; {lacking} of them lack runs. "
            f"The same command again continues it"
        )
    return trials


def rows_of(trials: dict[str, list[Trial]], best: dict[str, Trial]) -> list[list[str]]:
    """results.csv: header and a line a configuration."""
    by_estimator = [f"mean_log_rir_{name}_validation" for name in (*DECIDES, *BESIDE)]
    header = ["method", *SEARCHED, "runs", "failed", "score", *by_estimator, "mean_log_ii_validation", "chosen"]
    lines = [
        [
            trial.method,
            *(_number(trial.settings[key]) if key in trial.settings else "" for key in SEARCHED),
            str(len(trial.logs)),
            str(trial.failed),
            f"{trial.score:.6g}",
            *(f"{sum(logs.values()) / len(logs):.6g}" for logs in trial.by_estimator.values()),
            f"{trial.log_pretrain:.6g}",
            "yes" if best[trial.method] is trial else "",
        ]
        for of in trials.values()
        for trial in of
    ]
    return [header, *lines]


def readme_of(
    name: str, records: list[dict[str, Any]], trials: dict[str, list[Trial]], best: dict[str, Trial], reduced: bool
) -> str:
    """What was searched, how, and what was chosen."""
    first, hardware = records[0], records[0]["hardware"]
    parts = sorted({_part(record) for record in records})
    fraction = first["config"]["objective"]["validation_fraction"]
    lines = [
        f"# {name}: hyper-parameters by a validation split"
        + (" (reduced: nothing is to be chosen by it)" if reduced else ""),
        "",
        "| | |",
        "| --- | --- |",
        f"| command | `make {name}{' FAST=1' if reduced else ''}` |",
        f"| commit | {', '.join(sorted({str(record['git_commit']) for record in records}))} |",
        f"| date | {min(record['started'] for record in records)[:10]} |",
        f"| machine | {hardware['processor']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB |",
        f"| time | {sum(record['seconds'] for record in records):.0f} s of runs, one process a core |",
        f"| runs | {len(records)}: {len(next(iter(trials.values())))} configurations a method, each on "
        f"{'; '.join(f'{data} seed {seed}' for data, seed in parts)} |",
        f"| split | θ is fitted on {1 - fraction:.0%} of the `fit` rows and judged on the other {fraction:.0%}; "
        "held-out rows are not looked at |",
        f"| score | mean of log RIR by {_both()} on the validation rows; a run that diverged makes it the worst. "
        "Configurations with a mean log (ii) ≤ 0 there come before the others |",
        "",
        f"| method | grid | chosen | mean log RIR by {_both()}, validation | (ii) ≤ 1 there | failed runs of all | "
        "chosen at the edge of its grid |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method, trial in best.items():
        of = trials[method]
        edges = [SEARCHED[key] for key, value in trial.settings.items() if value in _ends(of, key)]
        chosen = ", ".join(f"{SEARCHED[key]} = {_number(value)}" for key, value in trial.settings.items())
        failed = f"{sum(t.failed for t in of)} of {sum(len(t.logs) for t in of)}"
        spares = "yes" if trial.spares else "no"
        lines.append(
            f"| `{method}` | {_grid(of)} | {chosen} | {trial.score:.3g} | {spares} | {failed} | "
            f"{', '.join(edges) or 'no'} |"
        )
    lines += ["", "Every configuration is in results.csv.", ""]
    return "\n".join(lines)


def yaml_of(trial: Trial, trials: list[Trial], data: str) -> str:
    """A row of hyper-parameters, naming where it comes from."""
    title = {"housing": "House Prices", "mnist": "MNIST pairs"}[data]
    source = f"chosen by experiment=search_{data} (experiments/search_{data})"
    lines = [
        "# @package _global_",
        f"# {title}, linear model, method={trial.method}: objective=tuned/linear_{data}/{trial.method}",
        f"# Source: {source}, by the mean log RIR by",
        f"# {_both()} on a validation split of `fit`, rows with (ii) ≤ 1 there before others; grid:",
        f"# {_grid(trials)}.",
        "defaults:",
        f"  - /objective/linear_{data}@objective",
        "  - _self_",
    ]
    by_node: dict[str, list[str]] = defaultdict(list)
    for key, value in trial.settings.items():
        node, setting = key.split(".")
        by_node[node].append(f"  {setting}: {_number(value)}")
    for node, settings in by_node.items():
        lines += [f"{node}:", *settings]
    return "\n".join(lines) + "\n"


def _both() -> str:
    return " and ".join(f"`{name}`" for name in DECIDES)


def _grid(trials: list[Trial]) -> str:
    keys = list(trials[0].settings)
    if not keys:
        return "none"
    return ", ".join(
        f"{SEARCHED[key]} in {{{', '.join(_number(value) for value in sorted({t.settings[key] for t in trials}))}}}"
        for key in keys
    )


def _ends(trials: list[Trial], key: str) -> tuple[float, float]:
    values = [trial.settings[key] for trial in trials]
    return min(values), max(values)


def _setting(record: dict[str, Any], key: str) -> float:
    node, setting = key.split(".")
    value = record["config"][node].get(setting)
    return math.nan if value is None else float(value)


def _part(record: dict[str, Any]) -> tuple[str, int]:
    digits = record["config"]["harmful"].get("pair")
    return (record["harmful"] if digits is None else f"{record['harmful']} {digits}"), record["seed"]


def _log_rir(record: dict[str, Any], estimator: str) -> float:
    if record["status"] != "finished":
        return -math.inf
    rir = record["metrics"]["validation"][estimator]["rir"]
    return math.log(rir) if rir is not None and rir > 0 else -math.inf


def _log_pretrain(records: list[dict[str, Any]]) -> float:
    if any(_log_rir(record, name) == -math.inf for record in records for name in DECIDES):
        return math.inf
    values = [record["metrics"]["validation"][name]["ratio_pretrain"] for record in records for name in DECIDES]
    return sum(map(math.log, values)) / len(values)


def _number(value: float) -> str:
    """As YAML reads it as a number again."""
    return f"{value:g}" if 1e-4 <= value < 1e4 else f"{value:.1e}"


if __name__ == "__main__":
    main()
