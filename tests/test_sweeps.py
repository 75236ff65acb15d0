"""Sweeps: which runs there are, which of them are done; and whatever ends a sweep, the same command continues it."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from immunize import train
from immunize.config import config_dir, hash_of_run, register
from immunize.files import held
from immunize.records import RECORD, read_record, write_record
from immunize.sweeping import done_record
from immunize.sweeping.launching import threads_a_worker
from immunize.sweeping.plan import Plan, jobs_of
from tests.commands import INTERRUPTIBLE, ROOT, Called, Done, begun
from tests.composing import TINY

SHORT = (*TINY, "objective.epochs=3", "probe_steps=20")
METHODS = {"none", "ill_only", "well_only", "imma", "opt_kappa", "ours", "closed_form"}
BY_HASH = ["hydra.sweep.dir=sweep", "hydra.sweep.subdir=${immunize.config_hash:}", "resume=true"]
PRESETS = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml") if path.stem != "none")


# Which runs a sweep has.


@functools.cache
def context() -> HydraContext:
    register()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        return HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks())


@functools.cache
def composed(*overrides: str) -> DictConfig:
    return context().config_loader.load_configuration("train", list(overrides), RunMode.MULTIRUN)


def master(*overrides: str) -> DictConfig:
    return copy.deepcopy(composed(*overrides))


def jobs_of_preset(name: str) -> tuple[DictConfig, list[list[str]]]:
    cfg = master(f"experiment={name}")
    sweeper = OmegaConf.to_container(cfg.hydra.sweeper)
    return cfg, jobs_of(sweeper["params"], sweeper["grids"], [f"experiment={name}"])


def values_of(jobs: list[list[str]], key: str) -> list[str]:
    return [line.partition("=")[2] for job in jobs for line in job if line.startswith(f"{key}=")]


def test_grids_follow_one_another_share_the_parameters_and_give_way_to_the_command_line() -> None:
    grids = [{"method": "ours", "objective.lambda_ill": "1e3,1e4"}, {"method": "none"}, {"method": "none"}]
    jobs = jobs_of({"seed": "0,1,2"}, grids, ["rho=0.1", "seed=7,8"])
    assert jobs[0] == ["seed=7", "method=ours", "objective.lambda_ill=1000.0", "rho=0.1"]
    assert len(jobs) == 2 * 2 + 2 * 1  # a run that two grids name is one
    assert jobs[-1] == ["seed=8", "method=none", "rho=0.1"]


def test_command_line_restricts_the_methods_of_the_grids() -> None:
    grids = [{"method": "ours", "objective.lambda_ill": "1,2"}, {"method": "imma,none", "seed": "0,1"}]
    assert jobs_of({}, grids, ["method=none,ours", "seed=0"]) == [
        ["method=ours", "objective.lambda_ill=1", "seed=0"],
        ["method=ours", "objective.lambda_ill=2", "seed=0"],
        ["method=none", "seed=0"],
    ]
    assert jobs_of({}, grids, ["method=well_only"]) == []


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_a_sweep_that_can_be_continued_and_a_reduced_one_is_small(name: str) -> None:
    (cfg, jobs), whole = jobs_of_preset(name), name.removesuffix("_fast")
    assert (cfg.experiment.name, cfg.experiment.reduced) == (whole, name != whole)
    assert (cfg.hydra.mode, cfg.resume, cfg.hydra.sweep.dir) == (RunMode.MULTIRUN, True, f"outputs/{name}")
    OmegaConf.to_container(OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"]), resolve=True)
    if name != whole:
        whole_cfg, every = jobs_of_preset(whole)
        assert cfg.objective.epochs < whole_cfg.objective.epochs
        assert set(values_of(jobs, "method")) == set(values_of(every, "method"))
        assert len(jobs) <= 63  # 7 methods, 9 configurations, one seed or pair


@pytest.mark.parametrize("name", ["search_housing", "search_mnist"])
def test_search_gives_every_method_the_same_budget_on_validation_rows(name: str) -> None:
    cfg, jobs = jobs_of_preset(name)
    methods = values_of(jobs, "method")
    assert {method: methods.count(method) for method in methods} == dict.fromkeys(METHODS, 9 * 3)
    assert cfg.selection == "validation"
    centre = master(f"harmful={name.removeprefix('search_')}").objective
    others = [job for job in jobs if "method=opt_kappa" not in job]  # whose log κ has a scale of its own
    rates = sorted({float(value) for value in values_of(others, "objective.learning_rate")})
    assert rates[len(rates) // 2] == centre.learning_rate
    assert centre.lambda_ill in map(float, values_of(jobs, "objective.lambda_ill"))


@pytest.mark.parametrize("name", ["table1", "search_mnist"])
def test_planned_hash_is_that_of_the_composed_run(name: str) -> None:
    cfg, jobs = jobs_of_preset(name)
    some = random.Random(0).sample(jobs, 12)
    plan = Plan(context(), cfg)
    planned = [plan.place(job) for job in some]
    assert len(set(planned)) == len(some)
    for job, place in list(zip(some, planned, strict=True))[-2:]:
        digest = hash_of_run(plan.compose(job))
        assert place == (Path(f"outputs/{name}") / digest, digest, False)


def test_what_is_not_to_be_continued_is_done_again_whatever_came_before() -> None:
    cfg, (job, *_) = jobs_of_preset("table1")
    plan = Plan(context(), cfg)
    found = [plan.place([*job, f"resume={resume}"]) for resume in ("true", "false", "true")]
    assert [again for _, _, again in found] == [False, True, False]
    again = ["resume=true", "overwrite=true", *BY_HASH]
    assert Plan(context(), master(*again)).place([*again, "seed=1"])[2]
    for lines in ([], ["resume=true"]):
        assert Plan(context(), master(*lines)).place([*lines, "seed=1"]) is None


# Which of them are done, and how far it is.


def test_only_a_run_with_the_same_configuration_is_done(tmp_path: Path) -> None:
    write_record(tmp_path, {"schema_version": 1, "status": "finished", "config": {}, "config_hash": "a"})
    assert done_record(tmp_path, "a") is not None
    assert done_record(tmp_path, "b") is None


def states_of(err: str) -> list[str]:
    """What the line of a sweep said, one after another."""
    return [line for line in err.replace("\r", "\n").splitlines() if line.startswith("sweep:") and "/" in line]


def ended(err: str, runs: int, *became: str) -> bool:
    """Whether the line ended with all runs over, and with these words about them."""
    last = states_of(err)[-1]
    return f"{runs}/{runs}" in last and all(words in last for words in became)


@pytest.mark.parametrize(("cores", "n_jobs", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1)])
def test_workers_share_the_cores(cores: int, n_jobs: int, threads: int) -> None:
    assert threads_a_worker(cores, n_jobs) == threads


# Sweeps in this process.


class Sweep:
    """`immunize-train -m` on the tiny pair, in an empty working directory."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, called: Called) -> None:
        self.called = called
        monkeypatch.chdir(folder)

    def __call__(self, *arguments: str) -> Done:
        return self.called(train.main, "-m", *SHORT, *BY_HASH, *arguments)

    def failed(self, *arguments: str) -> Done:
        """A sweep that has to end with a message alone."""
        done = self(*arguments)
        assert done.code == 1
        assert "Traceback" not in done.err
        return done

    def records(self) -> list[dict[str, Any]]:
        return [read_record(path.parent) for path in sorted(Path("sweep").glob("*/record.json"))]

    def own(self) -> list[str]:
        """The runs that it lists as its own."""
        return list(json.loads(Path("sweep/sweep.json").read_text())["runs"])


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: Called) -> Sweep:
    return Sweep(tmp_path, monkeypatch, called)


