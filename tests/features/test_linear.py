"""The linear extractor: how θ starts, what it computes, and which gradient each spectral view sends to θ.

The dummy layer against explicit inverses, and Figure 4 read literally.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from immunize.features.linear import OF_LINEAR, Initialization, LinearExtractor, Precondition, preconditioned_linear
from immunize.spectrum.condition import condition_number, spectrum_of
from immunize.spectrum.regularizers import r_ill_of_features, r_well_of_features
from tests import reference as ref
from tests.reference import error, gradient

REGULARIZERS = {"well": (r_well_of_features, ref.r_well_gradient), "ill": (r_ill_of_features, ref.r_ill_gradient)}


@pytest.mark.parametrize("d", [1, 79])
def test_orthogonal_start_is_orthogonal_and_leaves_kappa_alone(d: int) -> None:
    module = LinearExtractor(d, init="orthogonal", generator=ref.generator(1))
    theta = module.theta.detach()
    torch.testing.assert_close(theta.T @ theta, torch.eye(d, dtype=torch.float64), rtol=0, atol=1e-14)
    x = ref.features_with_eigenvalues(torch.logspace(2, -2, d), d + 5, d, seed=2)
    before, after = (condition_number(spectrum_of(f)).value for f in (x, module(x).detach()))
    assert after == pytest.approx(before, rel=1e-10)
    assert theta.is_contiguous()


def test_orthogonal_start_is_uniform_over_rotations_and_reflections() -> None:
    # Haar: E[θ_ij] = 0 and E[θ_ij²] = 1/D for every entry, also on the diagonal, where plain QR has one sign only
    source = ref.generator(3)
    draws = torch.stack([LinearExtractor(3, generator=source).theta.detach() for _ in range(3000)])
    assert float(draws.mean(0).abs().max()) < 5 * (1 / 3 / 3000) ** 0.5
    assert float((draws.square().mean(0) - 1 / 3).abs().max()) < 5 * 0.3 / 3000**0.5


def test_uniform_start_fills_the_range_of_torch_linear() -> None:
    theta = LinearExtractor(100, init="uniform", generator=ref.generator(4)).theta.detach()
    assert -0.1 <= float(theta.min()) < -0.0999
    assert 0.0999 < float(theta.max()) <= 0.1


@pytest.mark.parametrize("init", ["orthogonal", "uniform", "identity"])
def test_theta_is_one_square_float64_parameter_that_the_generator_decides(init: Initialization) -> None:
    first, same, other = (LinearExtractor(6, init=init, generator=ref.generator(seed)) for seed in (5, 5, 6))
    assert [(name, p.shape, p.dtype) for name, p in first.named_parameters()] == [("theta", (6, 6), torch.float64)]
    assert first.n_features == 6
    assert torch.equal(first.theta, same.theta)
    assert torch.equal(first.theta, other.theta) == (init == "identity")
    assert torch.equal(first.theta, torch.eye(6, dtype=torch.float64)) == (init == "identity")


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("name", REGULARIZERS)
@pytest.mark.parametrize("precondition", OF_LINEAR)
def test_every_view_sends_its_named_gradient_to_theta(precondition: Precondition, name: str, ridge: float) -> None:
    function, slope = REGULARIZERS[name]
    module = LinearExtractor(6, init="identity", ridge=ridge)
    with torch.no_grad():
        module.theta.copy_(ref.extractor(6, seed=14))  # neither orthogonal nor symmetric
    x, theta = ref.features_with_eigenvalues(torch.linspace(5, 1, 6), 20, 6, seed=15), module.theta.detach()
    view = module.spectral_view(x, precondition)
    assert torch.equal(view.features.detach(), x @ theta)
    function(view.features, view.theta).backward()
    plain = ref.theta_gradient(x, theta, slope)
    expected = {
        "inverse_free": damped_inverse(x, 0.0) @ plain,
        "dummy": damped_inverse(x, ridge) @ plain,
        "literal": plain @ damped_inverse(x, ridge),
        "none": plain,
    }[precondition]
    assert error(module.theta.grad, expected) < 1e-9


def test_wrong_settings_name_the_known_ones() -> None:
    with pytest.raises(ValueError, match="orthogonal, uniform, identity"):
        LinearExtractor(3, init="zeros")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="inverse_free, dummy, literal, none"):
        LinearExtractor(3).spectral_view(ref.gaussian(4, 3, seed=20), "newton")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite number ≥ 0"):
        LinearExtractor(3, ridge=-1.0)


def some_loss(features: Tensor) -> Tensor:
    """Not spectral, so that nothing but the layer is tested; its gradient is dense."""
    return (features.sin() * torch.arange(features.numel()).view_as(features)).sum()


def damped_inverse(x: Tensor, ridge: float) -> Tensor:
    """(XᵀX + εI)⁻¹, formed on the D×D side; the pseudo-inverse for few samples without ridge."""
    return torch.linalg.pinv(x.T @ x + ridge * torch.eye(x.shape[1], dtype=torch.float64), rtol=1e-10)


@pytest.mark.parametrize(("n", "ridge"), [(15, 0.0), (15, 0.3), (6, 0.0), (6, 0.3), (3, 0.0), (3, 1e-3), (3, 0.3)])
@pytest.mark.parametrize("outputs", [6, 2, 9])
def test_input_side_is_the_explicit_inverse_times_the_plain_gradient(n: int, ridge: float, outputs: int) -> None:
    x = ref.features_with_eigenvalues(torch.linspace(5, 1, min(n, 6)), n, 6, seed=3)
    theta = ref.gaussian(6, outputs, seed=4)
    result = gradient(lambda t: some_loss(preconditioned_linear(x, t, ridge=ridge)), theta)
    plain = gradient(lambda t: some_loss(x @ t), theta)
    assert error(result, damped_inverse(x, ridge) @ plain) < 1e-11


@pytest.mark.parametrize(("n", "ridge"), [(15, 0.0), (15, 0.3), (3, 0.3)])
def test_output_side_is_figure_4_as_printed(n: int, ridge: float) -> None:
    x = ref.features_with_eigenvalues(torch.linspace(5, 1, min(n, 6)), n, 6, seed=7)
    theta = ref.extractor(6, seed=8)
    result = gradient(lambda t: some_loss(preconditioned_linear(x, t, ridge=ridge, side="output")), theta)
    weight_gradient = ref.figure_4_weight_gradient(x, gradient(some_loss, x @ theta), ridge)
    assert error(result, weight_gradient.T) < 1e-11


@pytest.mark.parametrize("side", ["input", "output"])
def test_gradient_of_the_input_is_not_preconditioned(side: str) -> None:
    x, theta = ref.gaussian(9, 6, seed=9), ref.extractor(6, seed=10)
    result = gradient(lambda z: some_loss(preconditioned_linear(z, theta, ridge=0.1, side=side)), x)  # type: ignore[arg-type]
    assert error(result, gradient(lambda z: some_loss(z @ theta), x)) < 1e-14


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_singular_system_asks_for_a_ridge(side: str) -> None:
    exact, theta = ref.gaussian(9, 6, seed=11), ref.extractor(6, seed=12)
    exact[:, 2] = 0
    deficient = (ref.features_with_eigenvalues([3.0, 2.0, 1.5, 1.0], 10, 6, seed) for seed in range(200))
    for x in (exact, *deficient):
        with pytest.raises(ValueError, match="singular"):
            gradient(lambda t, x=x: some_loss(preconditioned_linear(x, t, side=side)), theta)  # type: ignore[arg-type]
    kept = gradient(lambda t: some_loss(preconditioned_linear(exact, t, ridge=1e-3, side=side)), theta)  # type: ignore[arg-type]
    assert torch.isfinite(kept).all()


def test_second_derivatives_are_refused() -> None:
    x, theta = ref.gaussian(9, 6, seed=15), ref.extractor(6, seed=16).requires_grad_()
    loss = some_loss(preconditioned_linear(x, theta))
    (slope,) = torch.autograd.grad(loss.square(), theta, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
