"""The runs of a table of attacks: which there are, which are still to be attacked, and in which order."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from immunize.config import config_dir, resolved
from immunize.errors import UserError
from immunize.files import read_object

PLACES = ("run", "out", "cells", "features", "data_root", "workers", "jobs", "overwrite")
"""Settings that change no number."""


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


def jobs_of(
    folders: Iterable[Path],
    out: Path,
    *,
    methods: Sequence[str] | None,
    seeds: Sequence[int],
    harmful: Sequence[str] | None,
    models: Sequence[str] | None,
    pairs: Sequence[tuple[int, int]],
    grid: Sequence[str],
) -> list[Job]:
    """A job for every finished run of the sweeps that is asked for.

    Args:
        folders: of sweeps; one that is not there is left out with a message.
        out: below which the attack records go.
        methods: those to take; None takes all.
        seeds: those to take.
        harmful: names of the D_H to take; None takes all.
        models: likewise.
        pairs: of digits; runs on other data are all taken.
        grid: overrides.

    Raises:
        UserError: no run is left, a record cannot be read, or a run has left its numbers alone.
    """
    from immunize.report.loading import lacking_is_told, load_records
    from immunize.report.naming import pair_label, run_title

    jobs, wanted = [], {"method": methods, "seed": seeds, "harmful": harmful, "model": models}
    for folder in folders:
        if not folder.is_dir():
            say(f"{folder} is not there: its runs are left out")
            continue
        places = {_hash(path): path.parent for path in folder.rglob("record.json")}
        with lacking_is_told(f"a record below {folder}"):
            records = {record["config_hash"]: record for record in load_records(folder)}
        for digest, record in records.items():
            pair = record["config"]["harmful"].get("pair")
            if any(names is not None and record[of] not in names for of, names in wanted.items()):
                continue
            if pair is not None and tuple(pair) not in pairs:
                continue
            if (run_folder := places.get(digest)) is None:
                raise UserError(
                    f"{folder} has the results of {run_title(record)}, but not its folder with a checkpoint"
                )
            label = f"{record['model']} {record['pretrain']} {record['harmful']} {pair_label(record)}"
            overrides = (setting("run", run_folder), f"seeds=[{record['seed']}]", *grid)
            place = out / folder.name / digest
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
            if not _is_done(job, compose("attack", [*job.overrides, setting("out", job.out)])):
                yield job


def waves(jobs: Sequence[Job]) -> list[list[Job]]:
    """First one run of every pair and seed, which leaves the cells that the others then find; then those."""
    first: dict[tuple[str, int], Job] = {}
    for job in jobs:
        first.setdefault(job.shared, job)
    leading = list(first.values())
    return [wave for wave in (leading, [job for job in jobs if first[job.shared] is not job]) if wave]


def _is_done(job: Job, cfg: DictConfig) -> bool:
    from immunize.attack import entries_of
    from immunize.attack_grid.run import RESULTS
    from immunize.evaluation.attacks.grid import version_of
    from immunize.records import ATTACK_RECORD, CHECKPOINT, whole_config

    record = read_object(job.out / ATTACK_RECORD)
    if record is None or not record.keys() >= set(RESULTS):  # of an older version
        return False
    theta = hashlib.sha256((job.folder / CHECKPOINT).read_bytes()).hexdigest()
    versions = {entry.name: version_of(entry.attack) for entry in entries_of(cfg)}
    return (
        _settings(whole_config(record)) == _settings(resolved(cfg))
        and record.get("attack_versions") == versions
        and record["subject"]["checkpoint_sha256"] == theta
    )


def _settings(config: dict[str, Any]) -> str:
    """What of a configuration changes numbers; where things lie does not."""
    left = {key: value for key, value in config.items() if key not in PLACES}
    return json.dumps(left, sort_keys=True)


def _hash(path: Path) -> str | None:
    record = read_object(path)
    return None if record is None else record.get("config_hash")


def setting(name: str, place: str | Path) -> str:
    """An override that is a path, whatever is in its name."""
    return "{}='{}'".format(name, str(place).replace("'", r"\'"))


def say(text: str) -> None:
    """A line for the user, on stderr."""
    print(text, file=sys.stderr, flush=True)
