"""What `experiments.signal` measures: rows and settings of a study, its maps, steps of the probes and lost scores.

Shapes: N samples, D features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.objective.attacker_cost import Baseline, Cost, ProbeTask
    from immunize.spectrum import SignalDirections, SignalMap

RHO, FLOOR, SEED = 1e-2, 1e-2, 0
SLACK, EASE_LIMIT, SCORE_STEPS = 0.02, 0.9, 300
ROLES = ("pretrain", "harmful", "benign")
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


# --- the maps -----------------------------------------------------------------------------------------------------


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
