"""`python -m immunize.attack run=<folder>`: the attack grid against a run or checkpoint, θ_0 and a random rotation.

`main` only parses; :func:`run` measures and writes `attack_record.json`; :func:`measure` is what `immunize.verify`
repeats. Finished attacks are kept in `attack_cells`, so that an interrupted grid goes on where it stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from immunize.cli import command, now_and_then, pasted, tell
from immunize.config import config_hash, data_folder, is_deep, resolved, settings_of
from immunize.effects import Idle, asked_for, idle_in_attack, refuse_idle, told
from immunize.errors import CheckpointError, UserError
from immunize.files import held, read_object
from immunize.instantiate import NOT_ARGUMENTS, build, build_source, check_parts
from immunize.records import (
    ATTACK_CELLS,
    ATTACK_RECORD,
    CHECKPOINT,
    begun,
    plain,
    provenance,
    read_immunized,
    reset_peak_memory,
    write_record,
)
from immunize.schemas import AttackConfig
from immunize.settings import LARGEST_SEED, THREADS, Rule, check, check_folder
from immunize.threads import cpu_threads, threads_in_force

if TYPE_CHECKING:
    from immunize.attack_grid.target import Target
    from immunize.evaluation.attacks.grid import Entry, Store

FEATURES = "attack_features"

NOT_HASHED = ("out", "cells", "features", "jobs")
"""Settings that change no number, beside those of :mod:`immunize.config`."""

PATHS = ("run", "checkpoint", "reference")
"""Settings that point at what is attacked: however they are spelled, it is the same."""

RULES: tuple[Rule, ...] = (
    ("seeds", lambda value: len(value) >= 1, "at least one seed"),
    ("seeds", lambda value: all(0 <= seed <= LARGEST_SEED for seed in value), f"numbers from 0 to {LARGEST_SEED}"),
    ("seeds", lambda value: len(set(value)) == len(value), "different seeds"),
    ("validation_fraction", lambda value: 0 < value <= 0.9, "positive and at most 0.9"),
    ("test_fraction", lambda value: 0 < value <= 0.9, "positive and at most 0.9"),
    (
        "benign",
        lambda value: all(isinstance(of, Mapping) for of in value.values()),
        "data sets under their names, as conf/benign/cars.yaml has one",
    ),
    ("benign_digits", lambda value: 0 <= value <= 8, "from 0 to 8"),
    ("images", lambda value: value is None or value >= 10, "10 or more, or null for all"),
    ("workers", lambda value: value >= 0, "0 or more"),
    THREADS,
    ("jobs", lambda value: value is None or value >= 1, "at least 1, or null for one a core"),
)


def run(cfg: DictConfig, tell: Callable[[str], None] = lambda text: None, given: Sequence[str] = ()) -> dict[str, Any]:
    """Attack, and write `attack_record.json`.

    Args:
        cfg: the composed configuration (`conf/attack.yaml`).
        tell: gets a line at the start, and one for every finished attack.
        given: settings that somebody has asked for, which have to have an effect.

    Returns:
        The record, as written.

    Raises:
        UserError: anything in the configuration, the run or the data that the user has to mend.
    """
    record: dict[str, Any] = begun()
    clock = time.perf_counter()
    check(cfg, AttackConfig, RULES)
    cfg.threads = threads_in_force(cfg.threads)  # they change numbers, so the record's configuration has those used
    from immunize.attack_grid.target import CellFolder

    grid = assemble(cfg)
    refuse_idle(given, grid.idle())
    folder = folder_of(cfg.out, cfg.run, cfg.checkpoint)
    check_folder(folder, "out")
    for name in ("cells", "features"):  # which may be full, and not for us to write into
        if cfg[name] is not None and Path(cfg[name]).exists() and not Path(cfg[name]).is_dir():
            raise UserError(f"{name}={cfg[name]} is a file: name a folder")
    settings = resolved(cfg)
    hashed = hash_of_grid(settings)
    with held(folder, UserError(f"another command is at work in {folder}; wait for its end, or set out=<folder>")):
        _refuse_other(folder / ATTACK_RECORD, hashed, cfg.overwrite)
        tell(f"{cfg.run or cfg.checkpoint}, attack={cfg.attack.name}: loading")
        reset_peak_memory()
        made_with = provenance()
        cells = Path(cfg.cells) if cfg.cells is not None else folder / ATTACK_CELLS
        store = CellFolder(cells, made_with["git_commit"])
        features = Path(cfg.features) if cfg.features is not None else folder / FEATURES
        found = measure(grid, store, tell, features)
        idle = grid.idle(found)
        record |= {
            "kind": "attack",
            "status": "finished",
            **told(settings, idle, hashed),
            **made_with,
            **found,
            "seconds": time.perf_counter() - clock,
        }
        record["hardware"]["threads"] = cfg.threads
        record = plain(record)
        write_record(folder, record, ATTACK_RECORD)
    return record


def hash_of_grid(settings: dict[str, Any]) -> str:
    """A hash of everything in a resolved configuration that changes a number, the number of threads among it.

    A record that lies in the folder of what it attacks, as it does unless `out` says otherwise, does not depend on
    where that folder is.
    """
    kept = {key: value for key, value in settings.items() if key not in NOT_HASHED}
    kept |= {key: os.path.normpath(kept[key]) for key in PATHS if kept.get(key) is not None}
    if settings.get("out") is None and kept.get("run") is not None:
        del kept["run"]
    elif settings.get("out") is None and kept.get("checkpoint") is not None:
        kept["checkpoint"] = os.path.basename(kept["checkpoint"])
    return config_hash(kept | {"rounded_by_threads": kept.get("threads")})


def measure(
    grid: Grid,
    store: Store | None = None,
    tell: Callable[[str], None] = lambda text: None,
    features: Path | None = None,
) -> dict[str, Any]:
    """Every number of the grid, from checkpoint and data.

    Args:
        grid: of :func:`assemble`.
        store: of finished attacks; None repeats all of them.
        tell: gets a line for every finished attack.
        features: folder in which features of images are kept; None computes all.

    Raises:
        UserError: as :func:`run`.
    """
    entries = grid.new_entries()  # a bad grid is reported before the data are read
    from immunize.attack_grid.run import run_grid
    from immunize.evaluation.attacks.grid import version_of

    with cpu_threads(grid.threads):
        target = grid.new_target(features, tell)
        if target.device is None and all(entry.attack.needs == "model" for entry in entries):
            raise UserError("the attacks that are left need a network, and a linear model is none: choose other tiers")
        found = run_grid(target, entries, store, tell)
    versions = {entry.name: version_of(entry.attack) for entry in entries}
    return {"subject": target.facts, "tasks": found.pop("tasks"), "attack_versions": versions, **found}


@command("attack")
def main(cfg: DictConfig) -> None:
    """Attack, print the table, then the record's path as the last line of stdout."""
    try:
        record = run(cfg, now_and_then(), asked_for())
    except KeyboardInterrupt:
        tell("finished attacks are kept; the same command goes on from there")
        raise
    from immunize.report.attacks.one_run import show_attack

    show_attack(record)
    if cfg.run is not None and cfg.out is None and not cfg.attack.reduced:
        tell(f"what to publish with the model: python -m immunize.report card {pasted('run', cfg.run)}")
    print(folder_of(cfg.out, cfg.run, cfg.checkpoint) / ATTACK_RECORD, flush=True)


