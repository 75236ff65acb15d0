"""`experiments.table_attacks`: which runs are attacked, what they share, and what is not done twice."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import demo
from experiments.table_attacks import __main__ as table_attacks
from experiments.table_attacks.__main__ import CELLS, run
from experiments.table_attacks.jobs import Job, waves
from immunize.errors import UserError
from immunize.records import ATTACK_RECORD, RECORD
from immunize.report.attacks.page import report_attacks
from immunize.report.attacks.records import Attacks, load_attacks
from immunize.report.loading import load_records, write_results
from tests.attacking import TINY_GRID
from tests.commands import ROOT, fresh
from tests.composing import run_tiny
from tests.tampering import edit_json

WORKERS = """
import os, signal
from immunize.processes import closing_pool
with closing_pool(2, 1) as pool:
    assert signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result(), "Ctrl-C reaches it"
    print(*{{pool.submit(os.getpid).result() for _ in range(20)}}, flush=True)
    os.kill(os.getpid(), {:d})
"""

GRID = [*(word for word in TINY_GRID if not word.startswith("seeds=")), "tiers=[T2]"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("somebody's sweep")
    for name, method in (("one", "ours"), ("two", "none"), ("three", "well_only")):
        run_tiny(folder / name, f"method={method}", "seed=1")
    return folder


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_processes_end_with_the_command_however_it_ends(number: int, code: int, tmp_path: Path) -> None:
    killed = fresh("-c", WORKERS.format(number), cwd=tmp_path, timeout=120)
    assert killed.returncode == code
    assert not (number == signal.SIGTERM and killed.stderr)  # as loky's words of what is not closed
    pids = [int(pid) for pid in killed.stdout.split()]
    assert pids
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.2)


def arguments(sweep: Path, out: Path, *more: str, grid: Sequence[str] = GRID) -> list[str]:
    given = [f"runs={sweep}", f"out={out}", "seeds=1", "methods=ours,none", "workers=1", f"grid={' '.join(grid)}"]
    return [*given, *more]


def test_runs_share_what_no_method_changes(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(arguments(sweep, tmp_path / "tables, old"))
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    records = load_attacks(out)
    assert [(r["method"], r["seed"], r["config"]["seeds"]) for r in records] == [("none", 1, [1]), ("ours", 1, [1])]
    attacks = json.loads(next(out.rglob(ATTACK_RECORD)).read_text())["attacks"]
    a_task = len(attacks["harmful"]["theta_0"])
    assert len(list((out / CELLS).iterdir())) == 2 * a_task * (2 + 2)  # tasks; θ_0, the control, and two methods
    known = [sum(record["cells"]["known"].values()) for record in records]
    assert [record["cells"]["computed"] + of for record, of in zip(records, known, strict=True)] == [2 * a_task * 3] * 2
    assert sorted(known) == [0, 2 * a_task * 2]
    report_attacks(out, tmp_path / "page")
    row = f"| cells | {2 * a_task * 4:,} computed; {2 * a_task * 2:,} known, of commit "
    assert row in (tmp_path / "page" / "README.md").read_text()

    run(arguments(sweep, out, "harmful=synthetic", f"runs=nowhere,{sweep}"))
    told = capsys.readouterr().err
    assert "nowhere is not there" in told
    assert "0 of 2 runs are to be attacked" in told
    run(arguments(sweep, out, grid=[*GRID[:-1], "tiers=[T0]"]))  # other settings replace the table's own records
    assert "2 of 2" in capsys.readouterr().err
    assert {tier for r in load_attacks(out) for tier in r["results"]["harmful"]["immunized"]} == {"T0"}


OUTDATED: dict[str, Callable[[dict[str, Any]], object]] = {
    "another map": lambda record: record["subject"].update(checkpoint_sha256="0"),
    "an older version": lambda record: record.pop("best_so_far"),
    "an older attack": lambda record: record["attack_versions"].update({next(iter(record["attack_versions"])): [0]}),
}


def test_an_old_record_is_measured_again(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(arguments(sweep, tmp_path))
    path = next(path for path in out.rglob(ATTACK_RECORD))
    for what, change in OUTDATED.items():
        edit_json(path, change)
        capsys.readouterr()
        run(arguments(sweep, out))
        assert "1 of 2 runs are to be attacked" in capsys.readouterr().err, what
        again = json.loads(path.read_text())
        assert again["subject"]["checkpoint_sha256"] != "0"
        assert again["best_so_far"]
        assert [0] not in again["attack_versions"].values()


def test_the_first_of_every_pair_and_seed_goes_before_the_others() -> None:
    def job(name: str, pair: str, seed: int) -> Job:
        return Job(Path(name), Path(name), name, (pair, seed), ())

    jobs = [job("a", "01", 0), job("b", "01", 0), job("c", "01", 1), job("d", "38", 0), job("e", "38", 0)]
    assert [[one.title for one in wave] for wave in waves(jobs)] == [["a", "c", "d"], ["b", "e"]]
    assert waves(jobs[:1]) == [jobs[:1]]
    assert waves([]) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("scale=large", "there are linear, digits, small"),
        ("workers=0", "workers"),
        ("seeds=a", "seeds"),
        ("pairs=00", "two different digits"),
        ("speed=1", "speed"),
        ("methods=imma", "there is no finished run to attack"),
        ("models=vit_small", "there is no finished run to attack"),
        ("runs=nowhere", "make the runs first"),
    ],
)
def test_bad_arguments_are_refused(sweep: Path, tmp_path: Path, more: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(arguments(sweep, tmp_path, more))


def test_runs_that_left_their_numbers_alone_and_damaged_ones_are_told(sweep: Path, tmp_path: Path) -> None:
    write_results(load_records(sweep), tmp_path)
    with pytest.raises(UserError, match="but not its folder with a checkpoint"):
        run(arguments(tmp_path, tmp_path / "out"))
    (tmp_path / RECORD).write_text('{"status": ')
    with pytest.raises(UserError, match="cut off or damaged"):
        run(arguments(tmp_path, tmp_path / "out"))


def test_a_run_that_cannot_be_attacked_is_named(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_attacks, "attack", lambda job, processes: "its data are gone")
    with pytest.raises(UserError, match=r"synthetic.*: its data are gone"):
        run(arguments(sweep, tmp_path))


# The demo: its table holds the numbers of the attack records.


@contextlib.contextmanager
def in_this_process(*_: object, **__: object) -> Iterator[SimpleNamespace]:
    """In the place of a pool."""
    yield SimpleNamespace(submit=lambda work, *of: SimpleNamespace(result=lambda: work(*of)))


def test_both_methods_are_attacked_and_shown_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "BUDGET", ("attack=quick", "attack.budget.steps=40", "tiers=[T0,T2]", "seeds=[0]"))
    monkeypatch.setattr(demo, "closing_pool", in_this_process)
    figure = demo.run([f"out={tmp_path}"], shorter=("figure=false", "probe_steps=50", "objective.epochs=20"))
    *_, last = printed = capsys.readouterr().out.splitlines()
    assert last == str(figure)
    assert figure.is_file()
    records = {method: json.loads((tmp_path / method / ATTACK_RECORD).read_text()) for method in demo.METHODS}
    assert max(map(len, printed[:-1])) <= 100
    rows = [line.split()[-3:] for line in printed]
    for method, record in records.items():
        for task in ("harmful", "pretrain"):
            tiers = record["results"][task]["immunized"]
            assert [method, *(f"{tiers[tier]['score']['mean']:.3g}" for tier in ("T0", "T2"))] in rows
    told = {method: next(line for line in printed if line.startswith(f"{method}: ")) for method in demo.METHODS}
    assert re.match(r"ours: RIR [\d.]+ on held-out rows; harmful task ", told["ours"])
    assert told["erase"].startswith("erase: harmful task ")  # whose RIR says nothing


def test_the_committed_table_is_what_its_records_make() -> None:
    folder = ROOT / "experiments" / "demo"
    table = demo.table_of(Attacks.of(load_attacks(folder)))
    assert table.markdown() == (folder / "table.md").read_text(encoding="utf-8")
