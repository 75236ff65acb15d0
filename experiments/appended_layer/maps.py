"""The maps of `experiments.appended_layer`, and how weight, budget and γ of the last one are chosen.

Shapes: N images, D = 512 features.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.deep_features import FeatureSet
from experiments.reporting import kept

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.objective.attacker_cost import ProbeTask
    from immunize.spectrum import GeneralizedSpectrum, SignalMap

PRETRAIN, HARMFUL, BENIGN, SPARED = "tiny_imagenet", "stanford_cars", "caltech101", "imagenet_1_per_class"
TASKS = {PRETRAIN: "D_P, Tiny ImageNet", HARMFUL: "D_H, Stanford Cars", BENIGN: "benign, Caltech-101"}
RHO = 1e-2
PLAIN_BUDGET = 100.0
SHARPNESS = 16.0
FLOOR = 1e-2
WEIGHTS, BUDGETS, GAMMAS = (0.5, 1.0), (100.0, 140.0, 200.0), (0.0, 0.0625, 0.125, 0.1875)
"""s, B and γ that are tried (ours)."""

STEPS = 300
LEAST_RIR, LEAST_HARMFUL, SLACK, SHARE = 100.0, 10.0, 0.02, 1 / 3
"""Asked on held-out images: RIR, (i), what a spared probe may lose, and D_H's accuracy over θ_0's."""

MARGIN, CHOICE_SLACK = 1.1, 0.01
"""Asked when choosing: so many times the RIR and (i), and what a spared probe may lose there (ours)."""

VALIDATION_SHARE, SEED = 1 / 4, 0
SETTINGS = [RHO, FLOOR, PLAIN_BUDGET, SHARPNESS, STEPS, VALIDATION_SHARE, SEED, MARGIN, CHOICE_SLACK]


# --- the choice ---------------------------------------------------------------------------------------------------


def choose(sets: dict[str, FeatureSet], cache: Path) -> list[dict[str, Any]]:
    """Every (s, B, γ) on validation images; the first line is θ_0."""
    import numpy as np

    from immunize.objective.attacker_cost import ProbeTask, set_aside

    tasks, rest = {}, {}
    for stream, name in enumerate(TASKS):
        of = sets[name]
        rest[name], aside = set_aside(of.y, VALIDATION_SHARE, np.random.default_rng([SEED, stream]))
        if of.x_validation is None:
            unseen = of.x[aside], of.y[aside]
        else:
            assert of.y_validation is not None
            unseen = of.x_validation, of.y_validation
        tasks[name] = ProbeTask(of.x[rest[name]], of.y[rest[name]], *unseen)
    lines = [kept(cache / "trials" / "raw.json", lambda: trial(None, sets, rest, tasks, {}), "raw", SETTINGS)]
    for setting in itertools.product(WEIGHTS, BUDGETS, GAMMAS):
        label = "s{:g}_B{:g}_g{:g}".format(*setting)
        lines.append(
            kept(
                cache / "trials" / f"{label}.json",
                functools.partial(trial, setting, sets, rest, tasks, lines[0]["scores"]),
                label,
                SETTINGS,
            )
        )
    return lines


def trial(
    setting: tuple[float, float, float] | None,
    sets: dict[str, FeatureSet],
    rest: dict[str, Tensor],
    tasks: dict[str, ProbeTask],
    raw: dict[str, float],
) -> dict[str, Any]:
    """One setting on validation images, until it misses something; None is θ_0, whose scores are the others' `raw`."""
    from immunize.evaluation.alignment import measure
    from immunize.objective.attacker_cost import descent

    line: dict[str, Any] = {"weight": None, "budget": None, "gamma": None, "scores": {}}
    theta = None
    if setting is None:
        line |= dict.fromkeys(("ratio_harmful", "ratio_pretrain", "rir"), 1.0)
    else:
        line |= dict(zip(("weight", "budget", "gamma"), setting, strict=True))
        theta = sparing_map(sets, rest, *setting).theta
        ratio = measure(theta, (tasks[PRETRAIN].x_test.double(), tasks[HARMFUL].x_test.double()))["spectrum"]
        line |= {key: getattr(ratio, key) for key in ("ratio_harmful", "ratio_pretrain", "rir")}
    for name in (BENIGN, HARMFUL, PRETRAIN):  # the dearest last
        if setting is None or holds(line, raw):
            line["scores"][name] = descent(tasks[name], theta, STEPS).last
    return line


