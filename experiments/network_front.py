"""`make front SCALE=digits|small`: what an RIR_θ0 costs in D_P's accuracy, over weights, η and trained layers.

    python -m immunize.train experiment=front_digits
    python -m experiments.network_front experiment=front_digits runs=outputs/front_digits out=experiments/front_digits

Writes table.md, front.png and .pdf, README.md and the records (results.csv.gz) into `out`. A point is a setting, the
geometric mean of RIR over the seeds against the mean change of the accuracy; on the front are those for which no other
has a larger RIR at no larger loss.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from experiments.reporting import key_values
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError
from immunize.report.cells import short
from immunize.report.figures import save_figure
from immunize.report.layout import Table
from immunize.report.loading import load_records
from immunize.report.naming import pair_title
from immunize.report.provenance import made_with, versions_of
from immunize.report.stored import write_results

COLUMNS = ("trained", "η", "λ_P ×", "λ_H ×", "runs", "RIR ↑", "(i) ↑", "(ii) ↓", "D_P accuracy, points ↑", "front")
NOTES = [
    "RIR, (i), (ii): `spectrum`, by the paper's groups, held-out images, against θ_0; geometric means over the seeds.",
    "λ_P ×, λ_H ×: multiples of the weights that balance the gradient norms (C.2).",
]


@dataclass(frozen=True)
class Point:
    """One setting of `ours`.

    Attributes:
        trained: the layers.
        rate: η.
        multipliers: of λ_P and of λ_H.
        runs: one a seed.
    """

    trained: str
    rate: float
    multipliers: tuple[float, float]
    runs: Sequence[dict[str, Any]]

    def mean(self, name: str) -> float:
        """Geometric mean of a ratio."""
        return geometric_mean([run["metrics_groups"]["held_out"]["spectrum"][name] for run in self.runs])

    @property
    def gain(self) -> float:
        """Points by which D_P's accuracy changed, mostly fell."""
        return fmean(run["pretrain_accuracy"]["after"] - run["pretrain_accuracy"]["before"] for run in self.runs)


@entry_point
def main() -> None:
    """Write what was found; the last line of stdout is the folder."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """See the module's note.

    Raises:
        UserError: a bad argument, no finished run, or runs of a linear model.
    """
    given = key_values(arguments, {"experiment", "runs", "out"}, needed=("experiment",))
    name = given["experiment"]
    try:
        records = load_records(Path(given.get("runs", f"outputs/{name}")))
    except (FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from None
    points = points_of(records)
    out = Path(given.get("out", f"experiments/{name}"))
    out.mkdir(parents=True, exist_ok=True)
    write_results(records, out)
    text = table_of(points).markdown(heading=False)
    (out / "table.md").write_text(text, encoding="utf-8")
    draw(points, pair_title(records[0]), out / "front")
    (out / "README.md").write_text(readme_of(records, text, name), encoding="utf-8")
    print(out)
    return out


def points_of(records: Sequence[dict[str, Any]]) -> list[Point]:
    """Finished runs by setting.

    Raises:
        UserError: there is none, or one of a linear model.
    """
    groups: dict[tuple[str, float, tuple[float, float]], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        if "metrics_groups" not in record:
            raise UserError("these are runs of a linear model; the front of λ for those is `make sweep_lambda`")
        objective, layers = record["config"]["objective"], record["config"]["model"]["trainable"]
        well = objective["balance_multiplier"]
        ill = objective.get("balance_multiplier_ill")
        groups[", ".join(layers), objective["learning_rate"], (well, well if ill is None else ill)].append(record)
    return [Point(*key, runs) for key, runs in sorted(groups.items())]


def front_of(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in RIR without a larger loss of accuracy."""
    return [p for p in points if not any(q.mean("rir") > p.mean("rir") and q.gain >= p.gain for q in points)]


def table_of(points: Sequence[Point]) -> Table:
    """A row a setting."""
    best = front_of(points)
    rows = [
        [
            *(f"`{p.trained}`", f"{p.rate:g}", *(f"{value:g}" for value in p.multipliers), f"{len(p.runs)}"),
            *(short(p.mean(name)) for name in ("rir", "ratio_harmful", "ratio_pretrain")),
            *(f"{p.gain:+.2f}", "yes" if p in best else ""),
        ]
        for p in points
    ]
    return Table("", "network-front", [("", COLUMNS)], rows, NOTES)


def draw(points: Sequence[Point], title: str, stem: Path) -> None:
    """RIR against the accuracy's change, a marker a trained part, and the front as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for marker, trained in zip("osD^vP", dict.fromkeys(p.trained for p in points), strict=False):
        of = [p for p in points if p.trained == trained]
        axis.scatter([p.gain for p in of], [p.mean("rir") for p in of], marker=marker, label=trained, zorder=3)
    line = sorted(front_of(points), key=lambda p: p.gain)
    axis.plot([p.gain for p in line], [p.mean("rir") for p in line], color="0.5", linewidth=1, label="front")
    axis.set_yscale("log")
    axis.axvline(-3, color="0.7", linestyle=":", label="3 points lost")
    axis.set(xlabel="change of D_P's accuracy, points", ylabel="RIR, 20 × 100 groups, held out", title=title)
    axis.legend(fontsize=8)
    save_figure(figure, stem)


def readme_of(records: Sequence[dict[str, Any]], text: str, name: str) -> str:
    """Command, machine, figure and table."""
    facts = [("runs", f"{len(records)}"), *made_with(records), versions_of(records)]
    return "\n".join(
        [
            f"# What an RIR costs in accuracy: {pair_title(records[0])}, {records[0]['model']}",
            "",
            f"Rebuilt by `make front SCALE={name.removeprefix('front_')}`, that is, with θ_0 there,",
            "",
            "```bash",
            f"python -m immunize.train experiment={name}",
            f"python -m experiments.network_front experiment={name} runs=outputs/{name} out=experiments/{name}",
            "```",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {key} | {value} |" for key, value in facts),
            "",
            "![RIR against D_P's accuracy](front.png)",
            "",
            text,
        ]
    )


if __name__ == "__main__":
    main()
