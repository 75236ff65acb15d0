"""How numbers of many runs become the text of a table cell. Imports no other room and no torch.

Runs come in groups, one group a pair of data sets, one number a seed. A mean is the mean over pairs of the mean over
seeds, and what follows ± is the mean over pairs of the standard deviation (n - 1) over seeds: for one pair the usual
mean ± standard deviation, for the 90 pairs of Table 2 its caption ("computed over 3 random seeds and averaged over all
digit pairs").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["NOTHING", "Groups", "Summary", "short", "summary_of", "summary_text", "with_spread"]

NOTHING = "–"
"""The cell of a number that is not there, or NaN."""

Groups = Sequence[Sequence[float | None]]
"""One sequence a pair of data sets, one number a run."""


@dataclass(frozen=True)
class Summary:
    """Numbers of many runs in a few.

    Attributes:
        mean: over pairs of the mean over seeds; of the finite numbers.
        spread: mean over pairs of the standard deviation (n - 1) over seeds; None where no pair has two seeds.
        median: of all runs.
        geometric: geometric mean of all runs; None unless all are positive.
        outlying: the standard deviation over all runs exceeds their mean, so that the mean says little.
        runs: how many have the number, finite or not.
        infinite: how many of them are not finite.
    """

    mean: float
    spread: float | None
    median: float
    geometric: float | None
    outlying: bool
    runs: int
    infinite: int


def summary_of(groups: Groups) -> Summary | None:
    """Mean, spread and middle; None where there is no finite number.

    Args:
        groups: one sequence a pair of data sets, one number a run; None is a number that is not finite.
    """
    finite = [np.array([v for v in of if v is not None], dtype=np.float64) for of in groups]
    finite = [of for of in finite if len(of)]
    if not finite:
        return None
    runs = sum(len(of) for of in groups)
    values = np.concatenate(finite)
    # of equal numbers exactly 0, which the rounding of their mean would miss
    spreads = [of.std(ddof=1) if np.ptp(of) else 0.0 for of in finite if len(of) > 1]
    mean = float(np.mean([of.mean() for of in finite]))
    return Summary(
        mean=mean,
        spread=float(np.mean(spreads)) if spreads else None,
        median=float(np.median(values)),
        geometric=float(np.exp(np.log(values).mean())) if (values > 0).all() else None,
        outlying=len(values) > 1 and bool(values.std(ddof=1) > abs(values.mean())),
        runs=runs,
        infinite=runs - len(values),
    )


def summary_text(groups: Groups) -> str:
    """Mean ± spread; with the middle of the runs where outliers make the mean, and how many are infinite."""
    summary = summary_of(groups)
    infinite = sum(value is None for of in groups for value in of)
    if summary is None:
        return "∞" if infinite else NOTHING
    text = with_spread(summary.mean, summary.spread)
    if summary.outlying:
        middle = [f"median {short(summary.median)}"]
        if summary.geometric is not None:
            middle.append(f"geo. mean {short(summary.geometric)}")
        text += f" ({', '.join(middle)})"
    return f"{text} (∞ in {infinite} of {summary.runs})" if infinite else text


def with_spread(value: float, spread: float | None) -> str:
    """A number and, where there is one, its spread."""
    return short(value) + ("" if spread is None else f" ± {short(spread)}")


def short(value: float | None) -> str:
    """Three significant digits, thousands separated, powers of ten from a million up and below a thousandth.

    An infinite number is "∞". None and NaN are `NOTHING`; where null in a record stands for an infinite number,
    :mod:`immunize.report.nulls` says so.
    """
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
