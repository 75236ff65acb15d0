"""The trade-off between (i) and (ii): what each weight λ_H/λ_P buys, and which weights no other one beats on both.

One weight is a point, the geometric mean over its seeds: (i) and (ii) are ratios. A point is on the Pareto front if no
other one of the same part and estimator has an (i) as large and an (ii) as small, one of the two better. The front is
that of `fit`; beside each of its points stands the one that the same weight has on data θ never saw.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from immunize.config import config_dir
from immunize.records import merged, whole_config
from immunize.report.loading import infinite
from immunize.report.naming import HARDER_BY, LAMBDAS, NO_HARDER, PARTS, RATIOS
from immunize.report.results import verdict_counts
from immunize.report.runs import FAST, RunId, Runs, experiment_of, measured_on, swept
from immunize.report.table import NOTHING, Table, short, under

if TYPE_CHECKING:
    import pandas as pd


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
    def of(cls, records: Sequence[dict[str, Any]]) -> TradeOff:
        """Check that the records differ in λ_P, λ_H and the seed alone.

        Args:
            records: finished and diverged runs, each once; the preset tells which are missing.

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
        ratios, seeds = _preset_grid(records)
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
            row += [verdict_counts(runs.finished, part)] if with_verdicts else []
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
    groups = ["λ_H/λ_P", "runs", *(c for part in PARTS for c in under(f"{part}, {estimator}", columns))]
    return Table(trade.runs.mark(title), groups, rows, notes)


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


_FIT, _HELD_OUT, _REGION = "#0072B2", "#D55E00", "#009E73"  # Okabe-Ito
PANELS = ("spectrum", "ridge")
_AXES = ("ratio_pretrain", "ratio_harmful")
_MARGIN = 1.6
_TOO_CLOSE = 0.045
"""Share of the axes below which two points have one name."""


