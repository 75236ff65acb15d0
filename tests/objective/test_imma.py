"""IMMA: the bilevel objective against its unrolled inner steps by hand, its gradient against differences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from immunize.features import LinearExtractor
from immunize.objective import LinearStep, Side, task_loss
from immunize.objective.imma import Imma
from tests import reference as ref

D = 5


def make(loss: str, inner_steps: int = 1, rate: float = 0.3) -> tuple[Imma, LinearStep]:
    objective = Imma(inner_steps=inner_steps, inner_learning_rate=rate)
    objective.bind(D, ref.generator(1))
    extractor = LinearExtractor(D, init="identity")
    with torch.no_grad():
        extractor.theta.copy_(ref.extractor(D, seed=2))
    head = ref.gaussian(D, 1, seed=3).requires_grad_()
    sides = []
    for n, seed in ((9, 4), (7, 6)):
        x, y = ref.gaussian(n, D, seed=seed), ref.gaussian(n, seed=seed + 1)
        sides.append(Side(x, (y > 0).double() if loss == "bce" else y, x))
    return objective, LinearStep(extractor, head, sides[0], sides[1], task_loss(loss))


def loss_by_hand(loss: str, side: Side, theta: Tensor, head: Tensor) -> Tensor:
    z = side.x @ theta @ head.squeeze(1)
    if loss == "mse":
        return ((z - side.y) ** 2).sum() / len(z)
    p = 1 / (1 + torch.exp(-z))
    return -(side.y * p.log() + (1 - side.y) * (1 - p).log()).sum() / len(z)


def gradient_by_hand(loss: str, side: Side, theta: Tensor, head: Tensor) -> Tensor:
    """∇_θ L: Xᵀ(∂L/∂z)headᵀ."""
    z = side.x @ theta @ head.squeeze(1)
    residual = 2 * (z - side.y) if loss == "mse" else 1 / (1 + torch.exp(-z)) - side.y
    return torch.outer(side.x.T @ residual, head.squeeze(1)) / len(z)


def outer_by_hand(loss: str, objective: Imma, step: LinearStep, theta: Tensor) -> Tensor:
    """L(D_P, ω, θ*) - L(D_H, w, θ*), θ* after the inner steps."""
    w, omega = objective.harmful_head.detach(), step.head.detach()
    for _ in range(objective.attacker.steps):
        theta = theta - objective.attacker.learning_rate * gradient_by_hand(loss, step.harmful, theta, w)
    return loss_by_hand(loss, step.pretrain, theta, omega) - loss_by_hand(loss, step.harmful, theta, w)


cases = pytest.mark.parametrize(("loss", "inner_steps"), [("mse", 1), ("mse", 3), ("bce", 1), ("bce", 3)])


@cases
def test_outer_is_the_difference_of_losses_at_theta_star(loss: str, inner_steps: int) -> None:
    objective, step = make(loss, inner_steps)
    expected = outer_by_hand(loss, objective, step, step.extractor.theta.detach())
    assert float(objective.terms(step)["outer"].detach()) == pytest.approx(float(expected), rel=1e-12)


@cases
def test_outer_gradient_goes_through_the_inner_steps(loss: str, inner_steps: int) -> None:
    objective, step = make(loss, inner_steps)
    theta = step.extractor.theta
    (slope,) = torch.autograd.grad(objective.terms(step)["outer"], theta)
    expected = ref.finite_difference_gradient(lambda t: outer_by_hand(loss, objective, step, t), theta.detach(), 1e-3)
    assert float((slope - expected).norm()) < 1e-8 * float(expected.norm())
    # treating the inner gradient as a constant would be a different direction
    star = theta.detach()
    for _ in range(inner_steps):
        star = star - 0.3 * gradient_by_hand(loss, step.harmful, star, objective.harmful_head.detach())
    first_order = gradient_by_hand(loss, step.pretrain, star, step.head.detach())
    first_order = first_order - gradient_by_hand(loss, step.harmful, star, objective.harmful_head.detach())
    assert float((slope - first_order).norm()) > 1e-2 * float(slope.norm())


def test_outer_moves_theta_alone_and_heads_move_the_two_classifiers_alone() -> None:
    objective, step = make("bce", inner_steps=2)
    parameters = [step.extractor.theta, step.head, objective.harmful_head]
    terms = objective.terms(step)
    assert set(terms) == {"outer", "heads"}
    assert objective.weights == {"outer": 1, "heads": 1}

    def reached(term: str) -> list[bool]:
        gradients = torch.autograd.grad(terms[term], parameters, allow_unused=True, retain_graph=True)
        return [g is not None and bool(g.abs().max() > 0) for g in gradients]

    assert reached("outer") == [True, False, False]
    assert reached("heads") == [False, True, True]


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_heads_are_trained_on_the_current_features(loss: str) -> None:
    objective, step = make(loss)
    theta, w = step.extractor.theta.detach(), objective.harmful_head
    heads = objective.terms(step)["heads"]
    expected = loss_by_hand(loss, step.harmful, theta, w) + loss_by_hand(loss, step.pretrain, theta, step.head)
    assert float(heads.detach()) == pytest.approx(float(expected.detach()), rel=1e-13)
    for at in (w, step.head):
        ours, by_hand = (torch.autograd.grad(f, at, retain_graph=True)[0] for f in (heads, expected))
        torch.testing.assert_close(ours, by_hand, rtol=1e-12, atol=1e-14)


def test_parameters_are_the_harmful_head_after_binding() -> None:
    objective, _ = make("mse")
    assert [name for name, _ in objective.named_parameters()] == ["harmful_head"]
    assert objective.harmful_head.shape == (D, 1)
    assert objective.harmful_head.dtype == torch.float64
    again, _ = make("mse")
    assert torch.equal(again.harmful_head, objective.harmful_head)
    assert list(Imma().parameters()) == []


def test_terms_leave_theta_where_it_is() -> None:
    objective, step = make("mse", inner_steps=3)
    before = step.extractor.theta.detach().clone()
    objective.terms(step)
    assert torch.equal(step.extractor.theta.detach(), before)
    assert step.extractor.theta.grad is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(({"inner_steps": steps}, "inner_steps.*whole number") for steps in (0, -1, 1.5, "2")),
        *(({"inner_learning_rate": rate}, "inner_learning_rate.*finite") for rate in (0.0, -1e-3, math.nan, math.inf)),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Imma(**settings)
