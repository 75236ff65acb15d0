"""Accuracy of a linear probe on frozen features against its steps (Fig. 3): what an attacker gets for how much work.

W (D, C) is trained from zero on `fit` and measured on `held_out`. No bias: H = FᵀF of Eq. (18) has none either.

gd              full batch, multinomial logistic loss, step 1/L with L = λ_1(FᵀF)/(2N), which bounds its Hessian
                (Böhning 1992); the paper's attacker
least_squares   the same on ½‖FW - Y‖²/N with one-hot Y and L = λ_1(FᵀF)/N, in closed form:
                W_t = V diag((1 - (1 - λ_i/λ_1)^t)/λ_i) VᵀFᵀY for the eigenpairs (λ_i, V) of FᵀF
sgd             batches of 256, momentum 0.9, logistic loss, step 1/L
adam            full batch, logistic loss, step 0.03 (ours; unit: see below)

Features are divided by √(λ_1(FᵀF)/N) first. Steps are thereby measured by σ_max, and a rescaling of the features
changes no score. Everything runs in the dtype and on the device of the features.

Shapes: N samples, D features, C classes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from immunize.evaluation.products import packed, products
from immunize.evaluation.ratios import generator, gram
from immunize.memoize import memoize
from immunize.spectrum.decompositions import eigh, eigvalsh
from immunize.spectrum.separability import share_right

MILESTONES = (30, 300, 1000)
"""Steps that every curve holds if it is long enough, so that probes can be compared at them."""

BATCH_SIZE, MOMENTUM = 256, 0.9
_LOGISTIC = 2.0
"""1/L of the logistic loss for features with λ_1(FᵀF)/N = 1."""

_RULES: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, float]]] = {
    "gd": (torch.optim.SGD, {"lr": _LOGISTIC}),
    "sgd": (torch.optim.SGD, {"lr": _LOGISTIC, "momentum": MOMENTUM}),
    "adam": (torch.optim.Adam, {"lr": 0.03}),
}


@dataclass(frozen=True)
class ProbeCurve:
    """Held-out accuracy of a probe while it is trained.

    Attributes:
        steps: ascending, from 1; about 40 log-spaced ones and the milestones.
        accuracy: top-1 at these steps, percent.
        batches_per_epoch: steps in a pass over the data, 1 in full-batch mode.
    """

    steps: list[int]
    accuracy: list[float]
    batches_per_epoch: int

    def at(self, step: int) -> float | None:
        """The accuracy at a step; None where the curve does not hold it."""
        return self.accuracy[self.steps.index(step)] if step in self.steps else None


@memoize(16)  # θ_0's curves, while a sweep runs other methods on the same features
def probe(  # noqa: PLR0917 - positional, so that `memoize` has one key
    x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, optimizer: str, steps: int, seed: int = 0
) -> ProbeCurve:
    """Train a linear probe and measure it on other rows along the way.

    Args:
        x: (N, D) features, float32 or float64, finite and not all zero.
        y: (N,) int64 labels from 0.
        x_test: (M, D) features of rows to measure on.
        y_test: (M,) their labels.
        optimizer: one of the four above.
        steps: how many, at least one.
        seed: of the mini-batches of `sgd`; the others draw nothing.
    """
    with torch.no_grad():
        second = gram(x)
        scale = math.sqrt(float(eigvalsh(second)[-1]) / len(x))
        features, test = x / scale, packed(x_test / scale)
        classes = int(max(y.max(), y_test.max())) + 1
        taken = _thinned(steps)
        if optimizer == "least_squares":
            weights = _least_squares(second / scale**2, features, y, classes, taken)
        else:
            draws = generator(seed, "probe")
            weights = _trained(features, y, torch.zeros(x.shape[1], classes).to(x), optimizer, taken, draws)
        accuracy = [100 * float(share_right(products(test, w.T), y_test)) for w in weights]
    return ProbeCurve(taken, accuracy, -(-len(x) // BATCH_SIZE) if optimizer == "sgd" else 1)


def _thinned(steps: int) -> list[int]:
    spaced = np.geomspace(1, steps, 40).round().astype(int).tolist()
    return sorted({*spaced, *(step for step in MILESTONES if step <= steps)})


def _trained(  # noqa: PLR0917
    x: Tensor, y: Tensor, weights: Tensor, optimizer: str, taken: list[int], draws: torch.Generator
) -> Iterator[Tensor]:
    """W after each of the steps `taken`; the same tensor every time."""
    weights.requires_grad_(True)
    make, settings = _RULES[optimizer]
    rule = make([weights], **settings)
    batches: Iterator[tuple[Tensor, Tensor, Tensor]]
    if optimizer == "sgd":
        batches = ((x[rows], x[rows].T, y[rows]) for rows in _shuffled(len(x), draws, x.device))
    else:
        batches = itertools.repeat((packed(x), packed(x.T.contiguous()), y))
    wanted = set(taken)
    for step, batch in zip(range(1, taken[-1] + 1), batches, strict=False):
        weights.grad = _logistic_gradient(*batch, weights.detach())
        rule.step()
        if step in wanted:
            yield weights.detach()


def _logistic_gradient(x: Tensor, turned: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Fᵀ(softmax(FW) - Y)/N, from F and Fᵀ."""
    residual = products(x, weights.T).softmax(1)
    residual[torch.arange(len(y), device=y.device), y] -= 1
    return products(turned, residual.T) / len(y)


def _least_squares(second: Tensor, x: Tensor, y: Tensor, classes: int, taken: list[int]) -> Iterator[Tensor]:
    """W after each of the steps `taken`.

    Args:
        second: (D, D) float64, FᵀF.
        x: (N, D) F.
        y: (N,) labels.
        classes: C.
        taken: steps.
    """
    values, vectors = eigh(second)
    targets = torch.zeros(x.shape[1], classes, dtype=torch.float64, device=x.device)
    targets.index_add_(1, y, x.T.double())  # FᵀY: the sum of the rows of each class
    right = vectors.T @ targets
    top = values[-1]
    shares = (values / top).clamp(0, 1)
    positive = shares > 0
    log_left = torch.log1p(-shares)  # -inf at r = 1: one step is enough
    for step in taken:  # (1 - (1 - r)^t)/r, which is t at r = 0
        filters = torch.where(positive, -torch.expm1(step * log_left) / shares.where(positive, 1), float(step))
        yield (vectors @ (filters[:, None] / top * right)).to(x)


def _shuffled(n: int, draws: torch.Generator, device: torch.device) -> Iterator[Tensor]:
    """Batches of rows, each pass in an order of its own."""
    while True:
        order = torch.randperm(n, generator=draws).to(device)
        yield from (order[start : start + BATCH_SIZE] for start in range(0, n, BATCH_SIZE))
