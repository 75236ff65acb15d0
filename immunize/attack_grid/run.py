"""Every cell of the grid, on the cores of this machine, and what the finished ones say.

The grid falls into parts: one task of one seed through one extractor. Parts run in this process or in a pool, and what
comes out is the same: a cell depends on its rows, its attack and its threads alone.

Sees every room; no room sees it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any

from immunize.attack_grid.target import EXTRACTORS, Target, Task
from immunize.evaluation.attacks import TIERS, AttackData, Budget
from immunize.evaluation.attacks.curves import RESOURCES, Curve, horizon_of
from immunize.evaluation.attacks.grid import Entry, Store, attack_all, in_tier
from immunize.evaluation.attacks.judging import Attacked, Estimate, Paid, TierResult, compare, judge
from immunize.processes import KEPT_MEMORY, closing_pool
from immunize.records import peak_memory_mib
from immunize.threads import cores, cpu_threads

LARGE = 2**20
"""Numbers in the training rows of a task from which processes are worth the seconds that they take to start."""

MOVING = "T4"
"""The tier of attacks that move weights."""

RESULTS = ("subject", "tasks", "results", "attacks", "best_so_far", "verdicts", "control")
"""Parts of an attack record that are computed from checkpoint and data."""

Cells = dict[str, dict[str, Any]]
Place = tuple[int, str, str]
"""Seed, task and extractor."""


@dataclass(frozen=True)
class _Part:
    """A part of the grid.

    Attributes:
        place: where in the grid.
        entries: the attacks.
        data: the task as the extractor shows it.
    """

    place: Place
    entries: tuple[Entry, ...]
    data: AttackData

    def run(self, budget: Budget, store: Store | None, tell: Callable[[str], None]) -> Cells:
        return attack_all(self.data, self.entries, budget, self.place[0], store=store, tell=tell)


def run_grid(
    target: Target, entries: Sequence[Entry], store: Store | None, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Attack.

    Args:
        target: what is attacked, and the plan: seeds, budget, threads and processes.
        entries: the attacks.
        store: of finished cells; None keeps none. A process writes each when it has it.
        tell: gets a line for every cell.

    Returns:
        what a record holds of it: "tasks", "cells", how many were computed now and how many were known, by the commit
        that had computed them, "peak_memory_mib", the largest of any process, and what :func:`laid_out` returns.

    Raises:
        UserError: what an attack or the data raise.
    """
    plan, work = target.plan, _Work(target, entries, tell)
    processes = work.processes()
    peaks = []
    for part in work.parts(work.stays if processes > 1 else lambda entry: True):
        work.found[part.place] |= part.run(plan.budget, store, functools.partial(work.say, part))
    if processes > 1:
        others = work.parts(lambda entry: not work.stays(entry))
        with contextlib.closing(_side_by_side(others, processes, plan.threads, plan.budget, store)) as finished:
            for part, (cells, lines, own_peak) in finished:
                for line in lines:
                    work.say(part, line)
                work.found[part.place] |= cells
                peaks.append(own_peak)
    return {
        "tasks": work.facts(),
        "cells": work.origin(),
        **laid_out(work.cells(), [entry.name for entry in entries]),
        "peak_memory_mib": max([peak_memory_mib(), *peaks]),
    }


