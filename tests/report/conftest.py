"""One real run that the tests of reports vary."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from immunize.records import read_record
from tests.composing import run_tiny


@pytest.fixture(scope="session")
def stored_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("report")
    run_tiny(folder, "probe_steps=2000", "data_root=data")  # whatever IMMUNIZE_DATA says
    return read_record(folder)


@pytest.fixture
def base(stored_run: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(stored_run)
