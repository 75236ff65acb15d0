"""The report of `experiment=table_attacks`: tables, figure and README of attacked runs, from attack records alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from immunize.files import write_text
from immunize.report.attacks.collecting import load_attacks, with_earlier
from immunize.report.attacks.cost_figure import cost_figure
from immunize.report.attacks.curves import curves_figure, has_curves
from immunize.report.attacks.retention_figure import best_figure, plane_figure
from immunize.report.attacks.runs import CONTROL, THETA_0, Attacks, Group
from immunize.report.attacks.tables import KIND_WORDS, attack_tables, unbroken_counts
from immunize.report.cells import NOTHING
from immunize.report.figures import save_figure
from immunize.report.layout import write_tables
from immunize.report.provenance import made_with, versions_of
from immunize.report.stored import write_results

__all__ = ["NAME", "report_attacks"]

NAME = "table_attacks"
DEFENCE = "defence"
"""First word of the pages of `make table_defence`, whose runs have scales of their own."""
FIGURE, CURVES, BEST, PLANE = "cost", "curves", "best", "plane"
LINEAR = ("T0", "T1", "T2")
"""Tiers that all learn a linear probe of the same features."""
NEAR = 0.01
"""Scores that differ by no more are called the same: a point of accuracy, or a hundredth of R²."""
_REDUCED = "**REDUCED**: a shortened grid that shows the code path; its numbers are not to be reported."


def report_attacks(folder: Path, out: Path | None, *, keep: bool = False) -> str:
    """Write the report and return what to print.

    Args:
        folder: attack records below it, or one that holds `results.csv.gz`.
        out: where to write README.md, table.md, table.tex, results.csv.gz and the figures; None prints. Named
            attacks_<scale>, or attacks_<scale>_<harmful> with the runs against one D_H of several; likewise defence_.
        keep: the runs in `out` that `folder` has not stay in the table.

    Raises:
        FileNotFoundError: no attack record in the folder, or nothing to keep.
        ValueError: records that do not belong into one table.
    """
    records = load_attacks(folder)
    attacks = Attacks.of(with_earlier(records, load_attacks(out)) if keep and out is not None else records)
    tables = attack_tables(attacks)
    text = "\n".join(table.markdown() for table in tables)
    if out is None:
        return text
    out.mkdir(parents=True, exist_ok=True)
    write_results(attacks.records, out)
    write_tables(tables, NAME, out)
    cost_figure(attacks, out / FIGURE)
    if has_curves(attacks):
        save_figure(curves_figure(attacks), out / CURVES)
    if _has_retention(attacks):
        best_figure(attacks, out / BEST)
        plane_figure(attacks, out / PLANE)
    write_text(out / "README.md", _readme(attacks, out.name, text))
    return text


def _has_retention(attacks: Attacks) -> bool:
    return all(group.judged_by_intervals for group in attacks.groups)


def outcome(attacks: Attacks) -> list[str]:
    """By kind of data: how far each method held, where the defence fails, and what to distrust in these numbers."""
    sentences = []
    for group in attacks.groups:
        reached = "; ".join(f"`{method}` {unbroken_counts(group, method)}" for method in group.methods)
        sentences.append(
            f"- {group.name}: the highest tier up to which the harmful task was unbroken is, by method, {reached}. "
            f"{' '.join([_failures(group), *_control(group), *_short_of(group), *_nothing_gained(group)])}"
        )
    return sentences


def _control(group: Group) -> list[str]:
    """Where a map that changes nothing held: there a single verdict is noise."""
    found = []
    for kind in group.kinds:
        for tier in group.tiers:
            tried = group.tried(CONTROL, kind, tier)
            if tried is not None and (held := tried.held.count(True)):
                found.append(f"{tier} of the {KIND_WORDS[kind]} task in {held} of {len(tried.held)} cases")
    return [f"The control, {CONTROL}, held {', '.join(found)}: there a single verdict is noise."] if found else []


def _short_of(group: Group) -> list[str]:
    """Tiers in which θ_0's own attackers end below the best that learns the same probe: it is not the features."""
    means = {tier: _mean_score(group, tier) for tier in group.tiers if tier in LINEAR}
    best = max(means, key=lambda tier: means[tier])
    short_of = [f"{tier} ({means[tier]:.3f})" for tier in means if means[tier] < means[best] - NEAR]
    if not short_of:
        return []
    return [
        f"From θ_0 itself the attackers of {', '.join(short_of)} end more than a point below {best} "
        f"({means[best]:.3f}), which learns the same linear probe: by their budget, or by what few validation "
        "rows chose, not by the features."
    ]


def _nothing_gained(group: Group) -> list[str]:
    """Where moving θ_0's own weights gains nothing over a probe, T4 had too few steps to show what it can."""
    if not {"T2", "T4"} <= set(group.tiers):
        return []
    probe, moved = (_mean_score(group, tier) for tier in ("T2", "T4"))
    if moved > probe + NEAR:
        return []
    return [
        f"From θ_0 itself T4 ends at {moved:.3f}, and T2's probes of its features at {probe:.3f}: in so few steps "
        "moving weights gains nothing here, and that T4 held says no more than that T2 did."
    ]


def _mean_score(group: Group, tier: str) -> float:
    tried = group.tried(THETA_0, "harmful", tier)
    values = [v for of in tried.score.values() for v in of if v is not None] if tried is not None else []
    return sum(values) / len(values) if values else math.nan


