"""The parts of `make bench` about commands as a whole: what imports take, and what busy processes beside them cost."""

from __future__ import annotations

import os
import sys
import time

import pytest

from experiments.bench import busy, start
from experiments.bench.machine import timed_command
from immunize.errors import UserError

IMPORTTIME = """import time: self [us] | cumulative | imported package
import time:       100 |        100 |   torch._C
import time:      2000 |       2100 | torch
import time:        30 |         30 |     json.decoder
import time:        50 |         80 |   json
import time:       500 |        580 | numpy
digits: loading
"""


def test_imports_are_told_by_package() -> None:
    assert start.imports(IMPORTTIME) == [
        {"package": "torch", "modules": 2, "seconds": 0.002},
        {"package": "numpy", "modules": 1, "seconds": 0.001},
        {"package": "Python's own", "modules": 2, "seconds": 0.0},
        {"package": "others", "modules": 0, "seconds": 0.0},
    ]


def test_what_is_not_shown_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "SHOWN", 1)
    assert start.imports(IMPORTTIME)[1:] == [{"package": "others", "modules": 3, "seconds": 0.001}]


def test_a_command_is_timed_by_clock_and_processor() -> None:
    seconds, processor, peak = timed_command([sys.executable, "-c", "import time; time.sleep(1)"])
    assert seconds >= 1
    assert processor < seconds
    assert peak > 1e6
    with pytest.raises(UserError, match="ended with 1: no data"):
        timed_command([sys.executable, "-c", "raise SystemExit('no data')"])


def test_the_cores_are_busy_within_and_free_after() -> None:
    with busy.loaded("loops", 2):
        time.sleep(1)
    spent = os.times()
    assert spent.children_user > 0.1  # of the loops, which have ended
    time.sleep(0.3)
    assert os.times().children_user == spent.children_user


def test_a_command_is_measured_alone_and_beside_a_load() -> None:
    row = busy.measure("nothing", ["this"], ["loops"])
    assert row.keys() == {"command", "idle_s", "loops_s", "loops_ratio"}
    assert row["loops_ratio"] == pytest.approx(row["loops_s"] / row["idle_s"], abs=0.01)
