"""The trade-off between (i) and (ii): what each weight λ_H/λ_P buys, and which weights no other one beats on both.

One weight is a point, the geometric mean over its seeds: (i) and (ii) are ratios. A point is on the Pareto front if no
other one of the same part and estimator has an (i) as large and an (ii) as small, one of the two better. The front is
that of `fit`; of the same colour is the point that the same weight has on data θ never saw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from immunize.records import merged, whole_config
from immunize.report.curves import panels
from immunize.report.loading import infinite
from immunize.report.naming import HARDER_BY, LAMBDAS, NO_HARDER, PARTS, RATIOS, part_words
from immunize.report.runs import FAST, Runs, experiment_of, measured_on, swept, verdict_counts
from immunize.report.templates import filled_in

NAME = "sweep_lambda"
ESTIMATORS = ("spectrum", "ridge", "released")
VERDICTS_BY = "spectrum"
"""The estimator that the verdicts of a record are by."""
_PLACE = ["estimator", "part", "lambda_ratio"]
_I, _II, _ = RATIOS


@dataclass(frozen=True)
class TradeOff:
    """Checked records of one sweep over λ_H/λ_P; make it with :meth:`of`.

    Attributes:
        runs: all of them, by ascending λ_H/λ_P.
        by_weight: the same, each called by its weight in place of its method.
        weights: λ_H/λ_P to what it is called there.
    """

    runs: Runs
    by_weight: Runs
    weights: dict[float, str]

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]]) -> TradeOff:
        """Check that the records differ in λ_P, λ_H and the seed alone.

        Args:
            records: finished and diverged runs, each once; the preset tells which are missing.

        Raises:
            ValueError: records of another experiment, of more than one method or pair, or with other settings that
                differ; full and reduced ones together; a run twice; runs with selection=validation.
        """
        # without their weights, and with a number for a seed, they have to pass for runs of one method
        bare = Runs.of([_without_weights(record) | {"seed": index} for index, record in enumerate(records)], NAME)
        for what, found in (("methods", bare.methods), ("pairs of data sets", bare.pairs)):
            if len(found) > 1:
                raise ValueError(f"a trade-off is that of one method on one pair, but there are {what} {found}")
        if any("held_out" not in record.get("metrics", PARTS) for record in measured_on(records, "held_out")):
            raise ValueError("runs with selection=validation have no held-out numbers, which a trade-off shows")
        ordered = sorted(records, key=_ratio)
        weights = {_ratio(record): _weight(_ratio(record)) for record in ordered}
        ratios, seeds = _preset_grid(records)
        expected = [(bare.pairs[0], _weight(ratio), seed) for ratio in sorted(ratios) for seed in seeds]
        named = Runs.of([record | {"method": weights[_ratio(record)]} for record in ordered], NAME, expected)
        missing = [(weight, bare.methods[0], seed) for _, weight, seed in named.missing]
        return cls(Runs(tuple(ordered), NAME, named.reduced, missing), named, weights)

    def each(self) -> pd.DataFrame:
        """A row a finished run, part and estimator: `estimator`, `part`, `lambda_ratio`, (i) and (ii)."""
        rows = [
            (estimator, part, _ratio(run), *(infinite(run["metrics"][part][estimator][name]) for name in (_I, _II)))
            for estimator in ESTIMATORS
            for part in PARTS
            for run in measured_on(self.runs.finished, part)
        ]
        return pd.DataFrame(rows, columns=[*_PLACE, _I, _II]).astype({_I: float, _II: float})

    def points(self) -> pd.DataFrame:
        """A row a weight that has finished runs, part and estimator, by ascending λ_H/λ_P, as `tradeoff.csv` has it."""
        several = {"": lambda values: np.exp(np.log(values.to_numpy()).mean()), "_min": "min", "_max": "max"}
        columns = {f"{name}{of}": (name, how) for name in (_I, _II) for of, how in several.items()}
        points = self.each().groupby(_PLACE, sort=False).agg(runs=(_I, "size"), **columns).reset_index()
        lost = {ratio: self.by_weight.diverged(weight) for ratio, weight in self.weights.items()}
        points.insert(4, "diverged", points["lambda_ratio"].map(lost))
        points["rir"] = points[_I] / points[_II]
        return with_front(points, _PLACE[:2]).astype({"on_front": int})


def tradeoff_tables(trade: TradeOff) -> str:
    """One table an estimator: (i), (ii) and RIR on both parts, the front, and how often Definition 3.1 holds."""
    return filled_in(
        "tradeoff.md",
        verdict_counts,
        trade=trade,
        points=trade.points().set_index(_PLACE).to_dict("index"),
        estimators=ESTIMATORS,
        verdicts_by=VERDICTS_BY,
    )


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


def with_front(points: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The same, and a column `on_front`: whether no other point of its group beats it.

    Args:
        points: with columns `ratio_harmful` and `ratio_pretrain`.
        by: columns that tell the groups apart.
    """
    points = points.assign(on_front=False)
    for _, of in points.groupby(by):
        points.loc[of.index, "on_front"] = on_front(list(zip(of[_I], of[_II], strict=True)))
    return points


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
    params = swept(f"{NAME}{FAST if experiment_of(records[0])[1] else ''}")
    well = float(whole_config(records[0])["objective"]["lambda_well"])
    return [float(ill) / well for ill in params["objective.lambda_ill"]], [int(seed) for seed in params["seed"]]


