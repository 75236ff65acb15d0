"""`python -m immunize.attack run=<folder>`: the attack grid against a run or checkpoint, θ_0 and a random rotation.

`main` only parses; :func:`run` measures and writes `attack_record.json`; :func:`measure` is what `immunize.verify`
repeats. Finished attacks are kept in `attack_cells`, so that an interrupted grid goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig, OmegaConf

from immunize.building import build
from immunize.cli import entry_point, explain_errors
from immunize.config import AttackConfig, config_dir, config_hash, register, resolved
from immunize.errors import UserError
from immunize.settings import LARGEST_SEED, Rule, check_folder

if TYPE_CHECKING:
    from immunize.evaluation.attacks import Entry, Store, TierResult

__all__ = ["ATTACK_RECORD", "CELLS", "RESULTS", "entries_of", "main", "measure", "run"]

ATTACK_RECORD, CELLS = "attack_record.json", "attack_cells"

RESULTS = ("subject", "tasks", "results", "attacks", "curves", "verdicts", "control")
"""Parts of the record that :func:`measure` computes."""

RULES: tuple[Rule, ...] = (
    ("seeds", lambda value: len(value) >= 1, "at least one seed"),
    ("seeds", lambda value: all(0 <= seed <= LARGEST_SEED for seed in value), f"numbers from 0 to {LARGEST_SEED}"),
    ("seeds", lambda value: len(set(value)) == len(value), "different seeds"),
    ("validation_fraction", lambda value: 0 < value <= 0.9, "positive and at most 0.9"),
    ("test_fraction", lambda value: 0 < value <= 0.9, "positive and at most 0.9"),
    ("benign_digits", lambda value: 0 <= value <= 8, "from 0 to 8"),
    ("threads", lambda value: value >= 1, "at least 1"),
)


def run(cfg: DictConfig, tell: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Attack, and write `attack_record.json`.

    Args:
        cfg: the composed configuration (`conf/attack.yaml`).
        tell: gets a line for every finished attack.

    Returns:
        The record, as written.

    Raises:
        UserError: anything in the configuration, the run or the data that the user has to mend.
    """
    started, clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.perf_counter()
    _check_settings(cfg)
    folder = _folder(cfg)
    check_folder(folder)
    settings = resolved(cfg)
    hashed = config_hash({key: value for key, value in settings.items() if key not in ("out", "cells")})
    _refuse_other(folder / ATTACK_RECORD, hashed, cfg.overwrite)
    from immunize.attacking import CellFolder
    from immunize.records import SCHEMA_VERSION, peak_memory_mib, plain, provenance, reset_peak_memory, write_record

    reset_peak_memory()
    store = CellFolder(Path(cfg.cells) if cfg.cells is not None else folder / CELLS)
    found = measure(cfg, store, tell)
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "attack",
        "status": "finished",
        "started": started,
        "config": settings,
        "config_hash": hashed,
        **provenance(),
        **found,
        "seconds": time.perf_counter() - clock,
        "peak_memory_mib": peak_memory_mib(),
    }
    record["hardware"]["threads"] = cfg.threads
    write_record(folder, record, ATTACK_RECORD)
    written = plain(record)
    assert isinstance(written, dict)
    return written


