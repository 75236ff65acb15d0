"""T1: candidates in lockstep go the way that each would go alone, against a plain loop; races within the budget."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from immunize.evaluation.attacks import AttackData, Budget, FirstOrder
from immunize.evaluation.attacks.curves import look_steps
from immunize.evaluation.attacks.first_order import HEADS, HeadTask, Lockstep, batches, flops_per_row, new_head
from immunize.evaluation.attacks.scoring import score, target_matrix
from tests.evaluation.attacks.making import classes, regression

SIZES = (70, 40, 50)
BATCH, HIDDEN, SEED = 16, 5, 3
SAME = 1e-9
"""Relative; a few hundred steps of float64, where other orders of summation are allowed."""

OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True, fused=True),
    "adam": functools.partial(torch.optim.Adam, fused=True),
    "adamw": functools.partial(torch.optim.AdamW, weight_decay=0.1),
}
TASKS = {
    "binary": classes(n_classes=2, sizes=SIZES),
    "multiclass": classes(sizes=SIZES),
    "regression": regression(sizes=SIZES),
}


class Alone:
    """The reference: one module of PyTorch, its optimizer and scheduler, and a loop over shuffled rows."""

    def __init__(
        self, data: AttackData, optimizer, rate: float, *, head="linear", cosine: int | None = None, batch: int = BATCH
    ) -> None:
        self.data, self.batch = data, batch
        self.module = new_head(head, data.n_features, data.n_outputs, HIDDEN, SEED).double()
        self.optimizer = optimizer(self.module.parameters(), lr=rate)
        self.scheduler = cosine and torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, cosine)
        self.x = torch.from_numpy(data.train.x)
        self.y = torch.from_numpy(data.train.y if data.n_classes else target_matrix(data, data.train))
        self.scores: dict[int, tuple[float, float]] = {}

    def walk(self, steps: int) -> Alone:
        generator, order = torch.Generator().manual_seed(SEED), torch.empty(0, dtype=torch.int64)
        for step in range(1, steps + 1):
            if len(order) < self.batch:
                order = torch.randperm(len(self.x), generator=generator)
            rows, order = order[: self.batch], order[self.batch :]
            self.module.train()
            outputs = self.module(self.x[rows])
            of = nn.functional.cross_entropy if self.data.n_classes else nn.functional.mse_loss
            self.optimizer.zero_grad()
            of(outputs, self.y[rows]).backward()
            self.optimizer.step()
            if self.scheduler:
                self.scheduler.step()
            self.module.eval()
            self.scores[step] = tuple(score(self.data, s, self.outputs(s.x)) for s in self.measured)  # type: ignore
        return self

    @property
    def measured(self):
        return self.data.validation, self.data.test

    @torch.no_grad()
    def outputs(self, x: np.ndarray) -> np.ndarray:
        return self.module(torch.from_numpy(x)).numpy()

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.module.parameters())


def lockstep(data: AttackData, optimizer, rates, last: int, head: str = "linear") -> Lockstep:
    task = HeadTask(data, SEED, head=head, hidden=HIDDEN, batch_size=BATCH, scaled=False, dtype=torch.float64)
    return Lockstep(task, optimizer, rates, last)


def assert_same(candidate, alone: Alone) -> None:
    for mine, reference in zip(candidate.parameters, alone.parameters, strict=True):
        torch.testing.assert_close(mine, reference, rtol=SAME, atol=SAME * float(reference.detach().abs().max()))
    for point in candidate.meter.points:
        expected = alone.scores[point.cost.steps]
        assert (point.validation, point.test) == pytest.approx(expected, rel=SAME)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_lockstep_is_the_plain_loop(optimizer: str, task: str) -> None:
    data, make, rates = TASKS[task], OPTIMIZERS[optimizer], (0.003, 0.02, 0.1)
    race = lockstep(data, make, rates, 50)
    race.advance(race.candidates, 5)
    race.add_cosine(0.02, 4)  # over before the constant one joins
    race.add_cosine(0.1, 50)
    race.advance([race.candidates[1], *race.candidates[3:]], 50)
    ways = [(0.003, 5, None), (0.02, 50, None), (0.1, 5, None), (0.02, 4, 4), (0.1, 50, 50)]
    assert len(race.candidates) == len(ways)
    for candidate, (rate, steps, cosine) in zip(race.candidates, ways, strict=True):
        assert candidate.step == steps
        assert_same(candidate, Alone(data, make, rate, cosine=cosine).walk(steps))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("head", HEADS)
def test_every_kind_of_head_is_its_module(head: str, task: str) -> None:
    data, make = TASKS[task], OPTIMIZERS["adam"]
    race = lockstep(data, make, (0.01, 0.1), 30, head)
    race.advance(race.candidates, 6)
    race.advance(race.candidates[1:], 30)  # joins a walk from the first mini-batch at its seventh
    assert_same(race.candidates[0], Alone(data, make, 0.01, head=head).walk(6))
    assert_same(race.candidates[1], Alone(data, make, 0.1, head=head).walk(30))


@pytest.mark.parametrize("head", HEADS)
def test_diverging_candidate_leaves_and_moves_no_other(head: str) -> None:
    data, make = TASKS["regression"], OPTIMIZERS["sgd"]
    race = lockstep(data, make, (0.01, 1e12, 0.02), 200, head)
    race.advance(race.candidates, 200)
    wild = race.candidates[1]
    assert [candidate.meter.diverged for candidate in race.candidates] == [False, True, False]
    assert not all(bool(parameter.isfinite().all()) for parameter in wild.parameters)
    assert wild.step < 200
    alone = lockstep(data, make, (1e12,), 200, head)
    alone.advance(alone.candidates, 200)
    assert (wild.step, wild.meter.cost.samples) == (alone.candidates[0].step, alone.candidates[0].meter.cost.samples)
    for rate, candidate in ((0.01, race.candidates[0]), (0.02, race.candidates[2])):
        assert_same(candidate, Alone(data, make, rate, head=head).walk(200))


def test_the_race_is_the_one_that_every_candidate_ran_alone() -> None:
    """Ranks, looks, steps, samples and FLOPs; regression, whose scores are continuous."""
    data, make, rates, steps = TASKS["regression"], OPTIMIZERS["adam"], (0.001, 0.01, 0.05, 0.3), 80
    attack = FirstOrder(
        tier="T1", optimizer=make, learning_rates=rates, batch_size=BATCH, scaled=False, precision="float64"
    )
    traces = attack.run(data, Budget(steps), SEED).traces
    laps = {rate: Alone(data, make, rate).walk(steps) for rate in rates}
    first = look_steps(8)
    winner = max(rates, key=lambda rate: max(laps[rate].scores[step][0] for step in first))
    neighbour = rates[rates.index(winner) + 1]
    expected = {f"lr {rate:g}, constant": (laps[rate], steps if rate == winner else 8, steps) for rate in rates}
    for rate in (winner, neighbour):
        for length in (8, 80):
            alone = Alone(data, make, rate, cosine=length).walk(length)
            expected[f"lr {rate:g}, cosine over {length}"] = (alone, length, length)
    assert [trace.label for trace in traces] == list(expected)
    for trace, (alone, last, whole) in zip(traces, expected.values(), strict=True):
        looks = {look for look in look_steps(whole) if look <= last} | {8, last}
        assert [point.cost.steps for point in trace.points] == sorted(look for look in looks if look <= last)
        assert trace.spent.steps == last
        assert trace.spent.samples == last * BATCH
        assert trace.spent.flops == last * BATCH * flops_per_row("linear", 8, 1, 0)
        for point in trace.points:
            assert (point.validation, point.test) == pytest.approx(alone.scores[point.cost.steps], rel=SAME)


def test_several_that_are_kept_are_all_run_to_the_end_before_the_cosine_schedules() -> None:
    attack = FirstOrder(
        tier="T1", optimizer=OPTIMIZERS["adam"], learning_rates=(0.001, 0.01, 0.1), keep=2, cosine=(1.0,)
    )
    traces = attack.run(TASKS["multiclass"], Budget(40), SEED).traces
    constant = {t.label: t for t in traces if "constant" in t.label}
    assert sorted(t.spent.steps for t in constant.values()) == [4, 40, 40]
    whole = [t for t in constant.values() if t.spent.steps == 40]
    winner = max(whole, key=lambda t: max(p.validation for p in t.points)).label.split(",")[0]
    assert next(t.label for t in traces if "cosine" in t.label) == f"{winner}, cosine over 40"


def test_seconds_are_shared_and_no_more_than_passed() -> None:
    started = time.perf_counter()
    race = lockstep(TASKS["multiclass"], OPTIMIZERS["sgd"], (0.01, 0.1), 30)
    race.advance(race.candidates, 30)
    passed = time.perf_counter() - started
    spent = [candidate.meter.cost.seconds for candidate in race.candidates]
    assert spent[0] == spent[1] > 0
    assert sum(spent) < passed
    times = [point.cost.seconds for point in race.candidates[0].meter.points]
    assert times == sorted(times)


def attack(**settings) -> FirstOrder:
    sgd = functools.partial(torch.optim.SGD, momentum=0.9)
    return FirstOrder(**({"tier": "T1", "optimizer": sgd, "learning_rates": (0.1,), "cosine": ()} | settings))


def test_full_batch_training_is_a_plain_loop() -> None:
    data, whole = TASKS["multiclass"], attack(scaled=False, precision="float64", batch_size=10_000)
    (trace,) = whole.run(data, Budget(40), SEED).traces
    expected = Alone(data, whole.optimizer, 0.1, batch=len(data.train)).walk(40).scores
    assert {p.cost.steps: (p.validation, p.test) for p in trace.points}.items() <= expected.items()
    assert trace.points[-1].cost.steps == 40


def test_flops_of_the_whole_race_stay_within_the_budget() -> None:
    budget = Budget(10_000, 2e7)
    outcome = attack(learning_rates=(0.01, 0.1, 1.0), cosine=(0.1, 1.0)).run(TASKS["multiclass"], budget, 0)
    spent = sum(trace.spent.flops for trace in outcome.traces)
    assert 0.6 * budget.flops < spent <= 1.05 * budget.flops
    assert outcome.traces[0].spent.flops == outcome.traces[0].spent.steps * 70 * flops_per_row("linear", 8, 4, 1)


def test_mini_batches_cover_all_rows_in_each_pass() -> None:
    drawn = batches(10, 3, 0)
    for _ in range(4):
        seen = np.concatenate([np.asarray(next(drawn)) for _ in range(3)])
        assert len(set(seen.tolist())) == 9
