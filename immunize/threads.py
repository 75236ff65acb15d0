"""What this process may use: CPU threads, how they wait, how many they are within a part of a run; and memory.

Threads are torch's and those of the BLAS below numpy, scipy and scikit-learn.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
"""How OpenMP's threads wait for work: GNU's, torch's, read the first two, LLVM's the first, Intel's the last.

By default they spin, each on a core that another process could use, and beside busy processes that is most of what a
run does: 200 small matrix products took 6.7 s of processor time on two threads, and 1.0 s with threads that sleep. But
a thread that sleeps at once has to be woken for every small product: the small ResNet trained 26 s then, and 16 s where
threads spin a thousand times, some microseconds, before they sleep. Beside a busy process a core that costs nothing.
OpenBLAS has no such switch that makes a difference (OPENBLAS_THREAD_TIMEOUT); a run has it on `threads` threads.
"""

OPENBLAS = "OPENBLAS_NUM_THREADS"
"""How many threads a BLAS has that is not loaded yet; scipy brings another than numpy's."""

SPINNING = ("KMP_LIBRARY",)
"""Variables that say the same in other words."""


def sleep_when_idle() -> None:
    """Let idle OpenMP threads sleep, unless the user has said how they wait.

    Libraries read the variables when they are loaded: `immunize/__init__.py`, which every command, worker and
    experiment passes first, calls this. Where torch is there already, it changes nothing.
    """
    told = {name for name in (*WAITING, *SPINNING) if os.environ.get(name)}
    if told <= {"KMP_BLOCKTIME"}:  # GNU's does not read it, and would spin
        os.environ.update({name: value for name, value in WAITING.items() if name not in told})


def cores(root: Path = Path("/")) -> int:
    """Cores that this process may keep busy: those of its CPU affinity, and of them what a cgroup's quota leaves.

    A part of a core counts as one. What cannot be read sets no limit.

    Args:
        root: of the file system.
    """
    quota, usable = _quota(root), len(_usable())
    return usable if quota >= usable else math.ceil(quota)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be had without swapping, and of them what a cgroup's limit leaves; None where it is not known.

    Args:
        root: of the file system.
    """
    words = (_read(root / "proc/meminfo") or "").split()
    free = _whole(dict(pairwise(words)).get("MemAvailable:"))
    left = [None if free is None else 1024 * free, *map(_memory, _cgroups(root))]
    return min((of for of in left if of is not None), default=None)


def threads_in_force(setting: int | None) -> int:
    """How many threads a setting `threads` comes to in this process; torch need not be loaded for it.

    Args:
        setting: 1 or more; None is OMP_NUM_THREADS, or else one a core (two threads of one core share what computes).

    Returns:
        `setting`, but no more than :func:`cores` where affinity or a quota limits them: then a line is logged.
    """
    limit = cores()
    if setting is None:
        return min(_told_by_openmp() or _physical_cores(), limit)
    if setting <= limit or (limit == os.cpu_count() and math.isinf(_quota())):
        return setting
    _log_reduced(setting, limit)
    return limit


@contextlib.contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Use `count` threads within, also a BLAS that is loaded later, as scipy's; what was before is put back.

    Args:
        count: 1 or more; None changes nothing.
    """
    if count is None:
        yield
        return
    import torch
    from threadpoolctl import threadpool_limits

    before, told = torch.get_num_threads(), os.environ.get(OPENBLAS)
    os.environ[OPENBLAS] = str(count)  # a limit reaches only what is loaded already
    with threadpool_limits(count):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
            os.environ.pop(OPENBLAS)
            if told is not None:
                os.environ[OPENBLAS] = told


def _usable() -> set[int]:
    """CPUs by number; two threads of one core are two."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _physical_cores() -> int:
    siblings = {cpu: Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in _usable()}
    return len({_read(path) or str(cpu) for cpu, path in siblings.items()})


def _told_by_openmp() -> int | None:
    """OMP_NUM_THREADS, whose first number is that of the outermost level; None for none."""
    return _whole(os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()) or None


def _quota(root: Path = Path("/")) -> float:
    """How many cores' time the cgroups leave; infinite for all of it."""
    return min((share for folder in _cgroups(root) if (share := _share(folder)) is not None), default=math.inf)


def _cgroups(root: Path) -> list[Path]:
    """Folders of this process's cgroups and of those around them, as version 1, 2 or both at once lay them out."""
    told = [line.split(":", 2)[1:] for line in (_read(root / "proc/self/cgroup") or "").splitlines() if ":" in line]
    found = []
    for controllers, *path in ([""], *told):  # of version 2 without a name; every controller of version 1 has a folder
        place = PurePosixPath("/", *(of.lstrip("/") for of in path))
        mounts = {controllers, *controllers.split(",")} if controllers else {"", "unified"}
        found += [root / "sys/fs/cgroup" / at / of.relative_to("/") for at in mounts for of in (place, *place.parents)]
    return found


def _share(folder: Path) -> float | None:
    """How many cores' time a cgroup has: `cpu.max` of version 2, "quota period", or the two files of version 1."""
    told = _read(folder / "cpu.max") or f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
    try:
        quota, period = map(int, told.split())
    except ValueError:  # "max", or nothing to be read
        return None
    return quota / period if quota > 0 and period > 0 else None


def _memory(folder: Path) -> int | None:
    """Bytes that a cgroup leaves: its limit less what it uses but for caches of files, by version 2 or version 1."""
    stat = dict(pairwise((_read(folder / "memory.stat") or "").split()))
    for limit, usage, caches in (
        ("memory.max", "memory.current", ("inactive_file", "active_file")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    ):
        most, used = _whole(_read(folder / limit)), _whole(_read(folder / usage))
        if most is not None and used is not None:
            return max(0, most - used + sum(_whole(stat.get(cache)) or 0 for cache in caches))
    return None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


@functools.cache
def _log_reduced(setting: int, limit: int) -> None:
    """Once a process: several parts of a run ask."""
    cores_left = f"{limit} core{'s' if limit > 1 else ''}"
    logging.getLogger(__name__).warning(
        "threads=%d is more than the %s that this process may use: it is %d", setting, cores_left, limit
    )