def measure(
    cfg: DictConfig, store: Store | None = None, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Every number of the grid, from checkpoint and data.

    Args:
        cfg: the composed configuration.
        store: of finished attacks; None repeats all of them.
        tell: gets a line for every finished attack.

    Raises:
        UserError: as :func:`run`.
    """
    entries = entries_of(cfg)  # a bad grid is reported before the data are read
    import torch

    from immunize.attacking import EXTRACTORS, extractors, seen_by, subject_of, tasks_of
    from immunize.evaluation.attacks import Budget, attack_all

    budget = Budget(cfg.attack.budget.steps, cfg.attack.budget.flops)
    subject = subject_of(cfg)
    before = torch.get_num_threads()
    torch.set_num_threads(cfg.threads)
    cells: dict[str, dict[str, list[dict[str, Any]]]] = {}
    facts: dict[str, Any] = {}
    try:
        for seed in cfg.seeds:
            maps = extractors(subject, seed)
            for name, task in tasks_of(subject, cfg, seed).items():
                facts[name] = _task_facts(task)
                for extractor in EXTRACTORS:

                    def tell_of(text: str, where: str = f"seed {seed}, {name}, {extractor}") -> None:
                        tell(f"{where}: {text}")

                    data = seen_by(maps[extractor], task.data)
                    found = attack_all(data, entries, budget, seed, store=store, tell=tell_of)
                    cells.setdefault(name, {}).setdefault(extractor, []).append(found)
    finally:
        torch.set_num_threads(before)
    return {"subject": subject.facts, "tasks": facts, **_laid_out(cells, [entry.name for entry in entries])}


@entry_point
def main() -> None:
    """Entry point of `python -m immunize.attack` and `immunize-attack`."""
    register()
    _hydra_main()


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="attack")
@explain_errors
def _hydra_main(cfg: DictConfig) -> None:
    """Attack, print the table, then the record's path as the last line of stdout."""
    from hydra.core.hydra_config import HydraConfig

    own = [
        word for word in HydraConfig.get().overrides.task if word.partition("=")[0] in ("model", "harmful", "pretrain")
    ]
    if cfg.run is not None and own:
        raise UserError(f"{own[0]} goes with checkpoint=; with run= model and data are those of the run")
    record = run(cfg, lambda text: print(text, file=sys.stderr, flush=True))
    from immunize.report.attack import show_attack

    show_attack(record)
    print(_folder(cfg) / ATTACK_RECORD, flush=True)


# --- the settings -------------------------------------------------------------------------------------------------


def _check_settings(cfg: DictConfig) -> None:
    if unknown := sorted(str(key) for key in cfg.keys() - AttackConfig.__dataclass_fields__.keys()):
        raise UserError(f"there is no setting {unknown[0]}; --help lists those there are")
    for name, allowed, words in RULES:
        if not allowed(cfg[name]):
            raise UserError(f"{name} has to be {words}; it is {cfg[name]}")
    if (cfg.run is None) == (cfg.checkpoint is None):
        raise UserError(
            "say what to attack: run=<output folder>, or checkpoint=<file> with model=, harmful=, pretrain="
        )
    for name in ("run", "checkpoint"):
        if cfg[name] is not None and not Path(cfg[name]).exists():
            raise UserError(f"{name}={cfg[name]} does not exist")


def _folder(cfg: DictConfig) -> Path:
    if cfg.out is not None:
        return Path(cfg.out)
    return Path(cfg.run) if cfg.run is not None else Path(cfg.checkpoint).parent


def _refuse_other(path: Path, hashed: str, overwrite: bool) -> None:
    if overwrite or not path.is_file():
        return
    try:
        old = json.loads(path.read_text(encoding="utf-8")).get("config_hash")
    except (OSError, ValueError, AttributeError):
        old = None
    if old != hashed:
        raise UserError(f"{path} was made with other settings; choose another folder with out=, or set overwrite=true")


def entries_of(cfg: DictConfig) -> list[Entry]:
    """The attacks of the wanted tiers, in the grid's order.

    Raises:
        UserError: an unknown tier, a tier without attacks, or a bad setting of an attack.
    """
    from immunize.evaluation.attacks import TIERS, Entry, check_tiers

    wanted = check_tiers(TIERS if cfg.tiers is None else cfg.tiers)
    entries = []
    for name, node in cfg.attack.attacks.items():
        settings = OmegaConf.to_container(node, resolve=True)
        assert isinstance(settings, dict)
        attack = build(node, _convert_="all")
        if attack.tier in wanted:
            entries.append(Entry(str(name), attack, {str(key): value for key, value in settings.items()}))
    there = {entry.attack.tier for entry in entries}
    if cfg.tiers is not None and (missing := [tier for tier in wanted if tier not in there]):
        raise UserError(f"the grid attack={cfg.attack.name} has no attack of tier {missing[0]} ({TIERS[missing[0]]})")
    check_tiers(there)
    return entries


# --- the record ---------------------------------------------------------------------------------------------------


def _task_facts(task: Any) -> dict[str, Any]:
    data = task.data
    rows = {name: len(part) for name, part in data.parts.items()}
    return {"kind": task.kind, "about": task.about, "task": data.task, "n_classes": data.n_classes, "rows": rows}


def _laid_out(cells: Mapping[str, Mapping[str, list[dict[str, Any]]]], names: list[str]) -> dict[str, Any]:
    """Results by task, extractor and tier, over the seeds; and the verdicts."""
    from immunize.evaluation.attacks import TIERS, compare, in_tier, judge

    results: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    verdicts: dict[str, Any] = {}
    for task, by_extractor in cells.items():
        for extractor, seeds in by_extractor.items():
            tiers: dict[str, list[TierResult]] = {}
            laid: dict[str, Any] = {}
            for tier in TIERS:
                mine = [in_tier(of_seed, tier) for of_seed in seeds]
                theirs = [in_tier(of_seed, tier) for of_seed in by_extractor["theta_0"]]
                pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if a is not None and b is not None]
                if not pairs:
                    continue
                tiers[tier] = [compare(a, b) for a, b in pairs]
                best = [a.curve.labels[-1] if a.curve.labels else None for a, _ in pairs]
                laid[tier] = _tier(tiers[tier]) | {
                    "best": best,
                    "diverged": sorted({n for a, _ in pairs for n in a.diverged}),
                }
                curves.setdefault(task, {}).setdefault(extractor, {})[tier] = [_thin(a.curve.plain()) for a, _ in pairs]
            results.setdefault(task, {})[extractor] = laid
            verdicts.setdefault(task, {})[extractor] = vars(judge(tiers))
    attacks = {
        task: {
            extractor: {name: _attack(seeds, name) for name in names if name in seeds[0]}
            for extractor, seeds in of.items()
        }
        for task, of in cells.items()
    }
    held = {task: [t for t, held in of["random_orthogonal"]["held"].items() if held] for task, of in verdicts.items()}
    control = {"held": held, "passed": not any(held.values())}
    return {"results": results, "attacks": attacks, "curves": curves, "verdicts": verdicts, "control": control}


