"""`make search_table3 SCALE=small|digits`: what each method of Table 3 is run with, from records.

    python -m experiments.search_deep experiment=search_table3_small runs=outputs/search_table3_small
        out=experiments/search_table3_small [keep=true]

Writes results.csv (every configuration, of every network and D_H) and README.md into `out`. Chosen is the largest RIR
on the validation images (20 × 100 groups, `spectrum`; the geometric mean over the seeds) among the configurations that
leave D_P's accuracy there within the limit that the table is held to, in the mean over the seeds; where none does, the
largest RIR. The choices are what conf/experiment/table3_*.yaml has in its grids.

With keep=true a method of a network and D_H that was not searched in `runs` stays as results.csv in `out` has it, so
that one method can be searched again alone.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from experiments.reporting import key_values, write_csv
from experiments.search import ARGUMENTS, own_records
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError
from immunize.records import whole_config

LIMITS = {"search_table3_small": 1.0, "search_table3_digits": 2.0}
"""Points of accuracy on D_P that a configuration may cost, by search: those of the table itself."""

SEEN = {
    "search_table3_small": "θ_0 has seen the validation images of D_P in its own training, so that a change of "
    "accuracy there is larger than on unseen ones.",
    "search_table3_digits": "The θ_0 of the search, one for each seed, was trained without the validation images, "
    "which therefore are as new to it as held-out ones.",
}
"""What the validation images are to θ_0, by search."""

SETTINGS = {"objective.learning_rate": "η", "method.budget": "B"}
"""What the searches vary: B of the closed form, which has no learning rate, η of the others."""

KEEP = ("true", "false")
RESULTS = "results.csv"

PROBE_STEPS = "300"
"""Gradient-descent steps of the probe that is shown beside."""


@dataclass(frozen=True)
class Trial:
    """One configuration of one method on one network and D_H, over its seeds.

    Where a run diverged there are no numbers.

    Attributes:
        place: network, D_H and method.
        setting: key of `SETTINGS`.
        value: its value.
        steps: that were taken, the most of its runs.
        clip: largest norm of a gradient; None for no limit.
        balance_every: steps after which λ were balanced again; 0 for never.
        precondition: method.precondition, "none" or "features".
        seeds: of its runs, in order.
        seconds: of all its runs.
        status: "finished", or "diverged" where a run did.
        fraction: of the `fit` images that were set aside to judge by.
        commits: of its runs, each once, in order.
        date: of the first of its runs.
        machine: that they ran on.
        rir: on the validation images, geometric mean over the seeds.
        ratio_harmful: (i) there, likewise.
        ratio_pretrain: (ii) there, likewise.
        accuracy: of D_P there, before and after, in percent, means over the seeds.
        probe: accuracy of a probe of D_H after `PROBE_STEPS`, as a share of that on θ_0's features, likewise.
    """

    place: tuple[str, str, str]
    setting: str
    value: float
    steps: int
    clip: float | None
    balance_every: int
    precondition: str
    seeds: tuple[int, ...]
    seconds: float
    status: str
    fraction: float
    commits: tuple[str, ...]
    date: str
    machine: str
    rir: float | None = None
    ratio_harmful: float | None = None
    ratio_pretrain: float | None = None
    accuracy: tuple[float, float] | None = None
    probe: float | None = None

    @property
    def finished(self) -> bool:
        """No run diverged."""
        return self.status == "finished"

    @property
    def drop(self) -> float:
        """Points of accuracy that D_P lost; infinite where the run diverged."""
        return math.inf if self.accuracy is None else self.accuracy[0] - self.accuracy[1]

    def rank(self, limit: float) -> tuple[bool, float]:
        """Larger is better."""
        return self.drop <= limit, -math.inf if self.rir is None else self.rir


@entry_point
def main() -> None:
    """Write what was found; the last line of stdout is the folder."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> None:
    """See the module's note.

    Raises:
        UserError: a bad argument, or a search that is not complete.
    """
    given = key_values(arguments, {*ARGUMENTS, "keep"}, needed=ARGUMENTS)
    if given["experiment"] not in LIMITS:
        raise UserError(f"experiment={given['experiment']}: there are {', '.join(LIMITS)}")
    name, out = given["experiment"], Path(given["out"])
    if given.setdefault("keep", "false") not in KEEP:
        raise UserError(f"keep={given['keep']}: it is one of {', '.join(KEEP)}")
    trials = trials_of(own_records(Path(given["runs"])))
    if given["keep"] == "true":
        trials = with_earlier(trials, out / RESULTS)
    best = chosen(trials, LIMITS[name])
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / RESULTS, [row_of(trial, trial in best and trial.finished) for trial in trials])
    (out / "README.md").write_text(readme_of(name, trials, best), encoding="utf-8")
    print(out)


