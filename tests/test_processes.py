"""Processes of a run: a fork beside it, and several that share a batch and give the numbers of one (numerics.md §7)."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loky import ProcessPoolExecutor

from immunize import processes
from immunize.errors import UserError
from immunize.pipeline import __main__ as of_pipeline
from immunize.threads import cpu_threads
from tests.commands import ENVIRONMENT, ROOT, Command
from tests.training.two_processes import METHODS


def test_result_is_that_of_another_process_at_the_same_time_which_ctrl_c_does_not_reach(tmp_path: Path) -> None:
    begun, said = tmp_path / "begun", tmp_path / "said"

    def text_of(path: Path) -> str:
        while not (path.exists() and path.read_text()):  # by the other process, which runs meanwhile
            time.sleep(0.01)
        return path.read_text()

    def work() -> tuple[str, torch.Tensor]:
        begun.write_text(str(os.getpid()))
        return text_of(said), torch.arange(1e6, dtype=torch.float64)

    interruptible = processes.signals_handled({signal.SIGINT: signal.default_int_handler})  # as not in the background
    with interruptible, cpu_threads(1), processes.beside(work) as result:
        os.kill(int(text_of(begun)), signal.SIGINT)
        said.write_text("both")
        text, theta = result()
    assert int(text_of(begun)) != os.getpid()
    assert text == "both"
    assert torch.equal(theta, torch.arange(1e6, dtype=torch.float64))


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 1 / 0])
def test_work_of_a_fork_that_failed_is_done_here_and_its_error_not_printed(
    end: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    here = os.getpid()

    def work() -> int:
        if os.getpid() != here:
            end()
        return os.getpid()

    with processes.beside(work) as result:
        assert result() == here
    assert capfd.readouterr() == ("", "")


def test_fork_is_gone_when_the_body_is_interrupted() -> None:
    before = set(multiprocessing.active_children())

    def interrupted() -> None:
        with processes.beside(lambda: time.sleep(600)):
            assert len(set(multiprocessing.active_children()) - before) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert set(multiprocessing.active_children()) == before


def test_ctrl_c_while_a_pool_starts_waits_until_it_has(forked_pool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    started, submit = [], ProcessPoolExecutor.submit

    def pressed(*task: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        started.append(submit(*task))
        return started[-1]

    monkeypatch.setattr(ProcessPoolExecutor, "submit", pressed)
    interruptible = processes.signals_handled({signal.SIGINT: signal.default_int_handler})
    with interruptible, pytest.raises(KeyboardInterrupt), processes.closing_pool(1, 1):
        pytest.fail("it was lost")
    assert started


def test_ctrl_c_while_a_process_of_a_run_starts_is_no_traceback(tmp_path: Path) -> None:
    os.mkfifo(spec := tmp_path / "spec")
    command = [sys.executable, "-m", "immunize.pipeline", str(spec)]
    environment = ENVIRONMENT | {processes.PARENT: str(os.getpid())}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    opened = None
    while opened is None and process.poll() is None:
        with contextlib.suppress(OSError):  # until it is read, when all is imported
            opened = os.open(spec, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", -signal.SIGINT)
    assert opened is not None
    os.close(opened)


@pytest.mark.parametrize("first", [True, False])
def test_the_process_that_fails_first_says_why_and_no_other(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image that only one of them reads, or a disk that only one of them writes to, may be why."""
    for name, replaced in {"end_with_parent": lambda: None, "is_first": lambda: first}.items():
        monkeypatch.setattr(f"immunize.pipeline.__main__.{name}", replaced)
    monkeypatch.setattr("logging.disable", lambda level: None)
    (spec := tmp_path / "spec").write_text(json.dumps({"config": {"method": {"name": "ours"}}}))
    assert [of_pipeline.main(spec) for _ in range(2)] == [1, 1]
    of_pipeline.leave_group()  # there is none yet
    assert capsys.readouterr().err == "error: _target_ is missing beside name: it names what is built\n"


@pytest.mark.parametrize(
    ("count", "platform", "outside", "forks"),
    [(2, "linux", "", True), (3, "linux", "", False), (2, "linux", "0", False), (2, "darwin", "", False)],
)
def test_no_fork_without_a_core_for_it_or_beside_other_processes(
    count: int, platform: str, outside: str, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "cores", lambda: 2)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("LOCAL_RANK", outside)
    assert processes.can_fork(count) is forks


SLACK = 1e-9
Steps = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Steps, Steps]:
    """What a step of every method comes to in one process, and in two."""
    folder, module = tmp_path_factory.mktemp("steps"), "tests.training.two_processes"
    places = [(folder / str(world), rank, world) for world in (1, 2) for rank in range(world)]
    for command in [Command(module, *map(str, place), cwd=ROOT) for place in places]:
        done = command.wait(timeout=300)
        assert done.returncode == 0, done.stderr
    one, two = (json.loads((folder / str(world)).read_text()) for world in (1, 2))
    return one, two


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_loss_gradient_kappa_and_rir_are_those_of_one_process(method: str, steps: tuple[Steps, Steps]) -> None:
    one, two = (of[method] for of in steps)
    assert len(one["gradients"]) >= (2 if method == "opt_kappa" else 4)
    for name, found in two.pop("gradients").items():
        a, b = (torch.tensor(of, dtype=torch.float64) for of in (found, one["gradients"].pop(name)))
        assert float((a - b).norm()) <= SLACK * float(b.norm()), name
    assert not one.pop("gradients")
    assert two.pop("weights") == pytest.approx(one.pop("weights"), rel=SLACK)  # by the gradients of the whole batch
    assert two == pytest.approx(one, rel=SLACK)


