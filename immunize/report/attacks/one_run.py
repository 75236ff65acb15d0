"""The tables of an attack record: a row a tier, the immunized model beside θ_0. Imports no other room and no torch.

An attack record has for every seed a difference to θ_0 and a retention with their standard errors over the test rows.
Seeds of one data set mostly share these rows, so that what the rows are to blame for does not average out, and what the
seeds add does:

    mean ± t sqrt(mean(error²) + var(values)/k)        var with k - 1; of one seed only its rows count

t is the 97.5 % point of Student's distribution with Welch and Satterthwaite's degrees of freedom, as many as rows give
where these make the interval, and k - 1 where the seeds do: (e + v)²(k - 1)/v² with e, v the two terms under the root.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, mean, median, mode, variance
from typing import Any

from rich.console import Console

from immunize.report.table import NOTHING, Table, short, to_print, to_read
from immunize.report.templates import filled_in

TIERS = ("T0", "T1", "T2", "T3", "T4", "T5")
NAMES = {"theta_0": "θ_0", "immunized": "immunized", "random_orthogonal": "random rotation"}

COLUMNS = ("task", "tier", "score θ_0", "score", "retention", "steps θ_0", "steps", "FLOPs", "best attack", "held")

HORIZON_COLUMNS = ("area", "end", "deviation", "steps to 50 %", "steps to 90 %")
"""Numbers of fine-tuning over many steps (`evaluation/attacks/curves.py`); `assets/blocks.md` says what they mean."""

_CONFIDENCE = 0.95

Estimates = Mapping[str, Sequence[float | None]]
"""Two columns, "values" and "errors", one number a seed; None where θ_0 learns nothing."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and where it may lie.

    Attributes:
        mean: over the seeds that have a number.
        low: 2.5 % of all draws of seeds and rows lie below.
        high: and above.
    """

    mean: float
    low: float
    high: float


def interval_of(found: Estimates | None) -> Interval | None:
    """Over the seeds; None without a number, or of a record from before there were any."""
    pairs = zip(found["values"], found["errors"], strict=True) if found else []
    known = [(value, error) for value, error in pairs if value is not None and error is not None]
    if not known:
        return None
    from scipy.special import stdtrit  # 14 MiB

    values = [value for value, _ in known]
    of_seeds = variance(values) / len(values) if len(values) > 1 else 0.0
    of_both = mean(error**2 for _, error in known) + of_seeds
    ratio = of_both / of_seeds if of_seeds else math.inf
    freedom = ratio * ratio * max(1, len(values) - 1)
    half = float(stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * math.sqrt(of_both)
    return Interval(mean(values), mean(values) - half, mean(values) + half)


def interval_text(found: Estimates | None) -> str:
    """Such as "0.47 (0.41 to 0.53)"."""
    interval = interval_of(found)
    if interval is None:
        return NOTHING
    return f"{interval.mean:z.2f} ({interval.low:z.2f} to {interval.high:z.2f})".replace("-", "−")


def where_known(found: Mapping[str, Any], values: Sequence[float | None]) -> list[float | None]:
    """What was paid, of the seeds with which θ_0 learns the task: of others null does not say never."""
    learned = found["to_target_reference"]["steps"]
    return [value for value, steps in zip(values, learned, strict=True) if steps is not None]


def attack_rows(record: dict[str, Any]) -> list[list[str]]:
    """Cells of `COLUMNS`, a row a task and tier: mean ± standard deviation (n - 1) and medians over the seeds."""
    rows = []
    for task, of in record["results"].items():
        for tier, found in of["immunized"].items():
            scores = [score_text(found["score_reference"]), score_text(found["score"])]
            sides = (("to_target_reference", "steps"), ("to_target", "steps"), ("to_target", "flops"))
            paid = [paid_text(resource, where_known(found, found[side][resource])) for side, resource in sides]
            best = mode([label for label in found["best"] if label] or [NOTHING])
            rows.append([task, tier, *scores, interval_text(found.get("retention")), *paid, best, held_text(found)])
    return rows


def horizon_cells(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of `HORIZON_COLUMNS`, from the numbers of one or more curves."""
    reached = [middle([one["steps"][index] for one in found]) for index in (0, 1)]
    numbers = [short(fmean(one[name] for one in found)) for name in HORIZON_COLUMNS[:3]]
    return numbers + ["never" if math.isinf(step) else short(step) for step in reached]


