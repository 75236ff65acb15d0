"""A source seen as two halves, for a data set without held-out rows of its own (see `parts`)."""

from __future__ import annotations

from collections.abc import Hashable

from immunize.data.parts import Source, Splits, fingerprint_of
from immunize.errors import DataError

__all__ = ["CrossFitted"]


class CrossFitted:
    """A source whose `fit` and `held_out` are two halves of another source's rows.

    A source that has held-out rows of its own keeps its split.

    Args:
        source: what is cross-fitted.
        seed: of the halves.
    """

    held_out_protocol = "split"

    def __init__(self, source: Source, seed: int) -> None:
        self.source, self.seed = source, seed
        self.name, self.task = source.name, source.task
        self.standardize = getattr(source, "standardize", False)

    def require(self) -> None:
        """Find the source's files."""
        self.source.require()

    def load(self) -> Splits:
        """The two halves, or the source's own split."""
        return self.source.cross_fit(self.seed) if self.source.held_out_protocol == "cross_fit" else self.source.load()

    def cross_fit(self, seed: int) -> Splits:
        """Refuse: halves are not halved again.

        Args:
            seed: ignored.

        Raises:
            DataError: always.
        """
        raise DataError(f"{self.name} is cross-fitted already")

    def fingerprint(self) -> Hashable:
        """The source's, and the seed."""
        inner = fingerprint_of(self.source)
        return None if inner is None else (type(self), self.seed, inner)

    def describe(self) -> dict[str, object]:
        """The source's facts and the seed of the halves."""
        return self.source.describe() | {"cross_fit_seed": self.seed}
