"""The commands as a user runs them: in a process of their own, outside the checkout.

Each entry point is once called as a fresh interpreter, with what it imports; more calls of it are forks with torch
imported (`tests.commands`).
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from immunize.cli import entry_point, explain_errors, now_and_then, pasted
from immunize.processes import signals_handled
from tests.commands import ENVIRONMENT, HEAVY, INTERRUPTIBLE, begun, fresh, loaded_by, run, timed
from tests.composing import DEEP

TINY = ["objective.epochs=3", "probe_steps=20"]
ENTRY_POINTS = ("train", "evaluate", "attack", "forecast", "pretrain", "export", "verify")
"""But for the report, which has its own test."""


def test_default_run_writes_into_its_folder_and_tells_of_its_progress_in_plain_lines(tmp_path: Path) -> None:
    done, loaded, _ = loaded_by("immunize.train", *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert loaded == {"torch", "lightning", "matplotlib"}
    path = Path(done.stdout.splitlines()[-1])
    assert path.is_relative_to(tmp_path / "outputs")
    record = json.loads(path.read_text())
    assert (record["status"], record["method"], record["harmful"], record["seed"]) == ("finished", "ours", "digits", 0)
    assert "RIR" in done.stdout
    assert "\x1b[" not in done.stdout
    names = ("record.json", "checkpoint.safetensors", "norm_ratio.png", "metrics.csv")
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == {path.parent / name for name in names}
    first, *steps, last, following = done.stderr.splitlines()[:-1]
    assert (first, last) == ("ours: digits against digits, seed 0: loading", "measuring")
    assert following.startswith("who learns the harmful task all the same: python -m immunize.attack run=outputs")
    assert all(line.startswith("fit: step ") for line in steps), steps


@pytest.mark.parametrize("folder", ["outputs/a-b/1", "a b, [c]=d", "it's"])
def test_a_folder_in_a_command_to_paste_is_the_folder(folder: str) -> None:
    (word,) = shlex.split(pasted("run", folder))
    override = OverridesParser.create().parse_override(word)
    assert (override.key_or_group, override.value()) == ("run", folder)


@pytest.mark.parametrize(
    "words", [["method=closed_form", "probe_steps=20"], ["method=none", *TINY], ["method=none", *DEEP]]
)
def test_runs_without_training_warn_of_nothing(words: list[str], tmp_path: Path) -> None:
    done = run("immunize.train", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert not [line for line in done.stderr.splitlines() if line.startswith(("/", " "))], done.stderr


HELP = """
import importlib, sys
for module in sys.argv[1:]:
    sys.argv = [module, "--help"]
    try:
        importlib.import_module(module).main()
    except SystemExit as ended:
        assert not ended.code, f"{module} --help ended with {ended.code}"
"""


def test_help_is_quick_and_imports_nothing_heavy_nor_does_the_package(tmp_path: Path) -> None:
    modules = [f"immunize.{name}" for name in ENTRY_POINTS]
    told = f"print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    done, seconds = timed(lambda: fresh("-c", HELP + told, *modules, cwd=tmp_path))
    assert (done.returncode, done.stderr) == (0, "\n")
    assert all(f"python -m {module}" in done.stdout for module in modules)
    groups = re.compile(r"[\w/]+: ")  # Hydra's own lines
    assert not [line for line in done.stdout.splitlines() if len(line) > 100 and not groups.match(line)]
    assert seconds < len(modules)
    assert list(tmp_path.iterdir()) == []
    code = "import sys, immunize; print('numpy' in sys.modules)"
    done, seconds = timed(lambda: fresh("-c", code, cwd=tmp_path))
    assert done.stdout == "False\n"
    assert seconds < 1  # 0.1 of a quiet processor


def test_lines_that_come_by_the_hundred_are_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    told = now_and_then(3600)
    for line in ("first", "second"):
        told(line)
    assert capsys.readouterr().err == "first\n"


@pytest.mark.parametrize(
    ("command", "setting", "told"),
    [
        ("train", "harmful=mnist", "nowhere/MNIST/raw/train-images-idx3-ubyte"),
        ("forecast", "harmful=housing", "nowhere/house_prices/train.csv"),
        ("train", "objective.lambda_ill=-1", "objective.lambda_ill has to be"),
    ],
)
def test_missing_data_and_wrong_numbers_are_reported_before_anything_heavy_is_imported(
    command: str, setting: str, told: str, tmp_path: Path
) -> None:
    done, loaded, seconds = loaded_by(f"immunize.{command}", setting, "data_root=nowhere", cwd=tmp_path)
    assert done.returncode == 1
    assert told in done.stderr
    assert not loaded & {"torch", "lightning", "scipy"}
    assert seconds < 3


WAITING = """
import sys
from immunize.importing import start_quickly
start_quickly()
start_quickly()
import lightning.pytorch, torch, torchmetrics, immunize.pipeline.fit
from lightning.fabric.wrappers import OptimizedModule, _unwrap_compiled
from lightning.pytorch.utilities.model_summary import ModelSummary
gpu, asked = torch.cuda.is_available(), []
if not gpu:
    torch.cuda.device_count = lambda: asked.append("driver") or 0
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(net.parameters())
def step(module):
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
step(net)
light = torchmetrics.Metric, torchmetrics.MetricCollection, torchmetrics.__version__
assert not hasattr(torchmetrics, "__no_such_name__")
loaded = [name for name in ("torchvision", "matplotlib", "sympy", "triton") if name in sys.modules]
print("waits", loaded, isinstance(net, OptimizedModule), not asked)
import timm
torch._dynamo.trace_rules.clear_lru_cache()
assert torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"
print("waits", *(name in sys.modules for name in ("sympy", "triton")))
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    torch.ones(2, 3) @ torch.ones(3, 4)
print(counter.get_total_flops(), type(counter).__name__, torch.utils.flop_counter.FlopCounterMode is type(counter))
compiled = torch.compile(net, backend="eager")
assert torch.equal(compiled(torch.ones(1, 2)), net(torch.ones(1, 2)))
step(compiled)
print("compiled", isinstance(compiled, OptimizedModule), isinstance(net, OptimizedModule), torch._dynamo.is_compiling())
assert torch._dynamo.OptimizedModule is type(compiled) and not torch._dynamo.utils.is_compile_supported("meta")
assert torch._dynamo.trace_rules.clear_lru_cache.__module__ == "torch._dynamo.trace_rules"
assert torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"
metric = torchmetrics.MeanMetric()
assert (torchmetrics.Metric, torchmetrics.MetricCollection, torchmetrics.__version__) == light
assert isinstance(metric, torchmetrics.Metric)
metric.update(3.0)
print("plotted", type(metric.plot()[0]).__name__, float(metric.compute()), hasattr(torchmetrics, "functional"))
assert not hasattr(torchmetrics, "no_such_name")
others = sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "immunize.importing"]
start_quickly()
assert sys.meta_path == others  # what was imported before is left alone
"""


def test_what_waits_to_be_imported_is_all_there_when_asked_for(tmp_path: Path) -> None:
    done = fresh("-c", WAITING, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "waits [] False True",
        "waits False False",
        "48 FlopCounterMode True",
        "compiled True False False",
        "plotted Figure 3.0 True",
    ], done.stderr


ENDING = """
import atexit, ctypes, sys
from immunize.importing import start_quickly
libc = ctypes.CDLL(None)
libc.strdup.restype = ctypes.c_void_p
libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(b"the library cleared up")), None)
atexit.register(print, "registered before")
start_quickly()
start_quickly()
atexit.register(print, "registered after")
log = open("log", "w")
def tell(text):
    log.write(text)
