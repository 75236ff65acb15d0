"""T1: candidates in lockstep go the way that each would go alone, against a plain loop; races within the budget."""

from __future__ import annotations

import functools
import time

import pytest
import torch
from torch import Tensor, nn

from immunize.evaluation.attacks import AttackData, Budget, FirstOrder
from immunize.evaluation.attacks.curves import look_steps
from immunize.evaluation.attacks.first_order import HEADS, HeadTask, Lockstep, flops_per_row, new_head
from immunize.evaluation.attacks.scoring import target_matrix
from tests.evaluation.attacks.making import classes, regression, score

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


PLAIN = {"batch_size": BATCH, "scaled": False, "precision": "float64"}


def attack(**settings) -> FirstOrder:
    sgd = functools.partial(torch.optim.SGD, momentum=0.9)
    return FirstOrder(**({"tier": "T1", "optimizer": sgd, "learning_rates": (0.1,), "cosine": ()} | settings))


Scores = dict[int, tuple[float, ...]]
"""On validation and test rows, after each step."""


def alone(
    data: AttackData, optimizer, rate: float, steps: int, *, head="linear", cosine=None, batch: int = BATCH
) -> tuple[list[Tensor], Scores]:
    """The reference: one module of PyTorch, its optimizer and scheduler, in a loop over shuffled rows.

    Returns:
        its parameters in the end, and its scores.
    """
    module = new_head(head, data.n_features, data.n_outputs, HIDDEN, SEED).double()
    walk = optimizer(module.parameters(), lr=rate)
    scheduler = cosine and torch.optim.lr_scheduler.CosineAnnealingLR(walk, cosine)
    x = torch.from_numpy(data.train.x)
    y = torch.from_numpy(data.train.y if data.n_classes else target_matrix(data, data.train))
    loss = nn.functional.cross_entropy if data.n_classes else nn.functional.mse_loss
    generator, order, scores = torch.Generator().manual_seed(SEED), torch.empty(0, dtype=torch.int64), {}
    for step in range(1, steps + 1):
        if len(order) < batch:
            order = torch.randperm(len(x), generator=generator)
        rows, order = order[:batch], order[batch:]
        walk.zero_grad()
        loss(module.train()(x[rows]), y[rows]).backward()
        walk.step()
        if scheduler:
            scheduler.step()
        with torch.no_grad():
            outputs = [module.eval()(torch.from_numpy(of.x)).numpy() for of in (data.validation, data.test)]
        scores[step] = (score(data, data.validation, outputs[0]), score(data, data.test, outputs[1]))
    return list(module.parameters()), scores


def lockstep(data: AttackData, optimizer, rates, last: int, head: str = "linear") -> Lockstep:
    settings = attack(optimizer=optimizer, learning_rates=rates, head=head, hidden=HIDDEN, **PLAIN)
    return Lockstep(HeadTask(settings, data, SEED), rates, last)


def assert_same(candidate, parameters: list[Tensor], scores: Scores) -> None:
    for mine, reference in zip(candidate.parameters, parameters, strict=True):
        torch.testing.assert_close(mine, reference, rtol=SAME, atol=SAME * float(reference.detach().abs().max()))
    for point in candidate.meter.points:
        assert (point.validation, point.test) == pytest.approx(scores[point.cost.steps], rel=SAME)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("optimizer", "head"), [*((name, "linear") for name in OPTIMIZERS), *(("adam", head) for head in HEADS[1:])]
)
def test_lockstep_is_the_plain_loop_of_every_optimizer_and_head(optimizer: str, head: str, task: str) -> None:
    data, make, rates = TASKS[task], OPTIMIZERS[optimizer], (0.003, 0.02, 0.1)
    race = lockstep(data, make, rates, 50, head)
    race.advance(race.candidates, 5)
    race.add_cosine(0.02, 4)  # over before the constant one joins
    race.add_cosine(0.1, 50)
    race.advance([race.candidates[1], *race.candidates[3:]], 50)
    ways = [(0.003, 5, None), (0.02, 50, None), (0.1, 5, None), (0.02, 4, 4), (0.1, 50, 50)]
    for candidate, (rate, steps, cosine) in zip(race.candidates, ways, strict=True):
        assert candidate.step == steps
        assert_same(candidate, *alone(data, make, rate, steps, head=head, cosine=cosine))


