"""Attacks that prepare the features, from somewhere else or by a repair, and leave the rest to other attacks.

T3: a repair from the statistics of the attacker's own training rows, which is one pass over them; its cost stands
before the first step of every candidate.

    centre        less the mean
    standardize   less the mean, over the standard deviation of each feature
    normalize     each row divided by its length
    whiten        principal components over the root of their variance, but those below a share of the largest

T3: what every stage of the network puts out, averaged over places, and with an appended map taken off. What is taken
out of the features that a network releases may still be there one layer earlier. The attacker has the weights, reads
all stages in one pass, probes each, and chooses among them by validation. Nothing of the network moves.

T5: around the defence. θ_0 is public: `PublicReference` attacks its features, the immunized model need not be used at
all. `LinearMap` needs no label: it fits A, b with F_immunized·A + b ≈ F_θ0 by ridge regression on rows that went
through both networks, and attacks the mapped features. What it costs is the restoring cost: rows, and FLOPs of one
decomposition. `ImagesAlone` learns from small images: no defence can take more from an attacker who has them.

Shapes: N samples, D features (D_0 of θ_0, D_s channels of stage s), k components; images (N, C, H, W).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import Axes, both_axes, principal, svd_flops
from immunize.evaluation.attacks.curves import Cost, Trace
from immunize.evaluation.attacks.network import Numbers
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Needs, Outcome, Rows

ROUNDING = 1e-12
"""Spreads and lengths below this share of the largest are rounding; they are not blown up."""


@dataclass(frozen=True, kw_only=True)
class _Preparing(Attack):
    """Hands the features that it prepares to other attacks.

    Attributes:
        inner: attacks on the prepared features, by name.

    Raises:
        UserError: no inner attack, or one that needs more than features.
    """

    inner: Mapping[str, Attack]

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if not self.inner:
            raise UserError(f"{name} needs an inner attack")
        if demanding := [inner for inner, attack in self.inner.items() if attack.needs != "features"]:
            raise UserError(f"{name} cannot have {demanding[0]} as an inner attack: it needs more than features")

    def run_inner(self, data: AttackData, budget: Budget, seed: int, *, setup: Cost, prefix: str) -> list[Trace]:
        """Run the inner attacks that can solve the task.

        Args:
            data: the prepared features.
            budget: shared equally.
            seed: of everything random.
            setup: what the preparation cost; stands before the first step of every candidate.
            prefix: of the candidates' labels.
        """
        able = {name: attack for name, attack in self.inner.items() if data.task in attack.tasks}
        traces = []
        for name, attack in able.items():
            outcome = attack.run(data, budget.share(len(able)), seed)
            traces += [trace.after(setup, f"{prefix}, {name}: ") for trace in outcome.traces]
        return traces


@dataclass(frozen=True, kw_only=True)
class Repaired(_Preparing):
    """A repair, then each of the inner attacks with an equal share of the budget.

    Attributes:
        repair: one of `REPAIRS`.
        floors: of "whiten" alone: shares of the largest variance below which a component is left out; a grid.

    Raises:
        UserError: an unknown repair, or an empty grid.
    """

    repair: str
    floors: tuple[float, ...] = (1e-12,)
    grids: ClassVar[tuple[str, ...]] = ("floors",)

    def __post_init__(self) -> None:
        if self.repair not in REPAIRS:
            raise UserError(f"unknown repair {self.repair!r}; there are {', '.join(REPAIRS)}")
        super().__post_init__()

    @property
    def scale_free(self) -> bool:
        """As far as the inner attacks are."""
        return all(attack.scale_free for attack in self.inner.values())

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Repair, then attack."""
        floors = self.floors if self.repair == "whiten" else (ROUNDING,)
        traces = []
        for floor in floors:
            repaired, setup = REPAIRS[self.repair](data, floor)
            name = f"{self.repair} {floor:g}" if len(floors) > 1 else self.repair
            traces += self.run_inner(repaired, budget.share(len(floors)), seed, setup=setup, prefix=name)
        return Outcome(tuple(traces))