def trials_of(records: Iterable[dict[str, Any]]) -> list[Trial]:
    """The configurations of a search, each over its seeds, in the order of their places and values."""
    by_setting: dict[tuple[tuple[str, str, str], float], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        place = (record["model"], record["harmful"], record["method"])
        node, key = _setting(record).split(".")
        by_setting[place, float(record["config"][node][key])].append(record)
    return [_trial(place, value, by_setting[place, value]) for place, value in sorted(by_setting)]


def _trial(place: tuple[str, str, str], value: float, records: Sequence[dict[str, Any]]) -> Trial:
    over = all(record["status"] == "finished" for record in records)
    return Trial(
        place=place,
        setting=_setting(records[0]),
        value=value,
        steps=max(record["training"]["fit"]["steps"] for record in records),
        clip=records[0]["config"]["trainer"].get("gradient_clip_val"),
        balance_every=whole_config(records[0])["objective"]["balance_every"],
        precondition=records[0]["config"]["method"].get("precondition", "none"),
        seeds=tuple(sorted(record["seed"] for record in records)),
        seconds=sum(record["seconds"] for record in records),
        status="finished" if over else "diverged",
        fraction=records[0]["config"]["objective"]["validation_fraction"],
        commits=tuple(sorted({str(record["git_commit"]) for record in records})),
        date=min(record["started"] for record in records)[:10],
        machine="{processor}, {cores} cores, {memory_gib} GiB".format_map(records[0]["hardware"]),
        **(_numbers(records) if over else {}),
    )


def _numbers(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What runs that all finished measured; no ratio where one of them has none."""
    groups = [record["metrics_groups"]["validation"]["spectrum"] for record in records]
    ratios = {key: [of.get(key) for of in groups] for key in ("rir", "ratio_harmful", "ratio_pretrain")}
    accuracies = [record["pretrain_accuracy"] for record in records]
    probes = [record["probe_accuracy"]["gd"]["harmful"] for record in records]
    return {
        **{key: None if None in values else geometric_mean(values) for key, values in ratios.items()},
        "accuracy": tuple(fmean(one[when] for one in accuracies) for when in ("before", "after")),
        "probe": fmean(one["immunized"][PROBE_STEPS] / one["theta_0"][PROBE_STEPS] for one in probes),
    }


def _setting(record: dict[str, Any]) -> str:
    return "method.budget" if "budget" in record["config"]["method"] else "objective.learning_rate"


def chosen(trials: Sequence[Trial], limit: float) -> list[Trial]:
    """The best configuration of each method on each network and D_H, in the order of `trials`; where all diverged, one
    of those.

    Args:
        trials: of the whole search, from :func:`trials_of`.
        limit: points of accuracy that D_P may lose.

    Raises:
        UserError: a method has fewer configurations than another.
    """
    by_place = {place: list(of) for place, of in groupby(trials, key=lambda trial: trial.place)}
    if len({len(of) for of in by_place.values()}) != 1:
        counts = ", ".join(f"{' '.join(place)} {len(of)}" for place, of in by_place.items())
        raise UserError(f"the search is not complete: {counts}; the same command again continues it")
    return [max(of, key=lambda trial: trial.rank(limit)) for of in by_place.values()]


def row_of(trial: Trial, is_chosen: bool) -> dict[str, Any]:
    """A line of results.csv."""
    before, after = trial.accuracy or (None, None)
    return {
        **dict(zip(("model", "harmful", "method"), trial.place, strict=True)),
        **{key: trial.value if key == trial.setting else None for key in SETTINGS},
        "steps": trial.steps,
        "gradient_clip_val": trial.clip,
        "balance_every": trial.balance_every,
        "precondition": trial.precondition,
        "seeds": " ".join(map(str, trial.seeds)),
        "status": trial.status,
        "rir_validation": trial.rir,
        "ratio_harmful_validation": trial.ratio_harmful,
        "ratio_pretrain_validation": trial.ratio_pretrain,
        "pretrain_accuracy_before": before,
        "pretrain_accuracy_after": after,
        f"probe_{PROBE_STEPS}_of_theta_0": trial.probe,
        "seconds": trial.seconds,
        "chosen": is_chosen,
        "validation_fraction": trial.fraction,
        "commits": " ".join(trial.commits),
        "date": trial.date,
        "machine": trial.machine,
    }


def trial_of(row: dict[str, str]) -> Trial:
    """What :func:`row_of` wrote, to six digits."""

    def number(key: str) -> float | None:
        return float(row[key]) if row[key] else None

    before, after = number("pretrain_accuracy_before"), number("pretrain_accuracy_after")
    setting = next(key for key in SETTINGS if row[key])
    return Trial(
        place=(row["model"], row["harmful"], row["method"]),
        setting=setting,
        value=float(row[setting]),
        steps=int(row["steps"]),
        clip=number("gradient_clip_val"),
        balance_every=int(row["balance_every"]),
        precondition=row.get("precondition", "none"),
        seeds=tuple(map(int, row["seeds"].split())),
        seconds=float(row["seconds"]),
        status=row["status"],
        fraction=float(row["validation_fraction"]),
        commits=tuple(row["commits"].split()),
        date=row["date"],
        machine=row["machine"],
        rir=number("rir_validation"),
        ratio_harmful=number("ratio_harmful_validation"),
        ratio_pretrain=number("ratio_pretrain_validation"),
        accuracy=None if before is None or after is None else (before, after),
        probe=number(f"probe_{PROBE_STEPS}_of_theta_0"),
    )


def with_earlier(trials: Sequence[Trial], results: Path) -> list[Trial]:
    """Those of a search, and of an earlier one those of the places that this one has not, in the order of the places.

    Args:
        trials: of the search.
        results: of the earlier one, results.csv.

    Raises:
        UserError: it is not there.
    """
    if not results.is_file():
        raise UserError(f"keep=true: there is no {results} to keep anything of")
    own = {trial.place for trial in trials}
    with results.open(newline="", encoding="utf-8") as file:
        earlier = [trial for trial in map(trial_of, csv.DictReader(file)) if trial.place not in own]
    return sorted([*trials, *earlier], key=lambda trial: (trial.place, trial.value))


def readme_of(name: str, trials: Sequence[Trial], best: Sequence[Trial]) -> str:
    """What was searched, how, and what was chosen."""
    fraction, limit = trials[0].fraction, LIMITS[name]
    dates = sorted({trial.date for trial in trials})
    lines = [
        f"# {name}: learning rates and budgets by validation images",
        "",
        "| | |",
        "| --- | --- |",
        f"| command | `make search_table3 SCALE={name.rpartition('_')[2]}` |",
        f"| commit | {', '.join(sorted({commit for trial in trials for commit in trial.commits}))} |",
        f"| date | {' to '.join(dict.fromkeys((dates[0], dates[-1])))} |",
        f"| machine | {'; '.join(sorted({trial.machine for trial in trials}))} |",
        f"| runs | {sum(len(trial.seeds) for trial in trials)}, {len(trials) // len(best)} configurations a method on "
        f"each network and D_H, {sum(trial.seconds for trial in trials) / 60:.0f} minutes summed |",
        f"| split | trained on {1 - fraction:.0%} of the `fit` images and judged on the other {fraction:.0%}; held-out "
        "images are not looked at |",
        f"| rule | the largest RIR (20 × 100 groups, `spectrum`, geometric mean over the seeds) with D_P's accuracy no "
        f"more than {limit:g} point{'' if limit == 1 else 's'} lower in the mean; without that where no configuration "
        "keeps it |",
        "",
        "| network | D_H | method | steps | seeds | grid | chosen | RIR | (i) ↑ | (ii) ↓ | "
        f"D_P accuracy, change in points | probe of D_H after {PROBE_STEPS} steps, of θ_0's | diverged |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for trial in best:
        of = [other for other in trials if other.place == trial.place]
        grid = ", ".join(f"{other.value:g}" for other in of)
        model, harmful, method = trial.place
        steps = str(trial.steps)
        if trial.steps and trial.clip is not None:
            steps += f", gradients clipped to norm {trial.clip:g}"
        if trial.balance_every:
            steps += f", λ balanced every {trial.balance_every}"
        if trial.precondition != "none":
            steps += f", preconditioned at the {trial.precondition}"
        lost = sum(not other.finished for other in of)
        taken = f"{trial.value:g}" if trial.finished else "none"
        numbers = ["–"] * 5
        if trial.accuracy is not None:
            found = (trial.rir, trial.ratio_harmful, trial.ratio_pretrain)
            numbers = ["–" if value is None else f"{value:.3g}" for value in found]
            numbers += [f"{0 - trial.drop:+.2f}", f"{trial.probe:.3g}"]
        lines.append(
            f"| {model} | {harmful} | `{method}` | {steps} | {', '.join(map(str, trial.seeds))} | "
            f"{SETTINGS[trial.setting]} in {{{grid}}} | {taken} | "
            f"{' | '.join(numbers)} | {lost} of {len(of)} |"
        )
    lines += [
        "",
        f"{SEEN[name]} Every configuration is in results.csv.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
