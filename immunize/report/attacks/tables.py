"""The tables of attacks: methods against tiers, what the attacker got, what it cost, and what it cost everyone else.

Every cell is over the runs of a method and their tasks. A tier *held* in a run if the task stayed at least twice as
costly (and ten steps) or five points less accurate than from θ_0, by more than the accident of the test rows
(docs/attacks.md). On harmful tasks that is the aim; on all others it is damage, measured by the same rule.

Imports no other room and no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from immunize.report.attacks.one_run import (
    HELD,
    HORIZON,
    HORIZON_COLUMNS,
    RETENTION,
    TIERS,
    horizon_cells,
    interval_text,
    middle,
    paid_text,
)
from immunize.report.attacks.records import CONTROL, THETA_0, Attacks, Group, Numbers, Tried, extractor_of
from immunize.report.table import NOTHING, Table, share, short, summary_text, under
from immunize.report.templates import filled_in

REPAIRS = ("T3", "T5")
"""Tiers in which something is mended before the probe: the features, or the way back to θ_0's."""
_FIRST = "T0"
_PAID = ("steps", "flops")
KIND_WORDS = {"harmful": "harmful", "pretrain": "pre-training", "benign": "benign"}


def attack_tables(attacks: Attacks) -> str:
    """For every kind of model and data: verdicts, scores, steps, the tasks that should stay easy, and repairs."""
    return filled_in(
        "attack_tables.md",
        attacks=attacks,
        words=KIND_WORDS,
        control=CONTROL,
        held=HELD,
        retention=RETENTION,
        horizon=HORIZON,
        last=HORIZON_COLUMNS[-1],
        undecided=_undecided,
        verdicts=_verdicts,
        retentions=_retentions,
        scores=_scores,
        costs=_costs,
        repairs=_repairs,
        by_attack=_by_attack,
        horizons=_horizons,
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


def _by_method(group: Group, columns: Sequence[str], cells: Callable[[str], Iterable[str]], *before: str) -> str:
    """A row a method, those `before` first, the control last."""
    rows = [[_named(method), *cells(method)] for method in [*before, *group.methods, CONTROL]]
    return _markdown(["method", *columns], rows)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table("", columns, rows).markdown(heading=False)


def _verdicts(group: Group) -> str:
    def cells(method: str) -> Iterator[str]:
        yield f"{len(group.of_method(method))}"
        for kind in group.kinds:
            yield from map(held_counts, group.across(method, kind))
            yield from [unbroken_counts(group, method)] if kind == "harmful" else []

    columns = ["runs"]
    for kind in group.kinds:
        columns += under(f"{KIND_WORDS[kind]} {'↑' if kind == 'harmful' else '↓'}", group.tiers)
        columns += ["unbroken up to"] if kind == "harmful" else []
    return _by_method(group, columns, cells)


def _retentions(group: Group) -> str:
    return _by_method(
        group, wanted_columns(group), lambda m: (interval_text(one.retention) for one in group.across(m, *group.kinds))
    )


def wanted_columns(group: Group) -> list[str]:
    """A column a kind of task and tier, and whether its scores are to be small."""
    arrows = {"harmful": "↓"}
    return [c for kind in group.kinds for c in under(f"{KIND_WORDS[kind]} {arrows.get(kind, '↑')}", group.tiers)]


def _scores(group: Group, kind: str) -> str:
    own = kind == "pretrain" and bool(group.own_accuracy(THETA_0))

    def cells(method: str) -> Iterator[str]:
        yield from scores_of(group, method, kind)
        if own:
            yield NOTHING if method == CONTROL else summary_text([group.own_accuracy(method)])

    return _by_method(group, [*group.tiers, *(["own classifier, %"] if own else [])], cells, THETA_0)


def scores_of(group: Group, method: str, kind: str) -> list[str]:
    """The best score of every tier on the tasks of a kind."""
    return [summary_text(list(one.score.values())) for one in group.across(method, kind)]


def _costs(group: Group) -> str:
    def cells(method: str) -> Iterator[str]:
        return (paid_text(of, one.paid.get(of, [])) for one in group.across(method, "harmful") for of in _PAID)

    return _by_method(group, [c for tier in group.tiers for c in under(tier, ("steps", "FLOPs"))], cells, THETA_0)


def _repairs(group: Group) -> tuple[str, str]:
    """What each repair costs in all, over what plain gradient descent costs from θ_0, and that; "" without either."""
    costs = {method: group.flops_by_attack(method, REPAIRS) for method in [*group.methods, CONTROL]}
    base = middle(group.tried(THETA_0, "harmful", _FIRST).paid.get("flops", []))
    rows = [
        [tier, f"`{name}`", *(_times(of.get((tier, name), []), base) for of in costs.values())]
        for tier, name in sorted({key for of in costs.values() for key in of})
    ]
    table = _markdown(["tier", "attack", *map(_named, costs)], rows)
    return table if rows and 0 < base < math.inf else "", paid_text("flops", [base])


def _by_attack(group: Group) -> str:
    """What each attack reaches by itself, on each task."""
    methods = [THETA_0, *group.methods, CONTROL]
    each = [group.scores_by_attack(method) for method in methods]
    there = list(dict.fromkeys(key for of in each for key in of))
    tasks = list(dict.fromkeys(task for task, *_ in there))
    rows = [
        [task, tier, f"`{attack}`", *(short(fmean(of[key])) if of.get(key) else NOTHING for of in each)]
        for key in sorted(there, key=lambda key: (tasks.index(key[0]), key))
        for task, tier, attack in (key,)
    ]
    return _markdown(["task", "tier", "attack", *map(_named, methods)], rows)


def _horizons(group: Group) -> Iterator[tuple[str, str, str]]:
    """What fine-tuning over many steps gets back: task and number, and a table of them."""
    methods = [THETA_0, *group.methods, CONTROL]
    each = {method: group.horizons(method) for method in methods}
    there = dict.fromkeys(key for of in each.values() for key in of)
    for task in dict.fromkeys(task for task, _ in there):
        keys = [key for key in there if key[0] == task]
        columns = [f"`{key[1]}` ({max(one['last'] for one in each[THETA_0][key]):,})" for key in keys]
        nothing = [NOTHING] * len(HORIZON_COLUMNS)
        cells = {m: [horizon_cells(of[key]) if key in of else nothing for key in keys] for m, of in each.items()}
        for index, what in enumerate(HORIZON_COLUMNS):
            rows = [[_named(method), *(of[index] for of in found)] for method, found in cells.items()]
            yield task, what, _markdown(["method", *columns], rows)


def _times(flops: Numbers, base: float) -> str:
    """The median over the base, and in how many cases there is a number: "1.3 × (3/3)"."""
    cost = middle(flops)
    if math.isnan(cost):
        return NOTHING
    there = f"{len(flops) - flops.count(None)}/{len(flops)}"
    return f"never ({there})" if math.isinf(cost) else f"{short(cost / base)} × ({there})"


def _undecided(group: Group) -> list[str]:
    tried = (one for method in group.methods for one in group.across(method, *group.kinds))
    return sorted({reason for one in tried for reason in one.undecided})


def _named(method: str) -> str:
    return method if method in (THETA_0, CONTROL) else f"`{method}`"
