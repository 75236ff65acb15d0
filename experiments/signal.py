"""`make signal`: what labels add to the closed form, and what D_H then costs against a benign task.

    python -m experiments.signal [out=folder] [cache=folder] [data_root=folder] [data=digits,cars]

digits  scikit-learn's embedded digits: D_P tells 0 to 4 apart, D_H 5 to 9, the benign task odd from even on all ten
cars    features of a ResNet18 (`experiments.deep_features`): D_P Tiny ImageNet, D_H Stanford Cars, benign Caltech-101;
        the probes of D_H and of the benign task learn every fourth class

Four families of maps, all of `spectrum.signal`: `closed_form` (γ = 0, q = 1), `sharp` (γ = 0, the budget on few
directions: q > 1, on cars with photographs to be spared), `labels` (γ > 0, B = 1: the label-aware map alone) and
`combined` (γ > 0, B > 1). Every map is measured on a quarter of the training rows set aside (of cars' D_P on images
that the network was not trained on), by the steps of gradient descent and of Adam to 90 % of the best score of the raw
features, over the raw features' own steps. Of each family the map is taken under which D_H is dearest, among those
with (ii) ≤ 0.9 and the probes of D_P and of the benign task, after 300 steps, within two points; it is then computed
from all training rows and measured on held-out rows. Maps that are done are kept in `cache`.

Shapes: N samples, D features.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.reporting import kept, key_values, provenance_lines, write_csv
from immunize.cli import entry_point, explain_errors
from immunize.errors import MissingDataError, UserError
from immunize.report.figures import save_figure

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.objective.attacker_cost import Baseline, Cost, ProbeTask
    from immunize.spectrum import SignalDirections, SignalMap

NAME = "signal"
RHO, FLOOR, SEED = 1e-2, 1e-2, 0
SLACK, EASE_LIMIT, SCORE_STEPS = 0.02, 0.9, 300
ROLES = ("pretrain", "harmful", "benign")
FAMILIES = ("closed_form", "sharp", "labels", "combined")
COLOURS = dict(zip(FAMILIES, ("#E69F00", "#56B4E9", "#CC79A7", "#0072B2"), strict=True))  # Okabe-Ito
CLASS_STRIDE = 4
"""Of the image sets, every such class: a quarter of the classes, a sixteenth of the work."""

OPTIMIZERS = {"descent": "gradient descent", "adam": "Adam"}


@dataclass(frozen=True)
class Rows:
    """Labelled rows of one role.

    Attributes:
        x: (N, D) training rows.
        y: (N,) int64.
        x_test: (M, D) held-out rows.
        y_test: (M,).
        validation: rows to choose by and their classes; None for a quarter of the training rows.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    validation: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Study:
    """Data and what is tried on them.

    Attributes:
        title: for the report.
        rows: by role.
        gammas: γ.
        budgets: B.
        variants: exponents by name; the first is the frontier's.
        limit: most steps of a probe.
        spared: (S, D) unlabelled rows for the variants that spare some, or None.
        strides: by role, a probe's task is every such class; 1 where not named. Maps are computed from all classes.
    """

    title: str
    rows: dict[str, Rows]
    gammas: tuple[float, ...]
    budgets: tuple[float, ...]
    variants: tuple[str, ...]
    limit: int
    spared: Tensor | None = None
    strides: dict[str, int] = field(default_factory=dict)


