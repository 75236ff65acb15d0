"""Errors a user can cause and mend: shown as one clear message and a non-zero exit code, never as a traceback."""

from __future__ import annotations

from collections.abc import Sequence


class UserError(Exception):
    """Something in the command, the configuration or the data is not as it has to be; the message says what to do."""


class DataError(UserError):
    """A data set was found but cannot be used as it is."""


class MissingDataError(DataError):
    """A data set was not found; its source says which file, where to get it, and the option that sets the folder.

    Of images that is `immunize.data.images.source`; tables and digits have theirs beside their reading.
    """


class CheckpointError(UserError):
    """A checkpoint or record cannot be read, or does not fit the model it is loaded into."""


class DivergedError(Exception):
    """A term of the objective became non-finite. Caught by the run, which keeps the last finite parameters.

    Args:
        step: the optimizer step at which it happened, counted from 0.
        term: the name of the first non-finite term.
        value: its value.
    """

    def __init__(self, step: int, term: str, value: float) -> None:
        self.step, self.term, self.value = step, term, value
        super().__init__(f"the term '{term}' became {value} at step {step}")


LARGEST = 1e150
"""Numbers from here on, and below its inverse, have squares that overflow, or vanish."""


def unsquarable(size: float) -> str:
    """What a message says of numbers of a size whose squares float64 cannot hold; empty for others and for 0."""
    if size == 0 or 1 / LARGEST < size < LARGEST:
        return ""
    return f"of a size of {size:.0e}, whose squares float64 cannot hold; change the unit"


def some(names: Sequence[object], most: int = 3) -> str:
    """The first of some names, and how many more there are, for a message."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
