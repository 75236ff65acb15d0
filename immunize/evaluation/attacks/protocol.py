"""What every attack has in common: the rows it gets, the budget it may spend, and the trace it leaves.

An attacker has the released features of a task, tunes on rows that it sets aside, and is measured on rows that it never
saw. Every attack is a frozen dataclass with a YAML of its own in `conf/attack/`; it says which tier of the grid it
belongs to, which tasks it can solve and what it needs: the features alone, those of θ_0 for the same rows as well, or
the network's weights.

Shapes: N samples, D features, C classes (1 for regression).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from immunize.errors import DataError, UserError
from immunize.evaluation.attacks.curves import Trace
from immunize.evaluation.attacks.network import Network

Array = npt.NDArray[np.float64]
Predict = Callable[[Array], Array]
"""Features (M, D) to outputs (M, C)."""

Task = Literal["classification", "regression"]
Needs = Literal["features", "reference", "model"]
TASKS: tuple[Task, ...] = get_args(Task)
KINDS = ("harmful", "pretrain", "benign")
"""Of tasks: to be made costly, and the two that are not."""

TIERS = {
    "T0": "gradient descent, the paper's attacker",
    "T1": "first-order optimizers",
    "T2": "second-order and closed form",
    "T3": "repaired features",
    "T4": "the weights move",
    "T5": "adaptive: θ_0 is public",
}
"""The tiers of the grid, weakest first."""


@dataclass(frozen=True)
class Rows:
    """Features and what is to be predicted from them.

    Attributes:
        x: (N, D) float64.
        y: (N,) int64 classes 0 to C-1, or float64 targets.
    """

    x: Array
    y: npt.NDArray[np.float64] | npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.x)


def _finite(x: npt.NDArray[Any]) -> bool:
    """Whether x has neither NaN nor infinities: by its sum, in a fifth of the time, unless that is not finite."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(x.sum())) or bool(np.isfinite(x).all())