def tradeoff_figure(trade: TradeOff) -> Figure:
    """A panel an estimator, log axes, the good corner at the upper left."""
    points = trade.points()
    points = points[np.isfinite(points[list(_AXES)].astype(float)).all(axis=1)]
    figure = Figure(figsize=(11.5, 5.4), layout="constrained")
    for axis, estimator in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        fit, held_out = (points[(points["estimator"] == estimator) & (points["part"] == part)] for part in PARTS)
        _draw(axis, fit, held_out)
        axis.set_title(f"{estimator} condition number", fontsize=10)
    handles = [
        Line2D([], [], color=_FIT, marker="o", linewidth=1.6, label="fit, the Pareto front"),
        Line2D([], [], color=_FIT, marker="o", alpha=0.35, linestyle="none", label="fit, beaten by another weight"),
        Line2D([], [], color=_HELD_OUT, marker="s", markerfacecolor="none", linestyle=":", label="held out"),
        Line2D([], [], color="#888888", marker=".", linestyle="none", markersize=4, label="single runs"),
        Patch(facecolor=_REGION, alpha=0.12, label="(i) ≥ 2 and (ii) ≤ 1"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    title = f"(i) against (ii) as λ_H/λ_P grows, geometric means over {len(trade.runs.seeds)} seeds"
    figure.suptitle(trade.runs.mark(title), fontsize=11)
    return figure


def _draw(axis: Axes, fit: pd.DataFrame, held_out: pd.DataFrame) -> None:
    axis.set(xscale="log", yscale="log", xlabel="(ii)  κ(H_P) against raw data, better to the left")
    axis.set_ylabel("(i)  κ(H_H) against raw data, better upwards")
    for points, colour in ((fit, _FIT), (held_out, _HELD_OUT)):
        runs = _runs(points)
        axis.plot([ii for _, ii in runs], [i for i, _ in runs], ".", color=colour, markersize=3, alpha=0.35)
    front = fit[fit["on_front"] == 1].sort_values("ratio_pretrain", kind="stable")
    axis.plot(*_places(fit[fit["on_front"] == 0]), "o", color=_FIT, alpha=0.35, markersize=6)
    axis.plot(
        *_places(front),
        "o-",
        color=_FIT,
        drawstyle="steps-post",  # between two points of the front nothing better is known than the left one
        linewidth=1.6,
        markersize=7,
        zorder=4,
    )
    axis.plot(*_places(held_out), "s", color=_HELD_OUT, markersize=6, mfc="none")
    joined = held_out.set_index("lambda_ratio").reindex(front["lambda_ratio"]).dropna(subset=list(_AXES)).reset_index()
    for _, other in joined.iterrows():
        of = front[front["lambda_ratio"] == other["lambda_ratio"]].iloc[0]
        axis.plot(*([of[name], other[name]] for name in _AXES), ":", color="#888888", linewidth=1.0)
    _frame(axis, [*_runs(fit), *_runs(held_out)])
    for points in (front, joined):
        _label(axis, points)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _runs(points: pd.DataFrame) -> list[tuple[float, float]]:
    return [run for each in points["each"] for run in each]


def _places(points: pd.DataFrame) -> tuple[list[float], list[float]]:
    across, up = (points[name].tolist() for name in _AXES)
    return across, up


def labels(points: Sequence[tuple[float, float, float]]) -> list[tuple[str, int]]:
    """Names of points, with one name for those that are too close to have each its own.

    Args:
        points: (λ_H/λ_P, x, y) by ascending λ_H/λ_P, x and y as shares of the axes.

    Returns:
        (text, index of the point to put it at); three or more neighbouring weights are written as a range.
    """
    clusters: list[list[int]] = []
    for index, (_, x, y) in enumerate(points):
        for cluster in clusters:
            _, x_first, y_first = points[cluster[0]]
            if math.hypot(x - x_first, y - y_first) < _TOO_CLOSE:
                cluster.append(index)
                break
        else:
            clusters.append([index])
    return [(", ".join(_spans(points, cluster)), cluster[(len(cluster) - 1) // 2]) for cluster in clusters]


def _spans(points: Sequence[tuple[float, float, float]], cluster: Sequence[int]) -> Iterator[str]:
    """The weights of a cluster, three or more neighbours as "first–last"."""
    for _, group in itertools.groupby(enumerate(cluster), key=lambda item: item[1] - item[0]):
        names = [_power(points[index][0]) for _, index in group]
        yield f"{names[0]}–{names[-1]}" if len(names) > 2 else ", ".join(names)


def _label(axis: Axes, points: pd.DataFrame) -> None:
    ordered = points.sort_values("lambda_ratio", kind="stable")
    places = list(zip(*_places(ordered), strict=True))
    to_share = axis.transData + axis.transAxes.inverted()
    at = [to_share.transform(place) for place in places]
    shares = [(float(r), float(x), float(y)) for r, (x, y) in zip(ordered["lambda_ratio"], at, strict=True)]
    for text, index in labels(shares):
        axis.annotate(text, places[index], (7, 5), textcoords="offset points", fontsize=8)


def _frame(axis: Axes, runs: Sequence[tuple[float, float]]) -> None:
    """Limits around every run and the corner of the good region, which is shaded."""
    pretrain = [ii for _, ii in runs if math.isfinite(ii)] + [NO_HARDER]
    harmful = [i for i, _ in runs if math.isfinite(i)] + [HARDER_BY]
    for side, values in ((axis.xaxis, pretrain), (axis.yaxis, harmful)):
        narrow = max(values) < 100 * min(values)  # powers of ten alone would be a tick or two
        side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
        side.set_minor_formatter(NullFormatter())
        if narrow:
            side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left, top = min(pretrain) / _MARGIN, max(harmful) * _MARGIN
    axis.set_xlim(left, max(pretrain) * _MARGIN)
    axis.set_ylim(min(harmful) / _MARGIN, top)
    axis.add_patch(Rectangle((left, HARDER_BY), NO_HARDER - left, top - HARDER_BY, color=_REGION, alpha=0.12, zorder=0))


def _power(ratio: float) -> str:
    if not 0 < ratio < math.inf:
        return f"{ratio:g}".replace("inf", "$\\infty$")
    exponent = math.log10(ratio)
    return f"$10^{{{exponent:.0f}}}$" if abs(exponent - round(exponent)) < 1e-9 else f"{ratio:.2g}"
