"""What a ridge probe can learn of each data set, in words, for a run's table and its card. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["carried_over", "separability_lines"]

ABOUT = "what a ridge probe can learn (correlation on rows that it was not fitted on, 0 to 1, the best of three ρ)"


def carried_over(record: dict[str, Any], parts: Iterable[str]) -> dict[str, Any]:
    """The best cross-fitted correlation over ρ, before immunizing and after.

    Args:
        record: of a finished run; those of earlier versions have none.
        parts: of the data.

    Returns:
        part -> role -> "before" and "after"; empty for a record without.
    """
    kept = record.get("separability", {})
    return {
        part: {
            role: {
                "after" if which == "immunized" else "before": max(of["cross_fitted"].values())
                for which, of in extractors.items()
            }
            for role, extractors in kept[part].items()
        }
        for part in parts
        if part in kept
    }


def separability_lines(found: dict[str, Any]) -> list[str]:
    """One line a part of the data, and before them what the numbers are; none where there are none.

    Args:
        found: from :func:`carried_over`. A task of one label, with nothing to tell apart, has 0 and no line.
    """
    lines = []
    for part, roles in found.items():
        told = {role: of for role, of in roles.items() if of["before"] or of["after"]}
        if told:
            words = ", ".join(f"{role} {of['before']:.3f} → {of['after']:.3f}" for role, of in told.items())
            lines.append(f"{part.replace('_', ' ')}: {words}")
    return [f"{ABOUT}, θ_0 → θ:", *lines] if lines else []