def horizon_table(record: dict[str, Any]) -> Table | None:
    """Fine-tuning over many steps, θ_0 and the immunized model below each other; None where no weights were moved."""
    rows = []
    for task, of in record["attacks"].items():
        for name, mine in of["immunized"].items():
            for extractor, numbers in (("theta_0", of["theta_0"].get(name, {})), ("immunized", mine)):
                if found := [one for one in numbers.get("horizon", []) if one is not None]:
                    last = f"{max(one['last'] for one in found):,}"
                    rows.append([f"`{task}`", f"`{name}`", last, NAMES[extractor], *horizon_cells(found)])
    return Table("", ("task", "attack", "steps", "features", *HORIZON_COLUMNS), rows) if rows else None


def grid_parts(record: dict[str, Any]) -> dict[str, Any]:
    """What a card's template and a run page's say of an attack record, by the names that both have."""
    return {
        "tiers": Table("", COLUMNS, [[f"`{task}`", *cells] for task, *cells in attack_rows(record)]),
        "horizons": horizon_table(record),
        "not_tried": not_tried(record),
    }


def show_attack(record: dict[str, Any], console: Console | None = None) -> None:
    """Print the grid of the immunized model and the verdict of every task."""
    console = to_read(console)
    subject = record["subject"]
    grid = record["config"]["attack"]
    mark = "REDUCED " if grid.get("reduced") else ""
    rows = []
    for task, tier, score_0, score, retention, steps_0, steps, _, best, held in attack_rows(record):
        scores = [text.split(" ")[0] for text in (score_0, score, retention)]
        arrows = [" → ".join(scores[:2]), scores[2], f"{steps_0} → {steps}"]
        rows.append([task, tier, best.partition(":")[0], *arrows, held])
    columns = ("task", "tier", "best attack", "score: θ_0 → θ", "retention", "steps: θ_0 → θ", "held")
    title = f"{mark}attack={grid['name']}: {subject['method']}, {subject['pretrain']} against {subject['harmful']}"
    console.print(to_print(Table(title, columns, rows), [column for column in columns if ":" not in column]))
    told = filled_in("attack.txt", not_tried, verdict_sentence, record=record, extractors=NAMES)
    console.print(told.rstrip("\n"))


def verdict_sentence(record: dict[str, Any], task: str) -> str:
    """The verdict of one task in words, from its numbers."""
    verdict, results = record["verdicts"][task]["immunized"], record["results"][task]["immunized"]
    undecided = [tier for tier, held in verdict["held"].items() if held is None]
    told = filled_in(
        "verdict.txt",
        *(interval_text, paid_text, score_text, where_known),
        tiers=TIERS,
        verdict=verdict,
        results=results,
        undecided=undecided,
        reasons=sorted({reason for tier in undecided for reason in results[tier]["undecided"]}),
        moved=record["tasks"][task].get("rows_moved", {}),  # records of before have none
    )
    return "; ".join(told.splitlines())


def not_tried(record: dict[str, Any]) -> list[str]:
    """Rows that are not the usual ones, and what was left out: tiers, attacks and why, benign tasks, further steps."""
    attacks = record["attacks"]["harmful"]["immunized"]
    known = {of["tier"] for of in attacks.values()}
    skipped: dict[str, list[str]] = {}
    for name, of in attacks.items():
        if of["status"] == "skipped":
            skipped.setdefault(of["reason"], []).append(f"{name} ({of['tier']})")
    absent = [tier for tier in TIERS if tier not in known]
    longest = record["results"]["harmful"]["immunized"].get("T4", {}).get("longest_by_attack", {})
    return filled_in("not_tried.txt", record=record, skipped=skipped, absent=absent, longest=longest).splitlines()


def held_text(found: dict[str, Any]) -> str:
    """Whether a tier held, and for how many seeds."""
    if None in found["held"] and False not in found["held"]:
        return f"undecided {found['seeds_held']}"
    return f"{'yes' if all(found['held']) else 'no'} {found['seeds_held']}"


def middle(values: Sequence[float | None]) -> float:
    """The median where None is never; infinite if the median case does not get there, NaN without any."""
    return median(math.inf if value is None else value for value in values) if values else math.nan


def paid_text(resource: str, values: Sequence[float | None]) -> str:
    """The median of what was paid, "flops" with two digits; "never" where the median case does not get there."""
    found = middle(values)
    if math.isnan(found):
        return NOTHING
    if math.isinf(found):
        return "never"
    return f"{found:.1e}" if resource == "flops" else f"{found:,.0f}"


def score_text(found: dict[str, Any]) -> str:
    """Mean ± standard deviation over the seeds."""
    if found["mean"] is None:
        return NOTHING
    return f"{found['mean']:.3f}" + ("" if found["std"] is None else f" ± {short(found['std'])}")
