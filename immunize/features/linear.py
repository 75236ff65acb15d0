"""The linear feature extractor f_θ(x) = xᵀθ (Eq. 8).

Shapes: N samples, D features, C outputs of a probe. θ (D, D) acts on rows, so `nn.Linear.weight` would be θᵀ.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from immunize.features.precondition import OF_LINEAR, Precondition, preconditioned_linear, refuse_precondition

__all__ = ["INITIALIZATIONS", "Initialization", "LinearExtractor", "SpectralView"]

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
    if init == "identity":
        return torch.eye(n_features, dtype=torch.float64)
    if init == "uniform":
        bound = n_features**-0.5
        return torch.empty(n_features, n_features, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
    if init == "orthogonal":
        gaussian = torch.randn(n_features, n_features, dtype=torch.float64, generator=generator)
        q, r = torch.linalg.qr(gaussian)
        rotation: Tensor = q * r.diagonal().sign()  # the sign makes the draw uniform over rotations
        return rotation.contiguous()
    raise ValueError(f"unknown model.init {init!r}; there are {', '.join(INITIALIZATIONS)}")
