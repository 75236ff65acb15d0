"""`make bench`: how fast, and in how much memory. `python -m experiments.bench <part>`, or `all`.

    start          a command before its work: the default run from start to exit
    busy           commands of the README beside processes that keep the cores busy
    mnist          MNIST 0 → 1 from start to exit of a process, against the promised limits
    deep           a step of deep nets, against the promised limits
    in_place       networks that are immunized in place: measuring against training
    defence        `censor` and `erase` of a ResNet18, against the promised limits
    attack         the attack grid on features as large as Stanford Cars', against the promised limits

`rest` are the parts of which there are no numbers of this commit yet, so that a bench that was interrupted goes on;
`table` measures nothing. Results go into this folder; at the end, when it is known what every part was measured with,
README.md is written anew, all of them in one table. The exit code is 1 where a promise does not hold.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from experiments.bench.machine import HERE, MACHINE, ROOT, note_machine, warn_if_busy
from immunize.errors import UserError
from immunize.files import read_object

PARTS = ("start", "mnist", "deep", "in_place", "defence", "attack", "busy")
ALL, REST, TABLE = "all", "rest", "table"


def main(arguments: Sequence[str]) -> int:
    """Run the parts asked for.

    Args:
        arguments: of the command line: one part, "rest", "table", "all", or nothing for all.

    Returns:
        0; 1 where a promise does not hold or a run failed; 2 for an unknown part.
    """
    asked = arguments[0] if arguments else ALL
    if len(arguments) > 1 or asked not in (*PARTS, REST, TABLE, ALL):
        print(f"usage: python -m experiments.bench [{'|'.join((*PARTS, REST, TABLE, ALL))}]", file=sys.stderr)
        return 2
    parts = {ALL: PARTS, REST: _rest(), TABLE: ()}.get(asked, (asked,))
    done: list[str] = []
    for part in parts:
        load = None if done else warn_if_busy()  # later the load is this bench's own
        try:
            importlib.import_module(f"experiments.bench.{part}").run(HERE)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            break
        note_machine(HERE, part, load)
        done.append(part)
    _write_page()
    return 1 if _missed(done) or len(done) < len(parts) else 0


def _missed(parts: Sequence[str]) -> bool:
    """Whether a limit of these parts is not met; it is told which."""
    from experiments.bench.table import lines

    missed = [one for one in lines(HERE, ROOT) if one.met is False and one.command.partition("=")[2] in parts]
    for one in missed:
        print(f"{one.name}: {one.measured}; the limit is {one.limit}", file=sys.stderr)
    return bool(missed)


def _rest() -> tuple[str, ...]:
    """The parts that were not measured at this commit; of changed files nothing can be told, and all are measured."""
    from immunize.records import provenance

    commit = provenance()["git_commit"]
    measured = read_object(HERE / MACHINE) or {}
    if commit is None or commit.endswith("-dirty"):
        return PARTS
    return tuple(part for part in PARTS if measured.get(part, {}).get("git_commit") != commit)


def _write_page() -> None:
    from experiments.bench.table import README, readme

    (HERE / README).write_text(readme(HERE, ROOT / "experiments"), encoding="utf-8")
    print(f"all benchmarks in one table: {HERE / README}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
