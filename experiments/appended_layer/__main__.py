"""`make appended_layer`: the closed form as one layer on a ResNet18, on real images; what a probe of D_H then costs.

    python -m experiments.appended_layer [out=folder] [cache=folder] [data_root=folder]

D_P, D_H, the benign task and the data that are spared are those of `experiments.deep_features`. Three maps:

identity     θ_0, the network as it is
closed_form  the frontier of docs/closed_form.md with B = 100
sparing      the budget spent on few directions, of which spared photographs have little (`spectrum.sparing`), and the
             labels of D_P and D_H taken into account if γ > 0 (`spectrum.signal`)

The last one's weight s, budget B and γ are chosen without a look at held-out images: on a quarter of the training
images of D_H and of the benign task, and on images of D_P that the network has not been trained on. What is asked on
held-out images (`LEAST_RIR` to `SHARE`) is asked there with a margin (`MARGIN`, `CHOICE_SLACK`), since other images
differ; of the settings that keep all, the one is taken under which the probe of D_H scores lowest. The probes are those
of the report, all classes. Everything that is done is kept in `cache`: the same command goes on where it stopped.

The maps and the choice are in `maps.py`, what is made of the numbers in `report.py`.

Shapes: N images, D = 512 features.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.appended_layer.maps import HARMFUL, PRETRAIN, SETTINGS, STEPS, TASKS, Named, choose, chosen, maps_of
from experiments.appended_layer.report import NAME, report
from experiments.deep_features import FeatureSet, data_root, load_model, load_pixels, load_sets
from experiments.reporting import kept, key_values
from immunize.cli import entry_point, explain_errors

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.objective.attacker_cost import ProbeTask

MAPS = ("identity", "closed_form", "sparing")


@entry_point
def main() -> None:
    """Run what is missing, then write results.csv, README.md and the figure."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """Choose, measure, report.

    Raises:
        UserError: a bad argument, or data that are missing.
    """
    given = key_values(arguments, {"out", "cache", "data_root"})
    root, cache = data_root(given.get("data_root")), Path(given.get("cache", f"outputs/{NAME}"))
    out = Path(given.get("out", f"experiments/{NAME}"))
    sets = load_sets(root, Path("outputs/deep_features"))
    trials = choose(sets, cache)
    best = chosen(trials)
    maps = maps_of(sets, best)
    rows = [
        kept(
            cache / f"{name}.json",
            functools.partial(measured, name, maps[name], sets, root),
            name,
            [SETTINGS, vars_of(maps[name])],
        )
        for name in MAPS
    ]
    report(rows, trials, best, out)
    print((out / "README.md").read_text(encoding="utf-8"), end="")
    return out


# --- the measurement ----------------------------------------------------------------------------------------------


def measured(name: str, one: Named, sets: dict[str, FeatureSet], root: Path) -> dict[str, Any]:
    """Every number of one map, on training and on held-out images."""
    import torch

    from immunize.evaluation.alignment import measure
    from immunize.objective.attacker_cost import ProbeTask, adam, descent

    line: dict[str, Any] = {"map": name, "budget": one.budget, "weight": one.weight, "gamma": one.gamma}
    for part, of in (("fit", "x"), ("held_out", "x_held_out")):
        rows = tuple(getattr(sets[role], of).double() for role in (PRETRAIN, HARMFUL))
        for estimator, ratio in measure(one.theta, (rows[0], rows[1])).items():
            line |= {
                f"{key}_{part}_{estimator}": getattr(ratio, key) for key in ("ratio_harmful", "ratio_pretrain", "rir")
            }
    curves = {}
    for task in TASKS:
        images = sets[task]
        assert images.x_held_out is not None
        assert images.y_held_out is not None
        probe = ProbeTask(images.x, images.y, images.x_held_out, images.y_held_out)
        course = descent(probe, one.theta, STEPS)
        curves[task] = [list(course.steps), list(course.scores)]
        line[f"{task}_gd{STEPS}"] = course.last
        if task == HARMFUL:
            line[f"{task}_adam{STEPS}"] = adam(probe, one.theta, STEPS).last
        line[f"{task}_least_squares"] = least_squares(probe, one.theta)
    line["condition"] = float(torch.linalg.cond(one.theta))
    return line | layer(one, sets, root) | {"curves": curves}


def least_squares(task: ProbeTask, theta: Tensor) -> float:
    """Accuracy of the closed-form probe on whitened features, which no invertible map changes."""
    import torch

    x, test = (rows.double() @ theta for rows in (task.x, task.x_test))
    targets = torch.nn.functional.one_hot(task.y, task.classes).double()
    # Whitening first is the attack; the ridge after it is the same for every map.
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    whitener = vectors / values.clamp_min(1e-12 * float(values[-1])).sqrt()
    x, test = x @ whitener, test @ whitener
    gram = x.T @ x / len(x) + 0.1 * torch.eye(x.shape[1], dtype=torch.float64)
    probe = torch.linalg.solve(gram, x.T @ targets / len(x))
    return float(((test @ probe).argmax(-1) == task.y_test).double().mean())


def layer(one: Named, sets: dict[str, FeatureSet], root: Path) -> dict[str, Any]:
    """The map as a layer of the network: change of the logits in float32 and float64, and of D_P's accuracy."""
    import torch

    from immunize.features import append_map, released_features

    model, pixels = load_model(root), load_pixels(root, PRETRAIN, 64)
    found: dict[str, Any] = {}
    with torch.no_grad():
        for dtype, network, images in (
            ("float32", model, pixels),
            ("float64", load_model(root).double(), pixels.double()),
        ):
            before = network(images)
            try:
                after, turned = append_map(network, one.theta, one.inverse), False
            except ValueError:  # less accurate than the layer promises: the turned map has the same spectra
                after, turned = append_map(network, one.theta, one.inverse, turn=True), True
            found[f"logits_change_{dtype}"] = float((after(images) - before).abs().max() / before.abs().max())
            found[f"turned_{dtype}"] = turned
            if dtype == "float32":
                held = sets[PRETRAIN]
                assert held.x_held_out is not None
                assert held.y_held_out is not None
                classify: Callable[[Tensor], Tensor] = after.get_classifier()  # type: ignore[operator]
                right = classify(held.x_held_out).argmax(-1).eq(held.y_held_out)
                found["pretrain_top1"] = float(right.float().mean())
            elif not turned:
                released = released_features(after, images)
                wanted = released_features(network, images) @ one.theta
                found["features_change_float64"] = float((released - wanted).abs().max() / wanted.abs().max())
    return found


def vars_of(one: Named) -> list[float | None]:
    """What tells a map from another of the same name."""
    return [one.budget, one.weight, one.gamma]


if __name__ == "__main__":
    main()
