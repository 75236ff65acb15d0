"""Two Gaussian data sets with prescribed spectra and a prescribed relative angle between their singular vectors (ours).

Section 4.2 says that immunization is possible as far as the two data sets differ in their singular vectors. Here both
things are knobs. With V_P a random orthonormal basis,

    K_P = N V_P Λ_P V_Pᵀ,    K_H = N V_H Λ_H V_Hᵀ,    V_H = V_P R(angle),

where Λ holds D log-spaced eigenvalues from 1 down to 1/condition and R rotates the pairs of basis vectors
(v_1, v_{1+D/2}), (v_2, v_{2+D/2}), ... by `angle`: |⟨v_P,i, v_H,i⟩| = cos(angle) for every i. At 0 degrees the data
sets are aligned, at 90 the two halves of the spectrum have changed places. If D is odd, the last vector stays.

In-sample both spectra are exact, not only in expectation: `fit` is X = √N U Λ^½ Vᵀ with U an orthonormalized Gaussian,
so XᵀX = K. Held-out rows are fresh Gaussian draws with the covariance V Λ Vᵀ = K/N.

Targets are y = (X w + noise · ε) / √(1 + noise²), where w is drawn per data set with wᵀ V Λ Vᵀ w = 1: mean 0 and
variance 1 in the population, and `noise` is the ratio of noise to signal.

Shapes: N samples, D features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from immunize.data.splits import ROLES, Array, Part, SourceBase, Splits, random_generator, to_part
from immunize.errors import DataError

BASIS_STREAM, ROLE_STREAM = 0, 1
"""The basis depends on the seed alone, so that both roles share it; everything else also depends on the role."""


class Synthetic(SourceBase):
    """One of the two Gaussian data sets.

    Args:
        role: "pretrain" has the basis V_P, "harmful" the rotated V_H.
        n_samples: N, of `fit` and of `held_out` alike.
        n_features: D; has to be the same for both roles.
        condition: largest over smallest eigenvalue of this data set's K.
        angle: degrees, 0 to 90, between the singular vectors of the two data sets; without effect on "pretrain".
        seed: has to be the same for both roles, which thereby agree on V_P.
        noise: standard deviation of the noise in y, relative to the signal.

    Raises:
        DataError: for values outside these ranges, or N < D (K could not have the prescribed spectrum).
    """

    name = "synthetic"
    task = "regression"
    unused: ClassVar[Mapping[str, tuple[str, ...]]] = {"pretrain": ("angle",), "rows": ("noise",)}

    def __init__(
        self,
        role: str,
        *,
        n_samples: int = 512,
        n_features: int = 32,
        condition: float = 100.0,
        angle: float = 45.0,
        seed: int = 0,
        noise: float = 0.1,
    ) -> None:
        super().__init__(role)
        self.n_samples, self.n_features, self.seed = n_samples, n_features, seed
        self.condition, self.angle, self.noise = float(condition), float(angle), float(noise)
        self._check()

    def load(self) -> Splits:
        """Draw both parts.

        Returns:
            `fit` with exactly the prescribed spectrum and `held_out` from the same population, (N, D) each.
        """
        rng = random_generator(self.seed, ROLE_STREAM, ROLES.index(self.role))
        root = np.sqrt(eigenvalues(self.n_features, self.condition))
        basis = self.basis()
        u, _ = np.linalg.qr(rng.standard_normal((self.n_samples, self.n_features)))
        fit = math.sqrt(self.n_samples) * (u * root) @ basis.T
        held_out = (rng.standard_normal((self.n_samples, self.n_features)) * root) @ basis.T
        direction = rng.standard_normal(self.n_features)
        # w = V Λ^-½ d with |d| = 1 gives wᵀ V Λ Vᵀ w = 1.
        w = basis @ (direction / np.linalg.norm(direction) / root)
        return Splits(self._with_targets(fit, w, rng), self._with_targets(held_out, w, rng))

    def basis(self) -> Array:
        """V_P or V_H.

        Returns:
            (D, D) orthonormal columns, in descending order of the eigenvalues they belong to.
        """
        rng = random_generator(self.seed, BASIS_STREAM)
        v_pretrain, _ = np.linalg.qr(rng.standard_normal((self.n_features, self.n_features)))
        return v_pretrain if self.role == "pretrain" else rotate_pairs(v_pretrain, self.angle)

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        own = {name: getattr(self, name) for name in ("n_samples", "n_features", "condition")}
        own |= {"angle_degrees": self.angle if self.role == "harmful" else 0.0, "noise": self.noise}
        return self.facts({**own, "data_seed": self.seed, "from": "generated"})

    def _with_targets(self, x: Array, w: Array, rng: np.random.Generator) -> Part:
        y = x @ w + self.noise * rng.standard_normal(len(x))
        return to_part(x, y / math.sqrt(1.0 + self.noise**2))

    def _check(self) -> None:
        if self.n_features < 1:
            raise DataError(f"synthetic: n_features={self.n_features}, but at least 1 is needed")
        if self.n_samples < max(2, self.n_features):
            raise DataError(
                f"synthetic: n_samples={self.n_samples}, but a spectrum of n_features={self.n_features} eigenvalues "
                f"needs at least {max(2, self.n_features)} samples"
            )
        if not (math.isfinite(self.condition) and self.condition >= 1):
            raise DataError(f"synthetic: condition={self.condition}, but a condition number is finite and 1 or more")
        if not 0 <= self.angle <= 90:
            raise DataError(f"synthetic: angle={self.angle}, but it has to be between 0 and 90 degrees")
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise DataError(f"synthetic: noise={self.noise}, but it has to be finite and 0 or more")


def eigenvalues(n_features: int, condition: float) -> Array:
    """The population covariance's eigenvalues, which are those of K/N.

    Args:
        n_features: D.
        condition: first over last.

    Returns:
        (D,) float64, descending from 1 to 1/condition at equal ratios.
    """
    return np.geomspace(1.0, 1.0 / condition, n_features)


def rotate_pairs(basis: Array, degrees: float) -> Array:
    """V R(angle): rotate the columns (1, 1 + D/2), (2, 2 + D/2), ... within the planes they span.

    Partners lie half a spectrum apart: turned into each other, directions that D_P has strongly become ones that D_H
    has weakly, and the pair can be immunized the better the larger the angle.

    Args:
        basis: (D, D) orthonormal columns.
        degrees: the angle.

    Returns:
        (D, D) orthonormal columns, each at the given angle to its original; the last one unchanged if D is odd.
    """
    # Exact at the ends: cos(90°) in floating point is 6e-17 and would leave the data sets not quite swapped.
    cos, sin = (0.0, 1.0) if degrees == 90 else (math.cos(math.radians(degrees)), math.sin(math.radians(degrees)))
    rotated = basis.copy()
    half = basis.shape[1] // 2
    first, second = basis[:, :half], basis[:, half : 2 * half]
    rotated[:, :half] = cos * first + sin * second
    rotated[:, half : 2 * half] = cos * second - sin * first
    return rotated
