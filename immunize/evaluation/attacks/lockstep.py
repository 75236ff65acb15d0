"""Heads on the same rows that are trained in lockstep: every learning rate and schedule of an attack at once.

All candidates of an attack see the same mini-batches in the same order. So those that are at the same step take it
together: the rows are gathered once, one product of matrices gives the outputs of all heads, the losses are summed, and
one optimizer of PyTorch has a parameter group for each. The gradient of the sum is for each head that of its own loss,
and a head that diverges moves no other: every candidate goes the way that it would go alone, up to rounding. It has its
own schedule, looks and costs; steps, samples and FLOPs are those of a run alone. Seconds are the time that a step
of all took, in equal parts: their sum is what the attacker waited, and one candidate alone would have taken longer.

Shapes: N samples, D features, B batch, C outputs, R heads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from immunize.evaluation.attacks.curves import Cost, look_steps
from immunize.evaluation.attacks.heads import flops_per_row, new_head, outputs_of, quotient, statistics
from immunize.evaluation.attacks.logistic import feature_scale
from immunize.evaluation.attacks.protocol import Array, AttackData
from immunize.evaluation.attacks.racing import Candidate, Optimizer, batches
from immunize.evaluation.attacks.scoring import Meter, target_matrix

__all__ = ["HeadTask", "Lockstep"]


class HeadTask:
    """What all candidates share: rows as tensors, the loss, how a head begins, what a step costs.

    Args:
        data: the task.
        seed: of the order of the rows and of the hidden layer.
        head: one of `HEADS`.
        hidden: units of the hidden layer of "mlp".
        batch_size: B; all rows where there are fewer.
        scaled: divide the features by σ_1(X)/√N first.
        dtype: of rows and heads.
    """

    def __init__(
        self,
        data: AttackData,
        seed: int,
        *,
        head: str,
        hidden: int,
        batch_size: int,
        scaled: bool,
        dtype: torch.dtype,
    ) -> None:
        self.data, self.seed, self.head, self.hidden, self.dtype = data, seed, head, hidden, dtype
        scale = feature_scale(data) if scaled else 1.0
        self.x, *self.measured = (quotient(rows.x, scale, dtype) for rows in data.parts.values())
        if data.n_classes:
            self.y = torch.from_numpy(data.train.y.astype(np.int64))
        else:
            self.y = torch.from_numpy(target_matrix(data, data.train)).to(dtype)
        self.batch = min(batch_size, len(self.x))
        per_row = flops_per_row(head, data.n_features, data.n_outputs, hidden)
        self.per_step = Cost(1, 0.0, self.batch, per_row * self.batch)

    def start(self) -> list[nn.Parameter]:
        """The parameters of a new head; all heads start alike."""
        head = new_head(self.head, self.data.n_features, self.data.n_outputs, self.hidden, self.seed)
        return list(head.to(self.dtype).parameters())

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The sum of the heads' mean losses, of outputs (R, C, B) and targets (B,) or (B, C)."""
        heads, width, rows = outputs.shape
        if self.data.n_classes:
            return nn.functional.cross_entropy(outputs, y.expand(heads, -1), reduction="sum") / rows
        return nn.functional.mse_loss(outputs, y.T.expand_as(outputs), reduction="sum") / (rows * width)


class _Head(Candidate):
    """A head with its looks.

    Args:
        group: of the optimizer: its parameters in the order of `new_head`, and its rate.
        length: see `Candidate`.
        last: steps of the whole run.
        meter: see `Candidate`.
    """

    def __init__(self, group: dict[str, Any], length: int | None, last: int, meter: Meter) -> None:
        super().__init__([group], group["lr"], length, meter)
        self.group = group
        self.parameters: list[nn.Parameter] = group["params"]
        self.last, self._looks = last, look_steps(last)

    def next_look(self, limit: int) -> int:
        """The step at which it is looked at next, `limit` at the latest; none lies ahead if it is there already."""
        return next((look for look in self._looks if self.step < look < limit), min(limit, self.last))


class Lockstep:
    """Candidates of one task and one kind of optimizer.

    Args:
        task: what they share.
        optimizer: takes groups of parameters.
        rates: constant learning rates of the first candidates.
        last: steps of their whole run, on which hangs where they are looked at.
    """

    def __init__(self, task: HeadTask, optimizer: Optimizer, rates: Sequence[float], last: int) -> None:
        self.task = task
        self._optimizer = optimizer([self._new_group(rate) for rate in rates], lr=rates[0])
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
        walk, step = _Walk(self.task), 0
        while ahead := [head for head in heads if head.step < min(to, head.last) and not head.meter.over]:
            live = [head for head in ahead if head.step == step]
            joining = min((head.step for head in ahead if head.step > step), default=to)
            stop = min([joining, *(head.next_look(to) for head in live)])
            due = [head for head in live if head.next_look(to) == stop]
            self._train(walk, live, stop - step)
            step = stop
            self._look(walk, due)

    def _train(self, walk: _Walk, live: Sequence[_Head], steps: int) -> None:
        started = time.perf_counter()
        self._optimizer.param_groups = [head.group for head in live]  # an idle one costs as much as a small one
        for _ in range(steps):
            if live:
                self._update(live, *walk.next())
            else:
                walk.skip()
        seconds = time.perf_counter() - started
        for head in live:
            head.meter.charge(head.step, seconds / len(live))

    def _update(self, live: Sequence[_Head], x: Tensor, y: Tensor) -> None:
        stacked = [parameter.requires_grad_() for parameter in _stacked(live)]
        loss = self.task.loss(outputs_of(self.task.head, stacked, x), y)
        gradients = torch.autograd.grad(loss, stacked)
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
        outputs = [outputs_of(self.task.head, stacked, x) for x in walk.measured()]
        for at, head in enumerate(due):
            head.meter.note(head.step, lambda at=at: [_rows(of_set[at]) for of_set in outputs])  # type: ignore[misc]


class _Walk:
    """Mini-batches from the first one on, with what heads of this kind take from the rows on the way."""

    def __init__(self, task: HeadTask) -> None:
        self.task = task
        self._batches = batches(len(task.x), task.batch, task.seed)
        self._statistics = statistics(task.head, task.data.n_features).to(task.dtype)

    @torch.no_grad()
    def next(self) -> tuple[Tensor, Tensor]:
        """The next mini-batch, (B, D) and targets."""
        rows, x, y = next(self._batches), self.task.x, self.task.y
        self._statistics.train()
        if isinstance(rows, Tensor):
            x, y = x.index_select(0, rows), y.index_select(0, rows)  # half the time of indexing
        return self._statistics(x), y

    def skip(self) -> None:
        """Pass over the next mini-batch, of which the statistics are taken if there are any."""
        if isinstance(self._statistics, nn.Identity):
            next(self._batches)
        else:
            self.next()

    def measured(self) -> list[Tensor]:
        """The validation rows and the test rows."""
        self._statistics.eval()
        return [self._statistics(x) for x in self.task.measured]


def _stacked(heads: Sequence[_Head]) -> list[Tensor]:
    """Their parameters side by side, (R, ...), as new tensors without history."""
    with torch.no_grad():
        return [torch.stack(alike) for alike in zip(*(head.parameters for head in heads), strict=True)]


def _rows(outputs: Tensor) -> Array:
    """(C, N) to (N, C) float64."""
    return np.asarray(outputs.T.numpy(), dtype=np.float64)
