"""What is mutated: one small change in the body or the defaults of a function, by mutmut's operators.

Mutmut's own runner leaves decorated functions alone (here: gradients, cached functions, properties) and runs the tests
in no order, so only its operators are taken (`mutmut.mutation.mutators`): another arithmetic operator, comparison,
number, string or keyword, an argument left out or None, a condition that always or never holds.

Text for people is no behaviour that a test should pin down word by word. Mutants within a `raise`, an f-string, or a
string of several parts or with a space are counted as `text` and not run; docstrings, annotations and decorators have
none.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

LEFT_OUT = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)
SIMPLE = (cst.Name, cst.BaseNumber, cst.BaseString)
"""Defaults that are mutated; others are computed when the module is imported."""
MEASURES = {"len", "isinstance"}
"""Calls whose arguments are left alone: all that can come of it is a TypeError."""


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        key: of the changed function: the same as long as nothing else in that function changes.
        path: of the file, relative to the root of the repository.
        function: its qualified name.
        line: where the change begins.
        operator: mutmut's name of the kind of change.
        before: the lines that it touches, on one line.
        after: what becomes of them.
        text: it only changes words for people.
        signature: it changes a default.
        lines: first and last line of the statement; a test that runs none of them cannot see the change.
        source: the whole changed file.
    """

    key: str
    path: str
    function: str
    line: int
    operator: str
    before: str
    after: str
    text: bool
    signature: bool
    lines: tuple[int, int]
    source: str


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines; two changes with the same result are one.

    Args:
        path: of the file.
        root: that names are relative to.
    """
    text = path.read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    ranges = wrapper.resolve(PositionProvider)
    source = _Source(text, path.relative_to(root).as_posix(), wrapper.module, ranges)
    found: dict[str, Mutant] = {}
    for name, function in _functions(wrapper.module.body, ""):
        changes = _Changes(ranges)
        function.visit(changes)
        for change in changes.found:
            mutant = source.changed(name, function, change)
            found.setdefault(mutant.key, mutant)
    return sorted(found.values(), key=lambda mutant: mutant.line)


def sample(mutants: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """A random part, stratified by file: each file's share is its share of all mutants, and at least one.

    The draw depends on keys and seed alone: a larger sample holds the smaller one, and a change in one function does
    not change what is drawn elsewhere.

    Args:
        mutants: of all files.
        size: about how many; all of them where there are no more.
        seed: of the draw.
    """
    files: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        files.setdefault(mutant.path, []).append(mutant)
    drawn = []
    for group in files.values():
        count = min(len(group), max(1, math.ceil(size * len(group) / len(mutants))))
        drawn += sorted(group, key=lambda m: hashlib.sha256(f"{seed}:{m.key}".encode()).digest())[:count]
    return drawn


@dataclass(frozen=True)
class _Change:
    operator: str
    node: cst.CSTNode
    mutated: cst.CSTNode
    text: bool
    first_line: int | None
    """Of the statement around it, where that is not the node's own."""
    last_line: int | None


class _Changes(cst.CSTVisitor):
    """Finds the changes within one function."""

    def __init__(self, ranges: Any) -> None:
        self.ranges, self.found = ranges, list[_Change]()
        self.statement: CodeRange | None = None
        self.header: int | None = None
        self.words = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, LEFT_OUT) or _is_measure(node):
            return False
        if isinstance(node, cst.Param) and node.default and not isinstance(node.default, SIMPLE):
            return False
        if isinstance(node, cst.SimpleStatementLine):
            self.statement = self.ranges[node]
        elif isinstance(node, cst.BaseCompoundStatement):
            self.header = self.ranges[node].start.line
        self.words += _is_text(node)
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                self.found += [self._change(operator.__name__, node, mutated) for mutated in operator(node)]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self.words -= _is_text(original_node)
        if isinstance(original_node, cst.SimpleStatementLine):
            self.statement = None

    def _change(self, operator: str, node: cst.CSTNode, mutated: cst.CSTNode) -> _Change:
        name = operator.removeprefix("operator_")
        if self.statement is not None:
            return _Change(name, node, mutated, self.words > 0, self.statement.start.line, self.statement.end.line)
        return _Change(name, node, mutated, self.words > 0, self.header, None)


class _Source:
    """A file's text, and what becomes of it."""

    def __init__(self, text: str, path: str, module: cst.Module, ranges: Any) -> None:
        self.text, self.path, self.module, self.ranges = text, path, module, ranges
        self.starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]

    def changed(self, name: str, function: cst.FunctionDef, change: _Change) -> Mutant:
        own, whole = self.ranges[change.node], self.ranges[function]
        body = self.ranges[function.body].start.line
        start, end = self._at(own.start), self._at(own.end)
        new = self.module.code_for_node(change.mutated)
        first = self.starts[own.start.line - 1]
        last = self.starts[min(bisect_right(self.starts, end - 1), len(self.starts) - 1)]
        result = self.text[self._at(whole.start) : start] + new + self.text[end : self._at(whole.end)]
        signature = own.start.line < body
        lines = (change.first_line or own.start.line, change.last_line or own.end.line)
        return Mutant(
            key=hashlib.sha256(f"{self.path}:{name}:{result}".encode()).hexdigest()[:12],
            path=self.path,
            function=name,
            line=own.start.line,
            operator=change.operator,
            before=" ".join(self.text[first:last].split()),
            after=" ".join((self.text[first:start] + new + self.text[end:last]).split()),
            text=change.text,
            signature=signature,
            lines=(body, whole.end.line) if signature else lines,
            source=self.text[:start] + new + self.text[end:],
        )

    def _at(self, position: Any) -> int:
        offset: int = self.starts[position.line - 1] + position.column
        return offset


def _functions(body: Sequence[cst.CSTNode], prefix: str) -> Iterator[tuple[str, cst.FunctionDef]]:
    """Functions and methods, each with those within it."""
    for node in body:
        if isinstance(node, cst.FunctionDef):
            yield prefix + node.name.value, node
        elif isinstance(node, cst.ClassDef):
            yield from _functions(node.body.body, f"{prefix}{node.name.value}.")


def _is_measure(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in MEASURES


def _is_text(node: cst.CSTNode) -> bool:
    parts = (cst.Raise, cst.FormattedString, cst.ConcatenatedString)
    return isinstance(node, parts) or (isinstance(node, cst.SimpleString) and " " in node.value)
