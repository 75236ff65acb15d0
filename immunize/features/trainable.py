"""Which parameters a list of names and patterns means."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from immunize.errors import UserError

__all__ = ["EVERYTHING", "matching_parameters"]

EVERYTHING = ["*"]
"""The only `trainable` that may match every parameter: it says so on purpose."""


def matching_parameters(body: nn.Module, patterns: str | Sequence[str], name: str) -> list[str]:
    """Names of the parameters that the patterns mean: theirs, or those of a module that they name.

    Args:
        body: the network without its classifier.
        patterns: names or patterns (`fnmatch`, in which * matches dots as well); a single one may stand alone.
        name: of the network, for messages.

    Raises:
        UserError: a pattern matches nothing, or together they match everything.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    names = [key for key, _ in body.named_parameters()]
    chosen: set[str] = set()
    if not patterns:
        raise UserError("model.trainable is empty: name the modules to immunize, such as [layer4]")
    for pattern in patterns:
        found = [key for key in names if any(fnmatchcase(part, pattern) for part in _prefixes(key))]
        if not found:
            tops = list(dict.fromkeys(".".join(key.split(".")[:2]) for key in names))
            raise UserError(
                f"model.trainable: {pattern!r} matches nothing in {name}; its last parts are {', '.join(tops[-8:])} "
                f"(patterns such as layer* are allowed; the classifier is trained anyway)"
            )
        chosen.update(found)
    if len(chosen) == len(names) and patterns != EVERYTHING:
        raise UserError(
            f"model.trainable matches every parameter of {name}: nothing of θ_0 would be kept. Name its last blocks, "
            f'or say model.trainable=["*"] if everything is meant'
        )
    return [key for key in names if key in chosen]


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
