"""How far a sweep is: tqdm's line on stderr, with what became of the runs."""

from __future__ import annotations

import sys
from collections import Counter

from immunize.sweeping.outcome import Outcome

__all__ = ["Progress"]

EVERY = 30.0
"""Seconds between two states of the line in a log."""


class Progress:
    """Counts outcomes and shows the count.

    Args:
        name: what the line begins with.
        total: runs of the sweep.
    """

    def __init__(self, name: str, total: int) -> None:
        from tqdm import tqdm  # not for a run alone, which imports this room too

        self.name = name
        self.counts: Counter[str] = Counter()
        every = 0.1 if sys.stderr.isatty() else EVERY
        self._bar = tqdm(total=total, desc=name, unit="run", file=sys.stderr, mininterval=every, dynamic_ncols=True)

    def add(self, outcome: Outcome) -> None:
        """Count a run that is over."""
        self.counts["found"] += outcome.found
        self.counts[outcome.status] += outcome.status != "finished"
        facts = ", ".join(f"{count} {what}" for what, count in self.counts.items() if count)
        self._bar.set_postfix_str(facts, refresh=False)
        self._bar.update()

    def note(self, text: str) -> None:
        """Print a line of its own."""
        self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the line as it stands at the end."""
        self._bar.close()
