"""Numbers of a record or a card beside the same ones computed again: which of them are not the same."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["RELATIVE_TOLERANCE", "differences"]

RELATIVE_TOLERANCE = 1e-6
"""Numbers may differ by this much: another BLAS or thread count rounds differently, and κ amplifies rounding."""


def differences(old: Any, new: Any, name: str) -> list[str]:
    """One line for each number that is not the same again.

    Args:
        old: as in the record.
        new: as computed now.
        name: of what is compared.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        lines = [f"{name}.{key}: only on one side" for key in sorted(old.keys() ^ new.keys())]
        for key in old.keys() & new.keys():
            lines += differences(old[key], new[key], f"{name}.{key}")
        return lines
    if isinstance(old, list) and isinstance(new, list | tuple) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for i, (one, other) in pairs for line in differences(one, other, f"{name}[{i}]")]
    if isinstance(old, float) and isinstance(new, float):
        same = math.isclose(old, new, rel_tol=RELATIVE_TOLERANCE)
    elif old is None and isinstance(new, float):
        same = not math.isfinite(new)  # records store infinities as null
    else:
        same = old == new
    return [] if same else [f"{name}: {old} in the record, {new} now"]
