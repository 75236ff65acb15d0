"""`make search_table3`, also with SCALE=small|digits: what each method of Table 3 is run with, from records.

    python -m experiments.search_deep experiment=search_table3_small runs=outputs/search_table3_small
        out=experiments/search_table3_small [keep=true]

Writes results.csv (every configuration, of every network and D_H) and README.md into `out`. Chosen is the largest RIR
on the validation images (20 × 100 groups, `spectrum`; the geometric mean over the seeds) among the configurations that
leave D_P's accuracy there within the limit that the table is held to, in the mean over the seeds; where none does, the
largest RIR. The choices are what conf/experiment/table3_*.yaml has in its grids.

With keep=true a method of a network and D_H that was not searched in `runs` stays as results.csv in `out` has it, so
that one method can be searched again alone, of the same θ_0.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import pandas as pd

from experiments.reporting import machine_of, readme
from experiments.search import RESULTS, asked, earlier_results, facts_of
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError
from immunize.records import whole_config
from immunize.report.table import NOTHING, Table

LIMITS = {"search_table3": 1.0, "search_table3_small": 1.0, "search_table3_digits": 2.0}
"""Points of accuracy on D_P that a configuration may cost, by search: those of the table itself."""

_BY_THETA_0 = (
    "θ_0 has seen the validation images of D_P in its own training, so that a change of accuracy there is larger than "
    "on unseen ones."
)
SEEN = {
    "search_table3": _BY_THETA_0,
    "search_table3_small": _BY_THETA_0,
    "search_table3_digits": "The θ_0 of the search, one for each seed, was trained without the validation images, "
    "which therefore are as new to it as held-out ones.",
}
"""What the validation images are to θ_0, by search."""

SETTINGS = {"objective.learning_rate": "η", "method.budget": "B"}
"""What the searches vary: B of the closed form, which has no learning rate, η of the others."""

PROBE_STEPS = "300"
"""Gradient-descent steps of the probe that is shown beside."""


PROBE = f"probe_{PROBE_STEPS}_of_theta_0"
PLACE = ["model", "harmful", "method"]
RATIOS = ("rir", "ratio_harmful", "ratio_pretrain")
COLUMNS = ("RIR", "(i) ↑", "(ii) ↓")


@entry_point
def main() -> None:
    """Write what was found; the last line of stdout is the folder."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> None:
    """See the module's note.

    Raises:
        UserError: a bad argument, or a search that is not complete.
    """
    name, records, out, keep = asked(arguments, LIMITS)
    trials = trials_of(records)
    if keep:
        trials = with_earlier(trials, out / RESULTS)
        check_theta_0(trials)
    best = chosen(trials, LIMITS[name])
    trials["chosen"] = [
        str(index in best.index and status == "finished").lower() for index, status in trials["status"].items()
    ]
    out.mkdir(parents=True, exist_ok=True)
    trials.to_csv(out / RESULTS, index=False, float_format="%.6g", lineterminator="\n")
    (out / "README.md").write_text(readme_of(name, trials, best), encoding="utf-8")
    print(out)


