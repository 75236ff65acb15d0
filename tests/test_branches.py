"""The gate of `.ci/run`: branches are counted room by room."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("covered", "code"), [((10, 8), 0), ((10, 7), 1), ((9, 9), 0)])
def test_no_room_makes_up_for_another(tmp_path: Path, covered: tuple[int, int], code: int) -> None:
    """Ten branches a file."""
    spec = importlib.util.spec_from_file_location("branches", Path(__file__).parents[1] / ".ci/branches.py")
    gate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gate)
    found = {"spectrum/a": covered[0], "spectrum/b": covered[1], "objective/a": 10}
    counts = {"num_branches": 10, "num_statements": 99}
    files = {f"immunize/{name}.py": {"summary": counts | {"covered_branches": n}} for name, n in found.items()}
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps({"files": files}))
    assert gate.main([str(path), "spectrum", "objective"]) == code
    with pytest.raises(ValueError, match="immunize/evaluation"):  # a room that is not there
        gate.main([str(path), "spectrum", "evaluation"])


def test_nothing_is_counted_in_tests_of_no_room() -> None:
    assert "coverage" not in type(sys.gettrace()).__module__  # which `make test COVERAGE=1` would be slowed down by
