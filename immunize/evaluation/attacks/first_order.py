"""T1, and the trained heads of T3: mini-batch optimizers over a grid of learning rates, constant and cosine schedules.

The attacker races: every learning rate runs a short first lap with a constant schedule, the best by validation runs to
the end, and it and its next larger neighbour also with cosine schedules of several lengths. Where the best is settled
(scoring.py) after a second lap, schedules have nothing to gain and are left out.

`scaled` divides the features by σ_1(X)/√N first. For gradient descent that is a learning rate in units of 1/σ_1 of the
Hessian, for Adam one in units of 1/√σ_1; the result does not change when the features are multiplied by a number.
Without it the learning rates are used as they come, as most users do.

All candidates of a lap are trained in lockstep. They see the same mini-batches in the same order. So those that are at
the same step take it together: the rows are gathered once, one product of matrices gives the outputs of all heads, and
one optimizer of PyTorch has a parameter group for each. Each head's gradient is that of its own loss, and a head that
diverges moves no other: every candidate goes the way that it would go alone, up to rounding. It has its own schedule,
looks and costs; steps, samples and FLOPs are those of a run alone. Seconds are the time that a step of all took, in
equal parts: their sum is what the attacker waited, and one candidate alone would have taken longer.

The heads are linear, linear behind BatchNorm, or have one hidden layer. Attackers who train more than a head share what
is no head's own: one learning rate and schedule on its way (`Candidate`), and the mini-batches.

Shapes: N samples, D features, B batch, H hidden units, C outputs, R heads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import feature_scale
from immunize.evaluation.attacks.curves import FIRST_LAP, Cost, best_validation, look_steps
from immunize.evaluation.attacks.protocol import Attack, AttackData, Budget, Outcome
from immunize.evaluation.attacks.scoring import Meter, target_matrix
from immunize.evaluation.products import products, quotient

HEADS = ("linear", "batchnorm", "mlp")


def new_head(kind: str, n_features: int, n_outputs: int, hidden: int, seed: int) -> nn.Module:
    """A head at its start: linear layers behind features at zero, a hidden layer as PyTorch draws it.

    Args:
        kind: one of `HEADS`.
        n_features: D.
        n_outputs: C.
        hidden: H, of "mlp" alone.
        seed: of the hidden layer.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last = nn.Linear(hidden if kind == "mlp" else n_features, n_outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if kind == "linear":
            return last
        if kind == "batchnorm":
            return nn.Sequential(nn.BatchNorm1d(n_features), last)
        return nn.Sequential(nn.Linear(n_features, hidden), nn.ReLU(), last)


def statistics(kind: str, n_features: int) -> nn.Module:
    """What a head does to features before any weight of its own: BatchNorm's statistics, or nothing.

    They depend on the rows seen so far and on no weight, so heads that see the same rows can share them.
    """
    return nn.BatchNorm1d(n_features, affine=False) if kind == "batchnorm" else nn.Identity()


def outputs_of(kind: str, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """Of R heads for the same rows, with one product of matrices where these meet the weights.

    Args:
        kind: one of `HEADS`.
        parameters: of `new_head`, in its order, those of all heads stacked: (R, ...).
        x: (N, D), as `statistics` leaves them.

    Returns:
        (R, C, N), which PyTorch's cross-entropy takes; what is not finite in one head stays in that head.
    """
    *first, weight, bias = parameters
    if kind == "mlp":
        return torch.baddbmm(bias[:, :, None], weight, hidden_of(first, x))
    if kind == "batchnorm":  # (γ∘x + β)Wᵀ + b = x(γ∘W)ᵀ + (Wβ + b)
        gamma, beta = first
        weight, bias = weight * gamma[:, None], bias + (weight @ beta[:, :, None])[:, :, 0]
    return torch.addmm(bias.reshape(-1, 1), weight.flatten(0, 1), x.T).view(*bias.shape, -1)


def hidden_of(first: Sequence[Tensor], x: Tensor) -> Tensor:
    """The hidden layer of R heads, (R, H, N), from its weights (R, H, D) and biases (R, H) and rows (N, D)."""
    weight, bias = first
    return products(weight.flatten(0, 1), x).view(*bias.shape, -1).add(bias[:, :, None]).relu()


def flops_per_row(kind: str, n_features: int, n_outputs: int, hidden: int) -> float:
    """Of one forward and backward pass; the gradient with respect to the features themselves is not needed."""
    if kind == "mlp":
        return 4.0 * n_features * hidden + 6.0 * hidden * n_outputs
    return (6.0 if kind == "batchnorm" else 4.0) * n_features * n_outputs


Optimizer = Callable[..., torch.optim.Optimizer]
"""From parameters, or groups of them, and `lr` to an optimizer."""


def check_training(optimizer: Optimizer, learning_rates: Sequence[float]) -> None:
    """Refuse before any training what would end it.

    Raises:
        UserError: no learning rate, one that is not positive and finite, or an optimizer that refuses its settings
            or parameters in groups.
    """
    if not learning_rates or not all(0 < rate < math.inf for rate in learning_rates):
        raise UserError("the grid of learning rates has to hold at least one number, and positive finite ones")
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.zeros(1)
    try:  # an optimizer looks at its settings when it gets its parameters, and some at gradients, or for a closure
        optimizer([{"params": [weight]} for weight in weights], lr=learning_rates[0]).step()
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"optimizer: {error}") from error


class Candidate:
    """One learning rate and schedule on its way.

    Args:
        groups: its groups of an optimizer; their rates are those at the start.
        rate: what to call it by.
        length: steps of a cosine schedule; None keeps the rates.
        meter: notes where it stands.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], rate: float, length: int | None, meter: Meter) -> None:
        self.rate, self.length, self.meter, self.step = rate, length, meter, 0
        self._groups = [(group, group["lr"]) for group in groups]

    @property
    def best(self) -> float:
        """The best validation score so far."""
        return best_validation(self.meter.points)

    def set_rates(self) -> None:
        """To those of the next step."""
        if self.length is not None:
            left = 0.5 * (1 + math.cos(math.pi * self.step / self.length))
            for group, rate in self._groups:
                group["lr"] = rate * left


def batches(n_rows: int, size: int, seed: int) -> Iterator[Tensor]:
    """Numbers of rows in endless shuffled mini-batches; the incomplete last one of a pass is left out.

    Args:
        n_rows: N.
        size: B; where it is all rows or more, all come in their own order.
        seed: of the orders.
    """
    size = min(size, n_rows)
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(n_rows, generator=generator) if size < n_rows else torch.arange(n_rows)
        yield from torch.split(order[: n_rows - n_rows % size], size)


class HeadTask:
    """What all candidates share: rows as tensors, the loss, how a head begins, what a step costs.

    Args:
        attack: its settings.
        data: the task.
        seed: of the order of the rows and of the hidden layer.
    """

    def __init__(self, attack: FirstOrder, data: AttackData, seed: int) -> None:
        self.attack, self.data, self.seed = attack, data, seed
        self.dtype = torch.float32 if attack.precision == "float32" else torch.float64
        scale = feature_scale(data) if attack.scaled else 1.0
        self.x, *self.measured = (quotient(rows.x, scale, self.dtype) for rows in data.parts.values())
        if data.n_classes:
            self.y = torch.from_numpy(data.train.y.astype(np.int64))
        else:
            self.y = torch.from_numpy(target_matrix(data, data.train)).to(self.dtype)
        self.batch = min(attack.batch_size, len(self.x))
        per_row = flops_per_row(attack.head, data.n_features, data.n_outputs, attack.hidden)
        self.per_step = Cost(1, 0.0, self.batch, per_row * self.batch)

    def start(self) -> list[nn.Parameter]:
        """The parameters of a new head; all heads start alike."""
        head = new_head(self.attack.head, self.data.n_features, self.data.n_outputs, self.attack.hidden, self.seed)
        return list(head.to(self.dtype).parameters())

    def gradients(self, stacked: Sequence[Tensor], x: Tensor, y: Tensor) -> Sequence[Tensor]:
        """Of every head's mean loss, with respect to `stacked`, for rows (B, D) and targets (B,) or (B, C)."""
        kind = self.attack.head
        if kind == "batchnorm":
            outputs = outputs_of(kind, [parameter.requires_grad_() for parameter in stacked], x)
            return torch.autograd.grad(outputs, stacked, self._slopes(outputs.detach(), y))
        *first, weight, bias = stacked  # what autograd finds, in half its time
        if kind == "linear":
            slopes = self._slopes(outputs_of(kind, stacked, x), y)
            return [(slopes.flatten(0, 1) @ x).view_as(weight), slopes.sum(dim=2)]
        hidden = hidden_of(first, x)
        slopes = self._slopes(torch.baddbmm(bias[:, :, None], weight, hidden), y)
        back = torch.bmm(weight.mT, slopes).mul_(hidden > 0)
        below = products(back.flatten(0, 1), x.T).view_as(first[0])
        return [below, back.sum(dim=2), torch.bmm(slopes, hidden.mT), slopes.sum(dim=2)]

    def _slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How the mean loss of each head grows with its outputs, both (R, C, B)."""
        heads, width, rows = outputs.shape
        if not self.data.n_classes:
            return (outputs - y.T) * (2 / (rows * width))
        log_p = outputs.log_softmax(dim=1)
        own = torch.zeros_like(log_p).scatter_(1, y.expand(heads, 1, rows), -1 / rows)
        return torch.ops.aten._log_softmax_backward_data(own, log_p, 1, log_p.dtype)  # type: ignore[no-any-return]


class _Head(Candidate):
    """A head with its looks.

    Args:
        group: of the optimizer: its parameters in the order of `new_head`, and its rate.
        length: see `Candidate`.
        last: steps of the whole run.
        meter: see `Candidate`.

    Attributes:
        looks: steps at which it is looked at, the last one among them.
    """

    def __init__(self, group: dict[str, Any], length: int | None, last: int, meter: Meter) -> None:
        super().__init__([group], group["lr"], length, meter)
        self.group = group
        self.parameters: list[nn.Parameter] = group["params"]
        self.last, self.looks = last, look_steps(last)


class Lockstep:
    """Candidates of one task.

    Args:
        task: what they share.
        rates: constant learning rates of the first candidates.
        last: steps of their whole run, on which hangs where they are looked at.
    """

    def __init__(self, task: HeadTask, rates: Sequence[float], last: int) -> None:
        self.task = task
        self._optimizer = task.attack.optimizer([self._new_group(rate) for rate in rates], lr=rates[0])
        self.candidates = [self._candidate(group, None, last) for group in self._optimizer.param_groups]

    def add_cosine(self, rate: float, length: int) -> None:
        """One more candidate, at step 0, whose rate falls to zero in so many steps."""
        self._optimizer.add_param_group(self._new_group(rate))
        self.candidates.append(self._candidate(self._optimizer.param_groups[-1], length, length))

    def _new_group(self, rate: float) -> dict[str, Any]:
        return {"params": self.task.start(), "lr": rate}

    def _candidate(self, group: dict[str, Any], length: int | None, last: int) -> _Head:
        schedule = "constant" if length is None else f"cosine over {length:,}"
        meter = Meter(self.task.data, f"lr {group['lr']:g}, {schedule}", self.task.per_step)
        return _Head(group, length, last, meter)

    def advance(self, heads: Sequence[_Head], to: int) -> None:
        """Train each up to step `to`, its own last, or until it is over; each joins at the step where it stands.

        Args:
            heads: of `candidates`; the others stay where they are.
            to: looked at as well.
        """
        walk = _Walk(self.task)
        stops = {0, to, *(head.step for head in heads), *(look for head in heads for look in head.looks)}
        for step, stop in pairwise(sorted(stop for stop in stops if stop <= to)):
            live = [head for head in heads if head.step == step < head.last and not head.meter.over]
            if live:
                walk.skip_to(step)
                self._train(walk, live, stop - step)
                self._look(walk, [head for head in live if stop == to or stop in head.looks])

    def _train(self, walk: _Walk, live: Sequence[_Head], steps: int) -> None:
        started = time.perf_counter()
        self._optimizer.param_groups = [head.group for head in live]  # an idle one costs as much as a small one
        stacked = _stacked(live)
        for _ in range(steps):
            self._update(live, self.task.gradients(stacked, *walk.next()))
        seconds = time.perf_counter() - started
        for head in live:
            head.meter.charge(head.step, seconds / len(live))

    def _update(self, live: Sequence[_Head], gradients: Sequence[Tensor]) -> None:
        for head, *own in zip(live, *gradients, strict=True):
            head.set_rates()
            for parameter, gradient in zip(head.parameters, own, strict=True):
                parameter.grad = gradient
            head.step += 1
        self._optimizer.step()

    @torch.no_grad()
    def _look(self, walk: _Walk, due: Sequence[_Head]) -> None:
        if not due:
            return
        stacked = _stacked(due)
        found = [outputs_of(self.task.attack.head, stacked, x) for x in walk.measured()]
        outputs = [np.asarray(of_set.mT.numpy(), dtype=np.float64) for of_set in found]  # (R, N, C)
        for at, head in enumerate(due):
            head.meter.note(head.step, lambda at=at: [of_set[at] for of_set in outputs])  # type: ignore[misc]


class _Walk:
    """Mini-batches from the first one on, with what heads of this kind take from the rows on the way."""

    def __init__(self, task: HeadTask) -> None:
        self.task = task
        self._batches = batches(len(task.x), task.batch, task.seed)
        self._statistics = statistics(task.attack.head, task.data.n_features).to(task.dtype)
        self._step = 0

    @torch.no_grad()
    def next(self) -> tuple[Tensor, Tensor]:
        """The next mini-batch, (B, D) and targets."""
        rows = next(self._batches)
        self._statistics.train()
        self._step += 1
        x, y = (of.index_select(0, rows) for of in (self.task.x, self.task.y))  # half the time of indexing
        return self._statistics(x), y

    def skip_to(self, step: int) -> None:
        """Pass over mini-batches up to this step, of which the statistics are taken if there are any."""
        while self._step < step:
            self.next()

    def measured(self) -> list[Tensor]:
        """The validation rows and the test rows."""
        self._statistics.eval()
        return [self._statistics(x) for x in self.task.measured]


def _stacked(heads: Sequence[_Head]) -> list[Tensor]:
    """Their parameters side by side, (R, ...), without history; from then on theirs are views of these."""
    with torch.no_grad():
        stacked = [torch.stack(alike) for alike in zip(*(head.parameters for head in heads), strict=True)]
    for head, *own in zip(heads, *stacked, strict=True):
        for parameter, view in zip(head.parameters, own, strict=True):
            parameter.data = view
    return stacked


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
    cosine: tuple[float, ...] = (0.1, 1.0)
    precision: str = "float32"
    version: ClassVar[int] = 2  # 1: no schedules behind a settled rate; 2: a hidden layer's bias sums in another order

    def __post_init__(self) -> None:
        super().__post_init__()
        check_training(self.optimizer, self.learning_rates)
        if self.head not in HEADS:
            raise UserError(f"unknown head {self.head!r}; there are {', '.join(HEADS)}")
        if self.precision not in ("float32", "float64"):
            raise UserError(f"unknown precision {self.precision!r}; there are float32 and float64")
        if self.batch_size < 2 or self.hidden < 1 or not all(0 < part <= 1 for part in self.cosine):
            raise UserError("batch_size has to be 2 or more, hidden 1 or more, cosine parts of 1")

    @property
    def scale_free(self) -> bool:
        """With scaled features."""
        return self.scaled

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Race the learning rates; the seed decides the order of the rows and the hidden layer."""
        task = HeadTask(self, data, seed)
        rates = sorted(self.learning_rates)
        weight = 1 + (len(rates) - 1) / FIRST_LAP + 2 * sum(self.cosine)
        steps = budget.affordable(task.per_step.flops, weight)
        race = Lockstep(task, rates, steps)
        lap = max(1, steps // FIRST_LAP)
        race.advance(race.candidates, lap)
        best = max(race.candidates, key=lambda head: head.best)  # of equals the smaller rate
        race.advance([best], 2 * lap)
        if best.meter.diverged or not best.meter.over:
            for rate in rates[rates.index(best.rate) :][:2]:
                for length in dict.fromkeys(max(1, round(part * steps)) for part in self.cosine):
                    race.add_cosine(rate, length)
        race.advance([best, *race.candidates[len(rates) :]], steps)
        return Outcome(tuple(head.meter.trace() for head in race.candidates))
