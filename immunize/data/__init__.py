"""Raw files to (x, y); knows no model. One file per data set, `pair` for D_P and D_H side by side.

The names are loaded on first use: the data sets need no torch to be found, only to be read.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from immunize.data.splits import ROLES, Part, Role, Source, SourceBase, Splits

if TYPE_CHECKING:
    from immunize.data.arrays import Arrays
    from immunize.data.digits import Digits
    from immunize.data.housing import Housing
    from immunize.data.mnist import Mnist
    from immunize.data.pair import PairedData, PairParts
    from immunize.data.synthetic import Synthetic

__all__ = [
    "ROLES",
    "Arrays",
    "Digits",
    "Housing",
    "Mnist",
    "PairParts",
    "PairedData",
    "Part",
    "Role",
    "Source",
    "SourceBase",
    "Splits",
    "Synthetic",
]

_HOME = {
    "Arrays": "arrays",
    "Digits": "digits",
    "Housing": "housing",
    "Mnist": "mnist",
    "PairParts": "pair",
    "PairedData": "pair",
    "Synthetic": "synthetic",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"immunize.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'immunize.data' has no attribute {name!r}")
