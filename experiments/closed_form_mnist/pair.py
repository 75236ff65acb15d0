"""Every number of one pair of digits, for `experiments.closed_form_mnist`: four budgets, verdicts, steps of the probes.

Shapes: N images, D = 784 pixels, n columns of the joint range.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from immunize.report.conventions import HARDER_BY

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.evaluation.decomposition import Decomposition, Rows

DIGITS, PIXELS = range(10), 784
RHO = 3e-2
"""ρ of the map: the best on MNIST by cross-validation (docs/closed_form.md)."""

BUDGETS = (1.0, 3.0, 10.0, 30.0, 100.0)
VALIDATION_FRACTION, SEED = 0.2, 0
LIMIT = 40_000
"""Steps of gradient descent with exact line search after which the count is given up."""

PRECISION = 1.3
LARGEST_BUDGET = 1e12
SETTINGS = [RHO, list(BUDGETS), VALIDATION_FRACTION, SEED, LIMIT, HARDER_BY, PRECISION, LARGEST_BUDGET]
"""What the numbers of a pair depend on; those with others are computed anew."""


class Side:
    """Images of one digit in the coordinates of the joint range, reduced, with what the raw pixels make of them.

    Args:
        fit: (N, n) training images.
        held_out: (M, n) test images.
    """

    def __init__(self, fit: Tensor, held_out: Tensor) -> None:
        import torch

        from immunize.evaluation.decomposition import compress, decompose

        order = torch.randperm(len(fit), generator=torch.Generator().manual_seed(SEED))
        self.fit, self.aside = fit, fit[order[: round(VALIDATION_FRACTION * len(fit))]]
        self.gram, self.gram_aside = (x.T @ x for x in (self.fit, self.aside))
        # The targets are constant, +1 or -1: a sign that changes neither spectrum, nor loss, nor norm ratio.
        self.rows = {
            part: compress(x, torch.ones(len(x), dtype=torch.float64))
            for part, x in (("fit", fit), ("held_out", held_out))
        }
        self.raw = {part: decompose(rows) for part, rows in self.rows.items()}
        self.raw_steps = steps_of(self.raw["held_out"])


def measure_pair(pretrain: Side, harmful: Side) -> dict[str, Any]:
    """Every number of one ordered pair."""
    from immunize.spectrum import choose_budget, frontier, generalized_spectrum

    n = len(pretrain.gram)
    shrinkage = RHO * n / PIXELS  # of tr(K)/n: the same α as ρ of tr(K)/D
    counts = len(pretrain.fit), len(harmful.fit)
    spectrum = generalized_spectrum(pretrain.gram, harmful.gram, n_samples=counts, shrinkage=shrinkage)
    rest = generalized_spectrum(
        pretrain.gram - pretrain.gram_aside,
        harmful.gram - harmful.gram_aside,
        n_samples=(counts[0] - len(pretrain.aside), counts[1] - len(harmful.aside)),
        shrinkage=shrinkage,
    )
    auto = choose_budget(rest, pretrain.aside, [harmful.aside])
    by_ridge = choose_budget(rest, pretrain.aside, [harmful.aside], estimator="ridge", harder_by=1.0)
    validated = max(BUDGETS, key=lambda budget: _log_rir_aside(frontier(rest, budget).theta, pretrain, harmful))
    budgets = {
        "validated": validated,
        "auto": auto.budget,
        "auto_ridge": by_ridge.budget,
        "defining": defining_budget(lambda budget: _ratio(frontier(spectrum, budget).theta, harmful)),
    }
    found: dict[str, Any] = {
        "columns": n,
        "kappa_gen": spectrum.kappa_gen,
        "rir_star": spectrum.rir_star,
        "rir_star_held_out": _ridge(frontier(spectrum, 1.0).theta, pretrain, harmful)["rir"],
        "auto_feasible": auto.feasible,
        "auto_ridge_feasible": by_ridge.feasible,
        "steps_raw": {"pretrain": pretrain.raw_steps, "harmful": harmful.raw_steps},
    }
    for name, budget in budgets.items():
        found[name] = {"budget": budget, **_evaluated(frontier(spectrum, budget).theta, pretrain, harmful)}
    return found


def _evaluated(theta: Tensor, pretrain: Side, harmful: Side) -> dict[str, Any]:
    """The verdicts on `fit` and, on held-out images, RIR by `ridge` and the steps of both probes."""
    from immunize.evaluation.decomposition import decompose
    from immunize.evaluation.immunity import LOSS_SLACK
    from immunize.spectrum import EASE_SLACK

    raw = pretrain.raw["fit"]
    after = decompose(pretrain.rows["fit"], theta)
    ratio_pretrain, ratio_harmful = _kappa(after) / _kappa(raw), _ratio(theta, harmful)
    held_out = {"pretrain": pretrain, "harmful": harmful}
    return {
        "ratio_harmful_fit": ratio_harmful,
        "ratio_pretrain_fit": ratio_pretrain,
        "a": ratio_harmful >= HARDER_BY,
        "b": ratio_pretrain <= 1 + EASE_SLACK,
        "c": after.loss - raw.loss <= LOSS_SLACK * raw.energy,
        "ridge_held_out": _ridge(theta, pretrain, harmful),
        "steps": {role: steps_of(decompose(of.rows["held_out"], theta)) for role, of in held_out.items()},
    }


def defining_budget(ratio: Any) -> float:
    """The smallest B, to a factor of `PRECISION`, at which (i) is `HARDER_BY`; else `LARGEST_BUDGET`.

    Args:
        ratio: (i) as a function of B, growing.
    """
    low, high = 1.0, 100.0
    if ratio(low) >= HARDER_BY:
        return low
    while ratio(high) < HARDER_BY:
        low, high = high, high * 100.0
        if high > LARGEST_BUDGET:
            return LARGEST_BUDGET
    while high > low * PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if ratio(middle) >= HARDER_BY else (middle, high)
    return high


def steps_of(found: Decomposition) -> int | None:
    """Steps to a norm ratio of 0.1; None beyond `LIMIT`."""
    from immunize.evaluation.probe import norm_ratio_curve

    k = found.spectrum.rank
    for limit in (LIMIT // 100, LIMIT // 10, LIMIT):  # most curves are short
        steps = norm_ratio_curve(found.spectrum.values[:k], found.optimum, steps=limit).steps_to[0.1]
        if steps is not None:
            return steps
    return None


# --- linear algebra of one pair -----------------------------------------------------------------------------------


def _kappa(found: Decomposition) -> float:
    values = found.spectrum.values
    return float(values[0] / values[found.spectrum.rank - 1])


def _ratio(theta: Tensor, side: Side) -> float:
    """κ(H(θ))/κ(H(I)) by `spectrum` on `fit`."""
    from immunize.spectrum import condition_number, spectrum_of

    rows = side.rows["fit"]
    after = spectrum_of(rows.x @ theta, n_samples=rows.spectrum.n_samples, rank_of_data=len(rows.x))
    return condition_number(after).value / _kappa(side.raw["fit"])


def _ridge(theta: Tensor, pretrain: Side, harmful: Side) -> dict[str, float]:
    """(i), (ii) and RIR by `ridge` on held-out images, α of D = 784 columns."""
    from immunize.spectrum import immunization_ratio

    sides = [side.rows["held_out"] for side in (pretrain, harmful)]
    after, before = [_spectrum(rows, theta) for rows in sides], [_spectrum(rows, None) for rows in sides]
    ratio = immunization_ratio(after[0], after[1], before[0], before[1], "ridge")
    return {"ratio_harmful": ratio.ratio_harmful, "ratio_pretrain": ratio.ratio_pretrain, "rir": ratio.rir}


def _spectrum(rows: Rows, theta: Tensor | None) -> Any:
    from immunize.spectrum import spectrum_of

    n = rows.spectrum.n_samples
    found = rows.spectrum if theta is None else spectrum_of(rows.x @ theta, n_samples=n, rank_of_data=len(rows.x))
    return replace(found, n_features=PIXELS)


def _log_rir_aside(theta: Tensor, pretrain: Side, harmful: Side) -> float:
    """log RIR by `ridge` on the images set aside; (i)/(ii) up to the raw pixels' constant factor."""
    from immunize.spectrum.budget import kappa_of_gram

    kappas = [
        kappa_of_gram(theta.T @ side.gram_aside @ theta, len(side.aside), "ridge", 1e-2, PIXELS)
        for side in (pretrain, harmful)
    ]
    return math.log(kappas[1] / kappas[0])