def centre(data: AttackData, floor: float) -> tuple[AttackData, Cost]:
    """The task less the mean of its training rows, whose principal axes are known; and what that takes."""
    started = time.perf_counter()
    mean = data.train.x.mean(axis=0)
    found = data.mapped(lambda rows: rows - mean)
    setup = _paid(data, started, 2)
    about_mean = principal(data, centred=True)
    found.kept["axes"] = replace(about_mean.axes, mean=np.zeros_like(mean)), about_mean.data
    return found, setup


def standardize(data: AttackData, floor: float) -> tuple[AttackData, Cost]:
    """Less the mean, over the standard deviation; a feature that does not vary stays at zero."""
    started = time.perf_counter()
    mean, spread = data.train.x.mean(axis=0), data.train.x.std(axis=0)
    safe = np.where(spread > floor * spread.max(), spread, np.inf)
    found = data.mapped(lambda rows: (rows - mean) / safe)
    setup = _paid(data, started, 5)
    return data.kept.setdefault("standardized", found), setup


def standardized(data: AttackData) -> AttackData:
    """The task with standardized features, kept with it: three attacks see it, and its principal axes."""
    return data.kept.get("standardized") or standardize(data, ROUNDING)[0]


def normalize(data: AttackData, floor: float) -> tuple[AttackData, Cost]:
    """Each row over its length; rows of zeros stay."""
    started = time.perf_counter()
    least = floor * float(np.linalg.norm(data.train.x, axis=1).max())

    def apply(rows: Array) -> Array:
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.where(lengths > least, lengths, np.inf))

    return data.mapped(apply), _paid(data, started, 3)


def whiten(data: AttackData, floor: float) -> tuple[AttackData, Cost]:
    """Principal components of variance one, (·, k); W = V/σ would mix sizes that differ by the κ of the rows."""
    about_mean = principal(data, centred=True)
    axes, (n, d) = about_mean.axes, data.train.x.shape
    kept = axes.sigma**2 > floor * axes.sigma[0] ** 2
    kept[0] = True
    spreads = np.where(axes.sigma[kept] > 0, axes.sigma[kept] / np.sqrt(n), np.inf)
    k, started = len(spreads), time.perf_counter()
    found = about_mean.data.mapped(lambda rows: rows[:, :k] / spreads)
    seconds = axes.seconds + about_mean.seconds + time.perf_counter() - started  # of axes and products all floors share
    # Components of variance one are axes themselves, and as long as there are rows.
    found.kept["axes"] = Axes(np.zeros(k), np.full(k, np.sqrt(n)), np.eye(k), axes.seconds), found
    return found, Cost(1, seconds, n, svd_flops((n, d)) + 2.0 * n * d * k)


def _paid(data: AttackData, started: float, flops: int) -> Cost:
    """What a pass over the rows took that began then, so many FLOPs a number."""
    return Cost(1, time.perf_counter() - started, len(data.train), float(flops * data.train.x.size))


REPAIRS: dict[str, Callable[[AttackData, float], tuple[AttackData, Cost]]] = {
    "centre": centre,
    "standardize": standardize,
    "normalize": normalize,
    "whiten": whiten,
}


@dataclass(frozen=True, kw_only=True)
class StageProbes(_Preparing):
    """The inner attacks on every stage's outputs, each with an equal share of the budget."""

    needs: ClassVar[Needs] = "model"

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """One pass of the images through the network, then the inner attacks on each stage."""
        network = data.network
        assert network is not None
        assert network.stages is not None
        assert network.stage_outputs is not None
        outputs, share = network.stage_outputs, budget.share(len(network.stages.columns))
        setup = network.cost_of(network.stages)
        traces = []
        for name, columns in network.stages.columns.items():
            stage = _of_numbers(data, lambda numbers, columns=columns: outputs.at(numbers)[:, columns])  # type: ignore[misc]
            traces += self.run_inner(stage, share, seed, setup=setup, prefix=f"stage {name}")
        return Outcome(tuple(traces))


