"""What `experiments.transfer` makes of its cells: effects, what orders them, tables, README and figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from experiments.alignment.correlating import spearman
from experiments.closed_form_mnist.pair import LIMIT
from experiments.reporting import provenance_lines, verdict_of, write_csv
from experiments.transfer.measures import Cell
from immunize.report.cells import NOTHING, short
from immunize.report.conventions import HARDER_BY
from immunize.report.figures import save_figure
from immunize.report.layout import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "transfer"
OUTCOMES = {
    "rir_ridge": "RIR by `ridge`",
    "rir_spectrum": "RIR by `spectrum`",
    "accuracy": "θ_0's accuracy over the probe's",
}
"""What is asked to carry over: 1 is no effect, all of them on held-out images."""

ASKED = {"mnist": ("rir_ridge", "rir_spectrum"), "images": ("accuracy", "rir_spectrum")}
"""By family."""

_DARK, _SMALLEST_SCALE = 0.62, 0.3
"""Share of the scale from which a cell is too dark for black print; log₁₀ 2, so that noise is pale."""

FEWEST = 5
"""Rows of a matrix below which no correlation is reported."""

PREDICTORS = {
    "alignment": ("alignment of K_proxy and K_target, top 10", 1),
    "overlap": ("overlap of their leading 10-dimensional spans", 1),
    "whitened": ("cosine of the two in D_P's whitened coordinates", 1),
    "to_pretrain": ("alignment of K_target and K_P, top 10", -1),
    "direct": ("the effect of immunizing against the target itself", 1),
}
"""What may tell how far it carries, in words, and the sign of a rank correlation that would speak for it."""

COLOURS = {"closed_form": "#D55E00", "ours": "#0072B2", "sparing": "#009E73"}  # Okabe-Ito


@dataclass(frozen=True)
class Correlation:
    """How well something known before orders an effect that carries over, in one matrix.

    Attributes:
        matrix: see :attr:`Cell.matrix`.
        outcome: a key of `OUTCOMES`.
        predictor: a key of `PREDICTORS`.
        points: cells off the diagonal, means over seeds.
        rho: Spearman's.
        low: lower end of the 95 % interval; proxies are drawn as wholes.
        high: upper end.
    """

    matrix: tuple[str, str, str]
    outcome: str
    predictor: str
    points: int
    rho: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether the interval lies on the side that would speak for the predictor."""
        return verdict_of(PREDICTORS[self.predictor][1], self.low, self.high)


def correlations(cells: Sequence[Cell]) -> list[Correlation]:
    """Every predictor against every effect off the diagonal, matrix by matrix; small matrices are left out."""
    found = []
    for matrix, mine in matrices(cells).items():
        facts = {(cell.proxy, cell.target): cell for cell in mine}
        for outcome in ASKED[matrix[0]]:
            effects = effects_of(mine, outcome)
            direct = {p: effect for (p, t), effect in effects.items() if p == t}
            points = [(p, t) for (p, t) in effects if p != t]
            for predictor in PREDICTORS:
                x = {
                    key: direct.get(key[1]) if predictor == "direct" else getattr(facts[key], predictor)
                    for key in points
                }
                known = [key for key in points if x[key] is not None]
                if len({p for p, _ in known}) >= FEWEST and len({x[key] for key in known}) > 1:
                    y, proxies = [effects[key] for key in known], [key[0] for key in known]
                    numbers = spearman([float(x[key] or 0) for key in known], y, proxies)
                    found.append(Correlation(matrix, outcome, predictor, len(known), *numbers))
    return found


def matrices(cells: Sequence[Cell]) -> dict[tuple[str, str, str], list[Cell]]:
    """The cells of every matrix."""
    found: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.matrix, []).append(cell)
    return found


