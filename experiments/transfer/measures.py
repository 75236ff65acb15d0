"""What `digits.py` and `images.py` share: a cell, predictors from covariances, RIR.

Shapes: N samples, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.evaluation.decomposition import Decomposition
    from immunize.spectrum import Estimator

ESTIMATORS: tuple[Estimator, ...] = ("ridge", "spectrum")
TOP_K = 10
RHO = 1e-2
"""Of the whitening that a predictor uses; ours."""


@dataclass(frozen=True)
class Cell:
    """One map, attacked with one data set.

    Attributes:
        family: "mnist" or "images".
        method: that made θ.
        pretrain: D_P.
        seed: of the run.
        proxy: what θ was made against.
        target: what the attacker brings.
        rir_ridge: on held-out images, None where it is not finite.
        rir_spectrum: likewise.
        ratio_harmful: (i) of the target, `ridge`.
        ratio_pretrain: (ii), `ridge`.
        probe: the probe under θ: steps to a norm ratio of 0.1 (digits), accuracy (images). None for never.
        probe_theta_0: from θ_0.
        probe_pretrain: on D_P under θ; None for never and where it was not measured.
        probe_pretrain_theta_0: from θ_0.
        alignment: Σ|u_iᵀv_i| over the top 10 singular vectors of K_proxy and K_target.
        overlap: mean squared cosine of the principal angles between the two spans.
        whitened: cosine of K_proxy and K_target in the coordinates in which K_P is the identity.
        to_pretrain: alignment of K_target and K_P.
    """

    family: str
    method: str
    pretrain: str
    seed: int
    proxy: str
    target: str
    rir_ridge: float | None
    rir_spectrum: float | None
    ratio_harmful: float
    ratio_pretrain: float
    probe: float | None
    probe_theta_0: float | None
    probe_pretrain: float | None
    probe_pretrain_theta_0: float | None
    alignment: float
    overlap: float
    whitened: float
    to_pretrain: float

    @property
    def matrix(self) -> tuple[str, str, str]:
        """What the cells of one matrix have in common: family, D_P and method."""
        return self.family, self.pretrain, self.method


@dataclass(frozen=True)
class Similarity:
    """Two harmful covariances beside each other and beside D_P's; see :class:`Cell`.

    Attributes:
        alignment: of proxy and target.
        overlap: likewise.
        whitened: likewise.
        to_pretrain: of target and D_P.
    """

    alignment: float
    overlap: float
    whitened: float
    to_pretrain: float


class Similarities:
    """Harmful covariances beside each other and beside D_P's; what was computed for one pair serves the next.

    Args:
        gram: name of a data set to the Gram matrix of its training rows, (D, D) float64.
    """

    def __init__(self, gram: Callable[[str], Tensor]) -> None:
        self._gram = gram
        self._aligned: dict[frozenset[str], tuple[float, float]] = {}
        self._whitened: dict[tuple[str, str], Tensor] = {}

    def of(self, pretrain: str, proxy: str, target: str) -> Similarity:
        """Compare proxy and target, and the target with D_P.

        The closed form is a function of K_proxy in the coordinates in which K_P + αI is the identity, so that
        `whitened` compares what it acts on: tr(AB)/(‖A‖‖B‖) with A = L⁻¹K_proxyL⁻ᵀ, B = L⁻¹K_targetL⁻ᵀ and
        LLᵀ = K_P + αI.

        Args:
            pretrain: name of D_P.
            proxy: of what θ was made against.
            target: of what the attacker brings.
        """
        score, overlap = self._align(proxy, target)
        a, b = self._white(pretrain, proxy), self._white(pretrain, target)
        cosine = float((a * b).sum() / (a.norm() * b.norm()))
        return Similarity(score, overlap, cosine, self._align(pretrain, target)[0])

    def _align(self, one: str, other: str) -> tuple[float, float]:
        """Alignment and overlap; both are symmetric."""
        import torch

        from immunize.evaluation.alignment import align

        key = frozenset((one, other))
        if key not in self._aligned:
            first = self._gram(one)
            found = align(first, self._gram(other), min(TOP_K, len(first)))
            self._aligned[key] = found.score, float(torch.deg2rad(found.angles).cos().square().mean())
        return self._aligned[key]

    def _white(self, pretrain: str, name: str) -> Tensor:
        import torch

        if (pretrain, name) not in self._whitened:
            gram, size = self._gram(pretrain), len(self._gram(pretrain))
            factor = torch.linalg.cholesky(gram + RHO * gram.trace() / size * torch.eye(size, dtype=gram.dtype))
            half = torch.linalg.solve_triangular(factor, self._gram(name), upper=False)
            self._whitened[pretrain, name] = torch.linalg.solve_triangular(factor, half.T, upper=False)
        return self._whitened[pretrain, name]


def ratios(
    after: tuple[Decomposition, Decomposition], before: tuple[Decomposition, Decomposition]
) -> dict[str, float | None]:
    """RIR by every estimator, with (i) and (ii) by `ridge`; an RIR that is not finite is None.

    Args:
        after: D_P and the target under θ.
        before: the same under θ_0.
    """
    from immunize.spectrum import immunization_ratio

    pretrain, harmful, pretrain_before, harmful_before = (one.spectrum for one in (*after, *before))
    found: dict[str, float | None] = {}
    for estimator in ESTIMATORS:
        one = immunization_ratio(pretrain, harmful, pretrain_before, harmful_before, estimator)
        found[f"rir_{estimator}"] = one.rir if math.isfinite(one.rir) else None
        if estimator == "ridge":
            found |= {"ratio_harmful": one.ratio_harmful, "ratio_pretrain": one.ratio_pretrain}
    return found
