"""The linear feature extractor f_θ(x) = xᵀθ (Eq. 8), and the dummy layer of Appendix C.3 below it.

The layer is the identity on the way forward and K⁻¹ on the way back.

Algorithm 1 replaces ∇_θ R = Xᵀ∇_F R by K⁻¹Xᵀ∇_F R, K = XᵀX (line 6). As a layer, F = Xθ is returned unchanged and
the backward pass applies the inverse, so that one `backward()` gives the whole update.

With `nn.Linear`, W = θᵀ, so the inverse stands on the *input* side of W. The paper's Figure 4, read literally, and
the released code solve on the output side instead; that variant is kept under the name ``literal`` for comparisons.

For the linear extractor the same result needs no inverse at all (``inverse_free``: K⁻¹·2KθG = 2θG, see
:mod:`immunize.spectrum.regularizers`); the layer is the general mechanism. A network has no K = XᵀX: there the
layer stands at the features (``features``), or nothing is preconditioned (``none``).

Shapes: N samples, D input features, E output features, C outputs of a probe. θ (D, D) acts on rows, so
`nn.Linear.weight` would be θᵀ.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from immunize.spectrum.decompositions import svd

Precondition = Literal["inverse_free", "dummy", "literal", "features", "none"]
OF_LINEAR: tuple[Precondition, ...] = ("inverse_free", "dummy", "literal", "none")
OF_NETWORKS: tuple[Precondition, ...] = ("features", "none")
"""What a linear extractor and a network can do to a regularizer's gradient on its way to θ."""

RIDGE = 1e-6
"""ε of the layer at the features, relative to the mean eigenvalue of FᵀF; ours."""


def refuse_precondition(precondition: str, known: tuple[Precondition, ...], model: str) -> None:
    """Refuse what a model cannot do, instead of leaving it out.

    Args:
        precondition: as a method asks for it.
        known: `OF_LINEAR` or `OF_NETWORKS`.
        model: its kind, for the message.

    Raises:
        ValueError: it is not among `known`.
    """
    if precondition not in known:
        raise ValueError(f"precondition {precondition!r} is none of {model}'s; there are {', '.join(known)}")


def preconditioned_linear(
    x: Tensor, theta: Tensor, *, ridge: float = 0.0, side: Literal["input", "output"] = "input"
) -> Tensor:
    """X θ, whose backward pass preconditions the gradient of θ with (XᵀX + εI)⁻¹.

    On the input side the solve is done where it is smaller: (XᵀX + εI)⁻¹Xᵀ = Xᵀ(XXᵀ + εI)⁻¹.

    Args:
        x: (N, D).
        theta: (D, E); (D, D) for ``side="output"``.
        ridge: ε ≥ 0 of C.3, absolute. 0 is Algorithm 1 itself and needs X of full rank; it is then the pseudo-inverse
            K⁺ when N < D.
        side: "input" is Algorithm 1; "output" is Figure 4 read literally.

    Returns:
        (N, E).

    Raises:
        ValueError: the system is singular (set ε > 0).
    """
    return _PreconditionedLinear.apply(x, theta, ridge, side)  # type: ignore[no-any-return]


class _PreconditionedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, theta: Tensor, ridge: float, side: str) -> Tensor:
        ctx.save_for_backward(x, theta)
        ctx.ridge, ctx.side = ridge, side
        return x @ theta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, theta = ctx.saved_tensors
        grad_x = grad @ theta.T if ctx.needs_input_grad[0] else None
        if ctx.side == "output":
            grad_theta = _solve(x.T @ x, grad.T @ x, ctx.ridge).T
        elif x.shape[0] < x.shape[1]:
            grad_theta = x.T @ _solve(x @ x.T, grad, ctx.ridge)
        else:
            grad_theta = _solve(x.T @ x, x.T @ grad, ctx.ridge)
        return grad_x, grad_theta, None, None


def _solve(gram: Tensor, right: Tensor, ridge: float) -> Tensor:
    damped = gram + ridge * torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
    factor, info = torch.linalg.cholesky_ex(damped)
    pivots = factor.diagonal().square()
    # Rounding noise can make a singular matrix look definite; its smallest pivot then is noise as well.
    noise = 10 * gram.shape[0] * torch.finfo(gram.dtype).eps * pivots.max()
    if int(info) != 0 or bool(pivots.min() <= noise):
        raise ValueError(f"XᵀX + {ridge:g}·I is singular to working precision; set a larger ridge")
    return torch.cholesky_solve(right, factor)