def effects_of(cells: Sequence[Cell], outcome: str) -> dict[tuple[str, str], float]:
    """An effect by proxy and target, the geometric mean over seeds; what is not finite is left out.

    Args:
        cells: of one matrix.
        outcome: a key of `OUTCOMES`.
    """
    logs: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        if outcome == "accuracy":
            value = cell.probe_theta_0 / cell.probe if cell.probe and cell.probe_theta_0 else None
        else:
            value = getattr(cell, outcome)
        if value is not None and value > 0:
            logs.setdefault((cell.proxy, cell.target), []).append(math.log(value))
    return {key: math.exp(sum(of) / len(of)) for key, of in logs.items()}


# --- the report ---------------------------------------------------------------------------------------------------


def report(cells: Sequence[Cell], out: Path) -> None:
    """Write every file of the report."""
    out.mkdir(parents=True, exist_ok=True)
    found = correlations(cells)
    write_csv(out / "results.csv", [asdict(cell) for cell in cells])
    if found:
        lines = [
            dict(zip(("family", "pretrain", "method"), one.matrix, strict=True))
            | {key: value for key, value in asdict(one).items() if key != "matrix"}
            | {"verdict": one.verdict}
            for one in found
        ]
        write_csv(out / "correlations.csv", lines)
    tables = [*matrix_tables(cells), *correlation_tables(found)]
    (out / "table.md").write_text("\n".join(table.markdown() for table in tables), encoding="utf-8")
    draw(cells, out / NAME)
    (out / "README.md").write_text(readme_of(cells, found, tables), encoding="utf-8")


def matrix_tables(cells: Sequence[Cell]) -> list[Table]:
    """For each family, D_P and method the matrices of its effects, and of what the probe costs or reaches."""
    tables = []
    for matrix, mine in matrices(cells).items():
        family, pretrain, method = matrix
        proxies, targets = _sides(mine)
        about = f"{family}, D_P = {pretrain}, `{method}`"
        label = f"{family}-{pretrain}-{method}".replace("_", "-")
        columns = [("", ("immunized against",)), ("attacked with", tuple(targets))]
        for outcome in (name for name in ASKED[family] if name != "accuracy"):
            effects = effects_of(mine, outcome)
            rows = [[f"`{p}`", *(_strong(p == t, short(effects.get((p, t)))) for t in targets)] for p in proxies]
            notes = ["Bold: attacked with what it was immunized against."]
            title = f"{OUTCOMES[outcome]}, held out: {about}"
            tables.append(Table(title, f"{label}-{outcome}".replace("_", "-"), columns, rows, notes))
        first = {(cell.proxy, cell.target): cell for cell in reversed(mine)}
        tables.insert(len(tables) - (family == "images"), _probes(family, (about, label), first, (proxies, targets)))
    return tables


def _probes(
    family: str,
    names: tuple[str, str],
    cells: Mapping[tuple[str, str], Cell],
    sides: tuple[Sequence[str], Sequence[str]],
) -> Table:
    """Steps of the probe over θ_0's, of D_P and of every target; on images its accuracy."""
    (about, label), (proxies, targets) = names, sides
    if family == "mnist":
        title = "Probe steps to a norm ratio of 0.1, over θ_0's, held out"
        rows = []
        for p in proxies:
            mine = [cells[p, t] for t in targets if (p, t) in cells]
            pretrain = _growth(mine[0].probe_pretrain, mine[0].probe_pretrain_theta_0)
            grown = (_strong(p == one.target, _growth(one.probe, one.probe_theta_0)) for one in mine)
            rows.append([f"`{p}`", pretrain, *grown])
        columns = [("", ("immunized against", "D_P")), ("attacked with", tuple(targets))]
        note = f">: more than {LIMIT:,} steps, after which the count is given up."
    else:
        title = "Accuracy of a probe by gradient descent, held out"
        rows = [["θ_0", *(_score(cells[proxies[0], t].probe_theta_0) for t in targets)]]
        rows += [[f"`{p}`", *(_strong(p == t, _score(cells[p, t].probe)) for t in targets)] for p in proxies]
        columns = [("", ("immunized against",)), ("attacked with", tuple(targets))]
        note = "After 300 steps with the step 1/L, all training images, cross-entropy, from zero."
    return Table(f"{title}: {about}", f"{label}-probe", columns, rows, [note])


