"""`method=contract`: its terms are their formulas, and without steps it is `censor`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from torch.nn import functional

from immunize.config import config_dir
from immunize.objective.attacker import attack
from immunize.objective.censor import Censor
from immunize.objective.contract import Contract
from immunize.objective.deep import DeepStep
from immunize.pipeline.assemble import method_named
from tests.composing import compose_config
from tests.objective.tiny import CLASSES, D, network, step_of

K, RATE, ETA, FACTOR = 3, 0.05, 0.3, 0.25
OF_STEPS = {"attack_learning_rate", "attack_optimizer", "attack_batch_size", "head_multiplier", "second_order"}
OF_TERMS = {"factor", "first_gain", "descent_rate"}
OF_CENSOR = {"answers": 0.0, "kernels": ["linear"]}


def made(**options: Any) -> Contract:
    small = {"attack_steps": K, "attack_learning_rate": RATE, "attack_batch_size": 8, "descent_rate": ETA}
    objective = Contract(**OF_CENSOR | small | {"factor": FACTOR, "first_gain": 1e-4} | options)
    objective.bind(D, n_outputs=CLASSES)
    return objective


@pytest.fixture
def step() -> DeepStep:
    return step_of(network())


def by_hand(step: DeepStep, objective: Contract) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """ℓ on what the attacker does not see, θ in one piece, and ∇ℓ on all that it sees, after each step."""
    judged, path = attack(step, objective.attacker, CLASSES)
    losses, places, slopes = [], [], []
    for theta, head in path:
        there = {name: value.detach().requires_grad_() for name, value in theta.items()}

        def loss(rows: Tensor, there: Any = there, head: Any = head) -> Tensor:
            mine = step.of_harmful(rows.nonzero().squeeze(1))
            return functional.cross_entropy(mine.logits("harmful", head, there), mine.harmful.y)

        losses.append(loss(judged).detach())
        found = torch.autograd.grad(loss(~judged), list(there.values()))
        places.append(torch.cat([value.detach().flatten() for value in there.values()]))
        slopes.append(torch.cat([slope.flatten() for slope in found]))
    return losses, places, slopes


@pytest.mark.parametrize("options", [{}, {"attack_optimizer": "sgd", "second_order": True}])
def test_terms_are_their_formulas(step: DeepStep, options: dict[str, Any]) -> None:
    objective = made(**options)
    terms = objective.terms(step.again())
    losses, places, slopes = by_hand(step, objective)
    gain = sum(max(0.0, float(losses[k] - losses[k + 1]) - 1e-4 * FACTOR**k) for k in range(K))
    assert gain > 0
    assert terms["gain"].item() == pytest.approx(gain, rel=1e-9)
    ends = [place - ETA * slope for place, slope in zip(places, slopes, strict=True)]
    factors = [(ends[k + 1] - ends[k]).norm() / (places[k + 1] - places[k]).norm() for k in range(K)]
    wanted = sum(max(0.0, float(one) - FACTOR) ** 2 for one in factors) / K
    assert wanted > 0
    assert terms["contraction"].item() == pytest.approx(wanted, rel=1e-6)
    assert objective.watched["factor"].item() == pytest.approx(float(max(factors)), rel=1e-6)
    assert objective.watched["gained"].item() == pytest.approx(float(losses[0] - losses[-1]), rel=1e-9)


def test_first_order_gradient_of_the_gain_is_that_at_the_attackers_weights(step: DeepStep) -> None:
    objective = made(first_gain=0.0)
    parameters = list(step.parameters().values())
    slopes = torch.autograd.grad(objective.terms(step.again())["gain"], parameters)
    judged, path = attack(step, objective.attacker, CLASSES)
    unseen = step.of_harmful(judged.nonzero().squeeze(1))
    found = []
    for theta, head in path:
        there = {name: value.detach().requires_grad_() for name, value in theta.items()}
        loss = functional.cross_entropy(unseen.logits("harmful", head, there), unseen.harmful.y)
        found.append((loss.item(), torch.autograd.grad(loss, list(there.values()))))
    expected = [torch.zeros_like(one) for one in parameters]
    for (before, of_before), (after, of_after) in pairwise(found):
        if before > after:
            parts = zip(expected, of_before, of_after, strict=True)
            expected = [total + one - other for total, one, other in parts]
    for mine, wanted in zip(slopes, expected, strict=True):
        torch.testing.assert_close(mine, wanted)


def test_descent_on_the_contraction_lowers_it(step: DeepStep) -> None:
    """In first order as well: what the steps add counts as a constant, their slopes do not."""
    objective = made()
    parameters = list(step.parameters().values())
    before = objective.terms(step.again())["contraction"]
    slopes = torch.autograd.grad(before, parameters)
    length = 1e-3 / torch.stack([slope.square().sum() for slope in slopes]).sum().sqrt()
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter.sub_(length * slope)
    assert objective.terms(step.again())["contraction"] < before


@pytest.mark.parametrize("options", [{"attack_steps": 0}, {"gain": 0.0, "contraction": 0.0}])
def test_without_steps_or_weights_it_is_censor(step: DeepStep, options: dict[str, Any]) -> None:
    objective, censor = made(**options), Censor(**OF_CENSOR)  # type: ignore[arg-type]
    mine, wanted = objective.terms(step.again()), censor.terms(step.again())
    assert mine.keys() == wanted.keys()
    assert all(torch.equal(mine[name], wanted[name]) for name in mine)
    assert objective.weights == censor.weights


def test_an_attacker_that_stands_still_has_no_factor(step: DeepStep) -> None:
    terms = made(attack_learning_rate=1e-300).terms(step)
    assert (terms["gain"].item(), terms["contraction"].item()) == (0, 0)


def test_its_files_have_the_settings_of_censor() -> None:
    """Written out, since `immunize.immunize` reads them without Hydra."""
    folder = Path(config_dir()) / "method"
    mine, censor = (dict(OmegaConf.load(folder / f"{name}.yaml")) for name in ("contract", "censor"))
    other = {"name", "_target_", "attack_steps"}
    assert {name: mine[name] for name in censor.keys() - other} == {
        name: censor[name] for name in censor.keys() - other
    }
    rows = [OmegaConf.load(folder / "own" / f"{name}.yaml") for name in ("contract", "censor")]
    assert rows[0] == rows[1]
    objective, _ = method_named("contract", None, None, {"attack_steps": 2}, seed=0)
    assert isinstance(objective, Contract)


@pytest.mark.parametrize("model", ["resnet_small", "vit_small"])
def test_on_digits_it_has_the_values_of_censor(model: str) -> None:
    mine, censor = (
        compose_config("pretrain=digits", f"model={model}", f"method={name}") for name in ("contract", "censor")
    )
    weights = ("adversary", "answers", "features", "logits")
    assert [mine.method[name] for name in weights] == [censor.method[name] for name in weights]
    assert mine.objective == censor.objective


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"factor": 1.0}, "method.factor"),
        ({"first_gain": -1.0}, "method.first_gain"),
        ({"descent_rate": 0.0}, "method.descent_rate"),
        ({"gain": -1.0}, "method.gain"),
        ({"contraction": float("nan")}, "method.contraction"),
        ({"adversary": -1.0}, "method.adversary"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made(**options)


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        ({}, set()),
        ({"gain": 0.0}, {"first_gain"}),
        ({"contraction": 0.0}, {"descent_rate"}),
        ({"gain": 0.0, "contraction": 0.0}, {"attack_steps"} | OF_STEPS | OF_TERMS),
        ({"attack_steps": 0}, {"gain", "contraction"} | OF_STEPS | OF_TERMS),
    ],
)
def test_what_has_no_term_is_said_to_have_no_effect(options: dict[str, Any], unused: set[str]) -> None:
    assert set(made(**options).unused) == unused