@pytest.mark.parametrize("head", HEADS)
def test_diverging_candidate_leaves_and_moves_no_other(head: str) -> None:
    data, make = TASKS["regression"], OPTIMIZERS["sgd"]
    race = lockstep(data, make, (0.01, 1e12, 0.02), 60, head)
    race.advance(race.candidates, 60)
    wild = race.candidates[1]
    assert [candidate.meter.diverged for candidate in race.candidates] == [False, True, False]
    assert not all(bool(parameter.isfinite().all()) for parameter in wild.parameters)
    assert wild.step < 60
    by_itself = lockstep(data, make, (1e12,), 60, head)
    by_itself.advance(by_itself.candidates, 60)
    (expected,) = by_itself.candidates
    assert (wild.step, wild.meter.cost.samples) == (expected.step, expected.meter.cost.samples)
    for rate, candidate in ((0.01, race.candidates[0]), (0.02, race.candidates[2])):
        assert_same(candidate, *alone(data, make, rate, 60, head=head))


def test_the_race_is_the_one_that_every_candidate_ran_alone() -> None:
    """Ranks, looks, steps, samples and FLOPs; regression, whose scores are continuous."""
    data, make, rates, steps = TASKS["regression"], OPTIMIZERS["adam"], (0.001, 0.01, 0.05, 0.3), 80
    whole = attack(optimizer=make, learning_rates=rates, cosine=(0.1, 1.0), **PLAIN)
    traces = whole.run(data, Budget(steps), SEED).traces
    laps = {rate: alone(data, make, rate, steps)[1] for rate in rates}
    first = look_steps(8)
    winner = max(rates, key=lambda rate: max(laps[rate][step][0] for step in first))
    neighbour = rates[rates.index(winner) + 1]
    expected = {f"lr {rate:g}, constant": (laps[rate], steps if rate == winner else 8, steps) for rate in rates}
    for rate in (winner, neighbour):
        for length in (8, 80):
            _, scores = alone(data, make, rate, length, cosine=length)
            expected[f"lr {rate:g}, cosine over {length}"] = (scores, length, length)
    assert [trace.label for trace in traces] == list(expected)
    for trace, (scores, last, whole) in zip(traces, expected.values(), strict=True):
        looks = {look for look in look_steps(whole) if look <= last} | {8, last}
        assert [point.cost.steps for point in trace.points] == sorted(look for look in looks if look <= last)
        assert trace.spent.steps == last
        assert trace.spent.samples == last * BATCH
        assert trace.spent.flops == last * BATCH * flops_per_row("linear", 8, 1, 0)
        for point in trace.points:
            assert (point.validation, point.test) == pytest.approx(scores[point.cost.steps], rel=SAME)


def test_seconds_are_shared_and_no_more_than_passed() -> None:
    started = time.perf_counter()
    race = lockstep(TASKS["multiclass"], OPTIMIZERS["sgd"], (0.01, 0.1), 30)
    race.advance(race.candidates, 30)
    passed = time.perf_counter() - started
    spent = [candidate.meter.cost.seconds for candidate in race.candidates]
    assert spent[0] == spent[1] > 0
    assert sum(spent) < passed


def test_full_batch_training_is_a_plain_loop() -> None:
    data, whole = TASKS["multiclass"], attack(**PLAIN | {"batch_size": 10_000})
    (trace,) = whole.run(data, Budget(40), SEED).traces
    _, expected = alone(data, whole.optimizer, 0.1, 40, batch=len(data.train))
    assert {p.cost.steps: (p.validation, p.test) for p in trace.points}.items() <= expected.items()
    assert trace.points[-1].cost.steps == 40


def test_flops_of_the_whole_race_stay_within_the_budget() -> None:
    budget = Budget(10_000, 2e7)
    outcome = attack(learning_rates=(0.01, 0.1, 1.0), cosine=(0.1, 1.0)).run(TASKS["multiclass"], budget, 0)
    spent = sum(trace.spent.flops for trace in outcome.traces)
    assert 0.6 * budget.flops < spent <= 1.05 * budget.flops
    assert outcome.traces[0].spent.flops == outcome.traces[0].spent.steps * 70 * flops_per_row("linear", 8, 4, 1)
