"""Condition-number immunization: make released networks hard to fine-tune on harmful tasks, and measure it honestly.

Public names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from immunize.threads import sleep_when_idle

if TYPE_CHECKING:
    from immunize.api import Immunized, immunize
    from immunize.errors import UserError
    from immunize.spectrum import (
        closed_form,
        condition_number,
        erase,
        immunization_ratio,
        r_ill,
        r_ill_of_features,
        r_well,
        r_well_of_features,
        spectrum_of,
    )

__all__ = [
    "Immunized",
    "UserError",
    "__version__",
    "closed_form",
    "condition_number",
    "erase",
    "immunization_ratio",
    "immunize",
    "r_ill",
    "r_ill_of_features",
    "r_well",
    "r_well_of_features",
    "spectrum_of",
]

sleep_when_idle()  # before anything loads torch or numpy

__version__ = "0.2.0"

_HOME = dict.fromkeys(__all__, "immunize.spectrum") | {
    "UserError": "immunize.errors",
    **dict.fromkeys(("Immunized", "immunize"), "immunize.api"),
}


def __getattr__(name: str) -> Any:
    if name in __all__ and name != "__version__":
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'immunize' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
