"""The processes of a run on this machine: several that train together (`trainer=ddp`), a fork for a part of the run.

Several are started and watched by the first one. Lightning's own launcher runs the command line again, once a process.
In a Hydra multirun that is the whole sweep: folders are made twice and the processes wait for each other. Here every
process gets one resolved configuration and one output folder instead, and lives as long as its run. To Lightning they
look like processes that somebody else has started (LOCAL_RANK is set), so that its strategies work as ever; where srun
or torchrun has started them, nothing is done here.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, TypeVar

from immunize.errors import UserError
from immunize.importing import start_quickly
from immunize.threads import cores

R = TypeVar("R")

SPEC = ".processes.json"
"""In the output folder while the processes run: what they are to do."""

OUTSIDE = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")
COUNTED = {"RANK": "WORLD_SIZE", "SLURM_PROCID": "SLURM_NTASKS"}
"""Variables that only one of several processes has, and those that a process alone may have too, as in a job of one
task or a hosted notebook, with how many processes there are."""
RANKS = ("RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Variables that tell a process which one it is, the widest first."""

PARENT = "IMMUNIZE_PARENT"
"""Variable that tells a process who has started it."""

THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""Variables that cap the threads of a process which has not imported torch or numpy yet."""

LARGEST_GROWTH = 4 * 1024**3
"""Bytes by which a process of a pool may grow before it is replaced by a new one."""

KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}
"""Variables by which glibc's malloc keeps what was freed for the next array, where it would give it back to the system.
(A threshold for mmap would do, but before 2.35 one above 32 MiB is ignored, and the other then makes all worse.)

The system clears every page that it hands out, which was a fifth of the processor time of a MNIST pair's grid.
"""

POLL, GRACE, TO_END = 0.2, 30.0, 300.0
"""Seconds between two looks at the processes, for those that are left to end after one has failed, and for all to
finish their step and keep what was trained after SIGTERM."""


def started_outside(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of several that something else has started: srun, torchrun, or this file."""
    counts = (environment.get(count) or "1" for rank, count in COUNTED.items() if environment.get(rank))
    return any(environment.get(name) for name in OUTSIDE) or any(int(count) > 1 for count in counts)