@pytest.mark.parametrize(
    ("trainer", "count"),
    [
        ({"accelerator": "cpu", "devices": 1}, 1),
        ({"accelerator": "cpu", "devices": "2"}, 2),
        ({"accelerator": "cpu", "devices": "auto"}, 1),
        ({"accelerator": "gpu", "devices": [0, 2]}, 2),
        ({}, 1),
        *(({"devices": none}, None) for none in (0, "all", [])),
        ({"devices": 1, "num_nodes": 2}, None),
    ],
)
def test_processes_a_trainer_asks_for(
    trainer: dict[str, Any], count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_RANK", "SLURM_PROCID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    with contextlib.nullcontext() if count else pytest.raises(UserError, match=r"devices|srun"):
        assert processes.process_count(trainer) == count


@pytest.mark.parametrize(
    ("environment", "outside", "first"),
    [
        ({}, False, True),
        ({"LOCAL_RANK": "1"}, True, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, False, True),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, True, False),
        ({"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}, True, True),
        ({"RANK": "8", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}, True, False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, False, True),  # hosted notebooks and job runners
    ],
)
def test_which_process_this_is(environment: dict[str, str], outside: bool, first: bool) -> None:
    assert processes.started_outside(environment) == outside
    assert processes.is_first(environment) == first


WORKER = """
import json, os, sys, time
if os.environ["LOCAL_RANK"] == json.load(open(sys.argv[1]))["fails"]:
    sys.exit(3)
time.sleep(60)
"""
KILLED = """
import os, sys, time
from pathlib import Path
ready = Path(sys.argv[1]).with_name("ready")
if os.environ["RANK"] == "1":
    while not ready.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
from immunize.pipeline import __main__ as of, assemble, experiment
ready.touch()
of.main(Path(sys.argv[1]))
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WORKER}"


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    return "a_worker"


RECORDED = """
import os, sys
from pathlib import Path
from torch import distributed, tensor
from immunize.processes import is_first
from immunize.records import write_record
rank, world = (int(os.environ[name]) for name in ("LOCAL_RANK", "WORLD_SIZE"))
distributed.init_process_group("gloo", rank=rank, world_size=world)
total = tensor(rank + 1)
distributed.all_reduce(total)
distributed.destroy_process_group()
slurm = [name for name in os.environ if name.startswith("SLURM_")]
facts = {"rank": rank, "of": os.environ.get("RANK"), "total": int(total), "slurm": slurm}
for name in (f"of_{rank}.json", *[f"record_{rank}.json"] * is_first()):
    write_record(Path(sys.argv[1]).parent, facts, name)
"""
INHERITED = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}


def test_one_of_two_writes_the_record_whatever_rank_is_inherited(
    worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lightning does, they meet through gloo by LOCAL_RANK; torch itself goes by RANK."""
    (tmp_path / "a_worker.py").write_text(RECORDED)
    for name, value in INHERITED.items():
        monkeypatch.setenv(name, value)
    processes.run_processes({}, tmp_path, 2, worker)
    assert not (tmp_path / processes.SPEC).exists()
    assert "LOCAL_RANK" not in os.environ
    found = [json.loads((tmp_path / f"of_{rank}.json").read_text()) for rank in range(2)]
    assert found == [{"rank": rank, "of": str(rank), "total": 3, "slurm": []} for rank in range(2)]
    assert [path.name for path in tmp_path.glob("record*")] == ["record_0.json"]


def test_one_that_fails_ends_the_others(worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("immunize.processes.GRACE", 0.5)
    started = time.monotonic()
    with pytest.raises(UserError, match="exit codes"):
        processes.run_processes({"fails": "1"}, tmp_path, 2, worker)
    assert time.monotonic() - started < 30


def test_one_that_is_killed_ends_the_others_before_they_tell_of_it(
    worker: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_worker.py").write_text(KILLED)
    with pytest.raises(UserError, match="was killed by signal 9"):
        processes.run_processes({"no": "config"}, tmp_path, 2, worker)
    assert capfd.readouterr().err == ""


def test_ctrl_c_before_the_processes_are_started_ends_them(
    worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def pressed(*arguments: Any, **settings: Any) -> subprocess.Popen[bytes]:
        signal.raise_signal(signal.SIGINT)
        return start(*arguments, **settings)

    monkeypatch.setattr(processes.subprocess, "Popen", pressed)
    monkeypatch.setattr("immunize.processes.TO_END", 30.0)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        processes.run_processes({"fails": "nobody"}, tmp_path, 1, worker)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(("text", "to_end"), [(WORKER, 60.0), (STUBBORN, 0.5)])
def test_sigterm_is_passed_on_and_processes_that_do_not_end_are_ended(
    text: str, to_end: float, worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the processes are under way."""
    monkeypatch.setattr("immunize.processes.TO_END", to_end)
    started = time.monotonic()
    (tmp_path / "a_worker.py").write_text(text)
    told = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM))
    told.start()
    try:
        with pytest.raises(SystemExit) as ended:
            processes.run_processes({"fails": "nobody"}, tmp_path, 2, worker)
    finally:
        told.cancel()
    assert ended.value.code == 128 + signal.SIGTERM
    assert time.monotonic() - started < 30
