"""The label-aware map (`spectrum.signal`, docs/signal.md), chosen by what a probe costs: no training.

Where `closed_form` looks at the features of D_H alone, this method also asks in which directions its labels lie, and
what it promises is not a condition number but a price: the steps that a probe of the harmful task takes
(`signal_choice`). A benign third task can be spared too, but a run has none: see `signal_choice.choose`.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from immunize.objective.attacker_cost import ProbeTask, set_aside
from immunize.objective.base import Labelled, Objective, Step
from immunize.objective.signal_choice import BUDGETS, GAMMAS, SHARPNESSES, choose
from immunize.spectrum import (
    SIGNAL_FLOOR,
    SignalDirections,
    centred_targets,
    choose_shrinkage,
    generalized_spectrum,
    ledoit_wolf,
    sharpen,
    signal_directions,
    signal_map,
)

__all__ = ["Signal", "directions_of", "labels_of"]


def directions_of(
    pretrain: tuple[Tensor, Tensor], harmful: tuple[Tensor, Tensor], rho: tuple[float, float], floor: float
) -> SignalDirections:
    """The directions of two labelled data sets.

    Args:
        pretrain: x (N_P, D) and y (N_P,) of D_P, y as :func:`labels_of` returns it.
        harmful: likewise of D_H.
        rho: (ρ_P, ρ_H), positive.
        floor: ε of :func:`~immunize.spectrum.signal_directions`.

    Raises:
        ValueError: a task without signal; the message says which and what to use instead.
    """
    sides = [(x.double(), y) for x, y in (pretrain, harmful)]
    crosses = [x.T @ _targets(y, name, len(x)) for (x, y), name in zip(sides, ("D_P", "D_H"), strict=True)]
    grams = [x.T @ x for x, _ in sides]
    spectrum = generalized_spectrum(grams[0], grams[1], n_samples=(len(sides[0][0]), len(sides[1][0])), shrinkage=rho)
    return signal_directions(spectrum, crosses[0], crosses[1], floor=floor)


def labels_of(y: Tensor) -> Tensor:
    """Targets as a probe takes them: zeros and ones are two classes (int64), everything else a regression.

    Args:
        y: (N,), a `Part`'s targets.
    """
    if not y.is_floating_point():
        return y
    return y.long() if bool(((y == 0) | (y == 1)).all()) else y


class Signal(Objective):
    """The label-aware map with γ, B and q chosen on rows set aside.

    Args:
        gamma: γ ≥ 0, or "auto".
        budget: B ≥ 1, or "auto".
        sharpness: q ≥ 1, or "auto".
        shrinkage: ρ > 0, or "auto" (cross-validated as for `closed_form`), or "ledoit_wolf".
        floor: ε of the signal.
        slack: what D_P's probe may lose in accuracy or explained share of the variance.
        validation_fraction: of the rows of each data set, set aside to choose by.
        seed: of these rows.

    Raises:
        ValueError: a value outside its range, or an unknown word.
    """

    def __init__(
        self,
        gamma: float | str = "auto",
        budget: float | str = "auto",
        sharpness: float | str = "auto",
        *,
        shrinkage: float | str = "auto",
        floor: float = SIGNAL_FLOOR,
        slack: float = 0.02,
        validation_fraction: float = 0.25,
        seed: int = 0,
    ) -> None:
        super().__init__({"task": 1.0})
        for name, value, least in (("gamma", gamma, 0.0), ("budget", budget, 1.0), ("sharpness", sharpness, 1.0)):
            if value != "auto" and (isinstance(value, str) or not least <= value < math.inf):
                raise ValueError(f'method.{name} has to be a number of at least {least:g}, or "auto", it is {value!r}')
        if isinstance(shrinkage, str) and shrinkage not in ("auto", "ledoit_wolf"):
            raise ValueError(f'method.shrinkage is a number, "auto" or "ledoit_wolf", not {shrinkage!r}')
        if not isinstance(shrinkage, str) and not 0 < shrinkage < math.inf:
            raise ValueError(f"method.shrinkage has to be positive for method=signal, it is {shrinkage}")
        if not 0 < floor < math.inf:
            raise ValueError(f"method.floor has to be positive and finite, it is {floor}")
        if not 0 <= slack < math.inf:
            raise ValueError(f"method.slack has to be a finite number ≥ 0, it is {slack}")
        if not 0 < validation_fraction <= 0.9:
            raise ValueError(f"method.validation_fraction lies between 0 and 0.9, it is {validation_fraction}")
        self.gammas = GAMMAS if isinstance(gamma, str) else (float(gamma),)
        self.budgets = BUDGETS if isinstance(budget, str) else (float(budget),)
        self.sharpnesses = SHARPNESSES if isinstance(sharpness, str) else (float(sharpness),)
        self.shrinkage, self.floor, self.slack = shrinkage, floor, slack
        self.validation_fraction, self.seed = validation_fraction, seed

    @property
    def unused(self) -> tuple[str, ...]:
        """What is for the choice, where there is nothing to choose."""
        if len(self.gammas) * len(self.budgets) * len(self.sharpnesses) > 1:
            return ()
        return ("slack", "validation_fraction", *(() if self.shrinkage == "auto" else ("seed",)))

    def terms(self, step: Step) -> dict[str, Tensor]:
        """The task loss; θ is not trained on it, see :meth:`solve_labelled`."""
        return {"task": step.pretrain_loss()}

    def solve_labelled(self, pretrain: Labelled, harmful: Labelled) -> tuple[Tensor, dict[str, Any]]:
        """θ from all rows, with the γ, B and q that rows set aside have chosen, and facts about the choice.

        Args:
            pretrain: D_P's rows and targets.
            harmful: D_H's.

        Raises:
            ValueError: a task without signal (all targets the same, as in the paper's pairs of digits), or too few
                rows to set any aside.
        """
        sides = {"D_P": (pretrain.x, labels_of(pretrain.y)), "D_H": (harmful.x, labels_of(harmful.y))}
        for name, (x, y) in sides.items():
            _targets(y, name, len(x))
        rho, how = self._shrinkage(pretrain.x, harmful.x)
        facts: dict[str, Any] = {"shrinkage": list(rho), "shrinkage_chosen_by": how}
        gamma, budget, sharpness = self.gammas[0], self.budgets[0], self.sharpnesses[0]
        if len(self.gammas) * len(self.budgets) * len(self.sharpnesses) > 1:
            tasks = {name: self._task(x, y, stream) for stream, (name, (x, y)) in enumerate(sides.items())}
            rest = [(task.x, task.y) for task in tasks.values()]
            found = choose(
                directions_of(rest[0], rest[1], rho, self.floor),
                tasks["D_H"],
                {"D_P": tasks["D_P"]},
                gammas=self.gammas,
                budgets=self.budgets,
                sharpnesses=self.sharpnesses,
                slack=self.slack,
            )
            gamma, budget, sharpness = found.gamma, found.budget, found.sharpness
            facts |= {
                "feasible": found.feasible,
                "reason": found.reason,
                "threshold": found.harmful.threshold,
                "raw_cost": asdict(found.harmful.cost),
                "trials": [asdict(trial) for trial in found.trials],
            }
        directions = directions_of(sides["D_P"], sides["D_H"], rho, self.floor)
        best = signal_map(sharpen(directions, sharpness), budget, gamma)
        return best.theta, facts | {
            "gamma": gamma,
            "budget": budget,
            "sharpness": sharpness,
            "forecast_kappa_pretrain": best.kappa_pretrain,
            "forecast_rir": best.ratio_harmful / best.ratio_pretrain,
        }

    def _shrinkage(self, pretrain: Tensor, harmful: Tensor) -> tuple[tuple[float, float], str]:
        if self.shrinkage == "auto":
            chosen = choose_shrinkage(pretrain, [harmful], seed=self.seed)
            return (chosen.pretrain, chosen.harmful[0]), "auto"
        if self.shrinkage == "ledoit_wolf":
            return (ledoit_wolf(pretrain), ledoit_wolf(harmful)), "ledoit_wolf"
        return (float(self.shrinkage), float(self.shrinkage)), "given"

    def _task(self, x: Tensor, y: Tensor, stream: int) -> ProbeTask:
        """The rows of one data set, a random part of them set aside to be tested on."""
        train, test = set_aside(y, self.validation_fraction, np.random.default_rng([self.seed, stream]))
        if min(len(train), len(test)) < 2:
            raise ValueError(
                f"{len(x)} rows are too few to choose on: give method.gamma, method.budget and method.sharpness "
                "as numbers"
            )
        return ProbeTask(x[train], y[train], x[test], y[test])


def _targets(y: Tensor, name: str, count: int) -> Tensor:
    try:
        return centred_targets(y)
    except ValueError:
        raise ValueError(
            f"method=signal needs labels that differ, but all {count:,} samples of {name} have the same one (the "
            f"paper's pairs of digits hold one digit a side): there is no signal to hide; use method=closed_form"
        ) from None
