"""`make table_attacks`, `make table_defence`: the attack grid on the runs of a table, to tell methods apart.

    python -m experiments.table_attacks scale=linear|digits|small|defence_digits|defence_small|defence_front
        |defence_linear|defence_own|defence_newrows|defence_search|defence_weights|defence_ridge
        |defence_deep|defence_floor
        |t4_digits|t4_long|t4_rates|t4_stages|t4_search|t4_small|t4_weights|t4_lora|t4_full
        |rotations
        [runs=folder,folder] [out=folder] [seeds=0,1,2] [harmful=cars,caltech101] [models=vit_small] [pairs=01,38]
        [methods=ours,none]
        [workers=2] [data_root=folder] [grid='attack=quick benign_digits=0']

Every run is attacked with the seed it was trained with, so that the spread over seeds is that of both. θ_0 and the
control do not hang on the method: their cells lie in one folder that all runs share, and the first run of every pair
and seed, which computes them, goes before the others. Runs whose record is there are not attacked again; attacks that
were finished are not repeated. What comes out is read by `python -m immunize.report experiment=table_attacks`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir

from experiments.reporting import digit_pairs, key_values
from experiments.table_attacks.jobs import Job, jobs_of, say, setting, unfinished, waves
from experiments.table_attacks.scales import SCALES
from immunize.cli import entry_point, explain_errors
from immunize.config import config_dir, register
from immunize.errors import UserError
from immunize.threads import cores

CELLS, FEATURES = "cells", "features"


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
    known = {"scale", "runs", "out", "seeds", "harmful", "models", "pairs", "methods", "workers", "data_root", "grid"}
    given = key_values(arguments, known)
    name = given.get("scale", "linear")
    if name not in SCALES:
        raise UserError(f"scale={name}: there are {', '.join(SCALES)}")
    workers = _whole_number("workers", given.get("workers", str(cores())))
    scale, out = SCALES[name], Path(given.get("out", f"outputs/attacks_{name}"))
    jobs = jobs_of(
        [Path(one) for one in given["runs"].split(",")] if "runs" in given else [Path(one) for one in scale.runs],
        out,
        methods=given["methods"].split(",") if "methods" in given else scale.methods,
        seeds=[_whole_number("seeds", one) for one in given["seeds"].split(",")] if "seeds" in given else scale.seeds,
        harmful=given["harmful"].split(",") if "harmful" in given else None,
        models=given["models"].split(",") if "models" in given else None,
        pairs=digit_pairs(given.get("pairs", scale.pairs)),
        grid=[
            *(given["grid"].split() if "grid" in given else scale.grid),
            *([setting("data_root", given["data_root"])] if "data_root" in given else []),
            setting("cells", out / CELLS),
            setting("features", out / FEATURES),
        ],
    )
    register()
    todo = list(unfinished(jobs))
    say(f"{len(todo)} of {len(jobs)} runs are to be attacked")
    started = time.perf_counter()
    for wave in waves(todo):
        for done, job in enumerate(attacked(wave, workers), start=1):
            say(f"{job.title}: done, {done} of {len(wave)}, {time.perf_counter() - started:.0f} s")
    print(out)
    return out


# --- the attacks --------------------------------------------------------------------------------------------------


def attacked(jobs: Sequence[Job], workers: int) -> Iterator[Job]:
    """Attack, side by side; the jobs as they are done. Fewer of them than workers take turns, each with all workers.

    Raises:
        UserError: a run that cannot be attacked, by its name.
    """
    if len(jobs) < workers or workers == 1:
        for job in jobs:
            _explained(job, attack(job, workers))
            yield job
        return
    from concurrent.futures import as_completed

    from immunize.processes import KEPT_MEMORY, closing_pool
    from immunize.sweeping.launching import threads_a_worker

    with closing_pool(workers, threads_a_worker(cores(), workers), environment=KEPT_MEMORY) as pool:
        futures = {pool.submit(attack, job): job for job in jobs}
        for future in as_completed(futures):
            _explained(futures[future], future.result())
            yield futures[future]


def attack(job: Job, processes: int = 1) -> str | None:
    """Attack one run; what was wrong, if the user can mend it.

    An attack record of other settings is replaced: its folder is this table's own.
    """
    from immunize import attack as entry

    register()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("attack", [*job.overrides, setting("out", job.out), f"jobs={processes}", "overwrite=true"])
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


if __name__ == "__main__":
    main()