def holds(one: dict[str, Any], raw: dict[str, float]) -> bool:
    """Whether a setting keeps what is asked when choosing, as far as it was measured."""
    least = {BENIGN: raw[BENIGN] - CHOICE_SLACK, PRETRAIN: raw[PRETRAIN] - CHOICE_SLACK}
    return bool(
        one["rir"] >= MARGIN * LEAST_RIR
        and one["ratio_harmful"] >= MARGIN * LEAST_HARMFUL
        and all(one["scores"].get(name, math.inf) >= score for name, score in least.items())
        and one["scores"].get(HARMFUL, 0.0) <= SHARE * raw[HARMFUL]
    )


def chosen(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """The setting that the module's note asks for, with `feasible`; where there is none, one that came the furthest."""
    raw, rest = trials[0]["scores"], trials[1:]
    fine = [one for one in rest if holds(one, raw)]
    furthest = max(len(one["scores"]) for one in rest)
    best = min(
        fine or [one for one in rest if len(one["scores"]) == furthest],
        key=lambda one: (one["scores"].get(HARMFUL, math.inf), one["budget"]),
    )
    return {**best, "feasible": bool(fine)}


# --- the maps -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """A map and where it comes from.

    Attributes:
        theta: (D, D) float64.
        inverse: (D, D).
        budget: B, or None for the identity.
        weight: s, likewise, and for `closed_form`.
        gamma: γ, likewise.
    """

    theta: Tensor
    inverse: Tensor
    budget: float | None = None
    weight: float | None = None
    gamma: float | None = None


def maps_of(sets: dict[str, FeatureSet], best: dict[str, Any]) -> dict[str, Named]:
    """The three maps, from all training images."""
    import torch

    from immunize.spectrum import plain_directions, signal_map

    every = {name: torch.arange(len(of.x)) for name, of in sets.items()}
    eye = torch.eye(sets[PRETRAIN].x.shape[1], dtype=torch.float64)
    plain = signal_map(plain_directions(pencil(sets, every)), PLAIN_BUDGET, 0.0)
    setting = best["weight"], best["budget"], best["gamma"]
    spared = sparing_map(sets, every, *setting)
    return {
        "identity": Named(eye, eye),
        "closed_form": Named(plain.theta, plain.inverse, PLAIN_BUDGET),
        "sparing": Named(spared.theta, spared.inverse, best["budget"], best["weight"], best["gamma"]),
    }


def pencil(sets: dict[str, FeatureSet], rows: dict[str, Tensor]) -> GeneralizedSpectrum:
    """The generalized spectrum of D_P and D_H from these rows."""
    from immunize.spectrum import generalized_spectrum

    x = [sets[name].x[rows[name]].double() for name in (PRETRAIN, HARMFUL)]
    return generalized_spectrum(x[0].T @ x[0], x[1].T @ x[1], n_samples=(len(x[0]), len(x[1])), shrinkage=RHO)


def sparing_map(
    sets: dict[str, FeatureSet], rows: dict[str, Tensor], weight: float, budget: float, gamma: float
) -> SignalMap:
    """The map `sparing`; the spared photographs count as many as D_P's images."""
    from immunize.spectrum import centred_targets, signal_directions, signal_map, spare

    crosses = []
    for name in (PRETRAIN, HARMFUL):
        x, y = sets[name].x[rows[name]].double(), sets[name].y[rows[name]]
        crosses.append(x.T @ centred_targets(y))
    directions = signal_directions(pencil(sets, rows), *crosses, floor=FLOOR)
    x = sets[SPARED].x.double()
    gram = x.T @ x * (len(rows[PRETRAIN]) / len(x))
    return signal_map(spare(directions, gram, weight=weight, sharpness=SHARPNESS), budget, gamma)
