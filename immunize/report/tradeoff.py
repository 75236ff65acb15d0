"""The trade-off between (i) and (ii): what each weight λ_H/λ_P buys, and which weights no other one beats on both.

One weight is a point, the geometric mean over its seeds: (i) and (ii) are ratios. A point is on the Pareto front if no
other one of the same part and estimator has an (i) as large and an (ii) as small, one of the two better. The front is
that of `fit`; beside each of its points stands the one that the same weight has on data θ never saw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from immunize.config import config_dir
from immunize.records import merged, whole_config
from immunize.report.cells import NOTHING, short
from immunize.report.conventions import LAMBDAS, PARTS, RATIOS
from immunize.report.expected import swept
from immunize.report.layout import Table
from immunize.report.nulls import infinite
from immunize.report.runs import FAST, RunId, Runs, experiment_of, measured_on

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ESTIMATORS",
    "NAME",
    "TradeOff",
    "geometric_means",
    "on_front",
    "ratios_of",
    "settings_text",
    "tradeoff_tables",
]

NAME = "sweep_lambda"
ESTIMATORS = ("spectrum", "ridge", "released")
_COLUMNS = [
    *("estimator", "part", "lambda_ratio", "runs", "diverged"),
    *(f"{name}{of}" for name in RATIOS[:2] for of in ("", "_min", "_max")),
    *("rir", "on_front", "each"),
]
VERDICTS_BY = "spectrum"
"""The estimator that the verdicts of a record are by."""


@dataclass(frozen=True)
class TradeOff:
    """Checked records of one sweep over λ_H/λ_P; make it with :meth:`of`.

    Attributes:
        runs: all of them.
        weights: λ_H/λ_P, ascending, with the runs that have it.
    """

    runs: Runs
    weights: Sequence[tuple[float, Runs]]

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]], *, preset: bool = False) -> TradeOff:
        """Check that the records differ in λ_P, λ_H and the seed alone.

        Args:
            records: finished and diverged runs, each once.
            preset: that of `conf/experiment` tells what is missing; otherwise the other runs do.

        Raises:
            ValueError: records of another experiment, of more than one method or pair, or with other settings that
                differ; full and reduced ones together; a run twice; runs with selection=validation.
        """
        # without their weights, and with a number for a seed, they have to pass for runs of one method
        bare = [_without_weights(record) | {"seed": index} for index, record in enumerate(records)]
        all_runs = Runs.of(bare, NAME)
        for what, found in (("methods", all_runs.methods), ("pairs of data sets", all_runs.pairs)):
            if len(found) > 1:
                raise ValueError(f"a trade-off is that of one method on one pair, but there are {what} {found}")
        if any("held_out" not in record.get("metrics", PARTS) for record in measured_on(records, "held_out")):
            raise ValueError("runs with selection=validation have no held-out numbers, which a trade-off shows")
        groups: dict[float, list[dict[str, Any]]] = {}
        for record in sorted(records, key=_ratio):
            groups.setdefault(_ratio(record), []).append(record)
        seeds = sorted({record["seed"] for record in records})
        ratios, seeds = _preset_grid(records) if preset else (sorted(groups), seeds)
        pair, (method,) = all_runs.pairs[0], all_runs.methods
        missing: list[RunId] = []
        weights = []
        for ratio in sorted({*ratios, *groups}):
            expected = [(pair, method, seed) for seed in seeds] if ratio in ratios else None
            if ratio in groups:
                weights.append((ratio, Runs.of(groups[ratio], NAME, expected)))
            absent = weights[-1][1].missing if ratio in groups else expected or []
            missing += [(f"λ_H/λ_P = {ratio:g}", method, seed) for _, method, seed in absent]
        ordered = [record for _, runs in weights for record in runs.records]
        return cls(Runs(tuple(ordered), NAME, experiment_of(records[0])[1], missing), weights)

    def points(self) -> pd.DataFrame:
        """A row a weight that has finished runs, part and estimator, by ascending λ_H/λ_P, as `tradeoff.csv` has it.

        Returns:
            columns of the CSV, `on_front` 0 or 1, and `each`, ((i), (ii)) of every finished run.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for estimator in ESTIMATORS:
            for part in PARTS:
                of: list[dict[str, Any]] = []
                for ratio, runs in self.weights:
                    each = [ratios_of(run["metrics"][part][estimator]) for run in measured_on(runs.finished, part)]
                    if each:
                        means = zip(RATIOS, geometric_means(each), zip(*each, strict=True), strict=False)
                        row: dict[str, Any] = {"estimator": estimator, "part": part, "lambda_ratio": ratio}
                        row |= {"runs": len(each), "diverged": len(runs.records) - len(runs.finished)}
                        for name, mean, values in means:
                            row |= {name: mean, f"{name}_min": min(values), f"{name}_max": max(values)}
                        of.append(row | {"rir": row["ratio_harmful"] / row["ratio_pretrain"], "each": each})
                front = on_front([(row["ratio_harmful"], row["ratio_pretrain"]) for row in of])
                rows += [row | {"on_front": int(on)} for row, on in zip(of, front, strict=True)]
        return pd.DataFrame(rows, columns=_COLUMNS)


