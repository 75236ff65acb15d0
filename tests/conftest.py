"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def data_root() -> Path:
    """The folder with the real data packs; skips the test where there is none."""
    folder = os.environ.get("IMMUNIZE_DATA")
    if not folder:
        pytest.skip("needs real data: set the environment variable IMMUNIZE_DATA to the folder that holds it")
    return Path(folder)
