"""T4: weights that move. Each attack moves its own, and learns what the features have lost."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections import OrderedDict
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from immunize.errors import DataError, UserError
from immunize.evaluation.attacks import AttackData, Budget, FullFinetune, LastBlock, Lora, Ridge, Rows, fine_tuning
from immunize.evaluation.attacks.curves import best_so_far
from immunize.evaluation.attacks.grid import Entry, attack_all
from immunize.evaluation.attacks.least_squares import probed_head
from immunize.evaluation.attacks.network import Inputs, Network
from immunize.features.append import Released
from immunize.features.deep import DeepExtractor
from immunize.instantiate import build
from tests.evaluation.attacks.making import Memory

N, C = 120, 2
SMALL: dict[str, Any] = {"tier": "T4", "optimizer": functools.partial(torch.optim.SGD, momentum=0.9)}
SMALL |= {"learning_rates": (0.03, 0.3), "head_multiplier": 1.0, "steps": 100, "batch_size": 16, "measured": 50}
FROZEN = SMALL | {"learning_rates": (1e-9,), "head_multiplier": 1e8}
"""Rates so small that the head alone learns."""
ATTACKS = {
    "last_block": LastBlock(**SMALL),
    "lora": Lora(ranks=(1, 4), alpha=2.0, **SMALL),
    "all": FullFinetune(**SMALL),
}


class Whole(Released):
    """For a network that is not timm's: the body alone, without a layer in the place of its head."""

    def whole(self) -> nn.Module:
        return copy.deepcopy(self.net.network.backbone).requires_grad_(True).eval()


