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
from typing import Any

import numpy as np

from immunize.records import merged, whole_config
from immunize.report.conventions import LAMBDAS, PARTS
from immunize.report.expected import swept
from immunize.report.nulls import infinite
from immunize.report.runs import FAST, RunId, Runs, experiment_of, measured_on

__all__ = ["ESTIMATORS", "NAME", "Point", "TradeOff", "geometric_means", "on_front", "ratios_of"]

NAME = "sweep_lambda"
ESTIMATORS = ("spectrum", "ridge", "released")


@dataclass(frozen=True)
class Point:
    """One weight, measured on one part by one estimator.

    Attributes:
        ratio: λ_H/λ_P.
        harmful: (i), geometric mean over the seeds, to be large; infinite where one seed's is.
        pretrain: (ii), the same, to be small.
        seeds: ((i), (ii)) of every finished run.
        efficient: whether it is on the Pareto front of its part and estimator.
    """

    ratio: float
    harmful: float
    pretrain: float
    seeds: Sequence[tuple[float, float]]
    efficient: bool

    @property
    def rir(self) -> float:
        """(i)/(ii), hence the geometric mean of RIR."""
        return self.harmful / self.pretrain


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
    def of(cls, records: Sequence[dict[str, Any]], preset: Path | None = None) -> TradeOff:
        """Check that the records differ in λ_P, λ_H and the seed alone.

        Args:
            records: finished and diverged runs, each once.
            preset: of `conf/experiment`, which tells what is missing; without it the other runs do.

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
        ratios, seeds = _preset_grid(preset, records) or (sorted(groups), seeds)
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

    def points(self, part: str, estimator: str) -> list[Point]:
        """The weights that have finished runs, by ascending λ_H/λ_P."""
        ratios, seeds, means = [], [], []
        for ratio, runs in self.weights:
            found = [ratios_of(run["metrics"][part][estimator]) for run in measured_on(runs.finished, part)]
            if found:
                ratios.append(ratio)
                seeds.append(found)
                means.append(geometric_means(found))
        efficient = on_front(means)
        return [Point(r, *m, s, e) for r, m, s, e in zip(ratios, means, seeds, efficient, strict=True)]


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


def _preset_grid(preset: Path | None, records: Sequence[dict[str, Any]]) -> tuple[list[float], list[int]] | None:
    if preset is None:
        return None
    reduced = experiment_of(records[0])[1]
    params = swept(preset.with_name(f"{preset.stem}{FAST if reduced else ''}.yaml"))
    if not {"seed", "objective.lambda_ill"} <= params.keys():
        return None
    well = float(whole_config(records[0])["objective"]["lambda_well"])
    return [float(ill) / well for ill in params["objective.lambda_ill"]], [int(seed) for seed in params["seed"]]
