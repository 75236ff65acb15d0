"""A small network and a step of it, float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from immunize.features.deep import DeepExtractor
from immunize.objective import DeepSide, DeepStep, task_loss
from tests import reference as ref

N, D, CLASSES = 24, 5, 3


def network() -> DeepExtractor:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 7), nn.Tanh()), nn.Linear(7, D))
    head = nn.Linear(D, CLASSES).double()
    return DeepExtractor.from_module(backbone.double(), head, ["2", "3"], example=torch.rand(2, 6).double())


def step_of(net: DeepExtractor, *, classes: tuple[int, ...] = (), rows: int = N) -> DeepStep:
    """A step away from θ_0."""
    theta_0 = net.reference()
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            if parameter.requires_grad:
                parameter.add_(0.1 * ref.gaussian(*parameter.shape, seed=number))
    y = torch.arange(rows) % max(CLASSES, sum(classes))
    sides = [DeepSide(net.trunk(ref.gaussian(rows, 6, seed=seed).to(net.dtype)), y) for seed in (1, 2)]
    return DeepStep(net, sides[0], sides[1], task_loss("ce", 0.1), classes, theta_0=theta_0)


def reached(terms: Mapping[str, Tensor], parameters: Sequence[Tensor]) -> dict[str, tuple[bool, ...]]:
    """For each term, which of the parameters it moves."""
    found = {}
    for name, term in terms.items():
        slopes = torch.autograd.grad(term, parameters, allow_unused=True, retain_graph=True)
        found[name] = tuple(g is not None and bool(g.abs().max() > 0) for g in slopes)
    return found