def is_first(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the one that writes and prints."""
    rank = next((int(environment[name]) for name in RANKS if environment.get(name)), 0)
    return rank == 0 or not started_outside(environment)


def process_count(trainer: Mapping[str, Any]) -> int:
    """How many processes a trainer's node asks for on this machine.

    Args:
        trainer: with `devices`, and perhaps `num_nodes`, as Lightning takes them.

    Raises:
        UserError: several machines, or a number of devices that is none.
    """
    if int(trainer.get("num_nodes") or 1) > 1 and not started_outside():
        raise UserError("trainer.num_nodes is above 1: start the processes on all machines with srun or torchrun")
    devices = trainer.get("devices", 1)
    if isinstance(devices, str) and devices.lstrip("-").isdigit():
        devices = int(devices)
    if devices in ("auto", -1):
        if trainer.get("accelerator") == "cpu":
            return 1
        import torch

        return max(1, torch.cuda.device_count())
    if isinstance(devices, int) and devices >= 1:
        return devices
    if isinstance(devices, Sequence) and not isinstance(devices, str) and devices:
        return len(devices)
    raise UserError(f"trainer.devices={devices} is no number of devices; give 1 or more, a list of them, or auto")


def run_processes(spec: dict[str, Any], folder: Path, count: int, module: str) -> None:
    """Run `python -m module <folder>/SPEC` in `count` processes, and wait for them.

    SIGTERM and Ctrl-C are passed on. When a process fails, the others, which would wait for it, are ended.

    Args:
        spec: plain values that JSON can hold; what the processes are to do.
        folder: the output folder of the run.
        count: how many.
        module: what they run.

    Raises:
        UserError: a process ended with an error, and has said why on stderr; or it was killed.
        KeyboardInterrupt: Ctrl-C, after all have ended.
    """
    path = folder / SPEC
    path.write_text(json.dumps(spec), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    # Of a SLURM job with one task, which every child would take for itself: it would be the first of one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NODE_RANK": "0",
        "WORLD_SIZE": str(count),
    }
    command = [sys.executable, "-m", module, str(path)]
    processes: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        received.append(number)  # passed on when all have been started

    try:
        with signals_handled({signal.SIGTERM: keep, signal.SIGINT: keep}):
            for rank in range(count):
                # A session of their own: Ctrl-C reaches them through this process alone, and only once.
                own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), PARENT: str(os.getpid())}
                processes.append(subprocess.Popen(command, env=own, start_new_session=True))
            codes = _wait(processes, received)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        path.unlink(missing_ok=True)
    if signal.SIGINT in received or any(code == 128 + signal.SIGINT for code in codes):
        raise KeyboardInterrupt
    if signal.SIGTERM in received:
        raise SystemExit(128 + signal.SIGTERM)
    if any(codes):
        raise UserError(f"a process of the run failed, see above (exit codes {', '.join(map(str, codes))})")


def can_fork(count: int) -> bool:
    """Whether `count` processes of one thread each have a core of their own, and a fork of this one is safe.

    Elsewhere than on Linux system libraries do not survive a fork, nor does an accelerator in use anywhere.
    """
    if sys.platform != "linux" or started_outside() or cores() < count:
        return False
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()


@contextlib.contextmanager
def beside(work: Callable[[], R]) -> Iterator[Callable[[], R]]:
    """Do something in a fork of this process, which runs on one thread, while the body of the `with` is run.

    Ctrl-C does not reach the fork; it is gone when the body has ended, however it did.

    Args:
        work: what to do; its result can be pickled.

    Yields:
        what waits for the result and returns it. Where the fork failed or was killed (no memory, say), it does the work
        here, and so meets the same error where it can be reported.
    """
    receiving, sending = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_in_fork, args=(work, sending), daemon=True)
    process.start()
    sending.close()

    def result() -> R:
        try:
            return receiving.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            return work()

    try:
        yield result
    finally:
        process.kill()
        process.join()
        receiving.close()


def _in_fork(work: Callable[[], Any], sending: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(os.getppid())
    with contextlib.suppress(BaseException):
        sending.send(work())
        threading.Event().wait()  # until killed: a thread of the process that tensors come from hands them over


@contextlib.contextmanager
def closing_pool(
    count: int,
    threads: int,
    enter: Callable[..., None] | None = None,
    *arguments: Any,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Any]:
    """A pool of processes that leave Ctrl-C to this one; they end with the block or with this process, however it ends.

    SIGTERM ends the block as Ctrl-C does: a pool that is not closed leaves semaphores, or has loky warn of them.

    Args:
        count: of processes.
        threads: of each.
        enter: called in each of them first.
        *arguments: of `enter`.
        environment: variables that each has beside those of this process.

    Yields:
        Loky's executor.

    Raises:
        SystemExit: SIGTERM.
    """
    from multiprocessing.resource_tracker import ensure_running

    from loky import ProcessPoolExecutor

    variables = dict.fromkeys(THREADS, str(threads)) | dict(environment)
    pool = ProcessPoolExecutor(count, initializer=_enter, initargs=(os.getpid(), enter, arguments), env=variables)
    try:
        ensure_running()  # or it is started with the processes, and unblocks Ctrl-C
        with _postponed(signal.SIGINT):
            pool.submit(os.getpid)  # starts the processes
        with signals_handled({signal.SIGTERM: lambda number, _: sys.exit(128 + number)}):
            yield pool
    finally:
        with contextlib.suppress(RuntimeError):
            pool.shutdown(wait=True, kill_workers=True)


@contextlib.contextmanager
def _postponed(number: signal.Signals) -> Iterator[None]:
    """Let a signal wait for the end of the block, and never reach processes that are started within."""
    received: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})  # inherited, but another thread may take the signal
    try:
        with signals_handled({number: lambda *_: received.append(number)}):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if received:
        signal.raise_signal(number)


def _enter(parent: int, enter: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    from loky import process_executor

    # What is kept from task to task, such as rows that several need, loky takes for a leak worth a new process.
    process_executor._MAX_MEMORY_LEAK_SIZE = LARGEST_GROWTH
    end_with_parent(parent)
    start_quickly()
    if enter is not None:
        enter(*arguments)


def end_with_parent(parent: int | None = None) -> None:
    """End this process when the one that started it has gone, however it went.

    Args:
        parent: its process; None is the one that `run_processes` was called in.
    """
    parent = int(os.environ[PARENT]) if parent is None else parent

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _wait(processes: list[subprocess.Popen[bytes]], received: list[int]) -> list[int]:
    """Their exit codes, once all have ended.

    Args:
        processes: that were started.
        received: signals that are to be passed on to them; the list may grow.

    Raises:
        UserError: one of them was killed, though none was told to end.
    """
    failed: float | None = None
    told: float | None = None
    passed = 0
    while any(process.poll() is None for process in processes):
        for number in received[passed:]:
            told, passed = told or time.monotonic() + TO_END, passed + 1
            for process in processes:
                process.send_signal(number)
        if failed is None and (codes := list(filter(None, (process.poll() for process in processes)))):
            if min(codes) < 0 and not received:
                raise UserError(
                    f"a process of the run was killed by signal {-min(codes)}, as the system does where memory runs "
                    "out; with resume=true the same command goes on"
                )
            failed = time.monotonic() + GRACE
        if any(deadline is not None and time.monotonic() > deadline for deadline in (failed, told)):
            for process in processes:
                process.kill()
        time.sleep(POLL)
    return [process.wait() for process in processes]


@contextlib.contextmanager
def signals_handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Handle signals so within; afterwards their handlers are those of before, whatever was done to them meanwhile.

    Args:
        handlers: as :func:`signal.signal` takes them; elsewhere than in the main thread nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()} if main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