# --- the settings -------------------------------------------------------------------------------------------------


def folder_of(out: str | None, run: str | None, checkpoint: str) -> Path:
    """Where the record goes: as said, or to what is attacked."""
    if out is not None:
        return Path(out)
    return Path(run) if run is not None else Path(checkpoint).parent


def _refuse_other(path: Path, hashed: str, overwrite: bool) -> None:
    if not overwrite and path.is_file() and (read_object(path) or {}).get("config_hash") != hashed:
        raise UserError(f"{path} was made with other settings; choose another folder with out=, or set overwrite=true")


@dataclass(frozen=True)
class Grid:
    """A grid of attacks and what it is pointed at, as far as both are known before anything heavy is imported.

    Attributes:
        idle: from what :func:`measure` has found, if it has, to the settings without effect.
        threads: of every attack.
        new_entries: makes the attacks.
        new_target: from the folder of features, and what gets a line for every data set, to what is attacked.
    """

    idle: Callable[..., Idle]
    threads: int
    new_entries: Callable[[], list[Entry]]
    new_target: Callable[[Path | None, Callable[[str], None]], Target]


def assemble(cfg: DictConfig) -> Grid:
    """What the configuration comes to: a run, or a checkpoint with a model and data, and the attacks on it.

    Args:
        cfg: the composed configuration (`conf/attack.yaml`), checked.

    Raises:
        UserError: neither or both of `run` and `checkpoint`, one that does not exist, a run that did not finish, or a
            network without θ_0.
    """
    if (cfg.run is None) == (cfg.checkpoint is None):
        raise UserError(
            "say what to attack: run=<output folder>, or checkpoint=<file> with model=, harmful=, pretrain="
        )
    for name in ("run", "checkpoint"):
        if cfg[name] is not None and not Path(cfg[name]).exists():
            raise UserError(f"{name}={cfg[name]} does not exist")
    if cfg.checkpoint is not None and Path(cfg.checkpoint).is_dir():
        raise UserError(f"checkpoint={cfg.checkpoint} is a folder: name the file, or the folder of a run with run=")
    from immunize.attack_grid.target import GridPlan, Pointed

    data_root, record = data_folder(cfg.data_root), {}
    if cfg.run is None:
        nodes = OmegaConf.merge(cfg, {"data_root": data_root or "data"})
    else:
        record = read_immunized(Path(cfg.run))
        if record["status"] != "finished":
            raise CheckpointError(f"the run in {cfg.run} is '{record['status']}': there is nothing finished to attack")
        nodes = OmegaConf.create(settings_of(record, data_root))
        check_parts(nodes.model, nodes.pretrain, nodes.harmful)
    assert isinstance(nodes, DictConfig)
    pointed = Pointed(
        model=nodes.model.name,
        new_source=lambda role, **changed: build({**nodes[role], **changed}),
        path=Path(cfg.checkpoint) if cfg.run is None else Path(cfg.run) / CHECKPOINT,
        record=record,
    )
    deep = is_deep(nodes)
    own: dict[str, Any] = {"benign_digits": cfg.benign_digits}
    if deep:
        model = OmegaConf.create(OmegaConf.to_container(nodes.model, resolve=True))
        assert isinstance(model, DictConfig)
        if cfg.reference is not None:
            model.checkpoint = cfg.reference
        weights = model.get("checkpoint")
        if weights is not None and not Path(weights).expanduser().is_file():
            raise CheckpointError(f"θ_0's weights are not at {weights}: name their file with reference=<file>")
        if not record and weights is None and not model.pretrained:
            raise UserError("there is no θ_0 to compare with: give its weights with reference=<file>")
        root = {"data_root": str(nodes.data_root)}
        seed, any_head = nodes.seed if record else 0, not record and "architecture" in model  # that timm's weights have

        def new_theta_0(n_classes: int) -> Any:
            return build(model, leave_out=NOT_ARGUMENTS, n_classes=None if any_head else n_classes, seed=seed)

        own = {
            "new_theta_0": new_theta_0,
            "benign": {
                str(name): partial(build_source, {**node, **(root if "data_root" in node else {})}, f"benign.{name}")
                for name, node in cfg.benign.items()
            },
            "images": cfg.images,
            "workers": cfg.workers,
        }
    elif cfg.get("benign"):
        raise UserError("benign=[...] names image data sets for networks; a linear model has benign_digits")

    def new_target(features: Path | None, tell: Callable[[str], None]) -> Target:
        from immunize.evaluation.attacks import Budget

        tasks = cfg.get("tasks")
        plan = GridPlan(
            seeds=tuple(cfg.seeds),
            threads=cfg.threads,
            jobs=cfg.get("jobs"),
            budget=Budget(cfg.attack.budget.steps, cfg.attack.budget.flops),
            tasks=None if tasks is None else tuple(tasks),
            validation_fraction=cfg.validation_fraction,
            own_rows=cfg.get("own_rows", False),
            test_fraction=cfg.test_fraction,
        )
        if deep:
            from immunize.attack_grid.network import network_target

            return network_target(pointed, plan, features=features, tell=tell, **own)
        from immunize.attack_grid.linear import linear_target

        return linear_target(pointed, plan, **own)

    return Grid(partial(idle_in_attack, cfg, nodes), cfg.threads, partial(entries_of, cfg), new_target)


def entries_of(cfg: DictConfig) -> list[Entry]:
    """The attacks of the wanted tiers, in the grid's order.

    Raises:
        UserError: an unknown tier, a tier without attacks, or a bad setting of an attack.
    """
    from immunize.evaluation.attacks import TIERS
    from immunize.evaluation.attacks.grid import Entry, check_tiers

    wanted = check_tiers(TIERS if cfg.tiers is None else cfg.tiers)
    entries = []
    for name, node in cfg.attack.attacks.items():
        settings = OmegaConf.to_container(node, resolve=True)
        assert isinstance(settings, dict)
        attack = build(node, _convert_="all")
        if attack.tier in wanted:
            changing = {str(key): value for key, value in settings.items() if key != "kinds"}
            entries.append(Entry(str(name), attack, changing))
    there = {entry.attack.tier for entry in entries}
    if cfg.tiers is not None and (missing := [tier for tier in wanted if tier not in there]):
        raise UserError(f"the grid attack={cfg.attack.name} has no attack of tier {missing[0]} ({TIERS[missing[0]]})")
    check_tiers(there)
    return entries


if __name__ == "__main__":
    main()
