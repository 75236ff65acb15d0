"""A run against several harmful data sets as one record a set, so that every table shows each. Imports no torch."""

from __future__ import annotations

from typing import Any

__all__ = ["by_harmful_set"]

_OF_THE_WHOLE = ("harmful_sets", "weakest")


def by_harmful_set(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The record of a run as records of a single harmful data set each, called "cars of cars+caltech101".

    Args:
        record: of any run; one with a single harmful data set is returned as it is.
    """
    facts = ((record.get("data") or {}).get("harmful") or {}).get("sets")
    if not facts:
        return [record]
    rest = {key: value for key, value in record.items() if key not in _OF_THE_WHOLE}
    numbers = record.get("harmful_sets") or {}  # none where the run diverged
    return [
        {
            **rest,
            **numbers.get(name, {}),
            "harmful": f"{name} of {record['harmful']}",
            "data": record["data"] | {"harmful": of},
        }
        for name, of in facts.items()
    ]
