"""Threads: how many there are within, how many the machine lets a process have, and how they wait."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from immunize import threads
from tests.commands import ENVIRONMENT, ROOT, fresh

Content = str | bytes | None
TWO: dict[str, Content] = {"cpu.max": "200000 100000\n"}
V1, V2 = "3:memory:/x\n2:cpu,cpuacct:/jobs/one\n", "0::/jobs/one\n"


def blas_threads() -> set[int]:
    np.eye(2) @ np.eye(2)
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize("fails", [False, True])
def test_torch_and_blas_have_that_many_threads_within(fails: bool) -> None:
    with threads.cpu_threads(2):
        outside = torch.get_num_threads(), blas_threads()
        with contextlib.suppress(ArithmeticError), threads.cpu_threads(1), threads.cpu_threads(None):
            assert (torch.get_num_threads(), blas_threads()) == (1, {1})
            if fails:
                raise ArithmeticError
        assert (torch.get_num_threads(), blas_threads()) == outside == (2, {2})


def test_a_blas_that_is_loaded_within_has_that_many_threads() -> None:
    code = """
import os, sys
from threadpoolctl import threadpool_info
from immunize.threads import cpu_threads
with cpu_threads(1):
    assert "scipy.linalg" not in sys.modules
    import scipy.linalg
    blas = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    assert len(blas) > 1 and {pool["num_threads"] for pool in blas} == {1}, blas
assert os.environ.get("OPENBLAS_NUM_THREADS") == sys.argv[1]
"""
    done = fresh("-c", code, "2", cwd=ROOT, environment=ENVIRONMENT | {"OPENBLAS_NUM_THREADS": "2"})
    assert (done.returncode, done.stderr) == (0, "")


def v1(quota: int, folder: str) -> dict[str, Content]:
    """Files of a cgroup of version 1 with a quota."""
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("told", "files", "expected"),
    [
        ("", {}, 4),  # of five, by affinity
        ("0::/\n", TWO, 2),  # a container, which sees its own cgroup as the root
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),  # a part of a core counts as one
        (V2, {"jobs/one/cpu.max": "max 100000\n", "jobs/cpu.max": "300000 100000\n"}, 3),  # that of the group around
        (V2, {"unified/jobs/one/cpu.max": "200000 100000\n"}, 2),
        (V1, v1(200000, "cpu,cpuacct/jobs/one"), 2),
        (V1, v1(100000, "cpu"), 1),  # of a container that is told its path on the host
        (V1, v1(-1, "cpu,cpuacct/jobs/one"), 4),
        ("no colons\n", TWO, 2),
        ("0::/../outside\n", TWO, 2),
        ("0:://jobs\n", {"jobs/cpu.max": "200000 100000\n"}, 2),
        # what cannot be read; a folder, as root reads every file
        *(("0::/\n", {"cpu.max": text}, 4) for text in ("nonsense\n", b"\xff\xfe 1", None)),
        (None, TWO, 2),
    ],
)
def test_a_quota_leaves_so_many_cores(
    told: Content, files: dict[str, Content], expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`/proc/self/cgroup` as it is told, and files below `/sys/fs/cgroup`."""
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    below = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    for name, content in {"proc/self/cgroup": told, **below}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert threads.cores(tmp_path) == expected


