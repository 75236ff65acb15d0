"""The tests without any mutant: what each costs and which lines it runs; measured once, and again where needed."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def measured(items: Mapping[str, pytest.Item], files: Sequence[Path], root: Path, cache: Path) -> Baseline:
    """Measure the tests in a fork, so that nothing they leave behind is there when mutants are tried.

    A test is measured again where its own file, a module beside the tests, or a source file that it ran has changed.

    Args:
        items: the tests by name.
        files: that are mutated.
        root: of the repository.
        cache: a JSON file.

    Raises:
        UsageError: a test fails.
    """
    digests = {path.relative_to(root).as_posix(): _digest([path]) for path in files}
    helpers = sorted(path for path in (root / "tests").glob("*.py") if not path.name.startswith("test_"))
    stamps = {name: _digest([*helpers, item.path]) for name, item in items.items()}
    known: dict[str, Any] = {"tests": {}, "modules": []}
    if cache.is_file():
        known = json.loads(cache.read_text(encoding="utf-8"))

    def holds(name: str) -> bool:
        fact = known["tests"].get(name)
        return fact and fact["stamp"] == stamps[name] and all(digests.get(p) == d for p, d in fact["files"].items())

    tests = {name: known["tests"][name] for name in items if holds(name)}
    missing = {name: item for name, item in items.items() if name not in tests}
    modules = known["modules"]
    if missing:
        print(f"running {len(missing)} tests without a mutant", flush=True)
        code, text = in_fork(lambda write: _measure(missing, files, root, write))
        if code:
            raise pytest.UsageError(f"without any mutant {text or 'the tests end with ' + str(code)}")
        found = json.loads(text)
        for name, fact in found["tests"].items():
            tests[name] = {**fact, "stamp": stamps[name], "files": {path: digests[path] for path in fact["lines"]}}
        modules = sorted({*modules, *found["modules"]})
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps({"tests": tests, "modules": modules}), encoding="utf-8")
    runs: dict[tuple[str, int], list[str]] = {}
    for name, fact in tests.items():
        for path, lines in fact["lines"].items():
            for line in lines:
                runs.setdefault((path, line), []).append(name)
    return Baseline({name: fact["seconds"] for name, fact in tests.items()}, runs, modules)


def _measure(items: Mapping[str, pytest.Item], files: Sequence[Path], root: Path, write: Callable[[str], None]) -> int:
    import coverage

    known = set(sys.modules)
    watch = coverage.Coverage(data_file=None, config_file=False, include=[str(path) for path in files])
    facts: dict[str, Any] = {}
    watch.start()
    for name, item in items.items():
        watch.switch_context(name)
        start = time.process_time()
        reports = runtestprotocol(item, log=False, nextitem=None)
        if any(report.failed for report in reports):
            write(f"{name} fails")
            return 1
        facts[name] = {"seconds": time.process_time() - start, "lines": {}}
    watch.stop()
    data = watch.get_data()
    for path in files:
        for line, tests in data.contexts_by_lineno(str(path)).items():
            for name in filter(None, tests):
                facts[name]["lines"].setdefault(path.relative_to(root).as_posix(), []).append(line)
    modules = [name for name in sys.modules if name not in known]
    write(json.dumps({"tests": facts, "modules": modules}))
    return 0


def _digest(paths: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]
