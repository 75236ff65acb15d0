"""Products by oneDNN are those of PyTorch up to rounding; what oneDNN cannot multiply, to the last bit."""

from __future__ import annotations

import pytest
import torch

from immunize.evaluation.products import packed, products

EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("shape", [(300, 64, 2), (40, 130, 50), (1, 7, 3)])
@pytest.mark.parametrize("turned", [False, True])
def test_single_precision_differs_by_rounding_alone(shape: tuple[int, int, int], turned: bool) -> None:
    n, d, outputs = shape
    draws = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=draws) for size in ((n, d), (outputs, d), (outputs,)))
    given = x.T.contiguous().T if turned else x
    exact = x.double() @ weight.double().T + bias.double()
    largest = (x.double().abs() @ weight.double().abs().T).max() + bias.abs().max()
    for rows in (given, packed(x), packed(packed(x))):
        found = products(rows, weight, bias)
        assert found.dtype == torch.float32
        assert not found.is_mkldnn
        assert (found.double() - exact).abs().max() <= d * EPS * largest


def test_the_gradient_is_that_of_the_product() -> None:
    draws = torch.Generator().manual_seed(1)
    x, weight = torch.randn(30, 8, generator=draws), torch.randn(5, 8, generator=draws, requires_grad=True)
    (found,) = torch.autograd.grad(products(x, weight).square().sum(), weight)
    assert torch.allclose(found, 2 * (x @ weight.detach().T).T @ x, rtol=1e-4)


def test_double_precision_stays_as_it_is() -> None:
    draws = torch.Generator().manual_seed(2)
    x, weight = (torch.randn(size, 6, generator=draws, dtype=torch.float64) for size in (20, 4))
    assert packed(x) is x
    assert torch.equal(products(x, weight), x @ weight.T)