@entry_point
def main() -> None:
    """Measure what is missing, then write results.csv, chosen.csv, README.md and the figure."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """See the module's note.

    Raises:
        UserError: a bad argument, or the data of every study are missing.
    """
    given = key_values(arguments, {"out", "cache", "data_root", "data"})
    cache, out = Path(given.get("cache", f"outputs/{NAME}")), Path(given.get("out", f"experiments/{NAME}"))
    names = given.get("data", ",".join(STUDIES)).split(",")
    if unknown := set(names) - STUDIES.keys():
        raise UserError(f"data={','.join(sorted(unknown))}: there are {', '.join(STUDIES)}")
    trials: list[dict[str, Any]] = []
    held: list[dict[str, Any]] = []
    titles: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        try:
            study = STUDIES[name](given.get("data_root"))
        except MissingDataError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            missing.append(name)
            continue
        titles[name] = study.title
        of = explore(name, study, cache)
        trials += of
        held += [
            kept(
                cache / name / f"held_out_{family}_{tag(best)}.json",
                lambda study=study, best=best: measured(study, best),
                f"{name}, held out: {family}",
                [best, study.limit],
            )
            | {"data": name, "family": family}
            for family, best in chosen(of).items()
        ]
    if not trials:
        raise UserError("the data of no study were found; data=digits needs none")
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "results.csv", trials)
    write_csv(out / "chosen.csv", held)
    draw(trials, titles, out / "pareto")
    (out / "README.md").write_text(readme_of(trials, held, titles, missing), encoding="utf-8")
    print((out / "README.md").read_text(encoding="utf-8"), end="")
    return out


# --- the studies --------------------------------------------------------------------------------------------------


def digits(data_root: str | None) -> Study:
    """Embedded digits, 64 pixels."""
    import torch
    from sklearn.datasets import load_digits

    from immunize.data.digits import PIXEL_MAX, held_out_mask

    del data_root
    raw, digit = load_digits(return_X_y=True)
    held_out = held_out_mask(digit)
    scaled = raw / PIXEL_MAX
    images = torch.from_numpy((scaled - scaled[~held_out].mean()) / scaled[~held_out].std()).float()
    labels, held = torch.from_numpy(digit), torch.from_numpy(held_out)

    def rows(which: Tensor, y: Tensor) -> Rows:
        train, test = which & ~held, which & held
        return Rows(images[train], y[train], images[test], y[test])

    return Study(
        "digits: D_P 0 to 4, D_H 5 to 9, benign odd or even",
        {
            "pretrain": rows(labels < 5, labels),
            "harmful": rows(labels >= 5, labels - 5),
            "benign": rows(labels >= 0, labels % 2),
        },
        gammas=(0.0, 0.0625, 0.125, 0.25, 0.375, 0.5),
        budgets=(1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
        variants=("q=1", "q=4", "q=16"),
        limit=1000,
    )


def cars(data_root: str | None) -> Study:
    """Features of a ResNet18.

    Raises:
        MissingDataError: images or weights are not there.
    """
    from experiments import deep_features
    from experiments.appended_layer import BENIGN, HARMFUL, PRETRAIN, SPARED

    sets = deep_features.load_sets(deep_features.data_root(data_root), Path("outputs/deep_features"))
    rows = {}
    for role, name in zip(ROLES, (PRETRAIN, HARMFUL, BENIGN), strict=True):
        of = sets[name]
        assert of.x_held_out is not None
        assert of.y_held_out is not None
        unseen = None
        if of.x_validation is not None:
            assert of.y_validation is not None
            unseen = of.x_validation, of.y_validation
        rows[role] = Rows(of.x, of.y, of.x_held_out, of.y_held_out, unseen)
    return Study(
        "ResNet18 features: D_P Tiny ImageNet, D_H Stanford Cars, benign Caltech-101",
        rows,
        gammas=(0.0, 0.0625, 0.125, 0.25),
        budgets=(1.0, 30.0, 100.0),
        variants=("q=1", "s=1 q=16"),
        limit=500,
        spared=sets[SPARED].x,
        strides={"harmful": CLASS_STRIDE, "benign": CLASS_STRIDE},
    )


STUDIES: dict[str, Callable[[str | None], Study]] = {"digits": digits, "cars": cars}


# --- the maps -----------------------------------------------------------------------------------------------------


def explore(name: str, study: Study, cache: Path) -> list[dict[str, Any]]:
    """Every map of the grid on rows set aside; one line each."""
    parts = {role: without_held_out(of, stream) for stream, (role, of) in enumerate(study.rows.items())}
    sides = {role: (of.x, of.y) for role, of in parts.items()}
    tasks = {role: task_of(of, study.strides.get(role, 1)) for role, of in parts.items()}
    directions: dict[str, SignalDirections] = {}
    raw: list[Raw] = []
    lines = []
    for variant in study.variants:
        for budget in study.budgets:
            for gamma in study.gammas:
                if budget == 1 and variant != study.variants[0]:  # nothing is spent, so that all variants are one
                    continue
                setting = {"variant": variant, "budget": budget, "gamma": gamma}

                def compute(setting: dict[str, Any] = setting) -> dict[str, Any]:
                    if not raw:
                        raw.append(raw_of(tasks, study.limit))
                    if setting["variant"] not in directions:
                        directions[setting["variant"]] = directions_for(study, sides, setting["variant"])
                    return line_of(map_for(directions[setting["variant"]], setting), tasks, raw[0], study.limit)

                place = cache / name / f"{tag(setting)}.json"
                found = kept(place, compute, f"{name}: {tag(setting)}", [setting, study.limit])
                lines.append({"data": name, "family": family_of(setting, study), **setting, **found})
        print(f"{name}: {variant} done", file=sys.stderr, flush=True)
    return lines


def measured(study: Study, setting: dict[str, Any]) -> dict[str, Any]:
    """A chosen map, from all training rows, on held-out rows."""
    tasks = {role: task_of(of, study.strides.get(role, 1)) for role, of in study.rows.items()}
    sides = {role: (of.x, of.y) for role, of in study.rows.items()}
    one = map_for(directions_for(study, sides, setting["variant"]), setting)
    line = line_of(one, tasks, raw_of(tasks, study.limit), study.limit)
    return {key: setting[key] for key in ("variant", "budget", "gamma", "feasible")} | {
        key: value for key, value in line.items() if key != "feasible"
    }


def directions_for(study: Study, sides: dict[str, tuple[Tensor, Tensor]], variant: str) -> SignalDirections:
    """Directions of D_P and D_H with a variant's exponents."""
    from immunize.objective.signal import directions_of
    from immunize.spectrum import sharpen, spare

    of = directions_of(sides["pretrain"], sides["harmful"], (RHO, RHO), FLOOR)
    values = dict(word.split("=") for word in variant.split())
    sharpness = float(values["q"])
    if "s" not in values:
        return sharpen(of, sharpness)
    assert study.spared is not None
    x = study.spared.double()
    gram = x.T @ x * (len(sides["pretrain"][0]) / len(x))
    return spare(of, gram, weight=float(values["s"]), sharpness=sharpness)


