"""`make bench`: how fast, and in how much memory. `python -m experiments.bench <part>`, or `all`.

    step           one Algorithm 1 step, the fast path against the printed one
    mnist          MNIST 0 → 1 from start to exit of a process, against the promised limits
    scaling        how time and memory of a step grow with D, N and batch size
    deep           deep nets: a step, a cached trunk and pooled κ, against the promised limits
    deep_scaling   how the cost of a deep run grows with N, D, batch size, network and processes; writes docs/scaling.md

Results go into this folder. The exit code is 1 where a promise does not hold.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from experiments.bench.machine import HERE, note_machine, warn_if_busy
from immunize.errors import UserError

__all__ = ["PARTS", "main"]

PARTS = ("step", "mnist", "scaling", "deep", "deep_scaling")


def main(arguments: Sequence[str]) -> int:
    """Run the parts asked for.

    Args:
        arguments: of the command line: one part, "all", or nothing for all.

    Returns:
        0; 1 where a promise does not hold or a run failed; 2 for an unknown part.
    """
    asked = arguments[0] if arguments else "all"
    if len(arguments) > 1 or asked not in (*PARTS, "all"):
        print(f"usage: python -m experiments.bench [{'|'.join(PARTS)}|all]", file=sys.stderr)
        return 2
    kept = True
    for part in PARTS if asked == "all" else (asked,):
        load = warn_if_busy() if part == asked or part == PARTS[0] else None  # later the load is this bench's own
        try:
            kept &= importlib.import_module(f"experiments.bench.{part}").run(HERE)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        note_machine(HERE, part, load)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
