"""What the scripts of this folder that end in a README and a table share."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from immunize.errors import UserError
from immunize.report.templates import filled_in

SHOWN = ("python", "immunize", "torch", "numpy", "scipy")


def key_values(arguments: Sequence[str], known: set[str], *, needed: Collection[str] = ()) -> dict[str, str]:
    """The `key=value` arguments of a command line.

    Args:
        arguments: of the command line.
        known: keys.
        needed: those that have to be given.

    Raises:
        UserError: something else, an unknown key, or one that is missing.
    """
    given = {}
    for argument in arguments:
        key, sign, value = argument.partition("=")
        if not sign or key not in known:
            raise UserError(f"{argument} is not understood; there are {', '.join(f'{one}=' for one in sorted(known))}")
        given[key] = value
    if missing := sorted(set(needed) - given.keys()):
        raise UserError(f"{', '.join(f'{key}=' for key in missing)}: needed")
    return given


Record = dict[str, Any]


def digit_pairs(text: str) -> list[tuple[int, int]]:
    """ "01,38" to [(0, 1), (3, 8)]; all 90 ordered pairs for an empty text.

    Raises:
        UserError: not pairs of two different digits.
    """
    if not text:
        return [(p, h) for p in range(10) for h in range(10) if p != h]
    words = text.split(",")
    for word in words:
        if len(word) != 2 or not word.isdecimal() or word[0] == word[1]:
            raise UserError(f"pairs={text}: write two different digits a pair, as in pairs=01,38")
    return [(int(word[0]), int(word[1])) for word in words]


def readme(
    title: str,
    facts: Sequence[tuple[str, str]],
    body: Iterable[str],
    *,
    target: str = "",
    commands: Sequence[str] = (),
) -> str:
    """README.md of an experiment: what it is, how and when it was made, and what came of it.

    Args:
        title: of the page.
        facts: names and texts of the table at its head.
        body: lines below it.
        target: what stands behind "Rebuilt by".
        commands: that made it.
    """
    return filled_in("page.md", title=title, facts=facts, body=body, notes=[], target=target, commands=commands)


def machine_of(record: Record) -> str:
    """Processor, cores and memory that it was made with."""
    return "{processor}, {cores} cores, {memory_gib} GiB".format_map(record["hardware"])


def made_now(command: str) -> list[tuple[str, str]]:
    """Facts of a page that this process writes: command, commit, date, machine, versions."""
    from immunize.records import provenance

    own = provenance()
    return [
        ("command", f"`{command}`"),
        ("commit", str(own["git_commit"])),
        ("date", time.strftime("%Y-%m-%d", time.gmtime())),
        ("machine", machine_of(own)),
        ("versions", ", ".join(f"{name} {own['versions'][name]}" for name in SHOWN)),
    ]
