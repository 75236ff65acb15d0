"""Tables and figure of a forecast, from its record alone. Imports no other room and no torch."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from rich.console import Console

from immunize.report.curves import frameless, panels
from immunize.report.loading import infinite, with_infinities
from immunize.report.naming import RATIO_HEADS, RATIOS, pair_title, part_words
from immunize.report.table import Table, short, to_print, to_read
from immunize.report.templates import filled_in
from immunize.report.writing import save_as

# Of the Okabe-Ito palette: distinct in print and for colour-blind readers.
_COLOURS = {"pretrain": "#0072B2", "harmful": "#D55E00"}
_NAMES = {"pretrain": "$K_P$", "harmful": "$K_H$"}
_MAPPED = ("part", "map from rows", "shrinkage", "measured on", "estimator")
_INK, _MUTED = "#222222", "#777777"


def show_forecast(record: dict[str, Any], console: Console | None = None) -> None:
    """Print the numbers, the notes and the verdict.

    Args:
        record: of `immunize.forecast`.
        console: where to; stdout by default.
    """
    console = to_read(console)
    console.print(to_print(_data_table(record), ["fit rows"], sections=False))
    told = filled_in("forecast.txt", record=record, bound=_bound(record), rho=_rho(record["bound"]["rho"]))
    console.print(told.rstrip("\n"))
    console.print(to_print(_ratio_table(record), _MAPPED))
    verdict = record["verdict"]
    for note in verdict["notes"]:
        console.print(f"note: {note}")
    style = "green" if verdict["immunizable"] else "red"
    console.print(f"verdict: {verdict['sentence']}", style=style)


def forecast_figure(record: dict[str, Any], path: Path) -> None:
    """Spectra of K_P and K_H, generalized eigenvalues, and alignment of the leading singular vectors.

    Args:
        record: of `immunize.forecast`.
        path: the PNG to write.
    """
    figure, (axes,) = panels((11, 4.0), 1, 3)
    for draw, axis in zip((_draw_spectra, _draw_generalized, _draw_alignment), axes, strict=True):
        draw(axis, record)
        axis.title.set_fontsize(10)
        frameless(axis, alpha=0.25, linewidth=0.6)
    sentence = "\n".join(textwrap.wrap(record["verdict"]["sentence"], 140))
    figure.suptitle(f"{pair_title(record)}\n{sentence}", fontsize=10, parse_math=False)
    save_as(figure, path, dpi=150)


def _data_table(record: dict[str, Any]) -> Table:
    rows = []
    for role, name in (("pretrain", "D_P"), ("harmful", "D_H")):
        facts = record["data_sets"][role]
        samples, features, rank = (f"{facts[key]:,}" for key in ("n_samples", "n_features", "rank"))
        per_feature, per_direction = (short(facts[f"samples_per_{of}"]) for of in ("feature", "direction"))
        ranks = map(short, facts["effective_ranks"].values())
        kappas = (facts["kappa"]["spectrum"]["value"], facts["kappa"]["ridge"]["value"], facts["whitening_limit"])
        of = [name, samples, features, per_feature, rank, per_direction, *ranks]
        rows.append(of + [short(infinite(value)) for value in kappas])
    names = ("N", "D", "N/D", "rank", "N/rank", "eff. rank", "part. ratio", "κ spectrum", "κ ridge", "κ limit")
    return Table(f"Forecast: {pair_title(record)}", ("fit rows", *names), rows)


def _ratio_table(record: dict[str, Any]) -> Table:
    rows = []
    for part, estimators in record["metrics"].items():
        one = record["maps"][part]
        fitted, measured = ("{:,} and {:,}".format(*one[key]) for key in ("fitted_on", "measured_on"))
        for estimator, m in estimators.items():
            ratios = with_infinities(m)
            rho = m["facts"]["kappa_pretrain"]["rho"]
            name = estimator if rho is None else f"{estimator}, ρ {rho:g}"
            left = [part_words(part), fitted, _rho(one["shrinkage"]), measured, name]
            rows.append([*left, *(short(ratios[key]) for key in RATIOS)])
    title = f"The closed form with budget {record['maps']['fit']['budget']:g}, measured"
    return Table(title, (*_MAPPED, *RATIO_HEADS.values()), rows)


def _draw_spectra(axis: Axes, record: dict[str, Any]) -> None:
    for role, values in record["curves"]["eigenvalues"].items():
        kept = values[: record["data_sets"][role]["rank"]]
        label = f"{_NAMES[role]}, rank {len(kept)} of {record['data_sets'][role]['n_features']}"
        line = "-" if role == "pretrain" else "--"  # both are seen where one covers the other
        axis.plot(range(1, len(kept) + 1), kept, line, color=_COLOURS[role], label=label, **_style(kept))
    axis.set(title="spectra of the data", xlabel="index", ylabel="eigenvalue of $K/N$", yscale="log")
    axis.legend(frameon=False, fontsize=8)


def _draw_generalized(axis: Axes, record: dict[str, Any]) -> None:
    mu = [value for value in record["curves"]["generalized_eigenvalues"] if value > 0]
    axis.plot(range(1, len(mu) + 1), mu, color=_INK, **_style(mu))
    bound = _bound(record)
    text = f"κ_gen = {bound['kappa_gen']}\nRIR* = {bound['rir_star']}\n{_rho(record['bound']['rho'])}"
    axis.text(0.97, 0.95, text, transform=axis.transAxes, ha="right", va="top", fontsize=8)
    axis.set(title="generalized eigenvalues of $(K_H, K_P)$", xlabel="index", ylabel=r"$\mu$", yscale="log")
    if mu[0] < 10 * mu[-1]:  # a log axis without a decade has no labels worth reading, and magnifies rounding
        axis.set_ylim(mu[-1] / 10, mu[0] * 10)


def _draw_alignment(axis: Axes, record: dict[str, Any]) -> None:
    aligned = record["alignment"]
    index = list(range(1, aligned["top_k"] + 1))
    axis.bar(index, aligned["cosines"], color="#C4C4C4", label=r"$|u_i^\top v_i|$")
    cosines = [math.cos(math.radians(angle)) for angle in aligned["principal_angles_degrees"]]
    axis.plot(index, cosines, "o-", color="#009E73", markersize=4, linewidth=1.2, label="cos of principal angle $i$")
    axis.axhline(aligned["chance"], color=_MUTED, linestyle=":", linewidth=1.2, label=r"$|u_i^\top v_i|$ by chance")
    axis.set(title=f"top {len(index)} singular vectors of $K_P$, $K_H$", xlabel="index $i$", ylim=(0, 1.36))
    axis.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])  # what is above is the legend's
    axis.locator_params(axis="x", integer=True)
    axis.legend(frameon=False, fontsize=8, loc="upper right")


def _style(values: list[float]) -> dict[str, Any]:
    """A line for many values, marks too for a few."""
    return {"linewidth": 1.4} if len(values) > 40 else {"linewidth": 1.0, "marker": "o", "markersize": 3}


def _bound(record: dict[str, Any]) -> dict[str, str]:
    """κ_gen, κ(K_P), κ(K_H) and RIR*, which are infinite where null."""
    names = ("kappa_gen", "kappa_pretrain", "kappa_harmful", "rir_star")
    return {name: short(infinite(record["bound"][name])) for name in names}


def _rho(pair: list[float]) -> str:
    return f"ρ = {pair[0]:g}" if pair[0] == pair[1] else f"ρ_P = {pair[0]:.3g}, ρ_H = {pair[1]:.3g}"
