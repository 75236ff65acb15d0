"""T1, and the trained heads of T3: mini-batch optimizers over a grid of learning rates, constant and cosine schedules.

The attacker races: every learning rate runs a short first lap with a constant schedule, the best few by validation run
to the end, and the very best and its next larger neighbour also with cosine schedules of several lengths.

`scaled` divides the features by σ_1(X)/√N first. For gradient descent that is a learning rate in units of 1/σ_1 of the
Hessian, for Adam one in units of 1/√σ_1; the result does not change when the features are multiplied by a number.
Without it the learning rates are used as they come, as most users do.

Shapes: N samples, D features, B batch, C outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.heads import HEADS, flops_per_row, new_head
from immunize.evaluation.attacks.logistic import feature_scale
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.racing import Optimizer, Run, batches
from immunize.evaluation.attacks.scoring import Meter, target_matrix

__all__ = ["FirstOrder"]

FIRST_LAP = 10
"""The first lap is this share of the steps, one in ten."""


@dataclass(frozen=True, kw_only=True)
class FirstOrder(Attack):
    """A head trained by an optimizer of PyTorch on cross-entropy, or on the mean squared error.

    Attributes:
        optimizer: takes parameters and `lr`.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.learning_rates or min(self.learning_rates) <= 0:
            raise UserError("the grid of learning rates has to hold at least one number, and positive ones")
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
        task = _Task(self, data, seed)
        rates = sorted(self.learning_rates)
        kept = min(self.keep, len(rates))
        weight = kept + (len(rates) - kept) / FIRST_LAP + 2 * sum(self.cosine)
        steps = budget.affordable(task.per_step.flops, weight)
        runs = [_Run(task, rate) for rate in rates]
        for run in runs:
            run.advance(max(1, steps // FIRST_LAP), steps)
        ranked = sorted(runs, key=lambda run: -run.best)  # stable: of equals the smaller rate
        for run in ranked[:kept]:
            run.advance(steps, steps)
        best = max(ranked[:kept], key=lambda run: run.best).rate
        for rate in rates[rates.index(best) :][:2]:
            for length in dict.fromkeys(max(1, round(part * steps)) for part in self.cosine):
                runs.append(_Run(task, rate, length))
                runs[-1].advance(length, length)
        return Outcome(tuple(run.meter.trace() for run in runs))


class _Task:
    """What all runs of an attack share: rows as tensors, cost of a step, how to begin."""

    def __init__(self, attack: FirstOrder, data: AttackData, seed: int) -> None:
        self.attack, self.data, self.seed = attack, data, seed
        self.dtype = torch.float32 if attack.precision == "float32" else torch.float64
        self.scale = feature_scale(data.train.x) if attack.scaled else 1.0
        self.x = self._tensor(data.train.x)
        self.measured = [self._tensor(rows.x) for rows in (data.validation, data.test)]
        if data.n_classes:
            self.y = torch.from_numpy(data.train.y.astype(np.int64))
        else:
            self.y = torch.from_numpy(target_matrix(data, data.train)).to(self.dtype)
        self.batch = min(attack.batch_size, len(self.x))
        per_row = flops_per_row(attack.head, data.n_features, data.n_outputs, attack.hidden)
        self.per_step = Cost(1, 0.0, self.batch, per_row * self.batch)

    def _tensor(self, x: Array) -> Tensor:
        return torch.from_numpy(x / self.scale).to(self.dtype)

    def new_head(self) -> nn.Module:
        sizes = self.data.n_features, self.data.n_outputs, self.attack.hidden
        return new_head(self.attack.head, *sizes, self.seed).to(self.dtype)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y) if self.data.n_classes else nn.functional.mse_loss(outputs, y)


class _Run(Run):
    """One learning rate and schedule on its way."""

    def __init__(self, task: _Task, rate: float, length: int | None = None) -> None:
        self.task, self.head = task, task.new_head()
        schedule = "constant" if length is None else f"cosine over {length:,}"
        meter = Meter(task.data, f"lr {rate:g}, {schedule}", task.per_step)
        super().__init__(task.attack.optimizer(self.head.parameters(), lr=rate), rate, length, meter)
        self.batches = batches(len(task.x), task.batch, task.seed)

    def loss(self) -> Tensor:
        """Of the next mini-batch."""
        rows = next(self.batches)
        self.head.train()
        return self.task.loss(self.head(self.task.x[rows]), self.task.y[rows])

    def look(self) -> None:
        """Tell the meter."""
        self.meter.note(self.step, self._outputs)

    @torch.no_grad()
    def _outputs(self) -> list[Array]:
        self.head.eval()
        return [np.asarray(self.head(x).numpy(), dtype=np.float64) for x in self.task.measured]
