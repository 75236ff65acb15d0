"""What `experiments.signal` makes of its maps: fronts of the families, what the labels are worth, README and figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.reporting import provenance_lines
from experiments.signal.measures import EASE_LIMIT, FLOOR, OPTIMIZERS, RHO, SCORE_STEPS, SLACK
from immunize.report.figures import save_figure

NAME = "signal"
FAMILIES = ("closed_form", "sharp", "labels", "combined")
COLOURS = dict(zip(FAMILIES, ("#E69F00", "#56B4E9", "#CC79A7", "#0072B2"), strict=True))  # Okabe-Ito


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those (benign, harmful) that no other beats with a benign cost as small and a harmful cost as large."""
    best: list[tuple[float, float]] = []
    for benign, harmful in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not best or harmful > best[-1][1]:
            best.append((benign, harmful))
    return best


def points_of(lines: Sequence[dict[str, Any]], family: str, optimizer: str) -> list[tuple[float, float]]:
    """Steps over the raw features' own, (benign, harmful), of the maps that spare D_P."""
    return [
        (
            line[f"benign_{optimizer}"] / line[f"benign_{optimizer}_raw"],
            line[f"harmful_{optimizer}"] / line[f"harmful_{optimizer}_raw"],
        )
        for line in lines
        if line["family"] == family and spares_pretrain(line)
    ]


def spares_pretrain(line: dict[str, Any]) -> bool:
    """Whether D_P's constraints hold."""
    return bool(line["ratio_pretrain"] <= EASE_LIMIT and line["pretrain_score_change"] >= -SLACK)


def draw(trials: Sequence[dict[str, Any]], titles: dict[str, str], stem: Path) -> None:
    """A row a data set, a column an optimizer: the fronts of the families, the good corner at the upper left."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.2 * len(titles)), layout="constrained")
    axes = figure.subplots(len(titles), len(OPTIMIZERS), squeeze=False)
    for row, (name, title) in zip(axes, titles.items(), strict=True):
        lines = [line for line in trials if line["data"] == name]
        for axis, (optimizer, words) in zip(row, OPTIMIZERS.items(), strict=True):
            for family in FAMILIES:
                points = points_of(lines, family, optimizer)
                if not points:  # no map of the family spares D_P
                    continue
                axis.plot(*zip(*points, strict=True), ".", color=COLOURS[family], alpha=0.35, markersize=5)
                best = front(points)
                axis.plot(*zip(*best, strict=True), "o-", color=COLOURS[family], drawstyle="steps-post", label=family)
            axis.axhline(1, color="#888888", linewidth=0.8)
            axis.axvline(1, color="#888888", linewidth=0.8)
            axis.set(xscale="log", yscale="log")
            axis.set_title(f"{title}\n{words}", fontsize=8)
            axis.set_xlabel("benign task: steps over the raw features', better to the left")
            axis.set_ylabel("D_H: steps over the raw features', better upwards")
            axis.grid(alpha=0.25, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False, fontsize=8)
    figure.suptitle("Rows set aside, maps that spare D_P: what D_H costs against what a benign task costs", fontsize=11)
    save_figure(figure, stem)


def readme_of(
    trials: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]], titles: dict[str, str], missing: Sequence[str]
) -> str:
    """What each family reaches on held-out rows, and what that says of the labels."""
    facts = [("maps", f"{len(trials)} on rows set aside"), ("ρ, ε", f"{RHO:g}, {FLOOR:g}")]
    if missing:
        facts.append(("left out, data missing", ", ".join(missing)))
    lines = ["# The label-aware map against the closed form", "", *provenance_lines(f"make {NAME}", facts), ""]
    for name, title in titles.items():
        of = [line for line in held if line["data"] == name]
        lines += [f"## {title}", "", *table_of(of), "", *(f"- {sentence}" for sentence in sentences(of)), ""]
    lines += [
        "Each family's map was chosen on rows set aside and is measured here on held-out rows. Steps are those to 90 % "
        "of the best score of the raw features, `>` where the limit came first, in brackets those of the raw features; "
        f"changes of accuracy, in points, are after {SCORE_STEPS} steps of gradient descent. `results.csv` has every "
        "map on the rows set aside, `chosen.csv` these.",
        "",
        "![fronts](pareto.png)",
        "",
    ]
    return "\n".join(lines)


def table_of(held: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown rows."""
    titles = ["family", "γ", "B", "exponents", "constraints held when chosen", "(ii)", "(i)"]
    titles += [f"{words}, {role}" for role in ("D_H", "benign") for words in ("gd steps", "Adam steps")]
    titles += ["accuracy of D_P", "of benign", "of D_H"]
    lines = [f"| {' | '.join(titles)} |", "| " + " | ".join("---" for _ in titles) + " |"]
    for line in held:
        cells = [f"`{line['family']}`", f"{line['gamma']:g}", f"{line['budget']:g}", line["variant"]]
        cells += [
            "yes" if line["feasible"] else "**no**",
            f"{line['ratio_pretrain']:.3g}",
            f"{line['ratio_harmful']:.3g}",
        ]
        cells += [_count(line, role, optimizer) for role in ("harmful", "benign") for optimizer in OPTIMIZERS]
        cells += [f"{100 * line[f'{role}_score_change']:+.1f}" for role in ("pretrain", "benign", "harmful")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def sentences(held: Sequence[dict[str, Any]]) -> list[str]:
    """What the labels are worth, by the held-out cost of D_H over that of the best family without them."""
    by = {line["family"]: line for line in held if line["feasible"]}
    said = []
    for family in ("labels", "combined"):
        for other in ("closed_form", "sharp"):
            if family in by and other in by:
                gain = by[family]["harmful_times"] / by[other]["harmful_times"]
                verdict = "" if gain > 1 else ": it is not better"
                said.append(f"`{family}` makes D_H {gain:.2g} times as dear as `{other}`{verdict}.")
    absent = [family for family in FAMILIES if family not in by]
    if absent:
        names = ", ".join(f"`{family}`" for family in absent)
        said.append(f"No map of {names} kept the constraints on the rows set aside.")
    if held and not held[0]["harmful_descent_raw_reached"]:
        said.append(
            "On D_H gradient descent does not get there from the raw features either, so that only Adam's steps tell "
            "the maps apart; what gradient descent loses in accuracy stands in the last column."
        )
    broken = [line for line in by.values() if _lost(line) > SLACK]
    if broken:
        names = ", ".join(f"`{line['family']}`" for line in broken)
        said.append(f"On held-out rows {names} cost D_P or the benign task more than two points.")
    elif by:
        said.append("On held-out rows, too, none of these costs D_P or the benign task more than two points.")
    return said


def _lost(line: dict[str, Any]) -> float:
    return -float(min(line["pretrain_score_change"], line["benign_score_change"]))


def _count(line: dict[str, Any], role: str, optimizer: str) -> str:
    def text(key: str) -> str:
        return f"{'' if line[f'{key}_reached'] else '> '}{line[key]:,}"

    key = f"{role}_{optimizer}"
    return f"{text(key)} ({text(f'{key}_raw')})"
