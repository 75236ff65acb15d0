"""Every cell of the grid, on the cores of this machine.

The grid falls into parts: one task of one seed through one extractor. Parts run in this process or in a pool, and what
comes out is the same: a cell hangs on its rows, its attack and its threads alone.

Sees every room; no room sees it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig

from immunize.attacking.targets import EXTRACTORS, Target, Task
from immunize.evaluation.attacks import AttackData, Budget, Entry, Store, attack_all
from immunize.processes import end_with_parent
from immunize.records import peak_memory_mib
from immunize.sweeping.pool import LARGEST_GROWTH, THREADS
from immunize.threads import cores, cpu_threads

__all__ = ["LARGE", "Grid", "pool_of", "run_grid"]

LARGE = 2**20
"""Numbers in the training rows of a task from which processes are worth the seconds that they take to start."""

Cells = dict[str, dict[str, Any]]
Place = tuple[int, str, str]
"""Seed, task and extractor."""


@dataclass(frozen=True)
class Grid:
    """What came of all attacks.

    Attributes:
        cells: task -> extractor -> for each seed the cells by attack, in the grid's order.
        facts: of each task by name, for the record.
        peak_memory_mib: the largest of any process but this one; 0 if there was none.
    """

    cells: dict[str, dict[str, list[Cells]]]
    facts: dict[str, dict[str, Any]]
    peak_memory_mib: float


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
    cfg: DictConfig, target: Target, entries: Sequence[Entry], store: Store | None, tell: Callable[[str], None]
) -> Grid:
    """Attack.

    Args:
        cfg: the composed configuration (`conf/attack.yaml`).
        target: what is attacked.
        entries: the attacks.
        store: of finished cells; None keeps none. A process writes each when it has it.
        tell: gets a line for every cell.

    Raises:
        UserError: what an attack or the data raise.
    """
    budget = Budget(cfg.attack.budget.steps, cfg.attack.budget.flops)
    work = _Work(cfg, target, entries, tell)
    processes = work.processes()
    peak = 0.0
    for part in work.here(alone=processes == 1):
        work.done(part, part.run(budget, store, functools.partial(work.say, part)))
    if processes > 1:
        with contextlib.closing(_side_by_side(work.elsewhere(), processes, cfg.threads, budget, store)) as finished:
            for part, (cells, lines, own_peak) in finished:
                for line in lines:
                    work.say(part, line)
                work.done(part, cells)
                peak = max(peak, own_peak)
    return Grid(work.laid_out(), work.facts(), peak)


class _Work:
    """What there is to do, and what is done."""

    def __init__(self, cfg: DictConfig, target: Target, entries: Sequence[Entry], tell: Callable[[str], None]) -> None:
        self.cfg, self.target, self.tell = cfg, target, tell
        self.seed = cfg.seeds[0]
        self.tasks = target.tasks(self.seed)  # of one seed at a time: they are large
        self.tried = {name: [one for one in entries if _fits(one, task)] for name, task in self.tasks.items()}
        self.places = list(itertools.product(cfg.seeds, self.tried, EXTRACTORS))
        self.total = sum(len(self.tried[name]) for _, name, _ in self.places)
        self.found: dict[Place, Cells] = {}
        self.of_task = {name: _facts(task) for name, task in self.tasks.items()}
        self.moved: dict[str, dict[int, Mapping[str, int]]] = {name: {} for name in self.tasks}
        self._count = itertools.count(1)

    def processes(self) -> int:
        """How many are to work; one is this one."""
        asked: int | None = self.cfg.get("jobs")
        if asked is None:
            large = max(task.data.train.x.size for task in self.tasks.values()) >= LARGE
            asked = cores() // self.cfg.threads if large else 1
        return max(1, min(asked, len(self.places)))

    def here(self, *, alone: bool) -> Iterator[_Part]:
        """Parts for this process: all of them, or those that move the weights of a network."""
        if not alone and not any(_moves(entry) for entries in self.tried.values() for entry in entries):
            return
        for place, data, entries in self._all():
            if mine := tuple(entry for entry in entries if alone or _moves(entry)):
                yield _Part(place, mine, data)

    def elsewhere(self) -> Iterator[_Part]:
        """The other parts."""
        for place, data, entries in self._all():
            if mine := tuple(entry for entry in entries if not _moves(entry)):
                yield _Part(place, mine, replace(data, network=None))

    def _all(self) -> Iterator[tuple[Place, AttackData, list[Entry]]]:
        for place in self.places:
            seed, name, extractor = place
            if seed != self.seed:
                self.seed, self.tasks = seed, self.target.tasks(seed)
            self.moved[name][seed] = self.tasks[name].moved
            yield place, self.tasks[name].seen_by(extractor), self.tried[name]

    def say(self, part: _Part, text: str) -> None:
        """One more cell."""
        seed, name, extractor = part.place
        self.tell(f"{next(self._count)}/{self.total} seed {seed}, {name}, {extractor}: {text}")

    def done(self, part: _Part, cells: Cells) -> None:
        """Cells of a part."""
        self.found.setdefault(part.place, {}).update(cells)

    def laid_out(self) -> dict[str, dict[str, list[Cells]]]:
        """As `Grid` has them."""
        cells: dict[str, dict[str, list[Cells]]] = {}
        for place in self.places:
            _, name, extractor = place
            found = self.found.get(place, {})
            ordered = {entry.name: found[entry.name] for entry in self.tried[name]}
            cells.setdefault(name, {}).setdefault(extractor, []).append(ordered)
        return cells

    def facts(self) -> dict[str, dict[str, Any]]:
        """As `Grid` has them: rows of the first seed, and how many were moved with each."""
        for name, of in self.of_task.items():
            for moved in self.moved[name].values():
                for part, rows in moved.items():
                    of.setdefault("rows_moved", {}).setdefault(part, []).append(rows)
        return self.of_task


def _facts(task: Task) -> dict[str, Any]:
    data = task.data
    rows = {name: len(part) for name, part in data.parts.items()}
    return {"kind": task.kind, "about": task.about, "task": data.task, "n_classes": data.n_classes, "rows": rows}


def _fits(entry: Entry, task: Task) -> bool:
    attack = entry.attack
    return task.data.task in attack.tasks and (attack.kinds is None or task.kind in attack.kinds)


def _moves(entry: Entry) -> bool:
    """Whether it moves the weights of a network, which stays in this process."""
    return entry.attack.needs == "model"


# --- processes ----------------------------------------------------------------------------------------------------


def pool_of(processes: int, threads: int) -> Any:
    """Processes that have so many threads each, leave Ctrl-C to this one, and end when it does, however it does."""
    from loky import ProcessPoolExecutor

    environment = dict.fromkeys(THREADS, str(threads))
    return ProcessPoolExecutor(processes, initializer=_enter, initargs=(os.getpid(),), env=environment)


def _enter(parent: int) -> None:
    from loky import process_executor

    process_executor._MAX_MEMORY_LEAK_SIZE = LARGEST_GROWTH  # what is kept for the next part is no leak
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


Done = tuple[Cells, list[str], float]


def _side_by_side(
    parts: Iterator[_Part], processes: int, threads: int, budget: Budget, store: Store | None
) -> Generator[tuple[_Part, Done], None, None]:
    """Run parts in a pool; one more than there are processes is under way, so that few rows are held at once."""
    pool = pool_of(processes, threads)
    running: dict[Future[Done], _Part] = {}
    try:
        while True:
            while len(running) <= processes and (part := next(parts, None)) is not None:
                running[pool.submit(_run, part, threads, budget, store)] = part
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                part = running.pop(future)
                yield part, future.result()
    finally:
        with contextlib.suppress(RuntimeError):
            pool.shutdown(wait=True, kill_workers=True)


def _run(part: _Part, threads: int, budget: Budget, store: Store | None) -> Done:
    lines: list[str] = []
    with cpu_threads(threads):
        cells = part.run(budget, store, lines.append)
    return cells, lines, peak_memory_mib()
