"""What a deep step takes from its network and its batch: head, tolerance, features, the sets of harmful data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from immunize.features.linear import RIDGE, preconditioned_features
from immunize.objective import task_loss
from immunize.objective.deep import DeepSide, DeepStep
from immunize.spectrum import default_tolerance
from tests import reference as ref
from tests.reference import rows


class Net(nn.Module):
    """A tail of one layer and a head with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.tail, self.head = nn.Linear(3, 4).double(), nn.Linear(4, 5).double()

    def features(self, h: Tensor, parameters: dict[str, Tensor] | None = None) -> Tensor:
        weight = self.tail.weight if parameters is None else parameters["weight"]
        return torch.tanh(h @ weight.T + self.tail.bias)

    def trainable_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [("weight", self.tail.weight)]


def deep_step(**options: Any) -> DeepStep:
    torch.manual_seed(0)
    y = torch.tensor([0, 0, 1, 2, 2, 3])
    sides = [DeepSide(ref.gaussian(n, 3, seed=n), labels) for n, labels in ((7, torch.arange(7) % 5), (6, y))]
    return DeepStep(Net(), sides[0], sides[1], task_loss("ce"), **options)  # type: ignore[arg-type]


def test_a_deep_step_has_the_networks_head_and_the_batchs_tolerance() -> None:
    step = deep_step()
    assert torch.equal(step.omega.weight, step.net.head.weight.T)
    assert step.omega.bias is step.net.head.bias
    assert list(step.parameters()) == ["weight"]
    assert (step.tolerance("pretrain"), step.tolerance("harmful")) == (default_tolerance(7, 4), default_tolerance(6, 4))
    features = step.features("pretrain")
    assert step.features("pretrain") is features
    assert step.again().features("pretrain") is not features
    assert torch.equal(step.again().features("pretrain"), features)
    doubled = {"weight": 2 * step.net.tail.weight}
    assert not torch.equal(step.features("pretrain", doubled), features)
    expected = nn.functional.cross_entropy(step.net.head(features), step.pretrain.y)
    torch.testing.assert_close(step.pretrain_loss(), expected)
    gradients = [torch.ones(2), torch.zeros(1)]
    assert all(torch.equal(a, b) for a, b in zip(step.averaged(gradients), gradients, strict=True))


def test_a_deep_loss_is_outside_mixed_precision() -> None:
    step = deep_step()
    exact = step.pretrain_loss()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(deep_step().pretrain_loss(), exact)
        w = {"weight": step.net.tail.weight}
        assert torch.equal(step.features("harmful", w), step.features("harmful"))


def test_rows_of_each_harmful_set_are_those_of_its_classes() -> None:
    step = deep_step(harmful_classes=(1, 1, 2))
    whole = step.features("harmful").double()
    for number, chosen in enumerate(([0, 1], [2], [3, 4, 5])):
        view = step.spectral_view(f"harmful:{number}", "none")
        assert torch.equal(view.features, whole[chosen])
        assert view.theta is None
    names: list[str] = []
    step.over_harmful(lambda role: names.append(role) or torch.tensor(1.0))  # type: ignore[func-returns-value]
    assert names == ["harmful:0", "harmful:1", "harmful:2"]
    alone: list[str] = []
    deep_step(harmful_classes=(4,)).over_harmful(lambda role: alone.append(role) or torch.tensor(1.0))  # type: ignore[func-returns-value]
    assert alone == ["harmful"]


def test_unusable_features_are_found_in_gathered_sets_too() -> None:
    step = deep_step(harmful_classes=(1, 1, 2))
    assert step.unusable() is None
    step.spectral_view("harmful:1", "none")
    assert step.unusable() is None
    step._gathered["harmful:1"] = torch.zeros(1, 4)
    assert step.unusable() == ("harmful", 0.0)
    step._gathered["harmful:1"] = torch.full((1, 4), math.inf)
    role, value = step.unusable() or ("", 0.0)
    assert (role, math.isnan(value)) == ("harmful", True)


def test_the_smallest_ridge_of_the_preconditioner_is_positive() -> None:
    f = rows(1).requires_grad_()
    assert preconditioned_features(f, 1e-300) is not f
    step = deep_step()
    view = step.spectral_view("pretrain", "features").features
    (slope,) = torch.autograd.grad(view.sum(), step.features("pretrain"))
    features = step.features("pretrain").detach()
    h = features.T @ features
    expected = torch.ones_like(features) @ torch.linalg.inv(
        h + RIDGE * h.trace() / 4 * torch.eye(4, dtype=torch.float64)
    )
    torch.testing.assert_close(slope, expected)
