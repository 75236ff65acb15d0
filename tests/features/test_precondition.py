"""The dummy layer against explicit inverses, and Figure 4 read literally."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from immunize.features import preconditioned_linear
from tests import reference as ref
from tests.reference import error, gradient


def some_loss(features: Tensor) -> Tensor:
    """Not spectral, so that nothing but the layer is tested; its gradient is dense."""
    return (features.sin() * torch.arange(features.numel()).view_as(features)).sum()


def feature_gradient(x: Tensor, theta: Tensor) -> Tensor:
    """∂loss/∂F, (N, E)."""
    return gradient(some_loss, x @ theta)


def damped_inverse(x: Tensor, ridge: float) -> Tensor:
    """(XᵀX + εI)⁻¹, formed on the D×D side."""
    return torch.linalg.inv(x.T @ x + ridge * torch.eye(x.shape[1], dtype=torch.float64))


@pytest.mark.parametrize(("n", "ridge"), [(15, 0.0), (15, 0.3), (6, 0.0), (6, 0.3), (3, 1e-3), (3, 0.3)])
@pytest.mark.parametrize("outputs", [6, 2, 9])
def test_input_side_is_the_explicit_inverse_times_the_plain_gradient(n: int, ridge: float, outputs: int) -> None:
    x = ref.features_with_eigenvalues(torch.linspace(5, 1, min(n, 6)), n, 6, seed=3)
    theta = ref.gaussian(6, outputs, seed=4)
    result = gradient(lambda t: some_loss(preconditioned_linear(x, t, ridge=ridge)), theta)
    plain = gradient(lambda t: some_loss(x @ t), theta)
    assert error(result, damped_inverse(x, ridge) @ plain) < 1e-11


def test_input_side_without_ridge_is_the_pseudo_inverse_for_few_samples() -> None:
    x, theta = ref.features_with_eigenvalues([5.0, 2.0, 1.0], 3, 6, seed=5), ref.gaussian(6, 4, seed=6)
    result = gradient(lambda t: some_loss(preconditioned_linear(x, t)), theta)
    expected = torch.linalg.pinv(x.T @ x, rtol=1e-10) @ x.T @ feature_gradient(x, theta)
    assert error(result, expected) < 1e-10


@pytest.mark.parametrize(("n", "ridge"), [(15, 0.0), (15, 0.3), (3, 0.3)])
def test_output_side_is_figure_4_as_printed(n: int, ridge: float) -> None:
    x = ref.features_with_eigenvalues(torch.linspace(5, 1, min(n, 6)), n, 6, seed=7)
    theta = ref.extractor(6, seed=8)
    result = gradient(lambda t: some_loss(preconditioned_linear(x, t, ridge=ridge, side="output")), theta)
    weight_gradient = ref.figure_4_weight_gradient(x, feature_gradient(x, theta), ridge)
    assert error(result, weight_gradient.T) < 1e-11
    # θ = weightᵀ, so the printed solve stands on the right of ∇_θ: a different direction from Algorithm 1
    plain = x.T @ feature_gradient(x, theta)
    assert error(result, plain @ damped_inverse(x, ridge)) < 1e-11
    assert error(result, damped_inverse(x, ridge) @ plain) > 0.1


@pytest.mark.parametrize("side", ["input", "output"])
def test_gradient_of_the_input_is_not_preconditioned(side: str) -> None:
    x, theta = ref.gaussian(9, 6, seed=9), ref.extractor(6, seed=10)
    result = gradient(lambda z: some_loss(preconditioned_linear(z, theta, ridge=0.1, side=side)), x)  # type: ignore[arg-type]
    assert error(result, gradient(lambda z: some_loss(z @ theta), x)) < 1e-14


@pytest.mark.parametrize("side", ["input", "output"])
def test_an_exactly_singular_system_asks_for_a_ridge(side: str) -> None:
    x = ref.gaussian(9, 6, seed=11)
    x[:, 2] = 0
    theta = ref.extractor(6, seed=12).requires_grad_()
    with pytest.raises(ValueError, match="singular"):
        some_loss(preconditioned_linear(x, theta, side=side)).backward()  # type: ignore[arg-type]
    some_loss(preconditioned_linear(x, theta, ridge=1e-3, side=side)).backward()  # type: ignore[arg-type]
    assert theta.grad is not None
    assert torch.isfinite(theta.grad).all()


@pytest.mark.parametrize("side", ["input", "output"])
def test_every_rank_deficient_system_asks_for_a_ridge(side: str) -> None:
    theta = ref.extractor(6, seed=13)
    silent = 0
    for seed in range(200):
        x = ref.features_with_eigenvalues([3.0, 2.0, 1.5, 1.0], 10, 6, seed)
        try:
            gradient(lambda t, x=x: some_loss(preconditioned_linear(x, t, side=side)), theta)  # type: ignore[arg-type]
            silent += 1
        except ValueError:
            pass
    assert silent == 0


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_negative_ridge_is_refused(side: str) -> None:
    x = ref.gaussian(4, 4, seed=14)
    with pytest.raises(ValueError, match="finite number ≥ 0"):
        preconditioned_linear(x, x, ridge=-1e-9, side=side)  # type: ignore[arg-type]


def test_second_derivatives_are_refused() -> None:
    x, theta = ref.gaussian(9, 6, seed=15), ref.extractor(6, seed=16).requires_grad_()
    loss = some_loss(preconditioned_linear(x, theta))
    (slope,) = torch.autograd.grad(loss.square(), theta, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
