"""What `experiments.alignment` makes of its points: lines of the CSV, what the correlations say, README and figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.alignment.correlating import ESTIMATORS, METHODS, PARTS, PREDICTORS, RESAMPLES, Correlation, Point
from experiments.reporting import provenance_lines
from immunize.report.figures import save_figure

NAME = "alignment"
RHO = 3e-2
"""ρ of every forecast: the best on MNIST by cross-validation (docs/closed_form.md)."""

ANGLES, DATA_SEEDS = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90), (0, 1)
"""Of the synthetic pairs."""

STYLES = {"ours": ("#0072B2", "o"), "closed_form": ("#D55E00", "s")}  # Okabe-Ito


def flat(point: Point) -> dict[str, Any]:
    """One line of results.csv."""
    line: dict[str, Any] = {"family": point.family, "pair": point.label, **point.forecast}
    for method in METHODS:
        for part in PARTS:
            for estimator in ESTIMATORS:
                line[f"rir_{method}_{part}_{estimator}"] = point.reached.get((method, part, estimator))
    return line


def readme_of(points: Sequence[Point], found: Sequence[Correlation], families: Iterable[str]) -> str:
    """The correlations as a table, and what they say of the claim."""
    counts = {family: [p for p in points if p.family == family] for family in families}
    facts = [("ρ of the forecasts", f"{RHO:g}")]
    if "mnist" in counts:
        facts.append(("mnist", f"{len(counts['mnist'])} of 90 pairs" + _by_method(counts["mnist"])))
    if "synthetic" in counts:
        facts.append(("synthetic", f"{len(ANGLES)} angles, {len(DATA_SEEDS)} data sets each, D = 32, N = 512"))
    facts.append(
        ("interval", f"95 %, percentiles of {RESAMPLES:,} bootstrap draws of pairs of digits, or of data sets")
    )
    held = [one for one in found if one.part == "held_out" and one.estimator == "ridge"]
    lines = [
        "# Does the forecast forecast?",
        "",
        *provenance_lines("make fig_alignment", facts),
        "",
        "Spearman's rank correlation of what is known before training with log RIR, by `ridge` on held-out rows:",
        "",
        "| family | method | " + " | ".join(PREDICTORS.values()) + " |",
        "| --- | --- |" + " --- |" * len(PREDICTORS),
    ]
    for family in counts:
        for method in METHODS:
            of = {one.predictor: one for one in held if (one.family, one.method) == (family, method)}
            cells = [_cell(of.get(predictor)) for predictor in PREDICTORS]
            lines.append(f"| {family} | `{method}` | {' | '.join(cells)} |")
    lines += ["", *(f"- {sentence}" for sentence in conclusions(held)), ""]
    lines += [
        "Bold: the interval excludes zero on the side that the claim expects (alignment negative, RIR* positive); "
        "italic: on the other side. `correlations.csv` has the other parts and estimators, `results.csv` every point.",
        "",
        f"![forecast and outcome]({NAME}.png)",
        "",
    ]
    return "\n".join(lines)


def conclusions(held: Sequence[Correlation]) -> list[str]:
    """A sentence a predictor and family: how many of the methods speak for it, and how many against."""
    sentences = []
    for family in dict.fromkeys(one.family for one in held):
        for predictor, words in PREDICTORS.items():
            of = [one for one in held if (one.family, one.predictor) == (family, predictor)]
            said = {
                word: [f"`{one.method}`" for one in of if one.verdict == word] for word in ("for", "against", "open")
            }
            parts = [
                f"{text} for {' and '.join(names)}"
                for text, names in (
                    ("orders RIR as expected", said["for"]),
                    ("orders it the other way round", said["against"]),
                    ("says nothing that these points could show", said["open"]),
                )
                if names
            ]
            sentences.append(f"{family}: {words} {'; '.join(parts)}.")
    return sentences


def draw(points: Sequence[Point], found: Sequence[Correlation], stem: Path) -> None:
    """A row a family, a column a predictor; held-out RIR by `ridge` of both methods."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    families = list(dict.fromkeys(point.family for point in points))
    figure = Figure(figsize=(11.5, 3.6 * len(families)), layout="constrained")
    axes = figure.subplots(len(families), len(PREDICTORS), squeeze=False, sharey="row")
    for row, family in zip(axes, families, strict=True):
        for axis, (predictor, title) in zip(row, PREDICTORS.items(), strict=True):
            for method in METHODS:
                key = (method, "held_out", "ridge")
                known = [p for p in points if p.family == family and key in p.reached]
                one = next(
                    (
                        c
                        for c in found
                        if (c.family, c.predictor, c.method, c.part, c.estimator) == (family, predictor, *key)
                    ),
                    None,
                )
                label = f"{method}" + ("" if one is None else f": {one.rho:+.2f} [{one.low:+.2f}, {one.high:+.2f}]")
                colour, marker = STYLES[method]
                x, y = [p.forecast[predictor] for p in known], [p.reached[key] for p in known]
                axis.plot(x, y, marker, color=colour, markersize=4, alpha=0.7, label=label)
            axis.set(xlabel=title, yscale="log")
            if predictor != "alignment":
                axis.set_xscale("log")
                axis.xaxis.set_minor_formatter(NullFormatter())  # 3·10⁰ beside 4·10⁰ would overlap
            axis.axhline(1, color="#888888", linewidth=0.8)
            axis.grid(alpha=0.25, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(frameon=False, fontsize=7.5, title="rank correlation", title_fontsize=7.5)
        row[0].set_ylabel(f"{family}: held-out RIR, ridge")
    figure.suptitle("What is known before training, and the RIR that is reached", fontsize=11)
    save_figure(figure, stem)


def _by_method(points: Sequence[Point]) -> str:
    counts = [f"`{method}` {sum(any(key[0] == method for key in p.reached) for p in points)}" for method in METHODS]
    return f" with records ({', '.join(counts)})"


def _cell(one: Correlation | None) -> str:
    if one is None:
        return "–"
    text = f"{one.rho:+.2f} [{one.low:+.2f}, {one.high:+.2f}], n = {one.points}"
    return {"for": f"**{text}**", "against": f"*{text}*", "open": text}[one.verdict]