def correlation_tables(found: Sequence[Correlation]) -> list[Table]:
    """One table: a row a matrix and effect, a column a predictor."""
    if not found:
        return []
    rows = []
    for matrix, outcome in dict.fromkeys((one.matrix, one.outcome) for one in found):
        of = {one.predictor: one for one in found if (one.matrix, one.outcome) == (matrix, outcome)}
        family, pretrain, method = matrix
        name = f"{family}, D_P = {pretrain}, `{method}`"
        points = max(one.points for one in of.values())
        rows.append([name, OUTCOMES[outcome], str(points), *(_rho(of.get(predictor)) for predictor in PREDICTORS)])
    notes = [
        "Bold: the 95 % interval excludes zero on the side that would speak for the predictor; italic: on the other. "
        "The bootstrap draws proxies, each with its row of the matrix.",
        "The last column is no forecast: it asks whether some targets are harder to attack whatever the proxy was.",
    ]
    columns = [("", ("matrix", "effect", "cells", *(words for words, _ in PREDICTORS.values())))]
    return [Table("Rank correlation with the effect off the diagonal", "transfer-correlations", columns, rows, notes)]


def conclusions(cells: Sequence[Cell], found: Sequence[Correlation]) -> list[str]:
    """What the matrices say, a sentence an effect, with its numbers."""
    sentences = []
    for matrix, mine in matrices(cells).items():
        family, pretrain, method = matrix
        for outcome in ASKED[family]:
            effects = effects_of(mine, outcome)
            direct = [value for (p, t), value in effects.items() if p == t]
            carried = [value for (p, t), value in effects.items() if p != t]
            if not direct or not carried:
                continue
            sentence = (
                f"{family}, D_P = {pretrain}, `{method}`: {OUTCOMES[outcome]} is {short(median(direct))} where the "
                f"attacker brings the proxy itself, {short(median(carried))} where not (medians), and {HARDER_BY:g} or "
                f"more in {sum(value >= HARDER_BY for value in carried)} of {len(carried)} cells off the diagonal"
            )
            ours = [one for one in found if (one.matrix, one.outcome) == (matrix, outcome)]
            for verdict, words in (("for", "ordered as expected by"), ("against", "ordered the other way round by")):
                if names := [PREDICTORS[one.predictor][0] for one in ours if one.verdict == verdict]:
                    sentence += f"; {words} {', '.join(names)}"
            sentences.append(f"{sentence}.")
        ratios = [median(getattr(c, name) for c in mine) for name in ("ratio_harmful", "ratio_pretrain")]
        sentences.append(
            f"{family}, D_P = {pretrain}, `{method}`: by `ridge` the medians are (i) = {short(ratios[0])} and (ii) = "
            f"{short(ratios[1])}: "
            + ("the targets did not get harder, D_P got easier." if ratios[0] < 1 else "the targets got harder.")
        )
    return sentences


def readme_of(cells: Sequence[Cell], found: Sequence[Correlation], tables: Sequence[Table]) -> str:
    """Command, machine, conclusions, figure and tables."""
    families = list(dict.fromkeys(cell.family for cell in cells))
    facts = []
    if "mnist" in families:
        digits = sorted({cell.pretrain for cell in cells if cell.family == "mnist"})
        seeds = sorted({cell.seed for cell in cells if cell.family == "mnist"})
        facts.append(("mnist", f"D_P = {', '.join(digits)}; runs of table2, seeds {', '.join(map(str, seeds))}"))
    if "images" in families:
        facts.append(("images", "features of a ResNet18 trained on Tiny ImageNet, experiments/deep_features.py"))
    return "\n".join(
        [
            "# Immunized against one data set, attacked with another",
            "",
            *provenance_lines("make transfer", facts),
            "",
            *(f"- {sentence}" for sentence in conclusions(cells, found)),
            "",
            f"![matrices and predictors]({NAME}.png)",
            "",
            "Left: log₁₀ of the effects on held-out images, rows the proxy, columns the target. Right: the first of "
            "them off the diagonal against what is known before. docs/transfer.md says what is measured and what "
            "follows.",
            "",
            "\n".join(table.markdown() for table in tables),
        ]
    )


