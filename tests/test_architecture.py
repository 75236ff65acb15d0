"""The two laws of docs/architecture.md, enforced: data flows one way, and a room imports only what its line allows."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.commands import ROOT, fresh

PACKAGE = ROOT / "immunize"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FILES = sorted(PACKAGE.rglob("*.py"))

TABLE = {
    tuple(re.findall(r"`(\w+)`", names)): allowed
    for names, _, allowed in re.findall(
        r"^\| (`.+?`) \| (.+) \| (.+) \|$", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"), re.M
    )
}
"""The table of docs/architecture.md: the places of each line, and the words of its last column."""
ENTRY_POINTS = {place for places, allowed in TABLE.items() if allowed == "everything" for place in places}
"""These see everything, and no room sees them."""
SHARED = {place for places, words in TABLE.items() if words in ("each other", "the line above") for place in places}
"""They belong to no room and import none."""
ALLOWED = {
    places[0]: [set(re.findall(r"`(\w+)`", part)) for part in allowed.partition(";")[::2]]
    for places, allowed in TABLE.items()
    if "`" in allowed
}
"""What each room may import, beside itself: in every file, and in addition in its `__main__.py`."""
ROOMS = set(ALLOWED)


def place_of(module: str) -> str:
    """The room or file directly under `immunize` that a dotted name belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "immunize"


def place_of_file(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return "immunize" if first == "__init__.py" else first.removesuffix(".py")


@functools.cache
def imports_of(path: Path, *, typing_only: bool = True) -> frozenset[str]:
    """Dotted names of everything a file imports, also within functions; `typing_only` includes TYPE_CHECKING blocks."""
    nodes = set(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    if not typing_only:
        checked = [node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        nodes.difference_update(*map(ast.walk, checked))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            if node.module == "immunize":
                found.update(f"immunize.{alias.name}" for alias in node.names)
    return frozenset(found)


def own_imports(path: Path, *, typing_only: bool = True) -> set[str]:
    """The places within `immunize` that a file imports."""
    names = imports_of(path, typing_only=typing_only)
    return {place_of(name) for name in names if name.partition(".")[0] == "immunize"}


def files_of(place: str) -> list[Path]:
    """The files of a room, or the one file, of which there is at least one."""
    paths = [path for path in FILES if place_of_file(path) == place]
    assert paths, f"there is no {place}"
    return paths


def test_every_place_has_a_line() -> None:
    """And every line a place, so that no test below looks at nothing; the package's own `__init__` has none."""
    assert {place_of_file(path) for path in FILES} == ROOMS | ENTRY_POINTS | SHARED | {"immunize"}
    assert {"data", "features", "spectrum", "objective", "training", "evaluation", "report"} == ROOMS
    assert ALLOWED["report"] == [{"records", "config", "errors", "files"}, {"cli"}]


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_room_imports_only_what_its_line_allows(room: str) -> None:
    everywhere, command_line = ALLOWED[room]
    for path in files_of(room):
        allowed = {room} | everywhere | (command_line if path.name == "__main__.py" else set())
        assert own_imports(path) <= allowed, path.relative_to(ROOT)


@pytest.mark.parametrize("place", sorted(SHARED))
def test_shared_file_imports_no_room(place: str) -> None:
    """But `instantiate`, which sees data as a type."""
    for path in files_of(place):
        assert not own_imports(path, typing_only=place != "instantiate") & (ROOMS | ENTRY_POINTS)


def test_places_form_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        if path != PACKAGE / "__init__.py":  # loads its names on first use
            place = place_of_file(path)
            graph.setdefault(place, set()).update(own_imports(path) - {place, "immunize"})
    TopologicalSorter(graph).prepare()


def test_modules_form_no_cycle_when_imported() -> None:
    """Within rooms too, as far as imports at the top of files go."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    graph = {
        name: {other for other in imports_of(path, typing_only=False) if other in names and other != name}
        for name, path in names.items()
        if path.name != "__init__.py"
    }
    TopologicalSorter(graph).prepare()


def test_importing_them_imports_no_torch() -> None:
    code = "import sys, immunize.report, immunize.data, immunize.sweeping; sys.exit('torch' in sys.modules)"
    assert fresh("-c", code, cwd=ROOT, timeout=60).returncode == 0


def test_training_is_blind_to_methods() -> None:
    methods = {path.stem for path in (ROOT / "conf" / "method").glob("*.yaml")}
    assert "ours" in methods
    for path in files_of("training"):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        parts = [part for node in tree if isinstance(node, ast.Compare) for part in ast.walk(node)]
        assert not {part.value for part in parts if isinstance(part, ast.Constant)} & methods, path
        assert not any("objective." in name and name != "immunize.objective" for name in imports_of(path)), path


def test_files_are_short_enough_to_read() -> None:
    lines = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: count for path, count in lines.items() if count > 500} == {}


def test_nothing_executes_what_a_checkpoint_holds() -> None:
    for path in FILES:
        source = path.read_text(encoding="utf-8")
        assert "pickle" not in imports_of(path)
        assert "torch.load(" not in source or "weights_only=True" in source, path


MODULE_OF = {"hydra-core": "hydra", "scikit-learn": "sklearn", "pillow": "PIL", "huggingface-hub": "huggingface_hub"}
"""Where a package is not called as what is imported of it."""


def test_dependencies_are_what_is_imported() -> None:
    """The wheel's test borrows an environment; a package that only another one brings along would not be missed."""
    declared = {MODULE_OF.get(name, name) for line in PROJECT["dependencies"] for name in re.findall(r"^[\w-]+", line)}
    files = [*FILES, *(ROOT / "hydra_plugins").rglob("*.py")]
    imported = {name.partition(".")[0] for path in files for name in imports_of(path, typing_only=False)}
    assert imported - sys.stdlib_module_names - {"immunize"} == declared


def test_what_is_declared_is_pinned() -> None:
    """`constraints.txt` names the version of each, so that CI and a user's checkout run on the same."""
    lines = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = re.findall(r"^([a-z0-9-]+)==[0-9]\S*$", text, re.M)
    assert pinned == sorted(set(pinned))
    assert len(pinned) == sum(not line.startswith("#") for line in text.splitlines())
    assert {name for line in lines for name in re.findall(r"^[\w-]+", line)} <= set(pinned)
