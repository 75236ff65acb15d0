"""The tables of attacks: methods against tiers, what the attacker got, what it cost, and what it cost everyone else.

Every cell is over the runs of a method and their tasks. A tier *held* in a run if the task stayed at least twice as
costly (and ten steps) or five points less accurate than from θ_0, by more than the accident of the test rows
(docs/attacks.md). On harmful tasks that is the aim; on all others it is damage, measured by the same rule.

Imports no other room and no torch.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from statistics import fmean

from immunize.report.attacks.one_run import (
    HORIZON_COLUMNS,
    TIERS,
    horizon_cells,
    interval_text,
    middle,
    paid_text,
)
from immunize.report.attacks.records import CONTROL, THETA_0, Alone, Attacks, Group, Numbers, Tried, extractor_of
from immunize.report.table import NOTHING, share, short, summary_text, under
from immunize.report.templates import filled_in

REPAIRS = ("T3", "T5")
"""Tiers in which something is mended before the probe: the features, or the way back to θ_0's."""
_FIRST = "T0"
KIND_WORDS = {"harmful": "harmful", "pretrain": "pre-training", "benign": "benign"}


def attack_tables(attacks: Attacks) -> str:
    """For every kind of model and data: verdicts, scores, steps, the tasks that should stay easy, and repairs."""
    return filled_in(
        "attack_tables.md",
        attacks=attacks,
        words=KIND_WORDS,
        theta_0=THETA_0,
        control=CONTROL,
        quantities=HORIZON_COLUMNS,
        undecided=_undecided,
        held_counts=held_counts,
        unbroken_counts=unbroken_counts,
        wanted_columns=wanted_columns,
        interval_text=interval_text,
        scores_of=scores_of,
        paid_text=paid_text,
        repairs=_repairs,
        times=_times,
        alone=_alone,
        fmean=fmean,
        horizon_cells=horizon_cells,
    )


def held_counts(tried: Tried) -> str:
    """In how many of the decided cases a tier held: "16/18", with those that are not decided."""
    left = tried.held.count(None)
    text = share(tried.held.count(True), len(tried.held) - left)
    return f"{text} ({left} undecided)" if left else text


def unbroken_counts(group: Group, method: str) -> str:
    """Up to which tier the harmful tasks of a run were unbroken, in how many runs: "T1", or "T1 in 16, none in 2"."""
    counts: Counter[str] = Counter()
    for record in group.of_method(method):
        harmful = [task for task, facts in record["tasks"].items() if facts["kind"] == "harmful"]
        extractor = extractor_of(method)
        reached = [record["verdicts"][task][extractor]["unbroken_up_to"] for task in harmful]
        lowest = min((-1 if tier is None else TIERS.index(tier) for tier in reached), default=-1)
        counts["none" if lowest < 0 else TIERS[lowest]] += 1
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{tier} in {n}" for tier, n in counts.most_common())


def wanted_columns(group: Group) -> list[str]:
    """A column a kind of task and tier, and whether its scores are to be small."""
    arrows = {"harmful": "↓"}
    return [c for kind in group.kinds for c in under(f"{KIND_WORDS[kind]} {arrows.get(kind, '↑')}", group.tiers)]


def scores_of(group: Group, method: str, kind: str) -> list[str]:
    """The best score of every tier on the tasks of a kind."""
    return [summary_text(list(group.tried(method, kind, tier).score.values())) for tier in group.tiers]


def _repairs(group: Group) -> tuple[dict[str, dict[tuple[str, str], Numbers]], list[tuple[str, str]], float]:
    """FLOPs of each repair in all by method, its tiers and names, and what plain gradient descent costs from θ_0."""
    costs = {method: group.flops_by_attack(method, REPAIRS) for method in [*group.methods, CONTROL]}
    base = middle(group.tried(THETA_0, "harmful", _FIRST).paid.get("flops", []))
    return costs, sorted({key for of in costs.values() for key in of}) if 0 < base < math.inf else [], base


def _alone(group: Group) -> tuple[dict[str, Alone], list[tuple[str, str, str]]]:
    """What each attack reaches by itself, by method, and their tasks, tiers and names, task by task."""
    each = {method: group.by_attack(method) for method in [THETA_0, *group.methods, CONTROL]}
    there = dict.fromkeys(key for of in each.values() for key in of)
    tasks = list(dict.fromkeys(task for task, *_ in there))
    return each, sorted(there, key=lambda key: (tasks.index(key[0]), key))


def _times(flops: Numbers, base: float) -> str:
    """The median over the base, and in how many cases there is a number: "1.3 × (3/3)"."""
    cost = middle(flops)
    if math.isnan(cost):
        return NOTHING
    there = f"{len(flops) - flops.count(None)}/{len(flops)}"
    return f"never ({there})" if math.isinf(cost) else f"{short(cost / base)} × ({there})"


def _undecided(group: Group) -> list[str]:
    places = itertools.product(group.methods, group.kinds, group.tiers)
    return sorted({reason for place in places for reason in group.tried(*place).undecided})
