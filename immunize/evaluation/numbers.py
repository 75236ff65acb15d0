"""How ratios and spectra are laid out in a record: the same keys for linear and deep extractors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from immunize.spectrum.condition import ConditionNumber, ImmunizationRatio, Spectrum

_ENDS = 8
"""Singular values at either end of a spectrum that a record keeps however many there are."""

RATIOS = ("ratio_harmful", "ratio_pretrain", "rir")
"""(i), (ii) and RIR, by the names of :class:`immunize.spectrum.condition.ImmunizationRatio`."""

KAPPAS = ("kappa_pretrain", "kappa_harmful", "kappa_pretrain_baseline", "kappa_harmful_baseline")
"""What they are ratios of, likewise."""


def ratio_numbers(ratio: ImmunizationRatio) -> dict[str, Any]:
    """The four condition numbers, (i), (ii), RIR, and under "facts" what says whether each κ can be trusted."""
    kappas: dict[str, ConditionNumber] = {name: getattr(ratio, name) for name in KAPPAS}
    return {
        **{name: kappa.value for name, kappa in kappas.items()},
        **{name: getattr(ratio, name) for name in RATIOS},
        "facts": {
            name: {fact: value for fact, value in asdict(kappa).items() if fact not in ("value", "estimator")}
            for name, kappa in kappas.items()
        },
    }


def spectrum_numbers(spectrum: Spectrum, points: int = 48) -> dict[str, Any]:
    """The singular values of H that κ is over, thinned for records and figures.

    Args:
        spectrum: of H.
        points: about how many are kept of a longer one, evenly spaced, beside both its ends.

    Returns:
        "rank", the k of Eq. (1); "index", which of σ_1 ≥ … ≥ σ_k are kept, counted from 1; "sigma", their values.
    """
    k = spectrum.rank
    ends = [*range(1, min(_ENDS, k) + 1), *range(max(1, k - _ENDS + 1), k + 1)]
    spaced = np.linspace(1, k, min(points, k)).round().astype(int)
    index = sorted({*ends, *spaced.tolist()})
    return {"rank": k, "index": index, "sigma": [float(spectrum.values[i - 1]) for i in index]}


def by_extractor(found: Mapping[Any, Mapping[str, Any]], numbers: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    """What was found of each data set and extractor, as numbers."""
    return {role: {which: numbers(one) for which, one in of.items()} for role, of in found.items()}
