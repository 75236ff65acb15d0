"""Figures from records: of one run, and what all figures share. Imports no other room and no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from immunize.files import whole
from immunize.report.naming import run_title

__all__ = ["STEPS_LABEL", "TASKS", "draw_norm_ratio", "norm_ratio_figure", "save_figure"]

# Blue and orange of the Okabe-Ito palette: distinct in print and for colour-blind readers.
_COLOURS = {"immunized": "#0072B2", "identity": "#E69F00"}
TASKS = {"pretrain": "pre-training task $D_P$", "harmful": "harmful task $D_H$"}
STEPS_LABEL = "gradient-descent steps, exact line search"


def norm_ratio_figure(record: dict[str, Any], path: Path) -> None:
    """Write :func:`draw_norm_ratio` as a PNG."""
    figure = draw_norm_ratio(record)
    with whole(path) as partial:
        figure.savefig(partial, format="png", dpi=150)


def draw_norm_ratio(record: dict[str, Any]) -> Figure:
    """Fig. 1 of the paper for one run: norm ratio against probe steps, D_P and D_H, θ and the identity.

    Args:
        record: with `curves.norm_ratio.<part>.<data set>.<extractor>` = {"steps": [...], "ratio": [...]}.
    """
    figure = Figure(figsize=(9, 3.6))  # margins by hand: to find them takes as long as to draw
    axes = figure.subplots(1, 2, sharey=True)
    figure.subplots_adjust(left=0.08, right=0.99, bottom=0.14, top=0.83, wspace=0.04)
    curves = record["curves"]["norm_ratio"]
    for axis, (name, title) in zip(axes, TASKS.items(), strict=True):
        for part, style in (("fit", "-"), ("held_out", "--"), ("validation", "--")):
            for which, curve in curves.get(part, {}).get(name, {}).items():
                if curve is not None:
                    label = f"{which}, {part.replace('_', ' ')}"
                    axis.plot(curve["steps"], curve["ratio"], style, color=_COLOURS[which], label=label)
        # step 0 has no place on a log axis, the linear stretch below 1 gives it one
        axis.set(title=title, xlabel=STEPS_LABEL, xscale="symlog", yscale="log")
        axis.set_xlim(left=0)
        axis.set_ylim(1e-4, 1.5)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(r"norm ratio $\|w_t-w^*\|^2 / \|w_0-w^*\|^2$")
    drawn = [axis for axis in axes if axis.lines]  # a task with nothing to learn has no curve
    if drawn:
        drawn[-1].legend(loc="lower left", fontsize=8)
    figure.suptitle(run_title(record))
    return figure


def save_figure(figure: Figure, stem: Path) -> None:
    """Write a figure as `<stem>.png` and `<stem>.pdf`; the same figure gives the same bytes."""
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        with whole(stem.with_suffix(f".{kind}")) as partial:
            figure.savefig(partial, format=kind, dpi=150 if kind == "png" else "figure", metadata=metadata)