def map_for(directions: SignalDirections, setting: dict[str, Any]) -> SignalMap:
    """The map of one setting."""
    from immunize.spectrum import signal_map

    return signal_map(directions, setting["budget"], setting["gamma"])


def family_of(setting: dict[str, Any], study: Study) -> str:
    """Which of `FAMILIES` a setting belongs to; with γ = 0, B = 1 is the closed form's whitening."""
    if setting["gamma"] > 0:
        return "labels" if setting["budget"] == 1 else "combined"
    return "closed_form" if setting["variant"] == study.variants[0] else "sharp"


# --- the measurement ----------------------------------------------------------------------------------------------


def without_held_out(of: Rows, stream: int) -> Rows:
    """Three quarters of the training rows, and in the place of the held-out rows those to choose by."""
    import numpy as np

    from immunize.objective.attacker_cost import set_aside

    train, test = set_aside(of.y, 1 / 4, np.random.default_rng([SEED, stream]))
    return Rows(of.x[train], of.y[train], *(of.validation or (of.x[test], of.y[test])))


@dataclass(frozen=True)
class Raw:
    """What the raw features cost and reach.

    Attributes:
        bases: of D_H and of the benign task.
        scores: of every role, after `SCORE_STEPS` steps of gradient descent.
    """

    bases: dict[str, Baseline]
    scores: dict[str, float]


def raw_of(tasks: dict[str, ProbeTask], limit: int) -> Raw:
    """Measure the raw features; D_P's task is scored only."""
    from immunize.objective.attacker_cost import baseline, descent

    bases = {role: baseline(tasks[role], limit, SCORE_STEPS) for role in ("harmful", "benign")}
    scores = {role: base.cost.score for role, base in bases.items()}
    return Raw(bases, {"pretrain": descent(tasks["pretrain"], None, SCORE_STEPS).last, **scores})


def line_of(one: SignalMap, tasks: dict[str, ProbeTask], raw: Raw, limit: int) -> dict[str, Any]:
    """Costs of D_H and of the benign task, changes of the spared scores, and whether the constraints hold."""
    from immunize.objective.attacker_cost import cost, descent

    line: dict[str, Any] = {"ratio_pretrain": one.ratio_pretrain, "ratio_harmful": one.ratio_harmful}
    scores = {"pretrain": descent(tasks["pretrain"], one.theta, SCORE_STEPS).last}
    for role in ("harmful", "benign"):
        base = raw.bases[role]
        got = cost(tasks[role], one.theta, base.threshold, limit, SCORE_STEPS)
        scores[role] = got.score
        for optimizer in OPTIMIZERS:
            line |= _steps(role, optimizer, got, base.cost)
        line[f"{role}_times"] = got.times(base.cost)
    changes = {role: scores[role] - raw.scores[role] for role in ROLES}
    line |= {f"{role}_score_raw": raw.scores[role] for role in ROLES}
    line |= {f"{role}_score_change": change for role, change in changes.items()}
    spared = min(changes["pretrain"], changes["benign"]) >= -SLACK
    return line | {"feasible": spared and one.ratio_pretrain <= EASE_LIMIT}


