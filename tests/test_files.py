"""Files that several processes write at once: no write fails, no reader sees half of one, nothing is left behind."""

from __future__ import annotations

import errno
import json
import multiprocessing
import resource
import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from immunize.files import whole, write_tensors, write_text
from immunize.records import RECORD, write_record

WRITERS, WRITES, LENGTH = 2, 100, 2_000


def _hammer(folder: Path, number: int) -> None:
    """Write the same record over and over; its numbers are all the writer's own."""
    for _ in range(WRITES):
        write_record(folder, {"writer": number, "values": [number] * LENGTH})


def _torn(folder: Path) -> Any:
    """What is wrong with the record that is there now; None where nothing is."""
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    return None if record["values"] == [record["writer"]] * LENGTH else record


def test_processes_that_write_the_same_record_neither_fail_nor_mix(tmp_path: Path) -> None:
    write_record(tmp_path, {"writer": 0, "values": [0] * LENGTH})
    with ProcessPoolExecutor(WRITERS, multiprocessing.get_context("spawn")) as pool:
        writers = [pool.submit(_hammer, tmp_path, number) for number in range(WRITERS)]
        looks = 0
        while not all(writer.done() for writer in writers):
            assert _torn(tmp_path) is None
            looks += 1
        assert [writer.exception() for writer in writers] == [None] * WRITERS
    assert looks > WRITERS
    assert _torn(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == [RECORD]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), SystemExit(143)])
def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(error: BaseException, tmp_path: Path) -> None:
    path = write_text(tmp_path / "below" / "a.txt", "before")

    def half() -> None:
        with whole(path) as partial:
            partial.write_text("half of it", encoding="utf-8")
            raise error

    with pytest.raises(type(error)) as caught:
        half()
    assert str(path) in str(caught.value) or not isinstance(error, OSError)
    assert path.read_text(encoding="utf-8") == "before"
    assert list(path.parent.iterdir()) == [path]


def test_tensors_that_find_no_room_are_an_error_of_the_file(tmp_path: Path) -> None:
    path, before = tmp_path / "θ", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(OSError, match=r"os error.*θ"):
            write_tensors(path, {"θ": torch.eye(9)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_what_is_put_in_place_is_written_as_any_file(tmp_path: Path) -> None:
    """Readable to whom other files of the process are, and its line ends untouched."""
    plain = tmp_path / "plain"
    plain.touch()
    path = write_text(tmp_path / "a.txt", "é\r\n\n\udcff")  # of a folder whose name is in no encoding
    assert path.read_bytes() == "é\r\n\n?".encode()
    facts = {"key": '{"a": "é\n\\ \u0001/"}', "format": "pt", "b": "2"}
    tensors = {"β.fit": torch.arange(6.0).view(2, 3), "head": torch.eye(2, dtype=torch.float64)}
    weights = [tmp_path / str(number) for number in range(8)]
    for file in weights:
        write_tensors(file, tensors, facts)
    assert len({file.read_bytes() for file in weights}) == 1  # safetensors has metadata in an order of chance
    with safe_open(weights[0], "pt") as stored:
        assert stored.metadata() == facts
        assert all(torch.equal(stored.get_tensor(name), tensors[name]) for name in tensors)
    for written in (path, weights[0]):
        assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