def test_sweep_composes_one_run_of_each_kind_and_prints_its_progress_alone(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds, compose = list[list[str]](), Plan.compose
    monkeypatch.setattr(Plan, "compose", lambda self, lines: (kinds.append(lines), compose(self, lines))[1])
    code, out, err = sweep("seed=0,1", "method=none,ill_only", "threads=1,2")  # no number depends on threads
    assert (code, out) == (0, f"{Path('sweep').absolute()}\n")
    methods = [next(line for line in lines if line.startswith("method=")) for lines in kinds]
    assert methods == ["method=none", "method=ill_only"]
    states = states_of(err)
    assert "0/8" in states[0]
    assert ended(err, 8, "4 found")  # two names of a run are one run
    assert len(states) == len(list(filter(None, err.replace("\r", "\n").splitlines())))
    found = {record["config_hash"]: (record["method"], record["seed"]) for record in sweep.records()}
    assert set(found.values()) == {(method, seed) for method in ("none", "ill_only") for seed in (0, 1)}
    assert sorted(sweep.own()) == sorted(found)


def test_finished_runs_are_not_done_again_and_interrupted_ones_are(sweep: Sweep) -> None:
    sweep("seed=0,1,2")
    unfinished, done, torn = sweep.records()
    for record, status in ((unfinished, "interrupted"), (done, "finished")):
        write_record(Path("sweep") / record["config_hash"], record | {"status": status, "started": "before"})
    (Path("sweep") / torn["config_hash"] / RECORD).write_text('{"status": "finished", ')
    for words, found, left in ([], "1 found", [done["config_hash"]]), (["overwrite=true"], "", []):
        code, _, err = sweep("seed=range(0,3)", *words)
        assert code == 0
        assert ended(err, 3, found)
        started = {record["config_hash"]: record["started"] for record in sweep.records()}
        assert len(started) == 3
        assert [digest for digest, when in started.items() if when == "before"] == left


def test_failing_run_lets_the_others_run_and_a_diverged_one_is_a_result(sweep: Sweep) -> None:
    for became, told in (("1 diverged", "1 failed"), True), (("1 found", "1 diverged", "1 failed"), False):
        err = sweep.failed("objective.lambda_well=-1,1", "objective.learning_rate=1e200").err
        assert ended(err, 2, *became)
        assert ("objective.learning_rate=1e+200: fit: the term" in err) is told
        assert "sweep: failed: " in err
        assert "objective.lambda_well has to be" in err
        assert [record["status"] for record in sweep.records()] == ["diverged"]


def test_lambdas_that_a_balance_would_set_are_not_swept_over_in_vain(sweep: Sweep) -> None:
    err = sweep.failed("objective.balance=true", "objective.lambda_ill=1e4,1e6", "method=ours,none").err
    assert "objective.lambda_ill has no effect here: objective.balance sets it; scale λ_H with" in err
    assert [record["method"] for record in sweep.records()] == ["none", "none"]  # which has no λ to be set


def test_defect_is_shown_with_its_traceback_once(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(train, "check_settings", broken)
    code, _, err = sweep("seed=0,1,2")
    assert code == 1
    assert err.count("Traceback") == 1
    assert err.count("(ZeroDivisionError: a defect)") == 2


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["sead=0,1"], {}, "sead"),
        (["method=ours,unknown", "hydra/launcher=basic"], {}, "method"),  # Hydra's own
        (["seed=interval(0,1)"], {}, "seed"),
        (["experiment=table1,table2"], {}, "experiment=table1,table2: a preset is a sweep of its own"),
        (["seed=0,1", "hydra/launcher=pool", "hydra.launcher.n_jobs=0"], {}, "n_jobs"),
        (["seed=0,1"], {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "start it once"),
    ],
)
def test_a_sweep_that_cannot_be_ends_before_it_begins(
    arguments: list[str], environment: dict[str, str], words: str, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _, out, err = sweep.failed(*arguments)
    assert words in err
    assert out == ""
    assert not Path("sweep").exists()


def test_folder_belongs_to_one_sweep_at_a_time(sweep: Sweep) -> None:
    Path("sweep").mkdir()
    with held(Path("sweep"), AssertionError()):
        err = sweep.failed("seed=0,1").err
        assert "another sweep is running in" in err
        assert "hydra.sweep.dir" in err
        assert not sweep.records()
    assert sweep("seed=0")[0] == 0
    assert len(sweep.records()) == 1


@pytest.mark.parametrize("more", ["resume=true", "overwrite=true"])
def test_runs_of_other_settings_are_told_apart(sweep: Sweep, more: str) -> None:
    sweep("seed=0")
    assert sweep("seed=0", "rho=0.5", more)[0] == 0
    assert {record["config"]["rho"] for record in sweep.records() if record["config_hash"] in sweep.own()} == {0.5}
    for lists_no_runs in ("hydra/launcher=basic", "hydra.sweep.subdir=mine"):
        sweep("seed=0")
        assert sweep("seed=0", "rho=0.2", lists_no_runs)[0] == 0
        assert not Path("sweep/sweep.json").exists()


def test_runs_that_a_sweeper_launches_in_batches_are_all_listed(sweep: Sweep) -> None:
    sweep("seed=7")
    assert sweep("seed=0,1,2", "hydra/sweeper=basic", "hydra.sweeper.max_batch_size=2")[0] == 0
    assert sorted(sweep.own()) == sorted(run["config_hash"] for run in sweep.records() if run["seed"] < 7)


def test_part_of_a_preset_adds_its_runs_to_the_list(sweep: Sweep) -> None:
    listed: list[list[str]] = [[]]
    for more, count in (("seed=0", 1), ("seed=2", 2), ("+hydra.sweeper.params.seed=3", 3)):
        assert sweep("experiment.name=mine", more)[0] == 0
        listed.append(sweep.own())
        assert listed[-1][: len(listed[-2])] == listed[-2]
        assert len(listed[-1]) == count


@pytest.mark.parametrize(("resume", "words"), [(True, "the same command continues here"), (False, "resume=true")])
def test_interruption_can_go_on(sweep: Sweep, monkeypatch: pytest.MonkeyPatch, resume: bool, words: str) -> None:
    monkeypatch.setattr(train, "run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    code, _, err = sweep("seed=0,1,2", f"resume={resume}")
    assert code == 130
    (told,) = [line for line in err.splitlines() if line.startswith("sweep: interrupted; ")]
    assert words in told
    assert "0/3" in states_of(err)[0]
    if resume:  # so that no report leaves out runs of a sweep that was killed
        assert len(sweep.own()) == 3


# Sweeps in processes.

LONGER = "objective.epochs=200"
"""Long enough for something to happen meanwhile."""
PATIENCE = 400.0
"""Seconds for a sweep that takes ten on idle cores."""

PROMPT = 10.0
"""Seconds in which a sweep has to end when told to; its runs alone take longer on busy cores."""


Starter = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Starter]:
    """Starts sweeps in process groups of their own, and leaves none behind."""
    processes = []

    def start(*arguments: str, code: str = INTERRUPTIBLE) -> subprocess.Popen[str]:
        processes.append(begun("-c", code, "-m", *SHORT, LONGER, *BY_HASH, *arguments, cwd=tmp_path, group=True))
        return processes[-1]

    yield start
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finished_in(folder: Path) -> dict[str, tuple[str, int]]:
    """Hash to start and time of writing of every finished record."""
    return {
        path.parent.name: (read_record(path.parent)["started"], path.stat().st_mtime_ns)
        for path in folder.glob("sweep/*/record.json")
    }


def wait_for(folder: Path, records: int, process: subprocess.Popen[str], draw: random.Random) -> dict[str, Any]:
    """Until there are so many records, and a random moment longer."""
    deadline = time.monotonic() + PATIENCE
    while len(list(folder.glob("sweep/*/record.json"))) < records:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(draw.random() / 4)
    return finished_in(folder)


def members(group: int) -> list[int]:
    """Processes of a group that are alive."""
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            alive.append(int(stat.parent.name))
    return alive


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the processes of a sweep in /proc")
def test_whatever_ends_a_sweep_the_same_command_continues_it(tmp_path: Path, started: Starter, sweep: Sweep) -> None:
    """kill -9 of all of it, Ctrl-C: nothing is lost, nothing is done twice. A worker: `sweeping/test_launchers.py`."""
    draw = random.Random()
    seeds = "seed=range(0,6)"
    process = started(seeds)
    kept = wait_for(tmp_path, 1, process, draw)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    process = started(seeds, "hydra/launcher=pool", "hydra.launcher.n_jobs=2")
    kept = wait_for(tmp_path, len(finished_in(tmp_path)) + 1, process, draw) | kept
    os.killpg(process.pid, signal.SIGINT)
    pressed = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - pressed < PROMPT
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "the same command continues here" in err
    while members(process.pid):  # loky's bookkeeper sees the end of its pipe, and follows
        assert time.monotonic() - pressed < PROMPT
        time.sleep(0.05)

    before = len(finished_in(tmp_path))
    code, out, err = sweep(seeds, LONGER)
    assert (code, out) == (0, f"{tmp_path / 'sweep'}\n"), err
    assert ended(err, 6, f"{before} found")

    done = finished_in(tmp_path)
    assert len(done) == 6
    assert {digest: done[digest] for digest in kept} == kept
    assert {(record["seed"], record["status"]) for record in sweep.records()} == {(n, "finished") for n in range(6)}
    assert not list((tmp_path / "sweep").glob("*/.*.part"))

    process = started(seeds, code=INTERRUPTIBLE.replace("sys.exit(main())", "main(); print('torch' in sys.modules)"))
    out, err = process.communicate(timeout=PATIENCE)
    assert ended(err, 6, "6 found")
    assert out.splitlines() == [str(tmp_path / "sweep"), "False"]
    assert finished_in(tmp_path) == done
