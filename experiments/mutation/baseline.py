"""The tests without any mutant: what each costs and which lines it runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from experiments.mutation.forks import in_fork
from experiments.mutation.mutants import Mutant


@dataclass(frozen=True)
class Baseline:
    """The tests without a mutant.

    Attributes:
        seconds: CPU time of each.
        runs: of each file and line, the tests that run it.
        modules: what the tests have imported while they ran.
    """

    seconds: dict[str, float]
    runs: dict[tuple[str, int], list[str]]
    modules: list[str]

    def tests_of(self, mutant: Mutant, folder: str, budget: float) -> list[str]:
        """The tests that run the mutant's lines, fastest first, as many as the budget allows and at least one.

        Args:
            mutant: one.
            folder: of its room's tests.
            budget: CPU seconds.
        """
        first, last = mutant.lines
        found = {test for line in range(first, last + 1) for test in self.runs.get((mutant.path, line), ())}
        ordered = sorted((t for t in found if t.startswith(folder)), key=lambda test: (self.seconds[test], test))
        spent, chosen = 0.0, list[str]()
        for test in ordered:
            spent += self.seconds[test]
            if chosen and spent > budget:
                break
            chosen.append(test)
        return chosen


def measured(items: Mapping[str, pytest.Item], files: Sequence[Path], root: Path) -> Baseline:
    """Measure the tests in a fork, so that nothing they leave behind is there when mutants are tried.

    Args:
        items: the tests by name.
        files: that are mutated.
        root: of the repository.

    Raises:
        UsageError: a test fails.
    """
    print(f"running {len(items)} tests without a mutant", flush=True)
    code, text = in_fork(lambda write: _measure(items, files, root, write))
    if code:
        raise pytest.UsageError(f"without any mutant {text or 'the tests end with ' + str(code)}")
    found = json.loads(text)
    return Baseline(found["seconds"], {(path, line): tests for path, line, tests in found["runs"]}, found["modules"])


def _measure(items: Mapping[str, pytest.Item], files: Sequence[Path], root: Path, write: Callable[[str], None]) -> int:
    import coverage

    known = set(sys.modules)
    watch = coverage.Coverage(data_file=None, config_file=False, include=[str(path) for path in files])
    seconds = {}
    watch.start()
    for name, item in items.items():
        watch.switch_context(name)
        start = time.process_time()
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
            write(f"{name} fails")
            return 1
        seconds[name] = time.process_time() - start
    watch.stop()
    data = watch.get_data()
    runs = [
        (path.relative_to(root).as_posix(), line, [*filter(None, tests)])
        for path in files
        for line, tests in data.contexts_by_lineno(str(path)).items()
    ]
    write(json.dumps({"seconds": seconds, "runs": runs, "modules": [*sys.modules.keys() - known]}))
    return 0
