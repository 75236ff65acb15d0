"""T1 and the trained heads: the same numbers as a plain training loop, races within the budget, reproducible."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from immunize.errors import UserError
from immunize.evaluation.attacks import AttackData, Budget, FirstOrder
from immunize.evaluation.attacks.heads import flops_per_row, new_head
from tests.evaluation.attacks.making import classes, regression

SGD = functools.partial(torch.optim.SGD, momentum=0.9)
SMALL = (60, 40, 50)


def attack(**settings) -> FirstOrder:
    return FirstOrder(**({"tier": "T1", "optimizer": SGD, "learning_rates": (0.1,), "cosine": ()} | settings))


def untimed(outcome) -> list:
    return [
        (t.label, t.status, [(p.cost.steps, p.validation, p.test) for p in t.points], t.spent.steps)
        for t in outcome.traces
    ]


def test_full_batch_training_is_a_plain_loop() -> None:
    data = classes(sizes=SMALL)
    (trace,) = attack(scaled=False, precision="float64").run(data, Budget(40), 0).traces
    head = new_head("linear", 8, 4, 1, 0).double()
    optimizer = SGD(head.parameters(), lr=0.1)
    x, y = torch.from_numpy(data.train.x), torch.from_numpy(data.train.y)
    expected = {}
    for step in range(1, 41):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head(x), y).backward()
        optimizer.step()
        outputs = head(torch.from_numpy(data.test.x)).detach().numpy()
        expected[step] = float((outputs.argmax(1) == data.test.y).mean())
    assert {point.cost.steps: point.test for point in trace.points}.items() <= expected.items()
    assert trace.points[-1].cost.steps == 40


@pytest.mark.parametrize("data", [classes(sizes=SMALL), regression(sizes=SMALL)])
@pytest.mark.parametrize("head", ["linear", "batchnorm", "mlp"])
def test_every_head_learns_and_repeats_itself(data: AttackData, head: str) -> None:
    one = attack(head=head, hidden=16, batch_size=20, cosine=(1.0,))
    first, again, other = (one.run(data, Budget(60), seed) for seed in (0, 0, 1))
    assert untimed(first) == untimed(again)
    assert untimed(first) != untimed(other)
    assert max(p.test for t in first.traces for p in t.points) > 0.7


def test_flops_of_the_whole_race_stay_within_the_budget() -> None:
    data = classes(sizes=SMALL)
    budget = Budget(10_000, 2e7)
    outcome = attack(learning_rates=(0.01, 0.1, 1.0), cosine=(0.1, 1.0)).run(data, budget, 0)
    spent = sum(trace.spent.flops for trace in outcome.traces)
    assert 0.6 * budget.flops < spent <= 1.05 * budget.flops
    assert outcome.traces[0].spent.flops == outcome.traces[0].spent.steps * 60 * flops_per_row("linear", 8, 4, 1)


def test_mini_batches_cover_all_rows_in_each_pass() -> None:
    from immunize.evaluation.attacks.racing import batches

    drawn = batches(10, 3, 0)
    for _ in range(4):
        seen = np.concatenate([np.asarray(next(drawn)) for _ in range(3)])
        assert len(set(seen.tolist())) == 9


@pytest.mark.parametrize(
    "settings",
    [{"head": "cnn"}, {"precision": "float16"}, {"learning_rates": ()}, {"cosine": (2.0,)}, {"batch_size": 1}],
)
def test_bad_settings_are_refused(settings: dict) -> None:
    with pytest.raises(UserError):
        attack(**settings)
