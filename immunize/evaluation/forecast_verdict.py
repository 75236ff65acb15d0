"""The forecast in plain words, computed from its numbers by the thresholds below, all of them ours."""

from __future__ import annotations

from dataclasses import dataclass

from immunize.evaluation.alignment import Forecast
from immunize.spectrum.condition import HARDER_BY, Estimator
from immunize.spectrum.pencil import GeneralizedSpectrum

DECIDES: Estimator = "ridge"
"""The estimator behind the verdict: κ of the non-zero spectrum hangs on its smallest, which few rows know."""

ENOUGH_ROWS = 10.0
"""Rows a feature from which a failure on held-out rows is not put down to their number (ours). At 10, whitening
leaves κ = 3.7 of a Gaussian's covariance, at 2 it leaves 34 (`whitening_limit`)."""

STRONG = 10.0
"""Held-out RIR* from which the verdict is "can be immunized" without "weakly" (ours)."""


@dataclass(frozen=True)
class ForecastVerdict:
    """What the numbers say.

    Attributes:
        immunizable: a linear map separates the two data sets on rows it never saw.
        code: "possible", "weak", "identical", "aligned", "already_hard", "few_rows" or "not_carried_over".
        sentence: in plain words, with the numbers that decided.
        notes: what else to know, one sentence each.
    """

    immunizable: bool
    code: str
    sentence: str
    notes: tuple[str, ...] = ()


def judge(found: Forecast, *, tunable: bool = True) -> ForecastVerdict:
    """Put a forecast into words. The rules, in this order; docs/forecast.md has the reasons for the thresholds.

    1. the same rows, or K_H a multiple of K_P: cannot
    2. RIR* < 2: cannot, no budget meets both (a) and (b). "Aligned" where κ_gen < 2, else D_H is as hard as it gets
    3. held-out RIR < 2 or (ii) > 1, by `ridge`: the map does not carry over; for want of rows below 10 a feature
    4. otherwise it can: weakly below a held-out RIR of 10

    Args:
        found: the numbers.
        tunable: whether another shrinkage is worth a try.
    """
    theory, measured = found.spectrum, found.held_out.ratios
    decisive, plain = measured[DECIDES], measured["spectrum"]
    gen = f"κ_gen = {_short(theory.kappa_gen)}"
    if found.identical:
        return ForecastVerdict(False, "identical", f"cannot be immunized: D_P and D_H are the same data ({gen})")
    if theory.rir_star < HARDER_BY:
        shrunk = " and ".join(dict.fromkeys(f"{rho:.3g}" for rho in theory.shrinkage))
        bound = (
            f"with shrinkage {shrunk} no linear map has an RIR above RIR* = {_short(theory.rir_star)}{_hidden(found)}"
        )
        if theory.kappa_gen < HARDER_BY:
            sentence = f"cannot be immunized: the covariances are aligned ({gen}), {bound}"
            return ForecastVerdict(False, "aligned", sentence)
        kappas = f"κ(K_H) = {_short(theory.kappa_harmful)}, κ(K_P) = {_short(theory.kappa_pretrain)}"
        return ForecastVerdict(
            False,
            "already_hard",
            f"cannot be immunized further: against D_P, D_H is already nearly as hard as a linear map can make it "
            f"({kappas}, {gen}), {bound}",
        )
    star = f"held-out RIR* is {_short(decisive.rir)}"
    ratios = f"{DECIDES}, (i) = {_short(decisive.ratio_harmful)}, (ii) = {_short(decisive.ratio_pretrain)}"
    notes = tuple(_notes(found))
    if decisive.rir < HARDER_BY or decisive.ratio_pretrain > 1:
        advice = "; try shrinkage=auto" if tunable else ""
        for role, rows in zip("PH", found.held_out.fitted_on, strict=True):
            if rows < ENOUGH_ROWS * found.pretrain.n_features:
                size = f"{rows:,} rows for {found.pretrain.n_features:,} columns"
                sentence = f"not enough samples to know K_{role}: {star} ({ratios}; {size}){advice}"
                return ForecastVerdict(False, "few_rows", sentence, notes)
        sentence = (
            f"does not carry over: {star} ({ratios}), although {_short(found.fit.ratios[DECIDES].rir)} on the rows of "
            f"the fit, and there are enough of them; the held-out rows are of another distribution{advice}"
        )
        return ForecastVerdict(False, "not_carried_over", sentence, notes)
    weakly, code = ("", "possible") if decisive.rir >= STRONG else (" weakly", "weak")
    tail = f"; spectrum {_short(plain.rir)}"
    return ForecastVerdict(True, code, f"can be immunized{weakly}: {star} ({ratios}{tail})", notes)


def _hidden(found: Forecast) -> str:
    """Of the directions that are smaller than what shrinkage adds to all: without it they may tell D_P from D_H."""
    facts = zip((found.pretrain, found.harmful), found.spectrum.shrinkage, strict=True)
    weak = max(int((of.eigenvalues < rho * of.eigenvalues.sum() / of.n_features).sum()) for of, rho in facts)
    return f"; shrinkage hides the weakest directions ({weak:,})" if weak else ""


def _notes(found: Forecast) -> list[str]:
    theory = found.spectrum
    notes = []
    decisive, plain = (found.held_out.ratios[name] for name in (DECIDES, "spectrum"))
    if (plain.rir >= HARDER_BY and plain.ratio_pretrain <= 1) != (
        decisive.rir >= HARDER_BY and decisive.ratio_pretrain <= 1
    ):
        notes.append(
            f"the estimators disagree on held-out rows: RIR is {_short(decisive.rir)} with (ii) = "
            f"{_short(decisive.ratio_pretrain)} by {DECIDES}, {_short(plain.rir)} with (ii) = "
            f"{_short(plain.ratio_pretrain)} by spectrum"
        )
    low, high = budget_window(theory)
    harder = "" if decisive.ratio_harmful >= HARDER_BY else "(a) fails on held-out rows; "
    notes.append(
        f"budget {_short(found.budget)}: {harder}in theory, on the covariances with shrinkage, (a) and (b) hold "
        f"together for a budget from {_short(low)} to {_short(high)}"
    )
    if theory.harmful_only:
        notes.append(
            f"D_H has {theory.harmful_only} directions that no row of D_P has, so RIR* grows as 1/ρ and says more "
            f"about ρ than about the data; the held-out RIR does not"
        )
    return notes


def budget_window(theory: GeneralizedSpectrum) -> tuple[float, float]:
    """Budgets B for which (i) = κ_gen·B/κ(K_H) ≥ 2 and (ii) = B/κ(K_P) ≤ 1; not empty where RIR* ≥ 2."""
    return max(1.0, HARDER_BY * theory.kappa_harmful / theory.kappa_gen), theory.kappa_pretrain


def _short(value: float) -> str:
    """Three significant digits; thousands separated up to a million."""
    return f"{value:,.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"