def _steps(role: str, optimizer: str, got: Cost, raw: Cost) -> dict[str, Any]:
    return {
        f"{role}_{optimizer}": getattr(got, optimizer),
        f"{role}_{optimizer}_reached": getattr(got, f"{optimizer}_reached"),
        f"{role}_{optimizer}_raw": getattr(raw, optimizer),
        f"{role}_{optimizer}_raw_reached": getattr(raw, f"{optimizer}_reached"),
    }


def task_of(of: Rows, stride: int) -> ProbeTask:
    """Every `stride`-th class as a task, numbered anew."""
    from immunize.objective.attacker_cost import ProbeTask

    train, test = of.y % stride == 0, of.y_test % stride == 0
    return ProbeTask(of.x[train], of.y[train] // stride, of.x_test[test], of.y_test[test] // stride)


def chosen(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The dearest feasible setting of each family; one that is not feasible only where none is."""
    best = {}
    for family in FAMILIES:
        of = [line for line in lines if line["family"] == family]
        fine = [line for line in of if line["feasible"]]
        if fine:
            best[family] = max(fine, key=lambda line: (line["harmful_times"], -line["gamma"], -line["budget"]))
        elif of:
            best[family] = max(of, key=lambda line: min(line["pretrain_score_change"], line["benign_score_change"]))
    return best


def tag(setting: dict[str, Any]) -> str:
    """A file name."""
    return f"{setting['variant'].replace(' ', '_').replace('=', '')}_B{setting['budget']:g}_g{setting['gamma']:g}"


# --- the report ---------------------------------------------------------------------------------------------------


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those (benign, harmful) that no other beats with a benign cost as small and a harmful cost as large."""
    best: list[tuple[float, float]] = []
    for benign, harmful in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not best or harmful > best[-1][1]:
            best.append((benign, harmful))
    return best


def points_of(lines: Sequence[dict[str, Any]], family: str, optimizer: str) -> list[tuple[float, float]]:
    """Steps over the raw features' own, (benign, harmful), of the maps that spare D_P."""
    return [
        tuple(line[f"{role}_{optimizer}"] / line[f"{role}_{optimizer}_raw"] for role in ("benign", "harmful"))  # type: ignore[misc]
        for line in lines
        if line["family"] == family and spares_pretrain(line)
    ]


def spares_pretrain(line: dict[str, Any]) -> bool:
    """Whether D_P's constraints hold."""
    return bool(line["ratio_pretrain"] <= EASE_LIMIT and line["pretrain_score_change"] >= -SLACK)


def draw(trials: Sequence[dict[str, Any]], titles: dict[str, str], stem: Path) -> None:
    """A row a data set, a column an optimizer: the fronts of the families, the good corner at the upper left."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.2 * len(titles)), layout="constrained")
    axes = figure.subplots(len(titles), len(OPTIMIZERS), squeeze=False)
    for row, (name, title) in zip(axes, titles.items(), strict=True):
        lines = [line for line in trials if line["data"] == name]
        for axis, (optimizer, words) in zip(row, OPTIMIZERS.items(), strict=True):
            for family in FAMILIES:
                points = points_of(lines, family, optimizer)
                if not points:  # no map of the family spares D_P
                    continue
                axis.plot(*zip(*points, strict=True), ".", color=COLOURS[family], alpha=0.35, markersize=5)
                best = front(points)
                axis.plot(*zip(*best, strict=True), "o-", color=COLOURS[family], drawstyle="steps-post", label=family)
            axis.axhline(1, color="#888888", linewidth=0.8)
            axis.axvline(1, color="#888888", linewidth=0.8)
            axis.set(xscale="log", yscale="log")
            axis.set_title(f"{title}\n{words}", fontsize=8)
            axis.set_xlabel("benign task: steps over the raw features', better to the left")
            axis.set_ylabel("D_H: steps over the raw features', better upwards")
            axis.grid(alpha=0.25, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False, fontsize=8)
    figure.suptitle("Rows set aside, maps that spare D_P: what D_H costs against what a benign task costs", fontsize=11)
    save_figure(figure, stem)


def readme_of(
    trials: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]], titles: dict[str, str], missing: Sequence[str]
) -> str:
    """What each family reaches on held-out rows, and what that says of the labels."""
    facts = [("maps", f"{len(trials)} on rows set aside"), ("ρ, ε", f"{RHO:g}, {FLOOR:g}")]
    if missing:
        facts.append(("left out, data missing", ", ".join(missing)))
    lines = ["# The label-aware map against the closed form", "", *provenance_lines(f"make {NAME}", facts), ""]
    for name, title in titles.items():
        of = [line for line in held if line["data"] == name]
        lines += [f"## {title}", "", *table_of(of), "", *(f"- {sentence}" for sentence in sentences(of)), ""]
    lines += [
        "Each family's map was chosen on rows set aside and is measured here on held-out rows. Steps are those to 90 % "
        "of the best score of the raw features, `>` where the limit came first, in brackets those of the raw features; "
        f"changes of accuracy, in points, are after {SCORE_STEPS} steps of gradient descent. `results.csv` has every "
        "map on the rows set aside, `chosen.csv` these.",
        "",
        "![fronts](pareto.png)",
        "",
    ]
    return "\n".join(lines)


def table_of(held: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown rows."""
    titles = ["family", "γ", "B", "exponents", "constraints held when chosen", "(ii)", "(i)"]
    titles += [f"{words}, {role}" for role in ("D_H", "benign") for words in ("gd steps", "Adam steps")]
    titles += ["accuracy of D_P", "of benign", "of D_H"]
    lines = [f"| {' | '.join(titles)} |", "| " + " | ".join("---" for _ in titles) + " |"]
    for line in held:
        cells = [f"`{line['family']}`", f"{line['gamma']:g}", f"{line['budget']:g}", line["variant"]]
        cells += [
            "yes" if line["feasible"] else "**no**",
            f"{line['ratio_pretrain']:.3g}",
            f"{line['ratio_harmful']:.3g}",
        ]
        cells += [_count(line, role, optimizer) for role in ("harmful", "benign") for optimizer in OPTIMIZERS]
        cells += [f"{100 * line[f'{role}_score_change']:+.1f}" for role in ("pretrain", "benign", "harmful")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def sentences(held: Sequence[dict[str, Any]]) -> list[str]:
    """What the labels are worth, by the held-out cost of D_H over that of the best family without them."""
    by = {line["family"]: line for line in held if line["feasible"]}
    said = []
    for family in ("labels", "combined"):
        for other in ("closed_form", "sharp"):
            if family in by and other in by:
                gain = by[family]["harmful_times"] / by[other]["harmful_times"]
                verdict = "" if gain > 1 else ": it is not better"
                said.append(f"`{family}` makes D_H {gain:.2g} times as dear as `{other}`{verdict}.")
    absent = [family for family in FAMILIES if family not in by]
    if absent:
        names = ", ".join(f"`{family}`" for family in absent)
        said.append(f"No map of {names} kept the constraints on the rows set aside.")
    if held and not held[0]["harmful_descent_raw_reached"]:
        said.append(
            "On D_H gradient descent does not get there from the raw features either, so that only Adam's steps tell "
            "the maps apart; what gradient descent loses in accuracy stands in the last column."
        )
    broken = [line for line in by.values() if _lost(line) > SLACK]
    if broken:
        names = ", ".join(f"`{line['family']}`" for line in broken)
        said.append(f"On held-out rows {names} cost D_P or the benign task more than two points.")
    elif by:
        said.append("On held-out rows, too, none of these costs D_P or the benign task more than two points.")
    return said


def _lost(line: dict[str, Any]) -> float:
    return -float(min(line["pretrain_score_change"], line["benign_score_change"]))


def _count(line: dict[str, Any], role: str, optimizer: str) -> str:
    def text(key: str) -> str:
        return f"{'' if line[f'{key}_reached'] else '> '}{line[key]:,}"

    key = f"{role}_{optimizer}"
    return f"{text(key)} ({text(f'{key}_raw')})"


if __name__ == "__main__":
    main()