def trials_of(records: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The configurations of a search, each over its seeds, as results.csv has them; no ratio where a run diverged."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        setting = "method.budget" if "budget" in record["config"]["method"] else "objective.learning_rate"
        node, key = setting.split(".")
        place = (record["model"], record["harmful"], record["method"])
        groups[place, float(record["config"][node][key]), setting].append(record)
    return pd.DataFrame(
        [_trial(place, value, setting, groups[place, value, setting]) for place, value, setting in sorted(groups)]
    )


def _trial(place: tuple[str, ...], value: float, setting: str, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_seed = sorted(records, key=lambda record: record["seed"])
    over = all(record["status"] == "finished" for record in records)
    config = whole_config(records[0])
    ratios: dict[str, float | None] = dict.fromkeys(RATIOS)
    accuracy: dict[str, float | None] = dict.fromkeys(("before", "after"))
    probe = None
    if over:
        groups = [record["metrics_groups"]["validation"]["spectrum"] for record in records]
        every = {name: [of.get(name) for of in groups] for name in RATIOS}
        ratios = {name: None if None in values else geometric_mean(values) for name, values in every.items()}
        accuracy = {when: fmean(record["pretrain_accuracy"][when] for record in records) for when in accuracy}
        probes = [record["probe_accuracy"]["gd"]["harmful"] for record in records]
        probe = fmean(one["immunized"][PROBE_STEPS] / one["theta_0"][PROBE_STEPS] for one in probes)
    return {
        **dict(zip(PLACE, place, strict=True)),
        **{key: value if key == setting else None for key in SETTINGS},
        "steps": max(record["training"]["fit"]["steps"] for record in records),
        "gradient_clip_val": config["trainer"].get("gradient_clip_val"),
        "balance_every": config["objective"]["balance_every"],
        "precondition": config["method"].get("precondition", "none"),
        "seeds": " ".join(str(record["seed"]) for record in by_seed),
        "theta_0": " ".join(record["network"]["theta_0_sha256"][:8] for record in by_seed),
        "status": "finished" if over else "diverged",
        **{f"{name}_validation": value for name, value in ratios.items()},
        **{f"pretrain_accuracy_{when}": value for when, value in accuracy.items()},
        PROBE: probe,
        "seconds": sum(record["seconds"] for record in records),
        "chosen": "false",
        "validation_fraction": config["objective"]["validation_fraction"],
        "commits": " ".join(sorted({str(record["git_commit"]) for record in records})),
        "date": min(record["started"] for record in records)[:10],
        "machine": machine_of(records[0]),
    }


def chosen(trials: pd.DataFrame, limit: float) -> pd.DataFrame:
    """The best configuration of each method on each network and D_H, in the order of `trials`; where all diverged, one
    of those.

    Args:
        trials: of the whole search, from :func:`trials_of`.
        limit: points of accuracy that D_P may lose.

    Raises:
        UserError: a method has fewer configurations than another.
    """
    sizes = trials.groupby(PLACE, sort=False).size()
    if sizes.nunique() != 1:
        counts = ", ".join(f"{' '.join(place)} {count}" for place, count in sizes.items())
        raise UserError(f"the search is not complete: {counts}; the same command again continues it")
    ranked = trials.assign(
        kept=-_change(trials) <= limit, rank=trials["rir_validation"].astype(float).fillna(-math.inf)
    )
    ranked = ranked.sort_values(["kept", "rank"], ascending=False, kind="stable")
    return trials.loc[sorted(ranked.groupby(PLACE).head(1).index)]


def with_earlier(trials: pd.DataFrame, results: Path) -> pd.DataFrame:
    """Those of a search, and of an earlier one those of the places that this one has not, in the order of the places.

    Args:
        trials: of the search.
        results: of the earlier one, results.csv.
    """
    earlier = earlier_results(results, dtype={"seeds": str, "theta_0": str}, keep_default_na=False, na_values=[""])
    own = set(trials[PLACE].itertuples(index=False, name=None))
    left = [place not in own for place in earlier[PLACE].itertuples(index=False, name=None)]
    whole = pd.concat([trials.astype(object), earlier[left].astype(object)]).reindex(columns=trials.columns)
    return whole.sort_values([*PLACE, *SETTINGS], kind="stable").reset_index(drop=True).infer_objects()


def check_theta_0(trials: pd.DataFrame) -> None:
    """That the runs of a network with a seed all began with the same θ_0, without which their numbers do not compare.

    Raises:
        UserError: they did not, or some rows, of before this was written down, do not say.
    """
    known: dict[tuple[str, str], str] = {}
    for model, seeds, digests in trials[["model", "seeds", "theta_0"]].fillna("").itertuples(index=False):
        for seed, digest in itertools.zip_longest(seeds.split(), digests.split(), fillvalue=""):
            if known.setdefault((model, seed), digest) != digest:
                raise UserError(
                    f"keep=true: the rows that are there are not known to be of the θ_0 of {model}, seed {seed}, that "
                    "this search began with; search every method again"
                )


def readme_of(name: str, trials: pd.DataFrame, best: pd.DataFrame) -> str:
    """What was searched, how, and what was chosen."""
    fraction, limit = trials["validation_fraction"].iloc[0], LIMITS[name]
    scale = name.removeprefix("search_table3").lstrip("_")
    runs = sum(len(seeds.split()) for seeds in trials["seeds"])
    facts = [
        *facts_of(trials, f"make search_table3{f' SCALE={scale}' if scale else ''}"),
        (
            "runs",
            f"{runs}, {len(trials) // len(best)} configurations a method on each network and D_H, "
            f"{trials['seconds'].sum() / 60:.0f} minutes summed",
        ),
        (
            "split",
            f"trained on {1 - fraction:.0%} of the `fit` images and judged on the other {fraction:.0%}; held-out "
            "images are not looked at",
        ),
        (
            "rule",
            f"the largest RIR (20 × 100 groups, `spectrum`, geometric mean over the seeds) with D_P's accuracy no more "
            f"than {limit:g} point{'' if limit == 1 else 's'} lower in the mean; without that where no configuration "
            "keeps it",
        ),
    ]
    columns = ["network", "D_H", "method", "steps", "seeds", "grid", "chosen", *COLUMNS]
    columns += ["D_P accuracy, change in points", f"probe of D_H after {PROBE_STEPS} steps, of θ_0's", "diverged"]
    rows = [_cells(trial, trials[(trials[PLACE] == trial[PLACE]).all(axis=1)]) for _, trial in best.iterrows()]
    table = Table("", columns, rows).markdown(heading=False)
    body = [table, f"{SEEN[name]} Every configuration is in results.csv.", ""]
    return readme(f"{name}: learning rates and budgets by validation images", facts, body)


def _cells(trial: pd.Series[Any], of: pd.DataFrame) -> list[str]:
    setting = next(key for key in SETTINGS if pd.notna(trial[key]))
    steps = f"{trial['steps']:.0f}"
    if trial["steps"] and pd.notna(trial["gradient_clip_val"]):
        steps += f", gradients clipped to norm {trial['gradient_clip_val']:g}"
    if trial["balance_every"]:
        steps += f", λ balanced every {trial['balance_every']:g}"
    if trial["precondition"] != "none":
        steps += f", preconditioned at the {trial['precondition']}"
    finished = trial["status"] == "finished"
    numbers = [*(trial[f"{name}_validation"] for name in RATIOS), _change(of).loc[trial.name], trial[PROBE]]
    texts = [
        NOTHING if pd.isna(value) else f"{value:{form}}"
        for value, form in zip(numbers, (*[".3g"] * 3, "+.2f", ".3g"), strict=True)
    ]
    return [
        *(trial["model"], trial["harmful"], f"`{trial['method']}`", steps, ", ".join(trial["seeds"].split())),
        f"{SETTINGS[setting]} in {{{', '.join(f'{value:g}' for value in of[setting])}}}",
        *(f"{trial[setting]:g}" if finished else "none", *texts),
        f"{(of['status'] != 'finished').sum()} of {len(of)}",
    ]


def _change(trials: pd.DataFrame) -> pd.Series[float]:
    """Points by which D_P's accuracy changed, mostly fell; NaN where a run diverged."""
    return trials["pretrain_accuracy_after"].astype(float) - trials["pretrain_accuracy_before"].astype(float)


if __name__ == "__main__":
    main()