def _of_numbers(data: AttackData, features: Callable[[Numbers], Tensor]) -> AttackData:
    """The task with what is said of its images' numbers, (n, D) of (n,)."""
    train, validation, test = (
        Rows(features(getattr(data.network, part)).double().numpy(), of.y) for part, of in data.parts.items()
    )
    return AttackData(train, validation, test, data.n_classes)


@dataclass(frozen=True, kw_only=True)
class PublicReference(_Preparing):
    """The inner attacks on θ_0's features, each with an equal share of the budget."""

    needs: ClassVar[Needs] = "reference"
    sees_features: ClassVar[bool] = False

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Attack θ_0's features of the same rows."""
        assert data.reference is not None
        return Outcome(tuple(self.run_inner(data.reference, budget, seed, setup=Cost(), prefix="θ_0")))


@dataclass(frozen=True, kw_only=True)
class LinearMap(_Preparing):
    """An affine map to θ_0's features from unlabelled rows, then the inner attacks on the mapped features.

    Attributes:
        rows: the grid of numbers of unlabelled rows; null is all training rows. Numbers above N count as N.
        penalty: λ/σ_1² of the ridge regression; so small that it only keeps rounding at bay.

    Raises:
        UserError: an empty grid, a number of rows below 2, a penalty that is not positive, or no inner attack.
    """

    rows: tuple[int | None, ...] = (None,)
    penalty: float = 1e-14
    needs: ClassVar[Needs] = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rows or any(n is not None and n < 2 for n in self.rows) or not self.penalty > 0:
            raise UserError("the map to θ_0 needs 2 rows or more, and a positive penalty")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Fit the map and attack, for every number of rows; the seed chooses the rows."""
        assert data.reference is not None
        order = np.random.default_rng(seed).permutation(len(data.train))
        counts = sorted({len(order) if n is None else min(n, len(order)) for n in self.rows})
        traces = []
        for count in counts:
            chosen: slice | Numbers = order[:count]
            if count == len(order):
                chosen, of_all = slice(None), principal(data, centred=True)
                axes, seen = of_all.axes, of_all.data
            else:
                _, axes = both_axes(data.train.x[chosen])
                seen = data.mapped(axes.coordinates)
            started = time.perf_counter()
            x, target = seen.train.x[chosen], data.reference.train.x[chosen]
            offset = target.mean(axis=0)
            # Small singular values are divided by after the projection onto their axes.
            squares = axes.sigma**2 + self.penalty * axes.sigma[0] ** 2
            shrunk = (x.T @ (target - offset)) / np.where(squares > 0, squares, np.inf)[:, None]
            mapped = seen.mapped(lambda rows, a=shrunk, b=offset: rows @ a + b)  # type: ignore[misc]
            flops = svd_flops((count, data.n_features)) + 2.0 * count * min(count, data.n_features) * target.shape[1]
            setup = Cost(1, axes.seconds + time.perf_counter() - started, count, flops)
            share = budget.share(len(counts))
            traces += self.run_inner(mapped, share, seed, setup=setup, prefix=f"map from {count:,} rows")
        return Outcome(tuple(traces))


@dataclass(frozen=True, kw_only=True)
class ImagesAlone(_Preparing):
    """The inner attacks on the images themselves, averaged over places to a square, each with an equal share.

    Attributes:
        side: S; a row of the inner attacks is (C·S²,), of images as the network takes them.

    Raises:
        UserError: a side below 1, or no inner attack.
    """

    side: int = 8
    needs: ClassVar[Needs] = "model"
    sees_features: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side < 1:
            raise UserError("ImagesAlone needs a side of 1 or more")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Average once, then attack; the network is not asked."""
        network = data.network
        assert network is not None
        small = nn.AdaptiveAvgPool2d(self.side)
        seen = _of_numbers(data, lambda numbers: small(network.images.at(numbers)).flatten(1))
        return Outcome(tuple(self.run_inner(seen, budget, seed, setup=Cost(), prefix="images")))
