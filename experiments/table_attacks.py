"""`make table_attacks`: the attack grid on the runs of a table, all methods, so that they can be told apart by tier.

    python -m experiments.table_attacks scale=linear|digits|small [runs=folder,folder] [out=folder] [seeds=0,1,2]
        [harmful=cars,caltech101] [pairs=01,38] [methods=ours,none] [workers=2] [data_root=folder]
        [grid='attack=quick benign_digits=0']

Every run is attacked with the seed it was trained with, so that the spread over seeds is that of both. θ_0 and the
control do not hang on the method: their cells lie in one folder that all runs share, and the first run of every pair
and seed, which computes them, goes before the others. Runs whose record is there are not attacked again; attacks that
were finished are not repeated. What comes out is read by `python -m immunize.report experiment=table_attacks`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from experiments.reporting import digit_pairs, key_values
from immunize.cli import entry_point, explain_errors
from immunize.config import config_dir, register, resolved
from immunize.errors import UserError

METHODS = ("none", "ill_only", "imma", "opt_kappa", "ours", "closed_form")
SEEDS = (0, 1, 2)
CELLS, FEATURES = "cells", "features"
PLACES = ("run", "out", "cells", "features", "data_root", "workers", "overwrite")
"""Settings that change no number."""

REPAIRS_LIKE_STANDARDIZE = ("~attack.attacks.centre", "~attack.attacks.normalize")
"""Each takes as long as `standardize`, half a minute a run on 12,000 rows of 784 pixels."""

MOVING = ("last_block", "full_finetune")
"""T4 on a ResNet at 64 px, where a step costs as much as a hundred passes over the features; without LoRA, which moves
less than `full_finetune` at the same price. Newton's method has to solve for a hundred classes at once."""


def for_harmful(*names: str) -> tuple[str, ...]:
    """Overrides by which these attacks are tried on the harmful task alone: a network is dear to train."""
    return tuple(f"+attack.attacks.{name}.kinds=[harmful]" for name in names)


@dataclass(frozen=True)
class Scale:
    """What one table is made of.

    Attributes:
        runs: folders of sweeps, as their presets leave them.
        pairs: of digits, of the runs that have one; the others are all taken.
        grid: overrides of `conf/attack.yaml`.
    """

    runs: tuple[str, ...]
    grid: tuple[str, ...]
    pairs: str = ""


SCALES = {
    "linear": Scale(
        ("outputs/table1", "outputs/table2"),
        (
            "attack=full",
            *REPAIRS_LIKE_STANDARDIZE,
            "attack.budget.steps=1000",
            "attack.budget.flops=3e10",
            "benign_digits=1",
        ),
        "01,06,08,10,12,13",
    ),
    "digits": Scale(
        ("outputs/table3_digits",),
        (
            *("attack=full", "attack.budget.steps=1000", "attack.budget.flops=1e11", *for_harmful(*MOVING, "lora")),
            *(f"attack.attacks.{name}.flops=4e11" for name in (*MOVING, "lora")),  # 1e11 would be two steps of LoRA
            "attack.attacks.lora.ranks=[8]",
        ),
    ),
    "small": Scale(
        ("outputs/table3_small",),
        (
            *("attack=full", "attack.budget.steps=300", "attack.budget.flops=3e11"),
            *("images=4000", "benign=[imagenette]", "tasks=[harmful,benign_imagenette]"),
            *("~attack.attacks.newton", "~attack.attacks.lora", *for_harmful(*MOVING)),
            *(f"attack.attacks.{name}.flops=6e12" for name in MOVING),
            *("attack.attacks.full_finetune.steps=40", "attack.attacks.full_finetune.measured=500"),
        ),
    ),
}
"""Budgets are ours: what two cores do in an hour or two. The FLOPs bind on MNIST, the steps elsewhere."""


@dataclass(frozen=True)
class Job:
    """One run to attack.

    Attributes:
        folder: of the run.
        out: where its attack record goes.
        title: in messages.
        shared: pair and seed; runs that have them in common share the cells of θ_0 and of the control.
        overrides: of `conf/attack.yaml`.
    """

    folder: Path
    out: Path
    title: str
    shared: tuple[str, int]
    overrides: tuple[str, ...]


