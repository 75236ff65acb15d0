"""How long a command takes before and beside its work, from start to exit.

    python -m immunize.train             the default, offline                      at most 7 s
    import immunize                                                                at most 0.3 s
    python -m immunize.train --help                                                at most 1 s
    make demo                            two methods, trained and attacked          at most 60 s

Writes start.csv, by the clock and by the processor (the quickest of `REPEATS`).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.bench.machine import show, timed_command, write_csv

TRAIN = ("-m", "immunize.train", "hydra.run.dir={folder}")
CASES: dict[str, tuple[float, tuple[str, ...]]] = {  # name: limit in seconds, arguments of Python
    "python -m immunize.train": (7.0, TRAIN),
    "import immunize": (0.3, ("-c", "import immunize")),
    "python -m immunize.train --help": (1.0, (*TRAIN[:2], "--help")),
    "make demo": (60.0, ("-m", "experiments.demo", "out={folder}")),
}
REPEATS = 3


def run(out: Path) -> None:
    """Measure all, print them, and write the file.

    Args:
        out: the folder of results.

    Raises:
        UserError: a command failed.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:

        def command(arguments: Sequence[str]) -> list[str]:
            """In a folder of its own: what a run before it has found is not found again."""
            own = tempfile.mkdtemp(dir=folder)
            return [sys.executable, *(word.format(folder=own) for word in arguments)]

        for name, (limit, arguments) in CASES.items():
            seconds, processor_s, _ = min(timed_command(command(arguments)) for _ in range(REPEATS))
            rows.append({"command": name, "seconds": seconds, "processor_s": processor_s, "limit_s": limit})
    write_csv(out / "start.csv", rows)
    show("from start to exit", rows)
