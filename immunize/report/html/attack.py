"""The attack grid of a run: scores and cost by tier, and score against steps, immunized beside θ_0."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from typing import Any

from immunize.report.attacks.intervals import interval_text
from immunize.report.attacks.one_run import HELD, NAMES, RETENTION, held_text, steps_text, verdict_sentence
from immunize.report.cells import NOTHING, short
from immunize.report.html.elements import Html, join, tag
from immunize.report.html.page import Section, note
from immunize.report.html.plot import Chart, Line, figure
from immunize.report.html.scales import LINEAR, LOG, Axis
from immunize.report.html.tables import Cell, data_table

__all__ = ["attack_section"]

_EXTRACTORS = {"immunized": 0, "theta_0": 1, "random_orthogonal": 2}


def attack_section(attack: dict[str, Any] | None, problem: str | None = None) -> Section:
    """What attackers made of the model.

    Args:
        attack: the attack record; None says that there is none.
        problem: why the record that is there is not shown.
    """
    if attack is None:
        why = problem or "This run was not attacked. A condition number is a statement about one attacker only."
        return Section(
            "attacks", "Attacks", join([note(why), note("Run `python -m immunize.attack run=<this folder>`.")])
        )
    grid = attack["config"]["attack"]
    budget = grid["budget"]
    seeds = ", ".join(map(str, attack["config"]["seeds"]))
    reduced = tag("p", "REDUCED grid: a quick look, not to be reported.", class_="banner")
    parts: list[Html] = [reduced] if grid["reduced"] else []
    parts.append(
        note(
            f"Grid `{grid['name']}`: {budget['steps']:,} steps a candidate, {budget['flops']:.1e} FLOPs an attack, "
            f"seeds {seeds}. The attacker tunes on validation rows of its own. Steps, FLOPs and seconds are each "
            f"the least that buys 90 % of θ_0's score in the tier. Retention: {RETENTION}. Held: {HELD}."
        )
    )
    control = "did not hold in any tier, as it should" if attack["control"]["passed"] else "HELD: distrust this grid"
    for task, facts in attack["tasks"].items():
        parts.append(tag("h3", f"Task {task}: {facts['about']}"))
        parts.append(tag("p", f"Verdict: {verdict_sentence(attack, task)}."))
        parts.append(_grid(attack, task))
        charts = _charts(attack, task)
        if charts:
            first = attack["config"]["seeds"][0]
            caption = f"Test score of what is best on the validation rows so far, against steps, seed {first}."
            parts.append(figure(f"attack-{len(parts)}", caption, charts))
    parts.append(note(f"Control: a random rotation, which changes nothing, {control}."))
    parts.append(_every_attack(attack))
    return Section("attacks", "Attacks", join(parts))


def _grid(attack: dict[str, Any], task: str) -> Html:
    rows = []
    for tier, found in attack["results"][task]["immunized"].items():
        of, reference = found["to_target"], found["to_target_reference"]
        rows.append(
            [
                Cell(tier),
                Cell(held_text(found)),
                *(_score(found[name]) for name in ("score_reference", "score")),
                Cell(interval_text(found.get("retention"))),
                *(Cell(steps_text(side["steps"]), _middle(side["steps"])) for side in (reference, of)),
                *(_cost(side["flops"], lambda v: f"{v:.1e}") for side in (reference, of)),
                *(_cost(side["seconds"], short) for side in (reference, of)),
                Cell(next((label for label in found["best"] if label), NOTHING)),
            ]
        )
    columns = ["tier", "held (seeds)", "score θ_0", "score", "retention", "steps θ_0", "steps", "FLOPs θ_0", "FLOPs"]
    return data_table(
        "Scores (accuracy or R²) and cost by tier, medians over the seeds",
        [*columns, "seconds θ_0", "seconds", "best attack"],
        rows,
        names=2,
        sortable=True,
    )


def _charts(attack: dict[str, Any], task: str) -> list[Chart]:
    charts = []
    of: dict[str, Any] = attack.get("best_so_far", {}).get(task, {})
    for tier in attack["results"][task]["immunized"]:
        lines = []
        for extractor, slot in _EXTRACTORS.items():
            curves = of.get(extractor, {}).get(tier) or []
            if curves and (curve := curves[0]["steps"])["paid"]:
                lines.append(Line(NAMES[extractor], slot, curve["paid"], _numbers(curve["test"])))
        if lines:
            # one range for all tiers; by how much a score is worse than that of guessing the mean says nothing
            charts.append(Chart(tier, Axis("steps", LOG), Axis("test score", LINEAR, 0, 1), lines))
    return charts


def _every_attack(attack: dict[str, Any]) -> Html:
    rows = []
    for task, extractors in attack["attacks"].items():
        for extractor, attacks in extractors.items():
            for name, found in attacks.items():
                place = [Cell(text) for text in (name, found["tier"], task, NAMES.get(extractor, extractor))]
                if found["status"] == "skipped":
                    rows.append([*place, Cell(f"not tried: {found['reason']}"), *[Cell(NOTHING)] * 4])
                    continue
                rows.append(
                    [
                        *place,
                        _score(found["score"]),
                        Cell(f"{found['candidates']}", found["candidates"]),
                        *(_cost(found["spent"][what], short) for what in ("steps", "seconds")),
                        _cost(found["spent"]["flops"], lambda v: f"{v:.1e}"),
                    ]
                )
    columns = ["attack", "tier", "task", "features", "score", "candidates", "steps", "seconds", "FLOPs"]
    table = data_table("All candidates' cost, medians over the seeds", columns, rows, names=4, sortable=True)
    return tag("details", tag("summary", "Every attack and what all its candidates took"), table)


def _score(found: dict[str, Any]) -> Cell:
    if found["mean"] is None:
        return Cell(NOTHING)
    return Cell(f"{found['mean']:.3f}" + ("" if found["std"] is None else f" ± {found['std']:.3f}"), found["mean"])


def _cost(values: list[float | None], text: Callable[[float], str]) -> Cell:
    middle = _middle(values)
    if middle is None:
        return Cell(NOTHING)
    return Cell("never", middle) if math.isinf(middle) else Cell(text(middle), middle)


def _middle(values: list[Any]) -> float | None:
    """The median, in which what never happened is infinite."""
    return median(math.inf if value is None else float(value) for value in values) if values else None


def _numbers(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
