"""`method=simulated` and the attacker in it: its steps are PyTorch's, its gradients what they are said to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from immunize import train
from immunize.objective.attacker import Attacker, _probe, attack
from immunize.objective.base import Head
from immunize.objective.censor import Censor
from immunize.objective.deep import DeepStep
from immunize.objective.simulated import SUPPRESSIONS, SimulatedFineTuning, Suppression, suppression
from tests import reference as ref
from tests.composing import tiny_deep
from tests.objective.tiny import CLASSES, D, N, network, step_of

K, RATE = 3, 0.05


def made(**options: Any) -> SimulatedFineTuning:
    objective = SimulatedFineTuning(
        **{"attack_steps": K, "attack_learning_rate": RATE, "attack_batch_size": 8} | options
    )
    objective.bind(D, n_outputs=CLASSES)
    return objective


@pytest.mark.parametrize("which", SUPPRESSIONS)
def test_suppressions_are_their_formulas(which: Suppression) -> None:
    logits, labels = 3 * ref.gaussian(6, 4, seed=0), torch.tensor([0, 1, 2, 3, 0, 1])
    p = logits.exp() / logits.exp().sum(1, keepdim=True)
    of_label = torch.stack([row[label] for row, label in zip(p, labels, strict=True)])
    expected = {
        "inverse": -(1 - of_label).log(),
        "uniform": torch.stack([sum(0.25 * (0.25 / one).log() for one in row) for row in p]),  # type: ignore[misc]
        "ascent": of_label.log(),
    }[which]
    torch.testing.assert_close(suppression(which, logits, labels), expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_are_those_of_pytorch(optimizer: Any) -> None:
    """Weights and head, each with its rate, over the batches in their order."""
    step = step_of(network())
    judged, path = attack(step, Attacker(K, RATE, optimizer, head_multiplier=4.0, batch_size=8), CLASSES)
    assert int(judged.sum()) == len(step.harmful.y) // 3
    theta, (_, start), *_, (parameters, head) = step.parameters(), *path
    own = [nn.Parameter(start.weight.clone()), nn.Parameter(start.bias.clone())]  # type: ignore[union-attr]
    moved = {name: nn.Parameter(value.detach().clone()) for name, value in theta.items()}
    by_torch = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](
        [{"params": list(moved.values()), "lr": RATE}, {"params": own, "lr": 4 * RATE}], lr=RATE
    )
    for k in range(K):
        part = step.of_harmful((~judged).nonzero().squeeze(1).split(8)[k % 2])
        by_torch.zero_grad()
        functional.cross_entropy(part.logits("harmful", Head(*own), moved), part.harmful.y).backward()  # type: ignore[arg-type, no-untyped-call]
        by_torch.step()
    for name, value in moved.items():
        torch.testing.assert_close(parameters[name], value)
    torch.testing.assert_close(head.weight, own[0].detach())


def suppressed(objective: SimulatedFineTuning, step: DeepStep) -> Tensor:
    return objective.terms(step.again())["suppressed"]


def test_second_order_gradient_is_that_of_finite_differences() -> None:
    step = step_of(network())
    weight = step.parameters()["2.0.weight"]
    fixed = _with_the_same_probe(step)
    slope = torch.autograd.grad(_over(fixed, step, second_order=True), weight)[0]
    first = torch.autograd.grad(_over(fixed, step, second_order=False), weight)[0]
    direction, length = ref.gaussian(*weight.shape, seed=9), 1e-5
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(sign * length * direction)
        values.append(_over(fixed, step, second_order=True).item())
        with torch.no_grad():
            weight.sub_(sign * length * direction)
    expected = (values[0] - values[1]) / (2 * length)
    assert float((slope * direction).sum()) == pytest.approx(expected, rel=1e-6)
    assert float((slope - first).norm()) > 1e-2 * float(slope.norm())


def _with_the_same_probe(step: DeepStep) -> Head:
    _, path = attack(step, Attacker(0, RATE), CLASSES)
    return next(path)[1]


def _over(head: Head, step: DeepStep, *, second_order: bool) -> Tensor:
    """The harmful loss after the steps of an attacker who starts at a fixed head."""
    attacker = Attacker(K, RATE, "sgd", 1.0, second_order)
    *_, (theta, after) = attacker.path(step, head, lambda _, theta, w: step.loss("harmful", w, theta))
    return step.loss("harmful", after, theta)


def test_first_order_gradient_is_that_at_the_attackers_weights() -> None:
    step, objective = step_of(network()), made()
    parameters = list(step.parameters().values())
    slopes = torch.autograd.grad(suppressed(objective, step), parameters)
    judged, path = attack(step, objective.attacker, CLASSES)
    unseen = step.of_harmful(judged.nonzero().squeeze(1))
    expected = [torch.zeros_like(one) for one in parameters]
    for theta, head in path:
        there = {name: value.detach().requires_grad_() for name, value in theta.items()}
        loss = suppression("inverse", unseen.logits("harmful", head.detach(), there), unseen.harmful.y).mean()
        slopes_there = torch.autograd.grad(loss, list(there.values()))
        expected = [total + slope / (K + 1) for total, slope in zip(expected, slopes_there, strict=True)]
    for mine, wanted in zip(slopes, expected, strict=True):
        torch.testing.assert_close(mine, wanted)


def test_an_attacker_that_diverges_is_named_with_its_step_and_left_out() -> None:
    step, objective = step_of(network()), made(attack_optimizer="sgd", attack_learning_rate=1e300)
    with pytest.warns(RuntimeWarning, match="diverged in its step 1"):
        terms = objective.terms(step)
    assert all(torch.isfinite(term) for term in terms.values())


def test_what_is_watched_is_the_attackers_loss_and_its_probe_has_the_networks_precision() -> None:
    step, objective = step_of(network()), made()
    objective.terms(step)
    assert objective.watched.keys() == {"attacked"}
    rows, labels = ref.gaussian(N, D, seed=5), torch.arange(N) % CLASSES
    probe = _probe(rows, labels, torch.arange(N) < 8, CLASSES, torch.float32)
    assert probe.bias is not None
    assert probe.weight.dtype == probe.bias.dtype == torch.float32


def test_without_steps_the_probe_of_theta_is_suppressed() -> None:
    step, objective = step_of(network()), made(attack_steps=0)
    judged, path = attack(step, objective.attacker, CLASSES)
    unseen = step.of_harmful(judged.nonzero().squeeze(1))
    ((theta, head),) = path
    assert theta.keys() == step.parameters().keys()
    wanted = suppression("inverse", unseen.logits("harmful", head), unseen.harmful.y).mean()
    torch.testing.assert_close(suppressed(objective, step), wanted)
    assert "attack_learning_rate" in objective.unused


def test_censor_looks_at_the_attackers_weights_and_without_steps_at_its_own() -> None:
    step = step_of(network())
    plain = Censor(answers=0).terms(step.again())
    as_before = Censor(answers=0, attack_steps=0).terms(step.again())
    assert all(torch.equal(plain[name], as_before[name]) for name in plain)
    attacked = Censor(answers=0, attack_steps=1, attack_learning_rate=RATE, attack_batch_size=8)
    attacked.bind(D, n_outputs=CLASSES)
    moved = [labels for labels in (step, _shifted(step)) if int(labels.harmful.y.sum()) % 2]
    assert len(moved) == 1  # k is 1 for one of them
    with_steps, without = (objective.terms(moved[0].again()) for objective in (attacked, Censor(answers=0)))
    assert with_steps["adversary"].item() != without["adversary"].item()
    assert with_steps["features"].item() == without["features"].item()
    assert torch.autograd.grad(with_steps["adversary"], list(step.parameters().values()))[0].any()


def _shifted(step: DeepStep) -> DeepStep:
    """Without its first image of D_H that has an odd label."""
    rows = torch.arange(len(step.harmful.y))
    return step.of_harmful(rows[rows != int((step.harmful.y % 2 == 1).nonzero()[0])])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"suppress": "loudly"}, "inverse, uniform, ascent"),
        ({"attack_steps": -1}, "whole number of steps"),
        ({"attack_learning_rate": 0.0}, "positive and finite"),
        ({"attack_learning_rate": float("inf")}, "positive and finite"),
        ({"attack_optimizer": "lion"}, "sgd, adam"),
        ({"second_order": True}, "second-order steps need sgd"),
        ({"weight": -1.0}, "method.weight"),
        ({"attack_batch_size": 0}, "attack_batch_size"),
        ({"gradient_clip": 0.0}, "gradient_clip"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made(**options)


def test_a_batch_of_one_image_is_a_batch() -> None:
    assert all(bool(torch.isfinite(term)) for term in made(attack_batch_size=1).terms(step_of(network())).values())


@pytest.mark.parametrize(("method", "watched"), [("simulated", {"attacked"}), ("contract", {"gained", "factor"})])
def test_a_network_is_trained_by_it(method: str, watched: set[str], tmp_path: Path) -> None:
    words = (f"method={method}", "method.attack_steps=2", "objective.batch_size=64", "objective.max_steps=4")
    found = train.run(tiny_deep(*words), tmp_path, quiet=True)["training"]["fit"]
    assert found["steps"] == 4
    assert watched <= found["watched"].keys()