tell("of a global")
sys.stdout.write("in the buffer, ")
sys.exit(3)
"""


@pytest.mark.skipif(not hasattr(ctypes.pythonapi, "on_exit"), reason="only glibc tells a handler the exit code")
@pytest.mark.parametrize("name", ["immunize-ending", "script.py"])
def test_commands_alone_do_not_wait_for_what_is_cleared_up_at_the_end(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(ENDING)
    done = fresh(name, cwd=tmp_path)
    cleared = [] if name == "immunize-ending" else ["the library cleared up"]
    assert done.stdout.splitlines() == ["in the buffer, registered after", "registered before", *cleared], done.stderr
    assert done.returncode == 3
    assert (tmp_path / "log").read_text() == ("of a global" if cleared else "")  # a command leaves no file open


def test_ctrl_c_leaves_a_record_and_no_traceback(tmp_path: Path) -> None:
    words = ("objective.epochs=4000", "monitor_every=200", "hydra.run.dir=run")
    process = begun("-c", INTERRUPTIBLE, *words, cwd=tmp_path)
    while "step 400/4000" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    path = tmp_path / "run" / "record.json"
    assert json.loads(path.read_text())["status"] == "interrupted"
    assert path.with_name("checkpoint.safetensors").is_file()
    assert out.splitlines()[-1] == str(path)


PRESSED = """import sys
class Pressed:
    def find_spec(*_):
        if hasattr(sys.modules.get("torch._subclasses.fake_tensor"), "dump_cache_stats"):
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed)
"""
"""Ctrl-C in the middle of the import of torch."""


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_sighup_is_sigterm_unless_nohup_has_it_ignored(before: signal.Handlers) -> None:
    seen = []
    handled = signals_handled({signal.SIGHUP: before, signal.SIGTERM: lambda number, _: seen.append(number)})
    with handled:
        entry_point(lambda: signal.raise_signal(signal.SIGHUP))()
    assert seen == [signal.SIGTERM] * (before is signal.SIG_DFL)


def test_ctrl_c_while_torch_is_imported_says_no_more_than_that(tmp_path: Path) -> None:
    done = fresh("-c", PRESSED + INTERRUPTIBLE, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "ours: digits against digits, seed 0: loading\ninterrupted\n")


def test_a_process_that_was_killed_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_: object) -> None:
        raise BrokenExecutor

    with pytest.raises(SystemExit, match="1"):
        entry_point(lambda: explain_errors(broken)(None))()
    assert capsys.readouterr().err.startswith("error: a process was killed, ")


def test_a_command_begun_with_all_closed_and_its_processes_read_and_write_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("stdin", "stdout", "stderr")
    for name in names:
        monkeypatch.setattr(sys, name, None)
    entry_point(lambda: print(sys.stdout.isatty(), sys.stdin.read(), file=sys.stderr))()
    assert all(os.get_inheritable(getattr(sys, name).fileno()) for name in names)


def test_a_pipe_that_nobody_reads_any_more_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as `| head` does once it has enough
    command = [sys.executable, "-u", "-m", "immunize.train", "--help"]  # -u: the command meets it, not Python's end
    pipes = {"stdout": writer, "stderr": subprocess.PIPE}
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, check=False, **pipes)
    assert (done.returncode, done.stderr) == (1, b"")