def _weight(ratio: float) -> str:
    return f"λ_H/λ_P = {ratio:g}"


PANELS = ("spectrum", "ridge")
MARKERS = {"fit": "o", "held_out": "s"}


def tradeoff_figure(trade: TradeOff) -> Figure:
    """A panel an estimator, log axes, the good corner at the upper left; the colour is the weight."""
    each, points = (of[np.isfinite(of[[_I, _II]]).all(axis=1)] for of in (trade.each(), trade.points()))
    known = [ratio for ratio in trade.weights if 0 < ratio < math.inf] or [1.0]
    scale = LogNorm(min(known), max(known))
    figure, (axes,) = panels((11.5, 5.4), 1, len(PANELS))
    for axis, estimator in zip(axes, PANELS, strict=True):
        for of, size, ink in ((each, 4, {}), (points, 55, {"edgecolors": "#222222", "linewidths": 0.6})):
            for part, marker in MARKERS.items():
                shown = of[(of["estimator"] == estimator) & (of["part"] == part)]
                colours = shown["lambda_ratio"].clip(scale.vmin, scale.vmax)
                name = part_words(part) if ink else None
                axis.scatter(
                    shown[_II], shown[_I], s=size, c=colours, marker=marker, norm=scale, label=name, zorder=3, **ink
                )
        draw_fronts(axis, points[(points["estimator"] == estimator) & (points["part"] == "fit")], "part")
        axis.set(xlabel="(ii)  κ(H_P) against raw data, better to the left", title=f"{estimator} condition number")
        axis.set_ylabel("(i)  κ(H_H) against raw data, better upwards")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.colorbar(axes[0].collections[-1], ax=list(axes), label="λ_H/λ_P", shrink=0.8, aspect=30, pad=0.01)
    title = f"(i) against (ii) as λ_H/λ_P grows, geometric means over {len(trade.runs.seeds)} seeds"
    figure.suptitle(trade.runs.mark(title), fontsize=11)
    return figure


def draw_fronts(axis: Axes, points: pd.DataFrame, by: str) -> None:
    """Log axes, a line a group through what is `on_front`, and a shade where verdicts (a) and (b) hold.

    Args:
        axis: with the points.
        points: from :func:`with_front`.
        by: the column that tells the groups apart.
    """
    front = points[points["on_front"].astype(bool) & np.isfinite(points[[_I, _II]]).all(axis=1)]
    for _, of in front.sort_values([_II, _I]).groupby(by):
        # between two points of the front nothing better is known than the left one
        axis.plot(of[_II], of[_I], color="#333333", linewidth=1.2, drawstyle="steps-post")
    axis.set(xscale="log", yscale="log")
    axis.update_datalim([(NO_HARDER, HARDER_BY)])
    axis.autoscale_view()
    left, top = axis.get_xlim()[0], axis.get_ylim()[1]
    label = f"(i) ≥ {HARDER_BY:g} and (ii) ≤ {NO_HARDER:g}"
    corner = (left, HARDER_BY), NO_HARDER - left, top - HARDER_BY
    axis.add_patch(Rectangle(*corner, color="#009E73", alpha=0.12, zorder=0, label=label))
    for side, (low, high) in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        side.set_minor_locator(LogLocator(subs=(2, 5)))  # of a narrow axis powers of ten would be a tick or two
        side.set_minor_formatter(StrMethodFormatter("{x:g}") if high < 100 * low else NullFormatter())
    axis.grid(alpha=0.3)
