"""Work in a fork of this process: whatever it does to the process, this one stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_fork(work: Callable[[Callable[[str], None]], int]) -> tuple[int, str]:
    """Run something in a fork, without output.

    Args:
        work: is given a function that sends a text to this process, and returns the exit code.

    Returns:
        the exit code, 1 of an exception and negative of a signal; and the text that was sent.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            code = work(lambda text: _send(write, text.encode()))
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as sent:
        text = sent.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def _send(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
