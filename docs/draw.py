"""The two drawings of the first page: `python -m docs.draw`; idea.svg from embedded digits, flow.svg by hand.

Left of idea.svg are singular values of both Hessians on the digits' pixels and behind the best linear map (of a budget
with which (a) and (b) of Definition 3.1 hold); right are D_H's class means before and after `immunize.erase`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from sklearn.datasets import load_digits

import immunize

HERE = Path(__file__).parent
BLACK, BLUE, RED = "#000000", "#0072b2", "#661100"
"""θ_0, the paper's idea, erasure: the colours of the demo's figure."""
SHRINKAGE = 1e-3
SHOWN = 3
"""Classes of D_H whose rows are shown."""
STEPS = (
    ("data", "rows or images\nof $D_P$ and $D_H$"),
    ("features", "θ or a network,\nfrom $θ_0$"),
    ("spectrum", "singular values,\nκ, gradients"),
    ("objective", "one file\na method"),
    ("training", "the Lightning\nmodule"),
    ("evaluation", "fit and held-out\nrows, attackers"),
    ("record", "every number,\ndata, commit"),
    ("report", "tables, card,\npages"),
)


def digits() -> tuple[Any, Any]:
    """Pixels of the digits 0 to 4, and of 5 to 9 with their labels."""
    x, y = load_digits(return_X_y=True)
    x = x / 16
    return x[y < 5], (x[y >= 5], y[y >= 5])


def spectra(axes: Any, x_p: Any, x_h: Any) -> None:
    """Singular values relative to the largest, before and after."""

    def values(rows: Any) -> Any:
        gram = rows.T @ rows / len(rows)
        sigma = np.linalg.eigvalsh(gram + SHRINKAGE * np.trace(gram) / len(gram) * np.eye(len(gram)))[::-1]
        return sigma / sigma[0]

    before = values(x_p)
    best = immunize.closed_form(x_p, x_h, budget=float(before[0] / before[-1]) / 4, shrinkage=SHRINKAGE)
    theta = best.theta.numpy()
    for rows, name, style in ((x_p, "$D_P$, its own task", "-"), (x_h, "$D_H$, the harmful task", "--")):
        gram = rows.T @ rows / len(rows)
        noisy = gram + SHRINKAGE * np.trace(gram) / len(gram) * np.eye(len(gram))
        after = np.linalg.eigvalsh(theta.T @ noisy @ theta)[::-1]
        axes.semilogy(values(rows), style, color=BLACK, label=f"{name}: before")
        axes.semilogy(after / after[0], style, color=BLUE, label=f"{name}: after")
    axes.set(title="immunization: spread $D_H$'s spectrum, even out $D_P$'s", xlabel="direction")
    axes.set_ylabel("σ / largest σ")
    axes.legend(fontsize=8)


def means(axes: Any, x_p: Any, x_h: Any, y_h: Any) -> None:
    """D_H's classes along the two directions in which their means differ most, before and after erasure."""
    erased = immunize.erase(x_p, x_h, y_h)
    after = x_h @ erased.matrix.numpy() + erased.offset.numpy()
    classes = np.unique(y_h)[:SHOWN]
    centres = np.stack([x_h[y_h == label].mean(0) for label in classes])
    _, _, directions = np.linalg.svd(centres - centres.mean(0), full_matrices=False)
    for rows, color, name in ((x_h, BLACK, "before"), (after, RED, "after erasure")):
        plane = rows @ directions[:2].T
        for label in classes:
            mine = plane[y_h == label]
            axes.plot(*mine.T, ".", color=color, alpha=0.12, markersize=3, rasterized=True)
            axes.plot(*mine.mean(0), "o", color=color, markersize=13, markerfacecolor="white")
            axes.annotate(str(label), mine.mean(0), ha="center", va="center", color=color, fontsize=8)
        axes.plot([], [], "o", color=color, markerfacecolor="white", label=f"class means {name}")
    axes.set(title="erasure: the class means of $D_H$ become equal", xticks=[], yticks=[])
    axes.legend(fontsize=8)


def idea() -> Figure:
    """What immunization does to the spectrum, and what erasure does to class means."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    x_p, (x_h, y_h) = digits()
    spectra(left, x_p, x_h)
    means(right, x_p, x_h, y_h)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def flow() -> Figure:
    """The rooms that a run goes through, in two rows."""
    figure = Figure(figsize=(10, 2.7), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.1, 4 * 2.5 - 0.3), ylim=(-0.3, 3.1))
    axes.set_axis_off()
    places = [(2.5 * (n % 4), 1.9 if n < 4 else 0.0) for n in range(len(STEPS))]
    for (x, y), (name, what) in zip(places, STEPS, strict=True):
        axes.add_patch(FancyBboxPatch((x, y), 1.9, 1, boxstyle="round,pad=0.05", facecolor="#eaf2f8", edgecolor=BLUE))
        axes.text(x + 0.95, y + 0.78, name, ha="center", va="center", weight="bold", fontsize=10)
        axes.text(x + 0.95, y + 0.32, what, ha="center", va="center", fontsize=8)
    for (x, y), (to, below) in pairwise(places):
        ends = ((x + 1.97, y + 0.5), (to - 0.07, below + 0.5)) if y == below else ((x + 0.95, y - 0.07), (0.95, 1.08))
        axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=12, color=BLACK))
    return figure


def main() -> None:
    """Draw both."""
    with mpl.rc_context({"svg.hashsalt": "immunize", "svg.fonttype": "path"}):
        for name, figure in (("idea", idea()), ("flow", flow())):
            figure.savefig(HERE / f"{name}.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