class _Work:
    """What there is to do, and what is done."""

    def __init__(self, target: Target, entries: Sequence[Entry], tell: Callable[[str], None]) -> None:
        self.plan, self.target, self.tell = target.plan, target, tell
        self.seed = self.plan.seeds[0]
        self.tasks = target.tasks(self.seed)  # of one seed at a time: they are large
        self.tried = {name: [one for one in entries if _fits(one, task)] for name, task in self.tasks.items()}
        self.places = list(itertools.product(self.plan.seeds, self.tried, EXTRACTORS))
        self.total = sum(len(self.tried[name]) for _, name, _ in self.places)
        self.found: defaultdict[Place, Cells] = defaultdict(dict)
        self.of_task = {name: _facts(task) for name, task in self.tasks.items()}
        self.moved: dict[str, dict[int, Mapping[str, int]]] = {name: {} for name in self.tasks}
        self._count = itertools.count(1)

    def processes(self) -> int:
        """How many are to work; one is this one."""
        asked = self.plan.jobs
        if asked is None:
            moving = any(entry.attack.needs == "model" for of in self.tried.values() for entry in of)
            large = max(task.data.train.x.size for task in self.tasks.values()) >= LARGE
            asked = cores() // self.plan.threads if large or (moving and self.target.device is not None) else 1
        return max(1, min(asked, len(self.places)))

    def stays(self, entry: Entry) -> bool:
        """Whether it moves weights on an accelerator, of which this process has the only one."""
        device = self.target.device
        return entry.attack.needs == "model" and device is not None and device.type != "cpu"

    def parts(self, wanted: Callable[[Entry], bool]) -> Iterator[_Part]:
        """Parts of these attacks, each with what they need."""
        if not any(wanted(entry) for entries in self.tried.values() for entry in entries):
            return
        # Of a seed the immunized rows first, whose attackers take longest: what a pool ends with is short.
        for place in sorted(self.places, key=lambda of: (self.plan.seeds.index(of[0]), of[2] != "immunized")):
            seed, name, extractor = place
            if seed != self.seed:
                self.seed, self.tasks = seed, self.target.tasks(seed)
            self.moved[name][seed] = self.tasks[name].moved
            data = self.tasks[name].seen_by(extractor)
            if chosen := tuple(filter(wanted, self.tried[name])):
                needed = {entry.attack.needs for entry in chosen}
                network = data.network if "model" in needed else None
                reference = data.reference if "reference" in needed else None
                yield _Part(place, chosen, replace(data, network=network, reference=reference))

    def say(self, part: _Part, text: str) -> None:
        """One more cell."""
        seed, name, extractor = part.place
        self.tell(f"{next(self._count)}/{self.total} seed {seed}, {name}, {extractor}: {text}")

    def cells(self) -> dict[str, dict[str, list[Cells]]]:
        """Task -> extractor -> for each seed the cells by attack, in the grid's order."""
        cells: dict[str, dict[str, list[Cells]]] = {}
        for place in self.places:
            _, name, extractor = place
            ordered = {entry.name: self.found[place][entry.name] for entry in self.tried[name]}
            cells.setdefault(name, {}).setdefault(extractor, []).append(ordered)
        return cells

    def facts(self) -> dict[str, dict[str, Any]]:
        """Of each task by name: rows of the first seed, and how many were moved with each."""
        for name, of in self.of_task.items():
            for moved in self.moved[name].values():
                for part, rows in moved.items():
                    of.setdefault("rows_moved", {}).setdefault(part, []).append(rows)
        return self.of_task

    def origin(self) -> dict[str, Any]:
        """Where cells come from. One of this time's bears no commit: the record has that."""
        cells = [cell for of in self.found.values() for cell in of.values() if cell["status"] != "skipped"]
        known = Counter(cell["git_commit"] or "unknown" for cell in cells if "git_commit" in cell)
        return {"computed": len(cells) - known.total(), "known": dict(known)}


def _facts(task: Task) -> dict[str, Any]:
    data = task.data
    rows = {name: len(part) for name, part in data.parts.items()}
    return {"kind": task.kind, "about": task.about, "task": data.task, "n_classes": data.n_classes, "rows": rows}


def _fits(entry: Entry, task: Task) -> bool:
    attack = entry.attack
    return task.data.task in attack.tasks and (attack.kinds is None or task.kind in attack.kinds)


# --- processes ----------------------------------------------------------------------------------------------------


Done = tuple[Cells, list[str], float]


def _side_by_side(
    parts: Iterator[_Part], processes: int, threads: int, budget: Budget, store: Store | None
) -> Generator[tuple[_Part, Done], None, None]:
    """Run parts in a pool; one more than there are processes is under way, so that few rows are held at once."""
    running: dict[Future[Done], _Part] = {}
    with closing_pool(processes, threads, environment=KEPT_MEMORY) as pool:
        while True:
            while len(running) <= processes and (part := next(parts, None)) is not None:
                running[pool.submit(_run, part, threads, budget, store)] = part
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                part = running.pop(future)
                yield part, future.result()


def _run(part: _Part, threads: int, budget: Budget, store: Store | None) -> Done:
    lines: list[str] = []
    with cpu_threads(threads):
        cells = part.run(budget, store, lines.append)
    return cells, lines, peak_memory_mib()


# --- what the finished attacks say: by task, extractor and tier over the seeds, and the verdicts ---------------------


def laid_out(cells: Mapping[str, Mapping[str, list[dict[str, Any]]]], names: list[str]) -> dict[str, Any]:
    """Results, attacks, best scores so far, verdicts and control of a record.

    Args:
        cells: task -> extractor -> for each seed what `attack_all` gave.
        names: of the attacks, in the grid's order.
    """
    found: dict[str, dict[str, Any]] = {part: {} for part in ("results", "attacks", "best_so_far", "verdicts")}
    for task, by_extractor in cells.items():
        theta_0 = by_extractor["theta_0"]
        for extractor, seeds in by_extractor.items():
            tiers: dict[str, list[TierResult]] = {}
            laid: dict[str, Any] = {}
            for tier in TIERS:
                mine, theirs = ([in_tier(of_seed, tier) for of_seed in of] for of in (seeds, theta_0))
                pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if a is not None and b is not None]
                if not pairs:
                    continue
                tiers[tier] = [compare(a, b) for a, b in pairs]
                own = [name for name, cell in seeds[0].items() if cell["tier"] == tier and cell["status"] != "skipped"]
                laid[tier] = _tier(tiers[tier]) | {
                    "flops_by_attack": {name: _flops(seeds, name, tiers[tier]) for name in own},
                    "longest_by_attack": {name: _longest(seeds, name) for name in own},
                    "best": [a.curve.labels[-1] if a.curve.labels else None for a, _ in pairs],
                    "chance": [b.chance for _, b in pairs],
                    "diverged": sorted({n for a, _ in pairs for n in a.diverged}),
                }
                of_task = found["best_so_far"].setdefault(task, {})
                of_task.setdefault(extractor, {})[tier] = [_columns(a) for a, _ in pairs]
            attacks = {name: _attack(seeds, theta_0, name) for name in names if name in seeds[0]}
            verdict = judge(tiers, _impossible(seeds[0]))
            for part, of in (("results", laid), ("attacks", attacks), ("verdicts", verdict)):
                found[part].setdefault(task, {})[extractor] = of
    held = {
        task: [tier for tier, held in of["random_orthogonal"]["held"].items() if held]
        for task, of in found["verdicts"].items()
    }
    return {**found, "control": {"held": held, "passed": not any(held.values())}}