@functools.cache
def images() -> tuple[torch.Tensor, np.ndarray]:
    x = torch.randn(N, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    return x, (x.flatten(1)[:, 0] > 0).numpy().astype(np.int64)


@functools.cache
def released() -> Whole:
    """Its second block throws away what the task needs, and can learn not to."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh())
    last = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh())
    stem = nn.Sequential(OrderedDict(first=first, last=last))
    with torch.no_grad():
        stem.first[1].weight[:] = 0.5 * torch.eye(8, 12)
        stem.last[0].weight[:, :] = 0
        stem.last[0].weight[:, 7] = 1.0  # one direction survives
    return Whole(DeepExtractor.from_module(stem, nn.Linear(6, C), ["last"], example=torch.randn(2, 3, 2, 2)))


def task() -> AttackData:
    """The images through the network: the first half to learn from, a quarter each to choose and to be measured by."""
    (x, y), net = images(), released()
    of_images = Inputs(lambda numbers: x[torch.from_numpy(numbers)], N)
    parts = np.split(np.arange(N), [N // 2, N * 3 // 4])
    with torch.no_grad():
        features = net.net(x).double().numpy()
    network = Network(
        net.whole, net.tail, net.net.trunk, of_images, of_images.through(net.net.trunk), *parts, key=net.key
    )
    return AttackData(*(Rows(features[part], y[part]) for part in parts), C, network=network)


def behind(**changes: Any) -> AttackData:
    """The task behind another network."""
    data = task()
    return dataclasses.replace(data, network=dataclasses.replace(data.network, **changes))


@functools.cache
def frozen_probe() -> float:
    """What the head learns alone."""
    frozen = Lora(ranks=(1,), **FROZEN).run(task(), Budget(100), 0)
    return max(point.test for trace in frozen.traces for point in trace.points)


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_learns_what_the_features_lost_and_leaves_the_network_alone(name: str) -> None:
    data, before = task(), released().key
    outcome = ATTACKS[name].run(data, Budget(100), 0)
    assert outcome.status == "finished"
    best = max((point for trace in outcome.traces for point in trace.points), key=lambda point: point.validation)
    assert best.test >= 0.85 > frozen_probe()
    assert released().key == before
    assert all(trace.spent.flops > 0 and trace.spent.samples > 0 for trace in outcome.traces)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(FullFinetune):
    """In a module that does not import the types of its fields."""


@pytest.mark.parametrize(
    ("name", "value", "kind"), [("steps", "ten", "a whole"), ("learning_rates", 0.1, "a list, and")]
)
def test_numbers_of_an_attack_of_ones_own_are_checked_as_those_of_ours(name: str, value: Any, kind: str) -> None:
    with pytest.raises(UserError, match=f"{name} has to be {kind}"):
        build({"_target_": f"{__name__}.Own", **SMALL, "learning_rates": [0.1], name: value})


def moved(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], set[str]]:
    """Names of what one step changed: parameters, and buffers."""
    made: list[tuple[nn.Module, dict[str, torch.Tensor]]] = []
    attack, module = ATTACKS[name], type(ATTACKS[name]).module

    def watched(self: Any, *arguments: Any) -> nn.Module:
        network = module(self, *arguments)
        made.append((network, {key: value.clone() for key, value in network.state_dict().items()}))
        return network

    monkeypatch.setattr(type(attack), "module", watched)
    attack.run(task(), Budget(6), 0)
    network, start = made[-1]
    changed = {key for key, value in network.state_dict().items() if not torch.equal(value, start[key])}
    buffers = {key for key, _ in network.named_buffers()}
    return changed - buffers, changed & buffers


def test_each_attack_moves_its_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, buffers = moved("last_block", monkeypatch)
    assert {"last" in key for key in parameters} == {True}
    assert any("running_mean" in key for key in buffers)
    parameters, buffers = moved("all", monkeypatch)
    assert {"first.1.weight", "last.0.weight"} <= parameters
    parameters, buffers = moved("lora", monkeypatch)
    assert {key.rpartition(".")[2] for key in parameters} == {"a", "b"}
    assert {key.rpartition(".")[0] for key in parameters} == {"first.1", "last.0"}
    assert not buffers


def test_the_modules_that_move_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same part by name is the same attack to the digit; a deeper one moves more; what is not there is named."""
    attack = ATTACKS["last_block"]
    same, deeper, absent = (
        dataclasses.replace(attack, modules=of) for of in (("last",), ("first.1.bias", "last"), ("layer4",))
    )
    assert scores(attack) == scores(same)
    monkeypatch.setitem(ATTACKS, "deeper", deeper)
    parameters, _ = moved("deeper", monkeypatch)
    assert any("first" in key for key in parameters)
    assert any("last" in key for key in parameters)
    with pytest.raises(UserError, match="modules: 'layer4' matches nothing"):
        absent.run(task(), Budget(5), 0)
    with pytest.raises(UserError, match="nothing comes before"):
        dataclasses.replace(attack, modules=("*",)).run(task(), Budget(5), 0)


def steps_of(attack: Any, steps: int = 40, flops: float = math.inf) -> list[int]:
    return [trace.spent.steps for trace in attack.run(task(), Budget(steps, flops), 0).traces]


def test_budget_in_steps_and_in_flops_is_kept() -> None:
    attack = ATTACKS["lora"]
    assert steps_of(attack, 10) == [10] * 3  # two rates, neither judged by its first steps, then the other rank
    spent = sum(trace.spent.flops for trace in attack.run(task(), Budget(40), 0).traces)
    less = attack.run(task(), Budget(40, spent / 2), 0).traces
    assert 0 < sum(trace.spent.flops for trace in less) <= spent / 2
    own = dataclasses.replace(attack, flops=spent / 2)
    assert steps_of(own, flops=1.0) == [trace.spent.steps for trace in less]


def test_rates_are_tried_over_fewer_steps_and_the_best_runs_to_the_end() -> None:
    attack = dataclasses.replace(ATTACKS["lora"], tuning_steps=10, measured=50)
    traces = attack.run(task(), Budget(40), 0).traces
    assert [trace.spent.steps for trace in traces] == [10, 10, 40, 40]
    tried = {trace.label.split(", ")[1]: max(point.validation for point in trace.points) for trace in traces[:2]}
    assert {trace.label.split(", ")[1] for trace in traces[2:]} == {max(tried, key=tried.__getitem__)}
    flops = traces[0].spent.flops / 10  # of a step
    assert steps_of(attack, flops=73 * flops) == [10, 10, 26, 26]
    assert steps_of(attack, flops=25 * flops) == [8, 8, 8]  # there is no more left than for the rates
    alone, whole = dataclasses.replace(attack, tuning_steps=100), dataclasses.replace(attack, tuning_steps=None)
    assert steps_of(alone) == steps_of(whole) == [40, 40, 40]


def test_training_ends_where_no_later_look_could_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    attack = dataclasses.replace(ATTACKS["all"], learning_rates=(1e-3, 0.03, 0.3), measured=3)

    def found() -> tuple[Any, list[int]]:
        traces = attack.run(task(), Budget(100), 0).traces
        points = best_so_far([(trace.label, trace.points) for trace in traces]).points
        return [(p.cost.steps, p.validation, p.test) for p in points], [trace.spent.steps for trace in traces]

    curve, spent = found()
    assert curve[-1][1] == 1.0
    assert spent[0] == 100 > spent[1] > spent[2] == curve[-1][0]
    cell = attack_all(task(), [Entry("all", attack, {})], Budget(100), 0)["all"]
    assert [candidate["steps"] for candidate in cell["candidates"]] == [100, 100, 100]
    monkeypatch.setattr(fine_tuning, "PERFECT", 2.0)
    assert found() == (curve, [100, 100, 100])


def test_augmentation_changes_training_images_alone_and_by_the_seed() -> None:
    x = torch.rand(32, 3, 8, 6, generator=torch.Generator().manual_seed(0))
    plain = FullFinetune(**SMALL)
    assert plain.augmented(x) is x
    mirrored = dataclasses.replace(plain, flip=True).augmented(x)
    as_it_was, turned = ((mirrored == of).flatten(1).all(1) for of in (x, x.flip(-1)))
    assert bool((as_it_was ^ turned).all())
    assert 0 < int(turned.sum()) < len(x)
    still = FullFinetune(**STILL)
    moved = dataclasses.replace(still, shift=0.5)  # nothing is learned, so that images of measuring alone could matter
    assert scores(moved) == scores(still)
    shifted = dataclasses.replace(plain, shift=0.5)
    assert scores(plain) != scores(shifted) == scores(shifted) != scores(shifted, seed=1)
    with pytest.raises(UserError, match="a side of 6 pixels"):
        dataclasses.replace(plain, shift=0.15).augmented(x)


@pytest.mark.parametrize(("shift", "sides", "pixels"), [(0.125, (32, 16), (4, 2)), (0.29, (50, 100), (14, 29))])
def test_augmentation_is_that_of_torchvision(shift: float, sides: tuple[int, int], pixels: tuple[int, int]) -> None:
    from torchvision.transforms import v2

    x = torch.arange(2.0 * sides[0] * sides[1]).reshape(2, 1, *sides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = v2.RandomCrop(sides, padding=[pixels[1], pixels[0]])(x[0])  # left and right, top and bottom
        torch.manual_seed(3)
        assert torch.equal(FullFinetune(**SMALL | {"shift": shift}).augmented(x)[0], expected)


def test_what_dropout_leaves_out_is_the_seeds_and_no_draw_of_before() -> None:
    tail = released().tail
    with_dropout = behind(tail=lambda: nn.Sequential(nn.Dropout(0.5), tail()))
    attack = dataclasses.replace(ATTACKS["last_block"], batch_statistics=True)
    found = []
    for seed in (0, 0, 1):
        torch.rand(7)
        state = torch.get_rng_state()
        traces = attack.run(with_dropout, Budget(100), seed).traces
        found.append([[point.validation for point in trace.points] for trace in traces])
        assert torch.equal(torch.get_rng_state(), state)
    assert found[0] == found[1] != found[2]


def scores(attack: fine_tuning.FineTuning, seed: int = 0) -> list[tuple[float, float]]:
    return [(p.validation, p.test) for trace in attack.run(task(), Budget(20), seed).traces for p in trace.points]


def test_trunk_is_paid_for_once_and_is_no_step() -> None:
    points = ATTACKS["last_block"].run(task(), Budget(10), 0).traces[0].points
    assert points[0].cost.samples == 60 + 16 * points[0].cost.steps


PARTS = ("train", "validation", "test")
PROBE = Ridge(tier="T2", penalties=(1.0, 1e-2, 1e-4))
STILL = SMALL | {"learning_rates": (1e-9,), "batch_statistics": False, "measured": N, "probe": PROBE}
"""Rates so small that nothing moves."""


@pytest.mark.parametrize("kind", [LastBlock, FullFinetune])
def test_fine_tuning_starts_from_the_probe_and_pays_for_it(kind: type[FullFinetune]) -> None:
    data = task()
    probe = best_so_far([(trace.label, trace.points) for trace in PROBE.run(data, Budget(1), 0).traces]).best
    assert probe.test > np.bincount(data.test.y).max() / len(data.test)
    untouched, trained, *_ = kind(**STILL).run(data, Budget(5), 0).traces
    (start,), first = untouched.points, trained.points[0]
    for point, steps in ((start, 0), (first, 1)):
        assert (point.validation, point.test) == (probe.validation, probe.test)
        assert point.cost.steps == probe.cost.steps + steps
        assert point.cost.flops >= probe.cost.flops  # the trunk's are added
    at_zero = kind(**STILL | {"probe": None}).run(data, Budget(5), 0).traces[0].points[0]
    assert at_zero.cost.flops == pytest.approx(first.cost.flops - probe.cost.flops, rel=1e-6)


def test_the_probe_becomes_logits_of_its_own_classes() -> None:
    data = task()
    head, _ = probed_head(data, PROBE, scale := 3.0)
    weight, bias, _ = PROBE.fitted(data)
    outputs = torch.from_numpy(data.validation.x @ weight + bias)
    with torch.no_grad():
        logits = head.double()(torch.from_numpy(data.validation.x / scale))
    sharp = logits / outputs
    torch.testing.assert_close(sharp, torch.full_like(sharp, float(sharp.median())), rtol=1e-4, atol=0)
    labels = torch.from_numpy(data.validation.y)
    loss = [float(nn.functional.cross_entropy(times * logits, labels)) for times in (0.5, 1.0, 2.0)]
    assert min(loss) == loss[1]


def test_features_that_are_all_the_same_are_attacked_like_others() -> None:
    """A defence may do that to the few images that an attacker has."""
    data = task()
    rows = {part: dataclasses.replace(getattr(data, part), x=np.zeros_like(getattr(data, part).x)) for part in PARTS}
    constant = dataclasses.replace(data, **rows)
    weight, bias, _ = PROBE.fitted(constant)
    assert not weight.any()
    np.testing.assert_allclose(bias, np.bincount(data.train.y) / len(data.train) - 1 / C)
    outcome = FullFinetune(**SMALL | {"probe": PROBE}).run(constant, Budget(2), 0)
    assert outcome.status == "finished"
    assert all(trace.points for trace in outcome.traces)


def test_rate_that_diverges_is_reported_and_does_not_win() -> None:
    wild = FullFinetune(**SMALL | {"learning_rates": (0.1, 1e30), "batch_statistics": False})
    outcome = wild.run(task(), Budget(100), 0)
    assert (outcome.status, [trace.status for trace in outcome.traces]) == ("finished", ["finished", "diverged"])
    assert dataclasses.replace(wild, learning_rates=(1e30,)).run(task(), Budget(100), 0).status == "diverged"


def test_multiple_of_the_features_changes_nothing_but_rounding() -> None:
    class Times(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1024 * x

    whole = nn.Sequential(released().whole(), Times())
    scaled = behind(whole=lambda: copy.deepcopy(whole), key="scaled")
    times = {part: Rows(1024 * rows.x, rows.y) for part, rows in scaled.parts.items()}
    still = dataclasses.replace(ATTACKS["lora"], learning_rates=FROZEN["learning_rates"], head_multiplier=1e8)
    traces = [still.run(of, Budget(20), 0).traces for of in (task(), dataclasses.replace(scaled, **times))]
    plain, mapped = ([p.validation for trace in of for p in trace.points] for of in traces)
    assert plain == mapped


def test_weights_and_images_are_part_of_the_key() -> None:
    store, entry = Memory(), Entry("all", FullFinetune(**SMALL | {"steps": 2}), {})
    for data, number in ((task(), 1), (task(), 1), (behind(key="other weights"), 2)):
        attack_all(data, [entry], Budget(2), 0, store=store)
        assert len(store) == number
    with pytest.raises(DataError, match="59 train images"):
        behind(train=np.arange(59))


def test_images_that_are_too_many_for_the_memory_are_computed_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = images()
    source = Mock(side_effect=lambda numbers: x[torch.from_numpy(numbers)])
    kept = Inputs(source, N)
    for _ in range(2):
        assert torch.equal(kept.at(np.array([3, 1])), x[[3, 1]])
    monkeypatch.setattr("immunize.evaluation.attacks.network.IN_MEMORY", 100)
    assert torch.equal(Inputs(source, N).at(np.array([3, 1])), x[[3, 1]])
    assert [len(asked.args[0]) for asked in source.call_args_list] == [1, N, 1, 2]


def test_a_share_is_drawn_once_with_two_classes_and_the_same_for_everybody() -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    y = (np.arange(200) == 7).astype(np.int64)
    rows = Rows(x, y)
    data, other = (AttackData(Rows(factor * x, y), rows, rows, 2) for factor in (1, 2))
    some, same = fine_tuning.with_share(data, 0.1, seed=3), fine_tuning.with_share(other, 0.1, seed=3)
    assert len(some.train) in (20, 21)
    np.testing.assert_array_equal(2 * some.train.x, same.train.x)
    assert set(some.train.y) == {0, 1}
    assert len(fine_tuning.with_share(data, 1e-6, seed=3).train) == 2
    assert fine_tuning.with_share(data, 1.0, seed=3) is data
    assert not np.array_equal(fine_tuning.with_share(data, 0.1, seed=4).train.x, some.train.x)
