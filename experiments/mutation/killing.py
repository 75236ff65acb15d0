"""Does a test notice? Pytest collects once, and each mutant is tried in a fork of that process.

In the fork the changed code takes the place of the original's within the function objects themselves, so whoever has
imported the function sees the change, and nothing is imported or collected again. The tests of the mutant's room that
run its lines go first to last from the fastest, up to a budget; the first that fails kills it.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import resource
import signal
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from experiments.mutation.baseline import measured
from experiments.mutation.forks import in_fork
from experiments.mutation.mutants import Mutant

if TYPE_CHECKING:
    from experiments.mutation.__main__ import Settings

SURVIVED, KILLED, INVALID, TIMEOUT, UNCOVERED = "survived", "killed", "invalid", "timeout", "uncovered"
CODES = {0: SURVIVED, 1: KILLED, 2: INVALID}
PATIENCE, GRACE = 10, 10.0
"""A mutant may take so many times the CPU time of its tests, and so many seconds more."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the status, and the test that noticed (or how many have not)."""

    status: str
    test: str


class Trials:
    """A plugin that tries mutants instead of running the tests.

    Args:
        settings: what the command asks for.
        mutants: to be tried.
        told: called with each outcome.
    """

    def __init__(self, settings: Settings, mutants: Sequence[Mutant], told: Callable[[Mutant, Outcome], None]) -> None:
        self.settings, self.root, self.mutants, self.told = settings, settings.root, mutants, told
        self.items: dict[str, pytest.Item] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure the tests, then try every mutant."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        for path in self.settings.files:
            importlib.import_module(".".join(path.relative_to(self.root).with_suffix("").parts))
        self.items = {item.nodeid: item for item in session.items}
        for item in session.items:
            _with_few_examples(item, self.settings.examples)
        baseline = measured(self.items, self.settings.files, self.root)
        for name in baseline.modules:  # what tests import while they run is imported once, here
            with contextlib.suppress(Exception, SystemExit):  # such as a module that only exists within a test
                importlib.import_module(name)
        live = _live_functions(self.root)
        gc.freeze()
        for mutant in self.mutants:
            folder = f"{self.settings.tests_of(mutant.path)}/"
            tests = baseline.tests_of(mutant, folder, self.settings.seconds)
            limit = PATIENCE * sum(baseline.seconds[test] for test in tests) + GRACE
            self.told(mutant, self._try(mutant, tests, live, limit) if tests else Outcome(UNCOVERED, ""))
        return True

    def _try(self, mutant: Mutant, tests: Sequence[str], live: dict[Any, list[Any]], limit: float) -> Outcome:
        def attempt(write: Callable[[str], None]) -> int:
            seconds = round(limit) + 1
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            signal.alarm(60 * seconds)  # for one that sleeps; other processes may have most of the machine
            try:
                _swap(mutant, live[str(self.root / mutant.path), mutant.function])
            except (SyntaxError, ValueError, KeyError) as error:
                write(f"{type(error).__name__}: {error}")
                return 2
            for test in tests:
                write(f"{test}\n")
                if any(report.failed for report in runtestprotocol(self.items[test], log=False, nextitem=None)):
                    return 1
            return 0

        code, told = in_fork(attempt)
        status = TIMEOUT if -code in (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL) else CODES.get(code, KILLED)
        if status == SURVIVED:
            return Outcome(status, f"{len(tests)} tests")
        return Outcome(status, told.strip().splitlines()[-1] if told.strip() else "")


def _with_few_examples(item: pytest.Item, most: int) -> None:
    """Fewer random examples of a property test, and no search for the smallest one that fails."""
    from hypothesis import Phase, settings

    function = getattr(item, "obj", None)
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    if function is not None and own is not None:
        fewer = settings(own, max_examples=min(most, own.max_examples), phases=(Phase.explicit, Phase.generate))
        getattr(function, "__func__", function)._hypothesis_internal_use_settings = fewer


def _live_functions(root: Path) -> dict[tuple[str, str], list[types.FunctionType]]:
    """The function objects of a file by qualified name, also those that a decorator hides."""
    found: dict[tuple[str, str], list[types.FunctionType]] = {}
    gc.unfreeze()  # what the tests have set aside is not among the objects
    for one in gc.get_objects():
        if type(one) is types.FunctionType and one.__code__.co_filename.startswith(str(root)):
            found.setdefault((one.__code__.co_filename, one.__code__.co_qualname), []).append(one)
    return found


def _swap(mutant: Mutant, functions: Iterable[types.FunctionType]) -> None:
    """Give the functions the mutant's code and defaults."""
    code = _code_of(compile(mutant.source, mutant.path, "exec", dont_inherit=True), mutant.function)
    for function in functions:
        if mutant.signature:
            definition = _definition(ast.parse(mutant.source).body, mutant.function.split("."))
            definition.decorator_list, definition.body = [], [ast.Pass()]
            scope = dict(function.__globals__)
            future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
            module = ast.fix_missing_locations(ast.Module([future, definition], []))
            exec(compile(module, mutant.path, "exec", dont_inherit=True), scope)
            fresh = scope[definition.name]
            function.__defaults__, function.__kwdefaults__ = fresh.__defaults__, fresh.__kwdefaults__
        function.__code__ = code


def _code_of(code: types.CodeType, name: str) -> types.CodeType:
    """The code of a function of a module.

    Raises:
        KeyError: there is none of this name.
    """
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    for one in inner:
        if one.co_qualname == name:
            return one
        if name.startswith(f"{one.co_qualname}."):
            return _code_of(one, name)
    raise KeyError(name)


def _definition(body: Sequence[ast.stmt], names: Sequence[str]) -> ast.FunctionDef:
    for node in body:
        if isinstance(node, ast.FunctionDef) and [node.name] == list(names):
            return node
        if isinstance(node, ast.ClassDef) and node.name == names[0]:
            return _definition(node.body, names[1:])
    raise KeyError(".".join(names))
