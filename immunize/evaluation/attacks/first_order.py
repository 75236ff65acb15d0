"""T1, and the trained heads of T3: mini-batch optimizers over a grid of learning rates, constant and cosine schedules.

The attacker races: every learning rate runs a short first lap with a constant schedule, the best few by validation run
to the end, and the very best and its next larger neighbour also with cosine schedules of several lengths. Where the
best is settled (scoring.py) after a second lap, schedules have nothing to gain and are left out.

`scaled` divides the features by σ_1(X)/√N first. For gradient descent that is a learning rate in units of 1/σ_1 of the
Hessian, for Adam one in units of 1/√σ_1; the result does not change when the features are multiplied by a number.
Without it the learning rates are used as they come, as most users do.

All candidates of a lap are trained in lockstep (lockstep.py).

Shapes: N samples, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from immunize.errors import UserError
from immunize.evaluation.attacks.lockstep import HEADS, HeadTask, Lockstep, Optimizer, check_training
from immunize.evaluation.attacks.protocol import Attack, AttackData, Budget, Outcome

__all__ = ["FirstOrder"]

FIRST_LAP = 10
"""The first lap is this share of the steps, one in ten."""


@dataclass(frozen=True, kw_only=True)
class FirstOrder(Attack):
    """A head trained by an optimizer of PyTorch on cross-entropy, or on the mean squared error.

    Attributes:
        optimizer: takes groups of parameters and `lr`, and treats every group by itself.
        learning_rates: the grid.
        scaled: divide the features by σ_1(X)/√N first.
        head: one of `HEADS`.
        hidden: units of the hidden layer of "mlp".
        batch_size: B; all rows where there are fewer.
        keep: learning rates that go on after the first lap.
        cosine: lengths of cosine schedules, as shares of all steps.
        precision: "float32", as most users, or "float64".

    Raises:
        UserError: a setting out of its range.
    """

    optimizer: Optimizer
    learning_rates: tuple[float, ...]
    scaled: bool = True
    head: str = "linear"
    hidden: int = 256
    batch_size: int = 256
    keep: int = 1
    cosine: tuple[float, ...] = (0.1, 1.0)
    precision: str = "float32"
    version: ClassVar[int] = 1  # no schedules behind a settled rate

    def __post_init__(self) -> None:
        super().__post_init__()
        check_training(self.optimizer, self.learning_rates)
        if self.head not in HEADS:
            raise UserError(f"unknown head {self.head!r}; there are {', '.join(HEADS)}")
        if self.precision not in ("float32", "float64"):
            raise UserError(f"unknown precision {self.precision!r}; there are float32 and float64")
        if self.batch_size < 2 or self.keep < 1 or self.hidden < 1 or not all(0 < part <= 1 for part in self.cosine):
            raise UserError("batch_size has to be 2 or more, keep and hidden 1 or more, cosine parts of 1")

    @property
    def scale_free(self) -> bool:
        """With scaled features."""
        return self.scaled

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Race the learning rates; the seed decides the order of the rows and the hidden layer."""
        task = HeadTask(
            data,
            seed,
            head=self.head,
            hidden=self.hidden,
            batch_size=self.batch_size,
            scaled=self.scaled,
            dtype=torch.float32 if self.precision == "float32" else torch.float64,
        )
        rates = sorted(self.learning_rates)
        kept = min(self.keep, len(rates))
        weight = kept + (len(rates) - kept) / FIRST_LAP + 2 * sum(self.cosine)
        steps = budget.affordable(task.per_step.flops, weight)
        race = Lockstep(task, self.optimizer, rates, steps)
        lap = max(1, steps // FIRST_LAP)
        race.advance(race.candidates, lap)
        leading = sorted(race.candidates, key=lambda head: -head.best)[:kept]  # stable: of equals the smaller rate
        race.advance(leading, 2 * lap if kept == 1 else steps)  # one alone goes along with the cosine schedules
        best = max(leading, key=lambda head: head.best)
        if best.meter.diverged or not best.meter.over:
            for rate in rates[rates.index(best.rate) :][:2]:
                for length in dict.fromkeys(max(1, round(part * steps)) for part in self.cosine):
                    race.add_cosine(rate, length)
        race.advance([*leading, *race.candidates[len(rates) :]], steps)
        return Outcome(tuple(head.meter.trace() for head in race.candidates))