@dataclass(frozen=True)
class AttackData:
    """One task, seen through one extractor.

    Attributes:
        train: what the attacker learns from.
        validation: what it tunes on.
        test: what it is measured on, and never sees.
        n_classes: C; 0 for regression.
        reference: the same rows under θ_0, for attacks that use it; None where it is not given.
        network: what the features come from, for attacks that move its weights; None where it is not given.
        kept: what attacks computed from these rows alone and the next ones will need again.

    Raises:
        DataError: sets of different widths, features that are not finite, labels outside 0 to C-1, training rows of one
            class, a reference with other rows, or a network with other numbers of images.
    """

    train: Rows
    validation: Rows
    test: Rows
    n_classes: int
    reference: AttackData | None = None
    network: Network | None = None
    kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, rows in self.parts.items():
            if rows.x.ndim != 2 or len(rows.x) != len(rows.y) or len(rows) < 1:
                raise DataError(f"the {name} rows have shape {rows.x.shape} and {len(rows.y)} targets")
            if rows.x.shape[1] != self.n_features:
                raise DataError(f"{rows.x.shape[1]} {name} features, {self.n_features} train features: another model?")
            if not (_finite(rows.x) and _finite(rows.y)):
                raise DataError(f"the {name} rows contain NaN or infinite values")
            if self.n_classes and not (rows.y.min() >= 0 and rows.y.max() < self.n_classes):
                raise DataError(
                    f"the {name} labels go from {rows.y.min()} to {rows.y.max()}, but there are {self.n_classes} "
                    f"classes, 0 to {self.n_classes - 1}: label sets that do not match"
                )
        if len(np.unique(self.train.y)) < 2:
            raise DataError("all training rows have the same target: there is nothing to learn")
        if self.reference is not None:
            for name, rows in self.reference.parts.items():
                if not np.array_equal(rows.y, self.parts[name].y):
                    raise DataError(f"the {name} rows of θ_0 are not those of the extractor: their targets differ")
        if self.network is not None:
            for name, rows in self.parts.items():
                if len(getattr(self.network, name)) != len(rows):
                    raise DataError(f"the network has {len(getattr(self.network, name))} {name} images for {len(rows)}")

    @property
    def parts(self) -> dict[str, Rows]:
        """The three sets by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def n_features(self) -> int:
        """D."""
        return int(self.train.x.shape[1])

    @property
    def n_outputs(self) -> int:
        """C, or 1 for regression."""
        return self.n_classes or 1

    @property
    def task(self) -> Task:
        """What is predicted."""
        return "classification" if self.n_classes else "regression"

    def mapped(self, transform: Predict) -> AttackData:
        """The same task with each feature matrix replaced; the reference is kept, the network has other features.

        Args:
            transform: (M, D) to (M, D').
        """
        parts = (Rows(np.ascontiguousarray(transform(rows.x)), rows.y) for rows in self.parts.values())
        train, validation, test = parts
        return AttackData(train, validation, test, self.n_classes, reference=self.reference)


@dataclass(frozen=True)
class Budget:
    """What an attack may spend; the same for every extractor, so that no seconds are in it.

    Attributes:
        steps: of one candidate.
        flops: floating-point operations of all its candidates together, as `Cost.flops` counts them.

    Raises:
        UserError: not positive.
    """

    steps: int
    flops: float = math.inf

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.flops > 0:
            raise UserError(f"a budget has to be positive; it is {self.steps} steps and {self.flops:g} FLOPs")

    def affordable(self, flops_per_step: float, weight: float) -> int:
        """Steps of one candidate when the whole attack takes `weight` times as many; at least 1.

        Args:
            flops_per_step: of one step.
            weight: steps of all candidates together over those of the longest.
        """
        return max(1, min(self.steps, int(min(self.flops / (flops_per_step * weight), 2**53))))

    def share(self, parts: int) -> Budget:
        """The budget of one of so many equal parts of an attack."""
        return Budget(self.steps, self.flops / parts)


@dataclass(frozen=True)
class Outcome:
    """What came of an attack.

    Attributes:
        traces: one a candidate: a learning rate, a strength of regularization, a repair.
    """

    traces: tuple[Trace, ...]

    @property
    def status(self) -> str:
        """Whether every candidate "diverged", else "finished"."""
        return "finished" if any(trace.status == "finished" for trace in self.traces) else "diverged"


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """One attacker.

    Attributes:
        tier: of `TIERS`.
        kinds: of tasks that it is tried on, "harmful", "pretrain" or "benign"; None for all.
        needs: beside the features, those of θ_0 for the same rows, or the network's weights.
        grids: its attributes that are grids of positive numbers, all of which are tried.
        version: part of its cells' keys; raised when a change of its code changes its numbers.
        sees_features: False for one that leaves the extractor's own features aside; its result is everyone's.

    Raises:
        UserError: an unknown tier or kind, or a grid that is empty or holds a number that is not positive.
    """

    tier: str
    kinds: tuple[str, ...] | None = None
    needs: ClassVar[Needs] = "features"
    grids: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 0
    sees_features: ClassVar[bool] = True
    tasks: ClassVar[tuple[Task, ...]] = TASKS

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise UserError(f"unknown tier {self.tier!r}; there are {', '.join(TIERS)}")
        if unknown := [kind for kind in self.kinds or () if kind not in KINDS]:
            raise UserError(f"unknown kind of task {unknown[0]!r}; there are {', '.join(KINDS)}")
        for name in self.grids:
            if not (grid := getattr(self, name)) or not all(number > 0 for number in grid):
                raise UserError(f"the grid of {name} has to hold at least one number, and positive ones")

    @property
    def scale_free(self) -> bool:
        """Whether a multiple of the features gives the same result, up to rounding."""
        return True

    @abstractmethod
    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Attack.

        Args:
            data: the task.
            budget: what may be spent.
            seed: of everything random.
        """
