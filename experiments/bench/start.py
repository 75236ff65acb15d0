"""How long a command takes before and beside its work: the default run from start to exit, and what it imports.

    python -m immunize.train             the default, offline                      at most 7 s
    import immunize                                                                at most 0.3 s
    python -m immunize.train --help                                                at most 1 s
    make demo                            two methods, trained and attacked          at most 60 s

Writes start.csv, by the clock and by the processor (the quickest of `REPEATS`), and imports.csv: which packages the
seconds go to that the default spends on imports, by `python -X importtime`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.machine import show, timed_command, write_csv

TRAIN = ("-m", "immunize.train", "hydra.run.dir={folder}")
CASES: dict[str, tuple[float, tuple[str, ...]]] = {  # name: limit in seconds, arguments of Python
    "python -m immunize.train": (7.0, TRAIN),
    "import immunize": (0.3, ("-c", "import immunize")),
    "python -m immunize.train --help": (1.0, (*TRAIN[:2], "--help")),
    "make demo": (60.0, ("-m", "experiments.demo", "out={folder}")),
}
REPEATS = 3
SHOWN = 15
"""Packages in imports.csv; the others are its last row."""


def imports(told: str) -> list[dict[str, Any]]:
    """The packages that imports take longest, each without what it imports of others.

    Args:
        told: stderr of `python -X importtime`.

    Returns:
        rows with `package`, `modules` (how many of it) and `seconds`; the last one is all others.
    """
    spent: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for microseconds, name in re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", told, flags=re.MULTILINE):
        package = name.partition(".")[0]
        package = package if package not in sys.stdlib_module_names else "Python's own"
        spent[package] += int(microseconds)
        modules[package] += 1
    first = [package for package, _ in spent.most_common(SHOWN)]
    rows = [{"package": name, "modules": modules[name], "seconds": round(spent[name] / 1e6, 3)} for name in first]
    others = [name for name in spent if name not in first]
    total = sum(spent[name] for name in others) / 1e6
    return [*rows, {"package": "others", "modules": sum(modules[name] for name in others), "seconds": round(total, 3)}]


def run(out: Path) -> None:
    """Measure all, print them, and write the two files.

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
        profiled = command(("-X", "importtime", *TRAIN))
        told = subprocess.run(profiled, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True).stderr
    write_csv(out / "start.csv", rows)
    write_csv(out / "imports.csv", profile := imports(told))
    show("from start to exit", rows)
    show("imports of the default run", profile)
