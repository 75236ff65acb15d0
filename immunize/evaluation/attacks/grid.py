"""Every attack on every task of every extractor, with one budget; finished attacks are kept and not repeated.

A cell is one attack on one task through one extractor with one seed. Its key is a hash of everything that changes its
numbers: the rows as the extractor shows them (and θ_0's, or the network with its device, where the attack uses them),
the attack's settings, the budget, the seed, and the number of threads, by which sums are rounded. So a cell of another
model is never taken for this one's, and runs that share a θ_0 share its cells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import RESOURCES, Cost, Curve, best_so_far, packed, unpacked
from immunize.evaluation.attacks.judging import Attacked
from immunize.evaluation.attacks.protocol import TIERS, Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.scoring import constant_shares

CELL_VERSION = 9
"""Part of every key; raised when a change of the code changes the numbers of all attacks."""

Cell = dict[str, Any]


class Store(Protocol):
    """Where finished cells are kept."""

    def get(self, key: str) -> Cell | None:
        """The cell with this key, if it was finished."""

    def put(self, key: str, cell: Cell) -> None:
        """Keep a cell, whole or not at all."""


@dataclass(frozen=True)
class Entry:
    """An attack of the grid.

    Attributes:
        name: in the configuration.
        attack: what it does.
        settings: its configuration, as far as it changes numbers; plain values.
    """

    name: str
    attack: Attack
    settings: Mapping[str, Any]


def check_tiers(tiers: Iterable[str]) -> list[str]:
    """The tiers in their order.

    Raises:
        UserError: none, or an unknown one.
    """
    wanted = list(tiers)
    if unknown := [tier for tier in wanted if tier not in TIERS]:
        raise UserError(f"unknown tier {unknown[0]!r}; there are {', '.join(TIERS)}")
    if not wanted:
        raise UserError(f"no tier is left to attack in; there are {', '.join(TIERS)}")
    return [tier for tier in TIERS if tier in wanted]


def hash_of_data(data: AttackData) -> str:
    """SHA-256 over the number of classes and the shapes and bytes of all rows, without the reference."""
    digest = hashlib.sha256(f"{data.n_classes}".encode())
    for name, rows in data.parts.items():
        for array in (rows.x, rows.y):
            digest.update(f"{name} {array.shape} {array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def version_of(attack: Attack) -> list[Any]:
    """Of the grid, and of the attack and those within it where they have one.

    It is raised when the same settings begin to give other numbers.
    """
    within = [*getattr(attack, "inner", {}).values(), getattr(attack, "probe", None)]
    inner = [of for one in within if one is not None and (of := version_of(one)[1:])]
    return [CELL_VERSION, *([attack.version] if attack.version else []), *inner]


def attack_all(
    data: AttackData,
    entries: Iterable[Entry],
    budget: Budget,
    seed: int,
    *,
    store: Store | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Cell]:
    """Run all attacks that can solve the task, or take their cells from the store.

    Args:
        data: one task through one extractor.
        entries: the attacks.
        budget: of each.
        seed: of everything random in them.
        store: of finished cells; None keeps none.
        tell: gets a line for every cell.

    Returns:
        a cell an attack, by its name: status "finished", "diverged", or "skipped" where the attack needs what is not
        there; tier, curves by resource, candidates, what they took (work that they share is charged to each in full, as
        it is to attacks), and the score of the best constant answer.
    """
    tried = list(entries)
    here, reference = hash_of_data(data), None
    if data.reference is not None and any(entry.attack.needs == "reference" for entry in tried):
        reference = hash_of_data(data.reference)
    cells: dict[str, Cell] = {}
    for entry in tried:
        attack = entry.attack
        if data.task not in attack.tasks:
            continue
        there = {"features": here, "reference": reference, "model": data.network and data.network.key}
        if there[attack.needs] is None:
            cells[entry.name] = _skipped(attack)
            tell(f"{entry.name}: skipped, {cells[entry.name]['reason']}")
            continue
        shown = [here] if attack.sees_features else []
        shown += [] if attack.needs == "features" else [str(there[attack.needs])]
        computed: list[object] = [torch.get_num_threads()]
        if attack.needs == "model" and data.network is not None:
            computed.append(data.network.device.type)
        about = [*version_of(attack), shown, dict(entry.settings), asdict(budget), seed, computed]
        key = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:32]
        cell = None if store is None else store.get(key)
        known = cell is not None
        if cell is None:
            cell = _cell(attack, attack.run(data, budget, seed), constant_shares(data))
            if store is not None:
                store.put(key, cell)
        cells[entry.name] = cell
        tell(f"{entry.name}: {_in_words(cell)}{', known' if known else ''}")
    return cells


def in_tier(cells: Mapping[str, Cell], tier: str) -> Attacked | None:
    """All attacks of a tier as one attacker; None if none of them was run.

    Args:
        cells: of one task, extractor and seed.
        tier: of `TIERS`.
    """
    mine = {name: cell for name, cell in cells.items() if cell["tier"] == tier and cell["status"] != "skipped"}
    if not mine:
        return None
    curves = {}
    for by in RESOURCES:
        of = {name: Curve.of_plain(cell["curves"][by], by) for name, cell in mine.items()}
        labelled = [
            (f"{name}: {label}", [point])
            for name, curve in of.items()
            for point, label in zip(curve.points, curve.labels, strict=True)
        ]
        curves[by] = best_so_far(labelled, by)
    diverged = tuple(name for name, cell in mine.items() if cell["status"] == "diverged")
    return Attacked(
        curves=curves,
        diverged=diverged,
        undecided_by=tuple(name for name in diverged if mine[name]["scale_free"]),
        constant=unpacked(next(iter(mine.values()))["constant"]),
    )


def _cell(attack: Attack, outcome: Outcome, constant: Array) -> Cell:
    labelled = [(trace.label, trace.points) for trace in outcome.traces]
    spent = sum((trace.spent for trace in outcome.traces), Cost())
    return {
        "tier": attack.tier,
        "status": outcome.status,
        "scale_free": attack.scale_free,
        "chance": float(constant.mean()),
        "constant": packed(constant),
        "curves": {by: best_so_far(labelled, by).plain() for by in RESOURCES},
        "spent": asdict(spent),
        "candidates": [
            {
                "label": trace.label,
                "status": trace.status,
                "steps": max(trace.steps, trace.spent.steps),
                "validation": max((point.validation for point in trace.points), default=None),
            }
            for trace in outcome.traces
        ],
    }


def _skipped(attack: Attack) -> Cell:
    missing = "the network's weights" if attack.needs == "model" else "the features of θ_0"
    return {"tier": attack.tier, "status": "skipped", "reason": f"it needs {missing}, which are not given"}


def _in_words(cell: Cell) -> str:
    curve, diverged = cell["curves"]["steps"], sum(one["status"] == "diverged" for one in cell["candidates"])
    scores = curve["test"]
    steps = curve["steps"][-1] if scores else 0
    text = f"score {scores[-1]:.3f} after {steps:,} step{'s' * (steps != 1)}" if scores else "no finite output"
    if diverged:
        text += f", {diverged} of {len(cell['candidates'])} candidates diverged"
    return f"{text}; costs an attacker {cell['spent']['seconds']:.1f} s"