def _failures(group: Group) -> str:
    held = {t: [m for m in group.methods if _share_held(group, m, "harmful", t) == 1] for t in group.tiers}
    broken = [tier for tier, methods in held.items() if not methods]
    where = f"No method held in every run in {', '.join(broken)}" if broken else "In every tier some method held always"
    lowest = group.tiers[0]
    for kind in group.kinds[1:]:
        harmed = [method for method in group.methods if _share_held(group, method, kind, lowest) > 0.5]
        names = ", ".join(f"`{method}`" for method in harmed) or "no method"
        where += f", and in {lowest} the {KIND_WORDS[kind]} task was made as hard, in most runs, by {names}"
    return f"{where}."


def _share_held(group: Group, method: str, kind: str, tier: str) -> float:
    """Of the cases that are decided; NaN without any."""
    tried = group.tried(method, kind, tier)
    decided = [held for held in tried.held if held is not None] if tried is not None else []
    return sum(decided) / len(decided) if decided else math.nan


def _readme(attacks: Attacks, name: str, text: str) -> str:
    table = DEFENCE if name.startswith(DEFENCE) else "attacks"
    scale, _, harmful = name.removeprefix(f"{table}_").partition("_")
    target = f" `make table_{table}{'' if scale == 'linear' else f' SCALE={scale}'}`, that is"
    if table == DEFENCE:
        scale = f"{table}_{scale}"
    attacked = f"outputs/attacks_{scale}{'_' * bool(harmful)}{harmful}"
    budget = attacks.grid["budget"]
    facts = [
        ("runs", "; ".join(f"{group.name}: {len(group.records)}" for group in attacks.groups)),
        ("pairs", "; ".join(f"{group.name}: {', '.join(group.pairs)}" for group in attacks.groups)),
        ("methods", ", ".join(f"`{m}`" for m in dict.fromkeys(m for g in attacks.groups for m in g.methods))),
        ("seeds", ", ".join(map(str, sorted({s for g in attacks.groups for s in g.seeds})))),
        ("attacker's seeds", "that of the run" if _paired(attacks) else "as the records say"),
        (
            "grid",
            f"`{attacks.grid['name']}`, {budget['steps']:,} steps a candidate, {budget['flops']:.0e} FLOPs an attack",
        ),
        *((tier, ", ".join(names)) for tier, names in _by_tier(attacks).items()),
        *made_with(attacks.records),
        versions_of(attacks.records),
    ]
    lines = [
        f"# {attacks.mark('Methods against attackers')}",
        "",
        *([_REDUCED, ""] if attacks.reduced else []),
        f"Rebuilt by{'' if harmful else target}",
        "",
        "```bash",
        f"python -m experiments.{NAME} scale={scale}" + (f" harmful={harmful} out={attacked}" if harmful else ""),
        f"python -m immunize.report experiment={NAME} runs={attacked} out=experiments/{name}",
        "```",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {key} | {value or NOTHING} |" for key, value in facts),
        "",
        *outcome(attacks),
        "",
        *(
            line
            for words, figure in (("best score by tier", BEST), ("retention by tier, harmful and honest", PLANE))
            if _has_retention(attacks)
            for line in (f"![{attacks.mark(words)}]({figure}.png)", "")
        ),
        f"![{attacks.mark('cost of an attack by tier')}]({FIGURE}.png)",
        "",
        *([f"![{attacks.mark('best score so far by tier')}]({CURVES}.png)", ""] if has_curves(attacks) else []),
        "Costs: markers are medians over runs, bars go from the cheapest run to the dearest; hollow: the median run "
        "never gets there within the budget. Best scores so far: medians over runs, tasks and seeds, and their range. "
        "What the tiers and the rules of the grid are stands in docs/attacks.md.",
        "",
        text,
    ]
    return "\n".join(lines)


def _paired(attacks: Attacks) -> bool:
    return all(record["config"]["seeds"] == [record["seed"]] for record in attacks.records)


def _by_tier(attacks: Attacks) -> dict[str, list[str]]:
    """The attacks of the tiers that something was attacked in, with budgets of their own and the tasks they are for."""
    tried = {tier for group in attacks.groups for tier in group.tiers}
    found: dict[str, list[str]] = {}
    for name, settings in sorted(attacks.grid["attacks"].items()):
        if settings["tier"] in tried:
            taken = [steps for group in attacks.groups for steps in group.longest(name, settings["tier"])]
            found.setdefault(settings["tier"], []).append(f"`{name}`{_terms(settings, taken)}")
    return dict(sorted(found.items()))


def _terms(settings: dict[str, Any], taken: list[int]) -> str:
    """Where an attack departs from the grid's: its own FLOPs and steps, images it is measured on, tasks it is for."""
    terms = []
    if settings.get("flops") is not None:
        terms.append(f"{settings['flops']:.0e} FLOPs")
    if "measured" in settings:
        steps = f"at most {settings['steps']:,} steps"
        if taken and min(taken) <= settings["steps"]:  # what was taken counts the probe that it starts from as one
            steps += f", of which its FLOPs allowed, with the probe, {min(taken):,} to {max(taken):,}"
        terms += [steps, f"measured on {settings['measured']:,} images"]
    if settings.get("ranks"):
        terms.append(f"ranks {', '.join(map(str, settings['ranks']))}")
    if settings.get("kinds"):
        terms.append(f"{', '.join(KIND_WORDS[kind] for kind in settings['kinds'])} tasks")
    return f" ({'; '.join(terms)})" if terms else ""
