"""How far a sweep is: one line on stderr, rewritten in place on a terminal, now and then in a log."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from immunize.sweeping.outcome import Outcome

__all__ = ["Progress"]

EVERY = 30.0
"""Seconds between two lines in a log."""

CLEAR = "\r\x1b[2K"


class Progress:
    """Counts outcomes and shows the count.

    Args:
        name: of the sweep.
        total: runs it has.
        stream: where the line goes; None is stderr.
        clock: seconds.
    """

    def __init__(
        self, name: str, total: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self.total = name, total
        self.counts: Counter[str] = Counter()
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._started = clock()
        self._shown_at = self._started
        self._shown_done = -1

    @property
    def done(self) -> int:
        """Runs that are over, found ones among them."""
        return self.counts["finished"] + self.counts["diverged"] + self.counts["failed"]

    def start_clock(self) -> None:
        """Count seconds a run from here; until the first run is handed out, only found runs are counted."""
        self._started = self._clock()

    def add(self, outcome: Outcome) -> None:
        """Count a run that is over, and show the line if it is due."""
        self.counts[outcome.status] += 1
        self.counts["found"] += outcome.found
        now = self._clock()
        if self._stream.isatty() or now - self._shown_at >= EVERY:
            self._show(now)

    def note(self, text: str) -> None:
        """Print a line of its own."""
        if self._stream.isatty():
            self._stream.write(f"{CLEAR}{text}\n")
            self._show(self._clock())
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Show how it stands at the end."""
        if self._stream.isatty() or self._shown_done != self.done:
            self._show(self._clock())
        if self._stream.isatty():
            print(file=self._stream, flush=True)

    def line(self) -> str:
        """Such as `table2: 137/1890 done (12 found finished, 1 diverged), 3.1 s a run, about 46 min left`."""
        facts = {"found": "found finished", "diverged": "diverged", "failed": "failed"}
        counted = ", ".join(f"{self.counts[key]} {words}" for key, words in facts.items() if self.counts[key])
        text = f"{self.name}: {self.done}/{self.total} done" + (f" ({counted})" if counted else "")
        if ran := self.done - self.counts["found"]:
            seconds = (self._clock() - self._started) / ran
            text += f", {seconds:.1f} s a run"
            if left := self.total - self.done:
                text += f", about {_duration(seconds * left)} left"
        return text

    def _show(self, now: float) -> None:
        self._shown_at, self._shown_done = now, self.done
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns
            self._stream.write(CLEAR + self.line()[: width - 1])
            self._stream.flush()
        else:
            print(self.line(), file=self._stream, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