def _impossible(cells: Mapping[str, dict[str, Any]]) -> set[str]:
    """Tiers of which every attack was skipped: what they need is not there."""
    tried = {cell["tier"] for cell in cells.values() if cell["status"] != "skipped"}
    return {cell["tier"] for cell in cells.values()} - tried


def _tier(found: list[TierResult]) -> dict[str, Any]:
    decided = [r.held for r in found]
    return {
        "score": _spread([r.score for r in found]),
        "score_reference": _spread([r.score_reference for r in found]),
        "difference": _estimates([r.difference for r in found]),
        "retention": _estimates([r.retention for r in found]),
        "to_target": _costs([r.to_target for r in found]),
        "to_target_reference": _costs([r.to_target_reference for r in found]),
        "costlier": [None if r.costlier is None or math.isinf(r.costlier) else r.costlier for r in found],
        "held": decided,
        "seeds_held": f"{decided.count(True)}/{len(decided)}",
        "undecided": sorted({r.reason for r in found if r.reason}),
    }


def _costs(paid: list[Paid | None]) -> dict[str, list[float | None]]:
    """By resource what was paid, by seed."""
    return {name: [None if of is None else of[name] for of in paid] for name in RESOURCES}


def _estimates(found: list[Estimate | None]) -> dict[str, list[float | None]]:
    """By seed the values, and their standard errors over the test rows."""
    return {
        "values": [None if of is None else of.value for of in found],
        "errors": [None if of is None else of.error for of in found],
    }


def _flops(seeds: list[dict[str, Any]], name: str, found: list[TierResult]) -> list[float | None]:
    """What an attack pays by itself for `TARGET` of θ_0's best score in its tier, by seed; None for never."""
    curves = [Curve.of_plain(cells[name]["curves"]["flops"], "flops") for cells in seeds]
    return [None if of.target is None else curve.cost_of(of.target) for curve, of in zip(curves, found, strict=True)]


def _longest(seeds: list[dict[str, Any]], name: str) -> list[int]:
    """Steps of the attack's longest candidate, by seed; its budget may have allowed fewer than its settings."""
    return [max(candidate["steps"] for candidate in cells[name]["candidates"]) for cells in seeds]


def _attack(seeds: list[dict[str, Any]], theta_0: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """One attack over the seeds; of one that moves weights also its horizon."""
    cells = [of_seed[name] for of_seed in seeds]
    if cells[0]["status"] == "skipped":
        return dict(cells[0])
    scores = [cell["curves"]["steps"]["test"] for cell in cells]
    best = [of[-1] if of else None for of in scores]
    return {
        "tier": cells[0]["tier"],
        "status": [cell["status"] for cell in cells],
        "score": _spread(best),
        "candidates": len(cells[0]["candidates"]),
        "candidates_diverged": [sum(c["status"] == "diverged" for c in cell["candidates"]) for cell in cells],
        "spent": {key: [cell["spent"][key] for cell in cells] for key in cells[0]["spent"]},
        **({"horizon": _horizons(cells, [of[name] for of in theta_0])} if cells[0]["tier"] == MOVING else {}),
    }


def _horizons(cells: list[dict[str, Any]], theta_0: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """By seed, to the last step of θ_0's longest candidate."""
    found = []
    for mine, theirs in zip(cells, theta_0, strict=True):
        of, reference = (Curve.of_plain(cell["curves"]["steps"]) for cell in (mine, theirs))
        last = max(candidate["steps"] for candidate in theirs["candidates"])
        found.append(horizon_of(of, reference, mine["chance"], last))
    return found


def _spread(values: list[float | None]) -> dict[str, Any]:
    """Mean and standard deviation (n - 1) over the seeds that have a number, and all of them."""
    known = [value for value in values if value is not None]
    mean = sum(known) / max(1, len(known))
    std = math.sqrt(sum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
    return {"mean": mean if known else None, "std": std, "values": values}


def _columns(of: Attacked) -> dict[str, dict[str, list[Any]]]:
    """By resource how much had been paid, and the test score that it had bought."""
    return {
        by: {"paid": [getattr(at.cost, by) for at in curve.points], "test": [at.test for at in curve.points]}
        for by, curve in of.curves.items()
    }
