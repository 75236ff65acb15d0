"""The gate of `.ci/run`: branches are counted room by room."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("branches", Path(__file__).parents[1] / ".ci/branches.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(**covered: int) -> dict[str, Any]:
    """Ten branches a file."""
    files = {f"immunize/{name.replace('__', '/')}.py": n for name, n in covered.items()}
    return {
        "files": {
            name: {"summary": {"num_branches": 10, "covered_branches": n, "num_statements": 99}}
            for name, n in files.items()
        }
    }


@pytest.mark.parametrize(("covered", "code"), [((10, 8), 0), ((10, 7), 1), ((9, 9), 0)])
def test_a_room_that_is_tested_less_is_not_made_up_for(
    gate: ModuleType, tmp_path: Path, covered: tuple[int, int], code: int
) -> None:
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps(report(spectrum__a=covered[0], spectrum__b=covered[1], objective__a=10)))
    assert gate.main([str(path), "spectrum", "objective"]) == code


def test_a_room_that_is_not_there_is_an_error(gate: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps(report(spectrum__a=10)))
    with pytest.raises(ValueError, match="immunize/evaluation"):
        gate.main([str(path), "spectrum", "evaluation"])
