"""Linear probes on features against training written out, and what must and must not change their scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from immunize.evaluation.feature_probe import MILESTONES, _shuffled, _thinned, probe
from immunize.evaluation.products import _by_onednn, packed, products
from immunize.settings import PROBES
from tests import reference as ref

CLASSES = 4
OPTIMIZERS = sorted(PROBES)
Task = tuple[Tensor, Tensor, Tensor, Tensor]


def task(n: int = 120, d: int = 6, noise: float = 0.5) -> Task:
    """Classes around means, with features of very different sizes; training rows, then test rows."""
    means = ref.gaussian(CLASSES, d, seed=0)
    y = torch.arange(2 * n) % CLASSES
    x = (means[y] + noise * ref.gaussian(2 * n, d, seed=1)) * torch.logspace(0, -1, d, dtype=torch.float64)
    return x[:n], y[:n], x[n:], y[n:]


def by_autograd(data: Task, optimizer: str, steps: int) -> dict[int, float]:
    """The probe step by step, on features whose FᵀF/N has 1 for its largest eigenvalue, which bounds the Hessians."""
    x, y, x_test, y_test = data
    size = float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1]) ** 0.5
    weights = torch.zeros(x.shape[1], CLASSES, dtype=torch.float64, requires_grad=True)
    adam, of_gd = partial(torch.optim.Adam, lr=0.03), partial(torch.optim.SGD, lr=2.0 if optimizer == "gd" else 1.0)
    rule = (adam if optimizer == "adam" else of_gd)([weights])
    found = {}
    for step in range(1, steps + 1):
        rule.zero_grad()
        if optimizer == "least_squares":
            left = x / size @ weights - torch.nn.functional.one_hot(y, CLASSES)
            value = left.square().sum() / (2 * len(x))
        else:
            value = torch.nn.functional.cross_entropy(x / size @ weights, y)
        value.backward()  # type: ignore[no-untyped-call]
        rule.step()
        found[step] = 100 * float(((x_test @ weights).argmax(1) == y_test).double().mean())
    return found


# Against training written out.


@pytest.mark.parametrize("optimizer", ["gd", "least_squares", "adam"])
def test_training_is_that_of_autograd(optimizer: str) -> None:
    data = task(noise=1.0)
    curve, plain = probe(*data, optimizer, 200), by_autograd(data, optimizer, 200)
    assert curve.accuracy == [plain[step] for step in curve.steps]
    assert len(set(curve.accuracy)) > 3  # it learns something on the way


def test_directions_that_no_row_has_stay_out() -> None:
    """Fewer rows than features: FᵀF is singular, its filter t at eigenvalue 0, and nothing overflows."""
    x, y = ref.gaussian(8, 30, seed=0), torch.arange(8) % CLASSES
    for dtype in (torch.float32, torch.float64):
        assert probe(x.to(dtype), y, x.to(dtype), y, "least_squares", 10**9).accuracy[-1] == 100


# What changes no score, and what does.


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scale", [3.0, 2.0**30])
def test_a_pure_rescale_changes_nothing(optimizer: str, scale: float) -> None:
    x, y, x_test, y_test = task(noise=1.0)
    one = probe(x, y, x_test, y_test, optimizer, 60, 3)
    assert probe(x * scale, y, x_test * scale, y_test, optimizer, 60, 3) == one


def test_single_precision_learns_the_same() -> None:
    x, y, x_test, y_test = task(n=400)
    for optimizer in OPTIMIZERS:
        one = probe(x, y, x_test, y_test, optimizer, 100).accuracy[-1]
        other = probe(x.float(), y, x_test.float(), y_test, optimizer, 100).accuracy[-1]
        assert abs(one - other) <= 1


# Curves, mini-batches, mistakes.


@pytest.mark.parametrize("steps", [1, 30, 299, 12_345])
def test_curves_hold_their_ends_and_the_milestones(steps: int) -> None:
    taken = _thinned(steps)
    assert taken == sorted(set(taken))
    assert taken[0] == 1
    assert taken[-1] == steps
    assert set(taken) >= {step for step in MILESTONES if step <= steps}
    assert len(taken) <= 43


def test_mini_batches_pass_over_all_rows_in_changing_orders() -> None:
    batches = _shuffled(600, torch.Generator().manual_seed(0), torch.device("cpu"))
    passes = [torch.cat([next(batches) for _ in range(3)]) for _ in range(2)]
    for rows in passes:
        assert sorted(rows.tolist()) == list(range(600))
    assert not torch.equal(*passes)


def test_sgd_depends_on_its_seed_alone() -> None:
    data = task(n=600, noise=2.0)
    one, again, other = (probe.__wrapped__(*data, "sgd", 20, seed) for seed in (1, 1, 2))  # type: ignore[attr-defined]
    assert one == again
    assert one.accuracy != other.accuracy
    assert one.batches_per_epoch == math.ceil(600 / 256)
    assert probe(*data, "gd", 20).batches_per_epoch == 1


# Products by oneDNN are those of PyTorch up to rounding; what oneDNN cannot multiply, to the last bit.


@pytest.fixture(params=["AuthenticAMD", "GenuineIntel"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of the processor: on Intel's PyTorch multiplies."""
    monkeypatch.setattr("immunize.evaluation.products._cpuinfo", lambda: f"vendor_id : {request.param}")
    _by_onednn.cache_clear()
    yield request.param
    _by_onednn.cache_clear()


@pytest.mark.parametrize("shape", [(300, 64, 2), (40, 130, 50), (1, 7, 3)])
@pytest.mark.parametrize("turned", [False, True])
def test_single_precision_differs_by_rounding_alone(maker: str, shape: tuple[int, int, int], turned: bool) -> None:
    n, d, outputs = shape
    x, weight, bias = (ref.gaussian(*size, seed=0).float() for size in ((n, d), (outputs, d), (outputs,)))
    given = x.T.contiguous().T if turned else x
    exact = x.double() @ weight.double().T + bias.double()
    largest = (x.double().abs() @ weight.double().abs().T).max() + bias.abs().max()
    assert packed(x).is_mkldnn == (maker == "AuthenticAMD")
    for rows in (given, packed(x), packed(packed(x))):
        found = products(rows, weight, bias)
        assert found.dtype == torch.float32
        assert not found.is_mkldnn
        assert (found.double() - exact).abs().max() <= d * torch.finfo(torch.float32).eps * largest


@pytest.mark.usefixtures("maker")
def test_the_gradient_is_that_of_the_product_and_double_precision_stays_as_it_is() -> None:
    x, weight = ref.gaussian(30, 8, seed=1), ref.gaussian(5, 8, seed=2)
    single = ref.gradient(lambda w: products(x.float(), w).square().sum(), weight.float())
    assert torch.allclose(single.double(), 2 * (x @ weight.T).T @ x, rtol=1e-4)
    assert packed(x) is x
    assert torch.equal(products(x, weight), x @ weight.T)
