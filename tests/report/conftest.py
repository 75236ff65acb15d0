"""One real run that the tests of reports vary, and figures that are drawn only where a test looks at them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from matplotlib.figure import Figure

from immunize.records import ATTACK_RECORD, read_record
from tests.composing import empty_figure, run_tiny

SAVE = Figure.savefig
Record = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def undrawn() -> Iterator[None]:
    """A figure is an empty file."""
    with mock.patch.object(Figure, "savefig", empty_figure):
        yield


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of figures."""
    monkeypatch.setattr(Figure, "savefig", SAVE)


@pytest.fixture(scope="session")
def stored_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("report")
    run_tiny(folder, "probe_steps=2000", "data_root=data")  # whatever IMMUNIZE_DATA says
    return read_record(folder)


@pytest.fixture
def record(attacked_run: Path) -> Record:
    """A finished run that was attacked."""
    return read_record(attacked_run)


@pytest.fixture
def attack(attacked_run: Path) -> Record:
    """Its attack record."""
    return dict(json.loads((attacked_run / ATTACK_RECORD).read_text()))


@pytest.fixture
def base(stored_run: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(stored_run)