def tradeoff_tables(trade: TradeOff) -> list[Table]:
    """One table an estimator: (i), (ii) and RIR on both parts, the front, and how often Definition 3.1 holds."""
    points = trade.points()
    return [_table(trade, points[points["estimator"] == estimator], estimator) for estimator in ESTIMATORS]


def settings_text(trade: TradeOff) -> str:
    """What all runs have in common."""
    objective = whole_config(trade.runs.records[0])["objective"]
    batch = "all rows" if objective["batch_size"] is None else f"mini-batches of {objective['batch_size']}"
    return (
        f"Settings of every run: η = {objective['learning_rate']:g}, {objective['epochs']:,} epochs, {batch}, "
        f"{str(objective['optimizer']['_target_']).rpartition('.')[2]}, λ_P = {objective['lambda_well']:g}; λ_H "
        f"varies. They are not tuned for any one weight, and no weight is selected here: all are shown."
    )


def ratios_of(numbers: Mapping[str, Any]) -> tuple[float, float]:
    """(i) and (ii) of a record's numbers by one estimator; null there is infinite."""
    return infinite(numbers["ratio_harmful"]), infinite(numbers["ratio_pretrain"])


def geometric_means(ratios: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of ((i), (ii)), each by itself."""
    i, ii = np.exp(np.log(np.array(ratios)).mean(axis=0))
    return float(i), float(ii)


def on_front(values: Sequence[tuple[float, float]]) -> list[bool]:
    """Which pairs no other one beats.

    Args:
        values: ((i), (ii)), of which the first is to be large and the second small.

    Returns:
        for each whether it is on the Pareto front; equal pairs are on it together.
    """
    return [
        not any(i >= harmful and ii <= pretrain and (i, ii) != (harmful, pretrain) for i, ii in values)
        for harmful, pretrain in values
    ]


def _table(trade: TradeOff, points: pd.DataFrame, estimator: str) -> Table:
    with_verdicts = estimator == VERDICTS_BY
    rows = []
    for ratio, runs in trade.weights:
        row = [f"{ratio:.3g}", runs.count_text(runs.methods[0])]
        for part in PARTS:
            found = points[(points["part"] == part) & (points["lambda_ratio"] == ratio)]
            if found.empty:
                row += [NOTHING] * 4
            else:
                point = found.iloc[0]
                row += [short(point[name]) for name in ("ratio_harmful", "ratio_pretrain", "rir")]
                row.append("yes" if point["on_front"] else "")
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
    groups = [("", ("λ_H/λ_P", "runs")), *((f"{part}, {estimator}", columns) for part in PARTS)]
    return Table(trade.runs.mark(title), f"{NAME}-{estimator}", groups, rows, notes)


def _verdicts(runs: Runs, part: str) -> str:
    finished = measured_on(runs.finished, part)
    found = [run["verdicts"] if part == "fit" else run["verdicts"]["held_out"] for run in finished]
    return " ".join(f"{sum(bool(v[name]) for v in found)}/{len(found)}" for name in "abc") if found else NOTHING


def _ratio(record: dict[str, Any]) -> float:
    """λ_H/λ_P of a run: those that its method has, which by default are those of its row of hyper-parameters."""
    config = whole_config(record)
    weights = config["objective"] | config["method"]
    well, ill = (float(weights[name]) for name in LAMBDAS)
    return ill / well if well > 0 else math.inf


def _without_weights(record: dict[str, Any]) -> dict[str, Any]:
    nothing = dict.fromkeys(LAMBDAS)
    config = whole_config(record)
    bare = {"objective": nothing, "method": {key: None for key in nothing if key in config["method"]}}
    return record | {"config": merged(config, bare), "without_effect": {}}


def _preset_grid(records: Sequence[dict[str, Any]]) -> tuple[list[float], list[int]]:
    """Weights and seeds that the preset sweeps over."""
    suffix = FAST if experiment_of(records[0])[1] else ""
    params = swept(Path(config_dir()) / "experiment" / f"{NAME}{suffix}.yaml")
    well = float(whole_config(records[0])["objective"]["lambda_well"])
    return [float(ill) / well for ill in params["objective.lambda_ill"]], [int(seed) for seed in params["seed"]]
