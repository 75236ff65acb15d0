"""How the numbers of an immunization ratio are laid out in a record: the same keys for linear and deep extractors."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from immunize.spectrum import ConditionNumber, ImmunizationRatio

__all__ = ["RATIOS", "ratio_numbers"]

RATIOS = ("ratio_harmful", "ratio_pretrain", "rir")
"""(i), (ii) and RIR, by the names of :class:`immunize.spectrum.ImmunizationRatio`."""


def ratio_numbers(ratio: ImmunizationRatio) -> dict[str, Any]:
    """The four condition numbers, (i), (ii), RIR, and under "facts" what says whether each κ can be trusted."""
    kappas = {
        "kappa_pretrain": ratio.kappa_pretrain,
        "kappa_harmful": ratio.kappa_harmful,
        "kappa_pretrain_baseline": ratio.kappa_pretrain_baseline,
        "kappa_harmful_baseline": ratio.kappa_harmful_baseline,
    }
    return {
        **{name: kappa.value for name, kappa in kappas.items()},
        **{name: getattr(ratio, name) for name in RATIOS},
        "facts": {name: _validity(kappa) for name, kappa in kappas.items()},
    }


def _validity(kappa: ConditionNumber) -> dict[str, Any]:
    facts = asdict(kappa)
    del facts["value"], facts["estimator"]
    return facts
