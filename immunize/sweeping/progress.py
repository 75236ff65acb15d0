"""How far a sweep is: one line on stderr, rewritten in place on a terminal, now and then in a log.

The line is there when the first run begins, and where nothing ends for a while it says which run that is.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from immunize.sweeping.outcome import Outcome

__all__ = ["Progress"]

EVERY = 30.0
"""Seconds between two lines in a log; where no run ends, the time between them doubles."""

REDRAWN = 5.0
"""Seconds after which the line on a terminal is drawn again although no run has ended."""

LONGEST = 600.0
"""Seconds after which a log gets a line although no run has ended."""

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
        self._started = self._ended_at = self._shown_at = clock()
        self._shown_done = -1
        self._under_way: dict[str, None] = {}  # in the order in which they began
        self._lock = threading.RLock()  # runs end in one thread, the line is kept alive by another
        self._closed = threading.Event()
        self._ticker: threading.Thread | None = None

    @property
    def done(self) -> int:
        """Runs that are over, found ones among them."""
        return self.counts["finished"] + self.counts["diverged"] + self.counts["failed"]

    def begin(self, run: str) -> None:
        """A run is handed out. Seconds a run count from the first; before it, only found runs are counted.

        Args:
            run: how a message names it.
        """
        with self._lock:
            self._under_way[run] = None
            if self._ticker is None:
                self._started = self._ended_at = self._clock()
                self._show(self._started)
                self._ticker = threading.Thread(target=self._keep_alive, daemon=True)
                self._ticker.start()

    def add(self, outcome: Outcome, run: str = "") -> None:
        """Count a run that is over, named as it was when it began, and show the line if it is due."""
        with self._lock:
            self.counts[outcome.status] += 1
            self.counts["found"] += outcome.found
            self._under_way.pop(run, None)
            now = self._ended_at = self._clock()
            if self._stream.isatty() or now - self._shown_at >= EVERY:
                self._show(now)

    def tick(self) -> None:
        """Show the line, with the run that is waited for, if nothing was shown for long."""
        with self._lock:
            now = self._clock()
            waited = self._shown_at - self._ended_at  # when the line was shown last
            due = REDRAWN if self._stream.isatty() else min(max(EVERY, waited), LONGEST)
            if self._under_way and now - self._shown_at >= due and not self._closed.is_set():
                self._show(now, f"; waiting {_duration(now - self._ended_at)} for {next(iter(self._under_way))}")

    def note(self, text: str) -> None:
        """Print a line of its own."""
        with self._lock:
            if self._stream.isatty():
                self._stream.write(f"{CLEAR}{text}\n")
                self._show(self._clock())
            else:
                print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Show how it stands at the end."""
        with self._lock:
            self._closed.set()
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

    def _keep_alive(self) -> None:
        while not self._closed.wait(1.0):
            self.tick()

    def _show(self, now: float, more: str = "") -> None:
        self._shown_at, self._shown_done = now, self.done
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns
            self._stream.write(CLEAR + (self.line() + more)[: width - 1])
            self._stream.flush()
        else:
            print(self.line() + more, file=self._stream, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