def preconditioned_features(features: Tensor, ridge: float = RIDGE) -> Tensor:
    """The dummy layer of C.3 with θ = I: identity on the way forward, G ↦ G(FᵀF + εI)⁻¹ on the way back.

    For a regularizer G = 2F·∇_H R, so that the network gets 2F·∇_H R·(H + εI)⁻¹: every direction moves in proportion
    to its own size, as under Algorithm 1. The inverse is applied through the singular vectors of F, never as D×D.

    Args:
        features: (N, D) float64, F.
        ridge: ε relative to the mean eigenvalue tr(FᵀF)/D, > 0.
    """
    return _PreconditionedFeatures.apply(features, ridge)  # type: ignore[no-any-return]


class _PreconditionedFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, ridge: float) -> Tensor:
        ctx.save_for_backward(features)
        ctx.ridge = ridge
        return features.view_as(features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (features,) = ctx.saved_tensors
        _, sigma, vh = svd(features, full_matrices=False)
        squares = sigma.square()
        epsilon = ctx.ridge * squares.sum() / features.shape[1]
        inside = grad @ vh.T
        # (FᵀF + εI)⁻¹ = V(Σ² + ε)⁻¹Vᵀ + (I - VVᵀ)/ε
        return (inside / (squares + epsilon)) @ vh + (grad - inside @ vh) / epsilon, None


Initialization = Literal["orthogonal", "uniform", "identity"]
INITIALIZATIONS: tuple[Initialization, ...] = get_args(Initialization)


class SpectralView(NamedTuple):
    """Features as a regularizer takes them: `theta` is given where the gradient goes to θ directly (2θG)."""

    features: Tensor
    theta: Tensor | None


class LinearExtractor(nn.Module):
    """f_θ(x) = xᵀθ with a square θ in float64, without bias and without dimensionality reduction (§3).

    Args:
        n_features: D.
        init: how θ starts. "orthogonal": a random rotation (Haar), which leaves every κ as it is for the raw
            data; "uniform": U(-1/√D, 1/√D) as `torch.nn.Linear`, the released code's choice, whose own κ is
            large; "identity".
        ridge: ε of the dummy layer (C.3), absolute; only used by `precondition` "dummy" and "literal".
        generator: source of the random start; the global one if None.

    Raises:
        ValueError: unknown `init`, or ε < 0.
    """

    def __init__(
        self,
        n_features: int,
        *,
        init: Initialization = "orthogonal",
        ridge: float = 1e-6,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= ridge < float("inf"):
            raise ValueError(f"model.ridge has to be a finite number ≥ 0, it is {ridge}")
        self.ridge = ridge
        self.theta = nn.Parameter(_initial_theta(n_features, init, generator))

    @property
    def n_features(self) -> int:
        """D."""
        return self.theta.shape[0]

    def forward(self, x: Tensor, probe: Tensor | None = None) -> Tensor:
        """Features (N, D), or the logits (N, C) of a linear probe (D, C) on them.

        With a probe, x(θw) is computed instead of (xθ)w: N·D·C + D²·C multiplications instead of N·D².
        """
        return x @ self.theta if probe is None else x @ (self.theta @ probe)

    def spectral_view(self, rows: Tensor, precondition: Precondition) -> SpectralView:
        """Features of `rows` whose regularizer gradient reaches θ preconditioned as named.

        Args:
            rows: (N, D) float64, samples or compressed rows with the same K.
            precondition: "inverse_free" (2θG, Algorithm 1 without an inverse), "dummy" (C.3 on the correct side),
                "literal" (Figure 4 as printed), "none" (plain ∇_θ R = 2KθG).

        Raises:
            ValueError: another name.
        """
        refuse_precondition(precondition, OF_LINEAR, "a linear extractor")
        if precondition == "inverse_free":
            return SpectralView(rows @ self.theta.detach(), self.theta)
        if precondition == "none":
            return SpectralView(rows @ self.theta, None)
        side: Literal["input", "output"] = "input" if precondition == "dummy" else "output"
        return SpectralView(preconditioned_linear(rows, self.theta, ridge=self.ridge, side=side), None)


def _initial_theta(n_features: int, init: Initialization, generator: torch.Generator | None) -> Tensor:
    theta, bound = torch.empty(n_features, n_features, dtype=torch.float64), n_features**-0.5
    if init == "identity":
        return nn.init.eye_(theta)
    if init == "uniform":
        return nn.init.uniform_(theta, -bound, bound, generator=generator)
    if init == "orthogonal":
        return nn.init.orthogonal_(theta, generator=generator)
    raise ValueError(f"unknown model.init {init!r}; there are {', '.join(INITIALIZATIONS)}")