@entry_point
def main() -> None:
    """Attack what was not attacked yet; the last line of stdout is the folder of the records."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """See the module's note.

    Returns:
        the folder with the attack records.

    Raises:
        UserError: a bad argument, no run, or runs or data that cannot be attacked.
    """
    known = {"scale", "runs", "out", "seeds", "harmful", "pairs", "methods", "workers", "data_root", "grid"}
    given = key_values(arguments, known)
    name = given.get("scale", "linear")
    if name not in SCALES:
        raise UserError(f"scale={name}: there are {', '.join(SCALES)}")
    workers = _whole_number("workers", given.get("workers", str(os.cpu_count() or 1)))
    scale, out = SCALES[name], Path(given.get("out", f"outputs/attacks_{name}"))
    jobs = jobs_of(
        [Path(one) for one in given["runs"].split(",")] if "runs" in given else [Path(one) for one in scale.runs],
        out,
        methods=given.get("methods", ",".join(METHODS)).split(","),
        seeds=[_whole_number("seeds", one) for one in given["seeds"].split(",")] if "seeds" in given else SEEDS,
        harmful=given["harmful"].split(",") if "harmful" in given else None,
        pairs=digit_pairs(given.get("pairs", scale.pairs)),
        grid=[
            *(given["grid"].split() if "grid" in given else scale.grid),
            *([f"data_root={given['data_root']}"] if "data_root" in given else []),
            f"cells={out / CELLS}",
            f"features={out / FEATURES}",
        ],
    )
    register()
    todo = list(unfinished(jobs))
    _say(f"{len(todo)} of {len(jobs)} runs are to be attacked")
    started = time.perf_counter()
    for wave in waves(todo):
        for done, job in enumerate(attacked(wave, workers), start=1):
            _say(f"{job.title}: done, {done} of {len(wave)}, {time.perf_counter() - started:.0f} s")
    print(out)
    return out


# --- the runs -----------------------------------------------------------------------------------------------------


def jobs_of(
    folders: Iterable[Path],
    out: Path,
    *,
    methods: Sequence[str],
    seeds: Sequence[int],
    harmful: Sequence[str] | None,
    pairs: Sequence[tuple[int, int]],
    grid: Sequence[str],
) -> list[Job]:
    """A job for every finished run of the sweeps that is asked for.

    Args:
        folders: of sweeps; one that is not there is left out with a message.
        out: below which the attack records go.
        methods: those to take.
        seeds: those to take.
        harmful: names of the D_H to take; None takes all.
        pairs: of digits; runs on other data are all taken.
        grid: overrides.

    Raises:
        UserError: no run is left.
    """
    from immunize.report.loading import load_records
    from immunize.report.naming import pair_label, run_title

    jobs = []
    for folder in folders:
        if not folder.is_dir():
            _say(f"{folder} is not there: its runs are left out")
            continue
        places = {_hash(path): path.parent for path in folder.rglob("record.json")}
        for record in load_records(folder):
            pair = record["config"]["harmful"].get("pair")
            if record["method"] not in methods or record["seed"] not in seeds:
                continue
            if harmful is not None and record["harmful"] not in harmful:
                continue
            if pair is not None and tuple(pair) not in pairs:
                continue
            run_folder = places[record["config_hash"]]
            label = f"{record['model']} {record['pretrain']} {record['harmful']} {pair_label(record)}"
            overrides = (f"run={run_folder}", f"seeds=[{record['seed']}]", *grid)
            place = out / folder.name / record["config_hash"]
            jobs.append(Job(run_folder, place, run_title(record), (label, record["seed"]), overrides))
    if not jobs:
        raise UserError(
            f"{', '.join(map(str, folders))}: there is no finished run to attack; make the runs first (make table1, "
            "make table2, make table3 SCALE=digits), or name their folders with runs=<folder>,<folder>"
        )
    return jobs


def unfinished(jobs: Iterable[Job]) -> Iterator[Job]:
    """Those that have no attack record yet, or one of other settings, older attacks or another θ."""
    with initialize_config_dir(config_dir(), version_base="1.3"):
        for job in jobs:
            if not _is_done(job, compose("attack", [*job.overrides, f"out={job.out}"])):
                yield job


def waves(jobs: Sequence[Job]) -> list[list[Job]]:
    """First one run of every pair and seed, which leaves the cells that the others then find; then those."""
    first: dict[tuple[str, int], Job] = {}
    for job in jobs:
        first.setdefault(job.shared, job)
    leading = list(first.values())
    return [wave for wave in (leading, [job for job in jobs if first[job.shared] is not job]) if wave]


def _is_done(job: Job, cfg: DictConfig) -> bool:
    from immunize.attack import ATTACK_RECORD, entries_of
    from immunize.attacking.results import RESULTS
    from immunize.evaluation.attacks import version_of
    from immunize.records import CHECKPOINT

    record = _read(job.out / ATTACK_RECORD)
    if record is None or not record.keys() >= set(RESULTS):  # of an older version
        return False
    theta = hashlib.sha256((job.folder / CHECKPOINT).read_bytes()).hexdigest()
    versions = {entry.name: version_of(entry.attack) for entry in entries_of(cfg)}
    return (
        _settings(record["config"]) == _settings(resolved(cfg))
        and record.get("attack_versions") == versions
        and record["subject"]["checkpoint_sha256"] == theta
    )


def _settings(config: dict[str, Any]) -> str:
    """What of a configuration changes numbers; where things lie does not."""
    left = {key: value for key, value in config.items() if key not in PLACES}
    return json.dumps(left, sort_keys=True)


def _hash(path: Path) -> str | None:
    record = _read(path)
    return None if record is None else record.get("config_hash")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# --- the attacks --------------------------------------------------------------------------------------------------


def attacked(jobs: Sequence[Job], workers: int) -> Iterator[Job]:
    """Attack, side by side; the jobs as they are done.

    Raises:
        UserError: a run that cannot be attacked, by its name.
    """
    if workers == 1:
        for job in jobs:
            _explained(job, attack(job))
            yield job
        return
    from concurrent.futures import as_completed

    from loky import ProcessPoolExecutor

    from immunize.sweeping.pool import THREADS, threads_a_worker

    threads = threads_a_worker(os.cpu_count() or 1, workers)
    with ProcessPoolExecutor(workers, env=dict.fromkeys(THREADS, str(threads))) as pool:
        futures = {pool.submit(attack, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                _explained(futures[future], future.result())
                yield futures[future]
        finally:
            with contextlib.suppress(RuntimeError):
                pool.shutdown(wait=True, kill_workers=True)


def attack(job: Job) -> str | None:
    """Attack one run; what was wrong, if the user can mend it.

    An attack record of other settings is replaced: its folder is this table's own.
    """
    from immunize import attack as entry

    register()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("attack", [*job.overrides, f"out={job.out}", "overwrite=true"])
    try:
        entry.run(cfg)
    except UserError as error:
        return str(error)
    return None


def _explained(job: Job, wrong: str | None) -> None:
    if wrong is not None:
        raise UserError(f"{job.title} ({job.folder}): {wrong}")


def _whole_number(name: str, text: str) -> int:
    if not text.isdecimal() or (name == "workers" and int(text) < 1):
        raise UserError(f"{name}={text}: a whole number is needed")
    return int(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