def draw(cells: Sequence[Cell], stem: Path) -> None:
    """A row a matrix: the logarithm of both its effects, and the first off the diagonal against a predictor."""
    from matplotlib.figure import Figure

    shown = matrices(cells)
    figure = Figure(figsize=(13.5, 4.1 * len(shown)), layout="constrained")
    rows = figure.subplots(len(shown), 3, squeeze=False, width_ratios=(1.15, 1.15, 1))
    for axes, (matrix, mine) in zip(rows, shown.items(), strict=True):
        family, pretrain, method = matrix
        for axis, outcome in zip(axes, ASKED[family], strict=False):
            _draw_matrix(axis, mine, outcome)
            name = OUTCOMES[outcome].replace("`", "").replace("θ_0", "θ$_0$")
            axis.set_title(f"{family}, $D_P$ = {pretrain}, {method}:\nlog$_{{10}}$ of {name}", fontsize=9.5)
        first, facts = ASKED[family][0], {(cell.proxy, cell.target): cell for cell in mine}
        off = {key: value for key, value in effects_of(mine, first).items() if key[0] != key[1]}
        x, colour = [facts[key].whitened for key in off], COLOURS.get(method, "#555555")
        axes[2].plot(x, list(off.values()), "o", color=colour, markersize=4, alpha=0.7)
        axes[2].axhline(1, color="#888888", linewidth=0.8)
        axes[2].set(yscale="log", ylabel=OUTCOMES[first].replace("`", "").replace("θ_0", "θ$_0$"))
        axes[2].set_xlabel(PREDICTORS["whitened"][0].replace("D_P", "$D_P$"), fontsize=9)
        axes[2].grid(alpha=0.25, linewidth=0.6)
        axes[2].spines[["top", "right"]].set_visible(False)
    save_figure(figure, stem)


def _draw_matrix(axis: Axes, cells: Sequence[Cell], outcome: str) -> None:
    import numpy as np

    effects, (proxies, targets) = effects_of(cells, outcome), _sides(cells)
    values = np.array([[math.log10(effects.get((p, t), math.nan)) for t in targets] for p in proxies])
    limit = max(_SMALLEST_SCALE, float(np.nanmax(np.abs(values))))
    axis.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        ink = "white" if abs(value) > _DARK * limit else "black"
        weight = "bold" if proxies[row] == targets[column] else "normal"
        text = "n/a" if math.isnan(value) else f"{value:.1f}".replace("-", "−")
        axis.text(column, row, text, ha="center", va="center", fontsize=7.5, fontweight=weight, color=ink)
    axis.set_xticks(range(len(targets)), targets, rotation=30 if len(targets[0]) > 2 else 0, fontsize=8)
    axis.set_yticks(range(len(proxies)), proxies, fontsize=8)
    axis.set(xlabel="attacked with", ylabel="immunized against")


def _sides(cells: Sequence[Cell]) -> tuple[list[str], list[str]]:
    """Proxies and targets, each in its order."""
    return list(dict.fromkeys(cell.proxy for cell in cells)), list(dict.fromkeys(cell.target for cell in cells))


def _strong(really: bool, text: str) -> str:
    return f"**{text}**" if really else text


def _growth(steps: float | None, plain: float | None) -> str:
    """Steps over θ_0's; a lower bound where the limit was reached."""
    if plain is None:
        return NOTHING
    return f"> {short(LIMIT / plain)} ×" if steps is None else f"{short(steps / plain)} ×"


def _score(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def _rho(one: Correlation | None) -> str:
    if one is None:
        return NOTHING
    text = f"{one.rho:+.2f} [{one.low:+.2f}, {one.high:+.2f}]"
    return {"for": f"**{text}**", "against": f"*{text}*", "open": text}[one.verdict]
