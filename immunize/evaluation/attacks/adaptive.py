"""T5: around the defence. θ_0 is public: use it, or learn the map from immunized features back. Or use no network.

`PublicReference` attacks the features of θ_0: the immunized model need not be used at all. `LinearMap` needs no label:
it fits A, b with F_immunized·A + b ≈ F_θ0 by ridge regression on rows that went through both networks, and attacks the
mapped features. What it costs is the restoring cost: rows, and FLOPs of one decomposition. `ImagesAlone` learns from
small images: no defence can take more from an attacker who has them.

Shapes: N samples, D features of the immunized extractor, D_0 of θ_0; images (N, C, H, W).
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from torch import nn

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import principal
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.factoring import Axes, principal_axes
from immunize.evaluation.attacks.inner import Preparing, run_inner
from immunize.evaluation.attacks.network import Numbers
from immunize.evaluation.attacks.protocol import Array, AttackData, Budget, Needs, Outcome, Rows

__all__ = ["ImagesAlone", "LinearMap", "PublicReference"]


@dataclass(frozen=True, kw_only=True)
class PublicReference(Preparing):
    """The inner attacks on θ_0's features, each with an equal share of the budget."""

    needs: ClassVar[Needs] = "reference"
    sees_features: ClassVar[bool] = False
    called: ClassVar[str] = "the attack on θ_0"

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Attack θ_0's features of the same rows."""
        assert data.reference is not None
        return Outcome(tuple(run_inner(self.inner, data.reference, budget, seed, setup=Cost(), prefix="θ_0")))


@dataclass(frozen=True, kw_only=True)
class LinearMap(Preparing):
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
    called: ClassVar[str] = "the map to θ_0"

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
            chosen: slice | npt.NDArray[np.int64] = order[:count] if count < len(order) else slice(None)
            axes, seen = _in_axes(data, chosen)
            started = time.perf_counter()
            x, target = seen.train.x[chosen], data.reference.train.x[chosen]
            offset = target.mean(axis=0)
            # Small singular values are divided by after the projection onto their axes.
            shrunk = (x.T @ (target - offset)) / (axes.sigma**2 + self.penalty * axes.sigma[0] ** 2)[:, None]
            mapped = seen.mapped(functools.partial(_apply, shrunk, offset))
            long, short = max(count, data.n_features), min(count, data.n_features)
            flops = 4.0 * long * short**2 + 8.0 * short**3 + 2.0 * count * short * target.shape[1]
            setup = Cost(1, axes.seconds + time.perf_counter() - started, count, flops)
            share = budget.share(len(counts))
            traces += run_inner(self.inner, mapped, share, seed, setup=setup, prefix=f"map from {count:,} rows")
        return Outcome(tuple(traces))


def _in_axes(data: AttackData, chosen: slice | npt.NDArray[np.int64]) -> tuple[Axes, AttackData]:
    """Principal axes of some training rows, about their mean, and all rows in them."""
    if isinstance(chosen, slice):
        of_all = principal(data, centred=True)
        return of_all.axes, of_all.data
    axes = principal_axes(data.train.x[chosen], centred=True)
    return axes, data.mapped(axes.coordinates)


def _apply(coordinates: Array, offset: Array, x: Array) -> Array:
    """(x - mean)A + b with A = basis·coordinates, for rows that are in the basis already."""
    return np.asarray(x @ coordinates + offset)


@dataclass(frozen=True, kw_only=True)
class ImagesAlone(Preparing):
    """The inner attacks on the images themselves, averaged over places to a square, each with an equal share.

    Attributes:
        side: S; a row of the inner attacks is (C·S²,), of images as the network takes them.

    Raises:
        UserError: a side below 1, or no inner attack.
    """

    side: int = 8
    needs: ClassVar[Needs] = "model"
    sees_features: ClassVar[bool] = False
    called: ClassVar[str] = "the attack on images alone"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side < 1:
            raise UserError(f"{self.called} needs a side of 1 or more")

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Average once, then attack; the network is not asked."""
        network = data.network
        assert network is not None
        small = nn.AdaptiveAvgPool2d(self.side)

        def rows(numbers: Numbers, of: Rows) -> Rows:
            return Rows(small(network.images.at(numbers)).flatten(1).double().numpy(), of.y)

        train, validation, test = (rows(getattr(network, part), of) for part, of in data.parts.items())
        seen = AttackData(train, validation, test, data.n_classes)
        return Outcome(tuple(run_inner(self.inner, seen, budget, seed, setup=Cost(), prefix="images")))
