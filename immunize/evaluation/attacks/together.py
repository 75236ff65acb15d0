"""Solvers that call a function they were given, side by side, so that what all of them ask is answered at once.

Every solver has a thread of its own, of which one runs at a time, until it asks or ends. So what comes of each is what
comes of it alone, and nothing depends on chance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

__all__ = ["together"]

Ask = Callable[[Any], Any]


class _StoppedError(BaseException):
    """Ends a solver of which nobody wants to know any more; no solver holds it up."""


class _Solver(Thread):
    """A solver, which stands still until it is told to go on.

    Attributes:
        asks: whether it waits for an answer to `question`; it has ended otherwise.
        found: what it returned.
        failure: what it raised.
    """

    def __init__(self, work: Callable[[Ask], Any]) -> None:
        super().__init__(daemon=True)
        self.question: Any = None
        self.found: Any = None
        self.failure: BaseException | None = None
        self.asks = True
        self._work = work
        self._stands: SimpleQueue[None] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()

    def go_on(self, answer: Any = None) -> None:
        """Let it run with an answer until it asks again, or ends.

        Raises:
            BaseException: what it raised.
        """
        if self.ident is None:
            self.start()
        else:
            self._answers.put(answer)
        self._stands.get()
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """End it, if it waits."""
        if self.ident is not None and self.asks:
            with contextlib.suppress(BaseException):
                self.go_on(_StoppedError())

    def run(self) -> None:
        try:
            self.found = self._work(self._ask)
        except BaseException as error:
            self.failure = error
        self.asks = False
        self._stands.put(None)

    def _ask(self, question: Any) -> Any:
        self.question = question
        self._stands.put(None)
        answer = self._answers.get()
        if isinstance(answer, _StoppedError):
            raise answer
        return answer


def together(works: Sequence[Callable[[Ask], Any]], answer: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """Run solvers.

    Args:
        works: each gets what it may ask with, and returns its result.
        answer: of the questions of all that wait, in their order.

    Returns:
        what each returned.

    Raises:
        BaseException: the first that a solver raised, or `answer`; the others are ended.
    """
    solvers = [_Solver(work) for work in works]
    try:
        for solver in solvers:
            solver.go_on()
        while waiting := [solver for solver in solvers if solver.asks]:
            for solver, told in zip(waiting, answer([solver.question for solver in waiting]), strict=True):
                solver.go_on(told)
    finally:
        for solver in solvers:
            solver.stop()
    return [solver.found for solver in solvers]