GIB = 2**30
FREE = f"MemTotal: 99999999 kB\nMemAvailable: {8 * 2**20} kB\n"
LIMIT_1, LIMIT_2 = (
    {
        f"{at}{limit}": f"{4 * GIB}\n",
        f"{at}{used}": f"{3 * GIB}\n",
        f"{at}memory.stat": f"cache 7\n{total}inactive_file {GIB}\n{total}active_file 8\n",
    }
    for at, limit, used, total in (
        ("memory/x/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ("jobs/one/", "memory.max", "memory.current", ""),
    )
)


@pytest.mark.parametrize(
    ("told", "meminfo", "files", "expected"),
    [
        ("", FREE, {}, 8 * GIB),
        ("", "nothing of it\n", {}, None),
        (V2, FREE, LIMIT_2, 2 * GIB + 8),  # what is used for caches of files can be had
        (V2, "", LIMIT_2, 2 * GIB + 8),
        (V2, FREE, LIMIT_2 | {"jobs/one/memory.max": "max\n"}, 8 * GIB),
        (V2, FREE, LIMIT_2 | {"jobs/one/memory.current": f"{6 * GIB}\n", "jobs/one/memory.stat": "odd"}, 0),
        (V1, FREE, LIMIT_1, 2 * GIB + 8),
        ("3:memory:/\n2:cpu:/x\n", FREE, LIMIT_1, 8 * GIB),  # of a group that the process is in for another reason
        (V1, FREE, LIMIT_1 | {"memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, 8 * GIB),  # none
    ],
)
def test_memory_is_the_machines_and_of_it_what_a_cgroup_leaves(
    told: str, meminfo: str, files: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    below = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    for name, content in {"proc/self/cgroup": told, "proc/meminfo": meminfo, **below}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert threads.available_memory(tmp_path) == expected


@pytest.mark.parametrize(
    "case",  # the setting, cores that are left, OMP_NUM_THREADS, what it comes to, what is told
    [
        (8, 2, None, 2, ["threads=8 is more than the 2 cores that this process may use: it is 2"]),
        (2, 1, None, 1, ["threads=2 is more than the 1 core that this process may use: it is 1"]),
        (8, 4, None, 8, []),  # the machine has no more, and nobody has limited it: as asked
        (None, 2, None, 2, []),
        (None, 4, "3,1", 3, []),
        (None, 4, "many", 4, []),
        (2, 4, "1", 2, []),
    ],
)
def test_threads_are_at_most_what_the_quota_leaves(
    case: tuple[int | None, int, str | None, int, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    setting, left, openmp, expected, told = case
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(threads, "cores", lambda: left)
    monkeypatch.setattr(threads, "_quota", lambda: math.inf)
    monkeypatch.setattr(threads, "_physical_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if openmp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", openmp)
    threads._log_reduced.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert [threads.threads_in_force(setting), threads.threads_in_force(setting)] == [expected] * 2
    assert caplog.messages == told  # once, although it was asked for twice


# Ends a module at its first import of something that reads the variables, and tells whether they were set by then.
# A module that has no such import and never imports the package may do as it likes.
WATCHED = """
import os, sys
READERS = ("torch", "numpy", "scipy", "sklearn", "pandas", "lightning")
def is_set():
    return os.environ.get("OMP_WAIT_POLICY") == "PASSIVE"
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in READERS:
            raise SystemExit(0 if is_set() else f"{name} comes first")
for module in sys.argv[1:]:
    if not (pid := os.fork()):
        sys.meta_path.insert(0, Watch())
        __import__(module)
        text = open(sys.modules[module].__file__, encoding="utf-8").read()
        sys.exit(0 if is_set() or not any(f"import {name}" in text for name in READERS) else "the package comes late")
    if os.waitpid(pid, 0)[1]:
        sys.exit(f"in {module}")
"""


def test_every_command_sets_how_threads_wait_before_a_library_reads_it() -> None:
    files = (*ROOT.glob("immunize/**/*.py"), *ROOT.glob("experiments/**/*.py"))
    commands = [path for path in files if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for path in commands]
    assert {"immunize.train", "immunize.report", "experiments.bench"} <= set(modules)
    environment = {key: value for key, value in ENVIRONMENT.items() if not key.startswith(("OMP_", "KMP_", "GOMP_"))}
    run = sorted(f"{m}.__main__" if (ROOT / m.replace(".", "/")).is_dir() else m for m in modules)
    done = fresh("-c", WATCHED, *run, cwd=ROOT, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")


ALL = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}


@pytest.mark.parametrize(
    ("by_user", "expected"),
    [
        ({}, ALL),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "100"}, {"GOMP_SPINCOUNT": "100"}),
        ({"KMP_BLOCKTIME": "200"}, ALL | {"KMP_BLOCKTIME": "200"}),
        ({"KMP_LIBRARY": "turnaround"}, {"KMP_LIBRARY": "turnaround"}),
        ({"OMP_WAIT_POLICY": ""}, ALL),
    ],
)
def test_idle_threads_sleep_unless_the_user_has_said_otherwise(
    by_user: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(by_user))
    threads.sleep_when_idle()
    assert os.environ == expected
