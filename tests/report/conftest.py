"""One real run that the tests of reports vary, and figures that are drawn only where a test looks at them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from matplotlib.figure import Figure

from immunize.records import ATTACK_RECORD, read_record
from tests.composing import empty_figure
from tests.report.making import Record, table1_records, with_change

SAVE = Figure.savefig


@pytest.fixture(scope="module", autouse=True)
def undrawn() -> Iterator[None]:
    """A figure is an empty file."""
    with mock.patch.object(Figure, "savefig", empty_figure):
        yield


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of figures."""
    monkeypatch.setattr(Figure, "savefig", SAVE)


@pytest.fixture
def record(finished_run: Path) -> Record:
    """A finished run."""
    return with_change(read_record(finished_run), config__data_root="data")  # whatever IMMUNIZE_DATA says


@pytest.fixture
def base(record: Record) -> Record:
    """The same, to make others of."""
    return record


@pytest.fixture
def attack(attacked_run: Path) -> Record:
    """The record of an attack on it."""
    return dict(json.loads((attacked_run / ATTACK_RECORD).read_text()))


@pytest.fixture
def table1(base: Record) -> list[Record]:
    """Three seeds of every method."""
    return table1_records(base, range(3))
