"""A part of a run in a fork beside another part: `immunize.processes.beside`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from immunize import processes
from immunize.processes import beside, can_fork


def test_result_is_that_of_another_process_at_the_same_time(tmp_path: Path) -> None:
    said = tmp_path / "said"

    def work() -> tuple[int, str]:
        while not (said.exists() and said.read_text()):  # by the body, which runs meanwhile
            time.sleep(0.01)
        return os.getpid(), said.read_text()

    with beside(work) as result:
        said.write_text("both")
        process, text = result()
    assert process != os.getpid()
    assert text == "both"


def test_tensors_come_back() -> None:
    with beside(lambda: {"theta": torch.arange(1e6, dtype=torch.float64)}) as result:
        theta = result()["theta"]
    assert torch.equal(theta, torch.arange(1e6, dtype=torch.float64))


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 1 / 0])
def test_work_of_a_fork_that_failed_is_done_here(end: object) -> None:
    here = os.getpid()

    def work() -> int:
        if os.getpid() != here:
            end()  # type: ignore[operator]
        return os.getpid()

    with beside(work) as result:
        assert result() == here


def test_error_is_raised_here_and_not_printed_twice(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise ValueError("wrong")

    with beside(work) as result, pytest.raises(ValueError, match="wrong"):
        result()
    assert capfd.readouterr() == ("", "")


def test_fork_is_gone_when_the_body_is_interrupted() -> None:
    before = set(multiprocessing.active_children())

    def interrupted() -> None:
        with beside(lambda: time.sleep(600)):
            assert len(set(multiprocessing.active_children()) - before) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert set(multiprocessing.active_children()) == before


def test_ctrl_c_does_not_reach_the_fork(tmp_path: Path) -> None:
    begun, told = tmp_path / "begun", tmp_path / "told"

    def work() -> str:
        begun.write_text(str(os.getpid()))
        while not told.exists():
            time.sleep(0.01)
        return "done"

    with beside(work) as result:
        while not (begun.exists() and begun.read_text()):
            time.sleep(0.01)
        os.kill(int(begun.read_text()), signal.SIGINT)
        told.touch()
        assert result() == "done"


def test_no_fork_without_a_core_for_it_or_beside_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cores", lambda: 2)
    for name in processes.OUTSIDE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert can_fork(2)
    assert not can_fork(3)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert not can_fork(2)
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.setattr("sys.platform", "darwin")
    assert not can_fork(2)