def _tier(found: list[TierResult]) -> dict[str, Any]:
    there = {"reached": [r.to_target for r in found], "reference": [r.to_target_reference for r in found]}
    costs = {
        side: {
            name: [None if point is None else getattr(point.cost, name) for point in points]
            for name in ("steps", "seconds", "samples", "flops")
        }
        for side, points in there.items()
    }
    decided = [r.held for r in found]
    return {
        "score": _spread([r.score for r in found]),
        "score_reference": _spread([r.score_reference for r in found]),
        "to_target": costs["reached"],
        "to_target_reference": costs["reference"],
        "costlier": [None if r.costlier is None or math.isinf(r.costlier) else r.costlier for r in found],
        "held": decided,
        "seeds_held": f"{decided.count(True)}/{len(decided)}",
        "undecided": sorted({r.reason for r in found if r.reason}),
    }


def _attack(seeds: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """One attack over the seeds."""
    cells = [of_seed[name] for of_seed in seeds]
    if cells[0]["status"] == "skipped":
        return dict(cells[0])
    best = [cell["curve"]["test"][-1] if cell["curve"]["test"] else None for cell in cells]
    return {
        "tier": cells[0]["tier"],
        "status": [cell["status"] for cell in cells],
        "score": _spread(best),
        "candidates": len(cells[0]["candidates"]),
        "candidates_diverged": [sum(c["status"] == "diverged" for c in cell["candidates"]) for cell in cells],
        "spent": {key: [cell["spent"][key] for cell in cells] for key in cells[0]["spent"]},
    }


def _spread(values: list[float | None]) -> dict[str, Any]:
    """Mean and standard deviation (n - 1) over the seeds that have a number, and all of them."""
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known else None
    std = (
        math.sqrt(sum((v - mean) ** 2 for v in known) / (len(known) - 1))
        if mean is not None and len(known) > 1
        else None
    )
    return {"mean": mean, "std": std, "values": values}


def _thin(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: columns[name] for name in ("steps", "seconds", "samples", "flops", "test")}


if __name__ == "__main__":
    main()
