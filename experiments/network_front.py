"""`make front SCALE=digits|small`: what an RIR_θ0 costs in D_P's accuracy, over weights, η and trained layers.

    python -m immunize.train experiment=front_digits
    python -m experiments.network_front experiment=front_digits runs=outputs/front_digits out=experiments/front_digits

Writes table.md, front.png and .pdf, README.md and the records (results.csv.gz) into `out`. A point is a setting, the
geometric mean of RIR over the seeds against the mean change of the accuracy; on the front are those for which no other
has a larger RIR at no larger loss.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.reporting import key_values, readme
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError
from immunize.report.loading import load_records, write_results
from immunize.report.naming import RATIOS, pair_title
from immunize.report.provenance import made_with, versions_of
from immunize.report.table import Table, short
from immunize.report.writing import save_figure

COLUMNS = ("trained", "η", "λ_P ×", "λ_H ×", "runs", "RIR ↑", "(i) ↑", "(ii) ↓", "D_P accuracy, points ↑", "front")
SETTING = ["trained", "η", "λ_P ×", "λ_H ×"]
NOTES = [
    "RIR, (i), (ii): `spectrum`, by the paper's groups, held-out images, against θ_0; geometric means over the seeds.",
    "λ_P ×, λ_H ×: multiples of the weights that balance the gradient norms (C.2).",
]


@entry_point
def main() -> None:
    """Write what was found; the last line of stdout is the folder."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """See the module's note.

    Raises:
        UserError: a bad argument, or no finished run.
    """
    given = key_values(arguments, {"experiment", "runs", "out"}, needed=("experiment",))
    name = given["experiment"]
    try:
        records = load_records(Path(given.get("runs", f"outputs/{name}")))
    except (FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from None
    out, first = Path(given.get("out", f"experiments/{name}")), records[0]
    points = points_of(records)
    out.mkdir(parents=True, exist_ok=True)
    draw(points, f"{first['model']}, {pair_title(first)}", out / "front")
    text = table_of(points).markdown(heading=False)
    write_results(records, out)
    page = readme(
        f"What an RIR costs in accuracy: {pair_title(first)}, {first['model']}",
        [("runs", f"{len(records)}"), *made_with(records), versions_of(records)],
        ["![RIR against D_P's accuracy](front.png)", "", text],
        target=f" `make front SCALE={name.partition('_')[2]}`, that is, with θ_0 there,",
        commands=[
            f"python -m immunize.train experiment={name}",
            f"python -m experiments.network_front experiment={name} runs=outputs/{name} out=experiments/{name}",
        ],
    )
    for file, content in {"table.md": text, "README.md": page}.items():
        (out / file).write_text(content, encoding="utf-8")
    print(out)
    return out


def points_of(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Finished runs by setting: geometric means of the ratios, the mean change of D_P's accuracy, and the front.

    Raises:
        UserError: there is none, or one of a linear model.
    """
    rows = []
    for record in records:
        if "metrics_groups" not in record:
            raise UserError("these are runs of a linear model; the front of λ for those is `make sweep_lambda`")
        objective, accuracy = record["config"]["objective"], record["pretrain_accuracy"]
        well, ill = objective["balance_multiplier"], objective.get("balance_multiplier_ill")
        setting = (", ".join(record["config"]["model"]["trainable"]), objective["learning_rate"])
        numbers = record["metrics_groups"]["held_out"]["spectrum"]
        gain = accuracy["after"] - accuracy["before"]
        rows.append([*setting, well, well if ill is None else ill, *(math.log(numbers[name]) for name in RATIOS), gain])
    runs = pd.DataFrame(rows, columns=[*SETTING, *RATIOS, "gain"])
    points = runs.groupby(SETTING).mean().assign(runs=runs.groupby(SETTING).size()).reset_index()
    points[[*RATIOS]] = np.exp(points[[*RATIOS]])
    beaten = [((points["rir"] > p["rir"]) & (points["gain"] >= p["gain"])).any() for _, p in points.iterrows()]
    return points.assign(front=[not one for one in beaten])


def table_of(points: pd.DataFrame) -> Table:
    """A row a setting."""
    rows = [
        [
            *(f"`{p['trained']}`", *(f"{p[name]:g}" for name in SETTING[1:]), f"{p['runs']}"),
            *(short(p[name]) for name in ("rir", "ratio_harmful", "ratio_pretrain")),
            *(f"{p['gain']:+.2f}", "yes" if p["front"] else ""),
        ]
        for _, p in points.iterrows()
    ]
    return Table("", COLUMNS, rows, NOTES)


def draw(points: pd.DataFrame, title: str, stem: Path) -> None:
    """RIR against the accuracy's change, a marker a trained part, and the front as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for marker, (trained, of) in zip("osD^vP", points.groupby("trained", sort=False), strict=False):
        axis.scatter(of["gain"], of["rir"], marker=marker, label=trained, zorder=3)
    line = points[points["front"]].sort_values("gain", kind="stable")
    axis.plot(line["gain"], line["rir"], color="0.5", linewidth=1, label="front")
    axis.set_yscale("log")
    axis.axvline(-3, color="0.7", linestyle=":", label="3 points lost")
    axis.set(xlabel="change of D_P's accuracy, points", ylabel="RIR, 20 × 100 groups, held out", title=title)
    axis.legend(fontsize=8)
    save_figure(figure, stem)


if __name__ == "__main__":
    main()
