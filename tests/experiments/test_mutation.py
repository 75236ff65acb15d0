"""`make mutation`: what is mutated, what is drawn, and a whole run on a small package with good and bad tests."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="needs pip install -e '.[dev]'")

from experiments.mutation.mutants import Mutant, mutants_of, sample
from tests.commands import fresh
from tests.tampering import csv_rows

RUN = "import sys, pathlib; from experiments.mutation.__main__ import run; run(sys.argv[1:], pathlib.Path.cwd())"
SOURCE = '''"""A module."""
import functools
LIMIT = 3
@functools.cache
def half(x: int = 4) -> float:
    """x/2."""
    if x > 10:
        raise ValueError(f"{x} + 1 is too large")
    return x / 2
class Box:
    size: int = 1
    @property
    def double(self) -> int:
        return self.size * 2
    def name(self) -> str:
        return "box" if self.size < 2 else "a large box"
'''
TESTS = """import pytest
from toy.code import Box, half
def test_half():
    assert half(6) == 3
    assert half(10) == 5
    pytest.raises(ValueError, half, 11)
def test_half_by_default():
    assert half() == 2
def test_box():
    assert Box().double > 1
"""


def toy(root: Path) -> Path:
    """A repository with one room."""
    settings = 'rooms = ["toy"]\nsample = "all"\nseed = 0\nseconds = 5\nexamples = 5\n'
    freezes = "import gc\n\ndef pytest_collection_finish():\n    gc.freeze()\n"  # as that of this repository
    files = {"toy/code.py": SOURCE, "tests/toy/test_code.py": TESTS, "tests/conftest.py": freezes}
    for name, text in (files | {"pyproject.toml": f"[tool.mutation]\n{settings}"}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def found(folder: Path, text: str = SOURCE, name: str = "code.py") -> list[Mutant]:
    path = folder / name
    path.write_text(text)
    return mutants_of(path, folder)


def test_bodies_and_defaults_are_mutated_also_behind_decorators(tmp_path: Path) -> None:
    mutants = {(m.function, m.after): m for m in found(tmp_path)}
    assert {m.function for m in mutants.values()} == {"half", "Box.double", "Box.name"}  # no constants
    assert mutants["half", "def half(x: int = 5) -> float:"].signature
    assert mutants["half", "return x * 2"].lines == (9, 9)
    for mutant in mutants.values():
        compile(mutant.source, "toy", "exec")
        assert mutant.source != SOURCE


def test_keys_stay_where_another_function_changes(tmp_path: Path) -> None:
    before = {m.key: m.function for m in found(tmp_path)}
    after = {m.key for m in found(tmp_path, SOURCE.replace("self.size * 2", "self.size * 4"))}
    assert {function for key, function in before.items() if key in after} == {"half", "Box.name"}


def test_a_sample_has_every_file_and_a_larger_one_holds_it(tmp_path: Path) -> None:
    mutants = found(tmp_path)
    mutants += found(tmp_path, "def one():\n    return 1 + 1\n", "small.py")
    drawn = [{m.key for m in sample(mutants, size, 3)} for size in (6, 12, 1000)]
    assert drawn[0] < drawn[1] < drawn[2] == {m.key for m in mutants}
    assert {m.path for m in sample(mutants, 6, 3)} == {"code.py", "small.py"}
    assert drawn[0] != {m.key for m in sample(mutants, 6, 4)}


def test_a_run_tells_noticed_from_unnoticed_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    root = toy(tmp_path)

    def mutate(*arguments: str) -> tuple[str, dict[str, dict[str, str]]]:
        done = fresh("-c", RUN, *arguments, cwd=root)
        assert done.returncode == 0, done.stderr
        return done.stdout, {row["after"]: row for row in csv_rows(tmp_path / "out" / "mutants.csv")}

    _, rows = mutate("out=out")
    status = {after: row["status"] for after, row in rows.items()}
    assert status["return x * 2"] == status["if x >= 10:"] == "killed"
    assert "test_half" in rows["return x * 2"]["test"]
    assert rows["def half(x: int = 5) -> float:"]["test"].endswith("test_half_by_default")
    assert status["return self.size * 3"] == "survived"  # the weak test
    assert status['return "BOX" if self.size < 2 else "a large box"'] == "uncovered"
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert f"| **all** | {len(rows)} | {len(rows)} |" in table
    assert "interval" not in table
    survivors = (tmp_path / "out" / "survivors.md").read_text(encoding="utf-8")
    assert "`return self.size * 3`" in survivors
    assert "x * 2" not in survivors.replace("self.size * 2", "")

    (root / "tests" / "toy" / "test_code.py").write_text(TESTS.replace("> 1", "== 2"))
    more, better = mutate("out=out", "again=survived")
    assert better["return self.size * 3"]["status"] == "killed"
    assert int(more.split(" of ")[1].split(":")[0]) < len(rows)  # the others are not done again
    assert all(better[after] == row for after, row in rows.items() if row["status"] != "survived")
