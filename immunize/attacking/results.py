"""What the finished attacks of a grid say: results by task, extractor and tier over the seeds, and the verdicts.

Sees every room; no room sees it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from immunize.evaluation.attacks import Attacked, Estimate, TierResult

__all__ = ["RESULTS", "laid_out"]

RESULTS = ("subject", "tasks", "results", "attacks", "best_so_far", "verdicts", "control")
"""Parts of an attack record that are computed from checkpoint and data."""


def laid_out(cells: Mapping[str, Mapping[str, list[dict[str, Any]]]], names: list[str]) -> dict[str, Any]:
    """Results, attacks, best scores so far, verdicts and control of a record.

    Args:
        cells: task -> extractor -> for each seed what `attack_all` gave.
        names: of the attacks, in the grid's order.
    """
    from immunize.evaluation.attacks import TIERS, compare, in_tier, judge

    results: dict[str, Any] = {}
    best_so_far: dict[str, Any] = {}
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
                own = [name for name, cell in seeds[0].items() if cell["tier"] == tier and cell["status"] != "skipped"]
                laid[tier] = _tier(tiers[tier]) | {
                    "flops_by_attack": {name: _flops(seeds, name, tiers[tier]) for name in own},
                    "longest_by_attack": {name: _longest(seeds, name) for name in own},
                    "best": best,
                    "chance": [b.chance for _, b in pairs],
                    "diverged": sorted({n for a, _ in pairs for n in a.diverged}),
                }
                best_so_far.setdefault(task, {}).setdefault(extractor, {})[tier] = [_columns(a) for a, _ in pairs]
            results.setdefault(task, {})[extractor] = laid
            verdicts.setdefault(task, {})[extractor] = vars(judge(tiers, _impossible(seeds[0])))
    attacks = {
        task: {
            extractor: {name: _attack(seeds, name) for name in names if name in seeds[0]}
            for extractor, seeds in of.items()
        }
        for task, of in cells.items()
    }
    held = {task: [t for t, held in of["random_orthogonal"]["held"].items() if held] for task, of in verdicts.items()}
    control = {"held": held, "passed": not any(held.values())}
    return {
        "results": results,
        "attacks": attacks,
        "best_so_far": best_so_far,
        "verdicts": verdicts,
        "control": control,
    }


def _impossible(cells: Mapping[str, dict[str, Any]]) -> set[str]:
    """Tiers of which every attack was skipped: what they need is not there."""
    return {cell["tier"] for cell in cells.values()} - {
        cell["tier"] for cell in cells.values() if cell["status"] != "skipped"
    }


def _tier(found: list[TierResult]) -> dict[str, Any]:
    from immunize.evaluation.attacks import RESOURCES

    sides = {"reached": [r.to_target for r in found], "reference": [r.to_target_reference for r in found]}
    costs = {
        side: {name: [None if paid is None else paid[name] for paid in of] for name in RESOURCES}
        for side, of in sides.items()
    }
    decided = [r.held for r in found]
    return {
        "score": _spread([r.score for r in found]),
        "score_reference": _spread([r.score_reference for r in found]),
        "difference": _estimates([r.difference for r in found]),
        "retention": _estimates([r.retention for r in found]),
        "to_target": costs["reached"],
        "to_target_reference": costs["reference"],
        "costlier": [None if r.costlier is None or math.isinf(r.costlier) else r.costlier for r in found],
        "held": decided,
        "seeds_held": f"{decided.count(True)}/{len(decided)}",
        "undecided": sorted({r.reason for r in found if r.reason}),
    }


def _estimates(found: list[Estimate | None]) -> dict[str, list[float | None]]:
    """By seed the values, and their standard errors over the test rows."""
    return {
        "values": [None if of is None else of.value for of in found],
        "errors": [None if of is None else of.error for of in found],
    }


def _flops(seeds: list[dict[str, Any]], name: str, found: list[TierResult]) -> list[float | None]:
    """What an attack pays by itself for `TARGET` of θ_0's best score in its tier, by seed; None for never."""
    from immunize.evaluation.attacks import Curve

    curves = [Curve.of_plain(cells[name]["curves"]["flops"], "flops") for cells in seeds]
    return [None if of.target is None else curve.cost_of(of.target) for curve, of in zip(curves, found, strict=True)]


def _longest(seeds: list[dict[str, Any]], name: str) -> list[int]:
    """Steps of the attack's longest candidate, by seed; its budget may have allowed fewer than its settings."""
    return [max(candidate["steps"] for candidate in cells[name]["candidates"]) for cells in seeds]


def _attack(seeds: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """One attack over the seeds."""
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


def _columns(of: Attacked) -> dict[str, dict[str, list[Any]]]:
    """By resource how much had been paid, and the test score that it had bought."""
    found = {}
    for by, curve in of.curves.items():
        paid = [getattr(point.cost, by) for point in curve.points]
        found[by] = {"paid": paid, "test": [point.test for point in curve.points]}
    return found
