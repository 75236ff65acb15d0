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

The measures are in `measures.py`, what is made of them in `report.py`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.reporting import kept, key_values, write_csv
from experiments.signal.measures import (
    ROLES,
    Raw,
    Rows,
    Study,
    directions_for,
    line_of,
    map_for,
    raw_of,
    task_of,
    without_held_out,
)
from experiments.signal.report import FAMILIES, NAME, draw, readme_of
from immunize.cli import entry_point, explain_errors
from immunize.errors import MissingDataError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.spectrum import SignalDirections

CLASS_STRIDE = 4
"""Of the image sets, every such class: a quarter of the classes, a sixteenth of the work."""


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
                functools.partial(measured, study, best),
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

    from immunize.data.embedded_digits import PIXEL_MAX, held_out_mask

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
    from experiments.appended_layer.maps import BENIGN, HARMFUL, PRETRAIN, SPARED

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


def family_of(setting: dict[str, Any], study: Study) -> str:
    """Which of `FAMILIES` a setting belongs to; with γ = 0, B = 1 is the closed form's whitening."""
    if setting["gamma"] > 0:
        return "labels" if setting["budget"] == 1 else "combined"
    return "closed_form" if setting["variant"] == study.variants[0] else "sharp"


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


if __name__ == "__main__":
    main()
