"""Transfer on a ResNet18's features: halves of Stanford Cars, all of it, and Caltech-101's vehicles as proxies.

Shapes: N images, D = 512 features.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.appended_layer.maps import (
    BENIGN,
    HARMFUL,
    PLAIN_BUDGET,
    PRETRAIN,
    RHO,
    SEED,
    SPARED,
    STEPS,
    sparing_map,
)
from experiments.deep_features import SETS, FeatureSet, load_sets
from experiments.reporting import kept
from experiments.transfer.measures import Cell, Similarities, ratios
from immunize.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.objective.attacker_cost import ProbeTask

VEHICLES = ("Motorbikes", "airplanes", "car_side", "ferry", "helicopter", "ketch", "schooner")
"""Classes of Caltech-101 that carry people or goods by land, water or air and have an engine or a sail."""

METHODS = ("closed_form", "sparing")
WEIGHT, BUDGET, GAMMA = 1.0, 200.0, 0.0
"""s, B and γ of `sparing`, as experiments/appended_layer chose them on validation images, against all of Cars."""

CARS_A, CARS_B, CARS, VEHICLE, OTHERS = "cars_a", "cars_b", "cars", "vehicles", "caltech_others"


def image_cells(root: Path, features: Path, cache: Path) -> list[Cell]:
    """Every proxy against every target.

    Args:
        root: of the images and the weights.
        features: cache of the features.
        cache: where the numbers of a map are kept.

    Raises:
        MissingDataError: images or weights are not there.
    """
    sets = load_sets(root, features)
    names = sorted(path.name for path in (root / SETS[BENIGN].folder / "train").iterdir())
    parts = parts_of(sets[HARMFUL], sets[BENIGN], names)
    measures = Measures(sets[PRETRAIN], sets[SPARED], parts)
    alikes = Similarities(lambda name: _gram((sets[PRETRAIN] if name == PRETRAIN else parts[name]).x))
    place, rows = cache / "images", digest_of([sets[PRETRAIN], sets[SPARED], *parts.values()])
    raw = {
        name: kept(
            place / f"theta_0_{name}.json",
            functools.partial(measures.probe, None, name),
            f"θ_0 on {name}",
            [rows, STEPS],
        )
        for name in parts
    }
    cells = []
    for method, proxy in itertools.product(METHODS, parts):
        numbers = kept(
            place / f"{method}_{proxy}.json",
            functools.partial(measures.measured, method, proxy),
            f"{method} against {proxy}",
            [rows, STEPS, WEIGHT, BUDGET, GAMMA],
        )
        for target, of in numbers.items():
            rest = {"probe_theta_0": raw[target], "probe_pretrain": None, "probe_pretrain_theta_0": None}
            alike = asdict(alikes.of(PRETRAIN, proxy, target))
            cells.append(Cell("images", method, PRETRAIN, SEED, proxy, target, **of, **rest, **alike))
    return cells


def digest_of(sets: Iterable[FeatureSet]) -> str:
    """SHA-256 over the features and labels of all rows."""
    digest = hashlib.sha256()
    for of in sets:
        for tensor in (of.x, of.y, of.x_held_out, of.y_held_out):
            digest.update(b"" if tensor is None else tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def parts_of(cars: FeatureSet, caltech: FeatureSet, names: list[str]) -> dict[str, FeatureSet]:
    """The data sets that are proxies and targets; two random halves of the classes of Cars.

    Args:
        cars: Stanford Cars.
        caltech: Caltech-101.
        names: of its classes, in the order of its labels.

    Raises:
        DataError: Caltech-101 lacks one of `VEHICLES`.
    """
    import torch

    if missing := set(VEHICLES) - set(names):
        raise DataError(f"caltech101 has no class {', '.join(sorted(missing))}: unpack it again")
    classes = int(cars.y.max()) + 1
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(SEED))
    vehicles = torch.tensor([names.index(name) for name in VEHICLES])
    others = torch.tensor([index for index, name in enumerate(names) if name not in VEHICLES])
    return {
        CARS_A: _of_classes(cars, order[: classes // 2]),
        CARS_B: _of_classes(cars, order[classes // 2 :]),
        CARS: cars,
        VEHICLE: _of_classes(caltech, vehicles),
        OTHERS: _of_classes(caltech, others),
    }


class Measures:
    """Maps against each part, and what they do to each.

    Args:
        pretrain: D_P.
        spared: photographs that `sparing` leaves as they are.
        parts: proxies and targets by name.
    """

    def __init__(self, pretrain: FeatureSet, spared: FeatureSet, parts: dict[str, FeatureSet]) -> None:
        self.pretrain, self.spared, self.parts = pretrain, spared, parts

    def theta(self, method: str, proxy: str) -> Tensor:
        """The map of a method against a proxy, (D, D) float64, from training images."""
        import torch

        from immunize.spectrum import closed_form

        if method == "sparing":
            sets = {PRETRAIN: self.pretrain, HARMFUL: self.parts[proxy], SPARED: self.spared}
            every = {name: torch.arange(len(of.x)) for name, of in sets.items()}
            return sparing_map(sets, every, WEIGHT, BUDGET, GAMMA).theta
        rows = self.pretrain.x.double(), self.parts[proxy].x.double()
        return closed_form(*rows, budget=PLAIN_BUDGET, shrinkage=RHO).theta

    def measured(self, method: str, proxy: str) -> dict[str, dict[str, float | None]]:
        """A map against a proxy, attacked with every part: the numbers of a cell, on held-out images."""
        from immunize.evaluation.decomposition import compress, decompose

        theta = self.theta(method, proxy)
        numbers = {}
        held = {name: _held_out(of) for name, of in (("", self.pretrain), *self.parts.items())}
        rows = {name: compress(x, x.new_ones(len(x))) for name, x in held.items()}
        after, before = decompose(rows[""], theta), decompose(rows[""])
        for target in self.parts:
            found = ratios((after, decompose(rows[target], theta)), (before, decompose(rows[target])))
            numbers[target] = {**found, "probe": self.probe(theta, target)}
        return numbers

    def probe(self, theta: Tensor | None, target: str) -> float:
        """Accuracy on held-out images after `STEPS` steps of gradient descent with the step 1/L."""
        from immunize.objective.attacker_cost import descent

        return descent(_task(self.parts[target]), theta, STEPS).last


def _of_classes(of: FeatureSet, classes: Tensor) -> FeatureSet:
    """The images of some classes, with labels from 0."""
    import torch

    assert of.x_held_out is not None
    assert of.y_held_out is not None
    place = torch.full((int(of.y.max()) + 1,), -1)
    place[classes] = torch.arange(len(classes))
    kept_rows, kept_held = (place[y] >= 0 for y in (of.y, of.y_held_out))
    return FeatureSet(
        of.x[kept_rows], place[of.y[kept_rows]], of.x_held_out[kept_held], place[of.y_held_out[kept_held]]
    )


def _task(of: FeatureSet) -> ProbeTask:
    from immunize.objective.attacker_cost import ProbeTask

    assert of.x_held_out is not None
    assert of.y_held_out is not None
    return ProbeTask(of.x, of.y, of.x_held_out, of.y_held_out)


def _held_out(of: FeatureSet) -> Tensor:
    assert of.x_held_out is not None
    return of.x_held_out.double()


def _gram(x: Tensor) -> Tensor:
    return x.double().T @ x.double()
