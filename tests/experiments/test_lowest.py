"""`make lowest`: the bounds it installs are those of pyproject.toml, and its page tells what failed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from experiments.lowest import __main__ as lowest

FACTS = {
    "installed": {"torch": "2.4.0"},
    "python": "3.11.0",
    "git_commit": "abc",
    "date": "2030-01-02",
    "hardware": {"processor": "p", "cores": 2, "system": "Linux"},
}
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="one" time="1.5"/>
<testcase classname="tests.test_a" name="two[x]" time="1"><failure message="no"/></testcase>
<testcase classname="tests.room.test_b" name="three" time="0"><error message="no"/></testcase>
<testcase classname="tests.test_a" name="four" time="0"><skipped/></testcase>
</testsuite></testsuites>"""


def test_every_dependency_has_one_lower_bound() -> None:
    project = tomllib.loads((lowest.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = lowest.bounds(project)
    assert {"torch", "torchvision", "hydra-core", "pytest"} <= found.keys()
    for text in project["dependencies"]:
        name, _, bound = text.partition(">=")
        assert found[name] == bound
    extras = project["optional-dependencies"]
    for name in set(extras) - {"dev", "docs"}:  # what dev repeats of the others has to agree with them
        for text in extras[name]:
            package, _, bound = text.partition(">=")
            assert found[package] == bound


@pytest.mark.parametrize("text", ["torch", "torch==2.4", "torch<3"])
def test_dependency_without_a_bound_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no lower bound"):
        lowest.bounds({"dependencies": [text], "optional-dependencies": {"dev": []}})


def test_two_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="two lower bounds"):
        lowest.bounds({"dependencies": ["torch>=2.4"], "optional-dependencies": {"dev": ["torch>=2.5"]}})


def test_page_tells_what_failed(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    found = lowest.outcome(tmp_path / "junit.xml")
    assert found == lowest.Outcome(1, 1, ("tests/test_a.py::two[x]", "tests/room/test_b.py::three"), 2.5)
    text = lowest.page(found, ["tests/test_a.py"], {"torch": "2.4", "lightning": "2.4"}, FACTS)
    assert "| tests | a part: `pytest tests/test_a.py` |" in text
    assert "| outcome | 1 passed, 2 failed, 1 skipped |" in text
    assert "- `tests/room/test_b.py::three`" in text
    assert "| `torch` | 2.4 | 2.4.0 |" in text
    assert "| `lightning` | 2.4 | missing |" in text
    assert "| tests | all but the wheel's |" in lowest.page(found, lowest.EVERYTHING, {}, FACTS)


@pytest.mark.skipif(not lowest.README.is_file(), reason="`make lowest` was not run yet")
def test_committed_page_names_the_bounds_of_now() -> None:
    """A bound that was changed since has to be tried again."""
    project = tomllib.loads((lowest.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = lowest.README.read_text(encoding="utf-8")
    for name, bound in lowest.bounds(project).items():
        assert f"| `{name}` | {bound} | " in text
    assert " 0 failed, " in text
