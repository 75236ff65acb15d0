"""Erasing what a linear probe can learn of D_H from features, in closed form, with the least change of D_P.

No linear predictor beats the constant one, for any convex loss, if and only if the features do not vary with the
one-hot labels, that is if the class means are equal (Belrose et al., NeurIPS 2023, "LEACE"). For row vectors x and a
matrix U (D, k) whose columns span the differences of the class means of D_H, every

    r(x) = x - (x - μ)M,   UᵀM = Uᵀ

takes them away. Each column of M is free beyond that, and E_P‖(x - μ)M‖² = tr(MᵀK_P M) is least (Lagrange, column by
column; μ the mean of D_P) for

    M = K_P⁻¹U (UᵀK_P⁻¹U)⁻¹ Uᵀ

LEACE itself has K_H where this has K_P: it changes D_H least. With K_P = LLᵀ, M = L⁻ᵀ P Lᵀ, P the orthogonal
projection onto the columns of L⁻¹U. What stays is uncorrelated, over D_P, with what is taken, so that a linear
classifier of D_P that keeps its weights already is the best linear one at repeating its old outputs.

What D_P's classifier needs can be protected: with its weights W (D, C), P projects onto the part of L⁻¹U that is
orthogonal to LᵀW; then (x - μ)MW = 0 for every x, and of D_H what is seen through W alone is left.

The regression of a target is the case of one direction, Cov(x, y). Fewer than all directions are the leading ones by
the singular values of K_H^{-1/2}B, B (D, C) the class means less the mean, times √(images of the class).

Shapes: N samples, D features, C classes, k directions; M and the map act on rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from immunize.spectrum.condition import check_varying
from immunize.spectrum.decompositions import svd
from immunize.spectrum.separability import scaled_targets, target_columns
from immunize.spectrum.shrinkage import ledoit_wolf

NO_SIGNAL = 1e-10
"""Directions whose singular value is below this share of the largest are rounding."""

ROUNDING = 1e-5
"""What two passes of a network in float32 differ by at most, relative to how the rows differ."""

LEFT_OVER = 0.01
"""Of a direction to be erased, which nothing may be left of but rounding: more was taken for part of another one."""

SINGULAR = "the covariance of the features is singular: give a shrinkage above 0, or auto"

SAME_DATA = "D_P and D_H are the same data with the same labels: what is taken from one, both lose"

ONE_LABEL = (
    "all {:,} rows of D_H have the same label (the paper's pairs of digits hold one digit a side), and erasing needs "
    "two to tell apart: use method=ours or method=closed_form, which look at the features alone"
)


@dataclass(frozen=True)
class Erasure:
    """The map x → x·matrix + offset, and what it took.

    Attributes:
        matrix: (D, D) float64, I - M, of rank D - k: it has no inverse.
        offset: (D,) float64, μM; without it nothing changes for a classifier with a bias.
        rank: k, the directions that are gone.
        shrinkage: ρ of K_P.
        changed: E_P‖x - r(x)‖²/E_P‖x - μ‖², the share of D_P's variance that was taken.
    """

    matrix: Tensor
    offset: Tensor
    rank: int
    shrinkage: float
    changed: float

    def __call__(self, x: Tensor) -> Tensor:
        """Erase from rows (N, D) float64."""
        return x @ self.matrix.to(x.device) + self.offset.to(x.device)


def same_data(pretrain: Sequence[tuple[Tensor, Tensor]], harmful: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether D_P and D_H are the same rows with labels in the same order, wherever each row stands; but for rounding.

    Args:
        pretrain: the parts of D_P, rows (N_i, D) and labels (N_i,) each.
        harmful: of D_H, likewise.
    """
    shapes = {(sum(len(x) for x, _ in parts), parts[0][0].shape[1]) for parts in (pretrain, harmful)}
    if len(shapes) > 1:
        return False
    ((_, columns),) = shapes
    direction = torch.randn(columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def in_order(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        along, y = torch.cat([x.double() @ direction for x, _ in parts]).sort(), torch.cat([y for _, y in parts])
        found: Tensor = along.values[y[along.indices].argsort(stable=True)]
        return found

    one, other = in_order(pretrain), in_order(harmful)
    return torch.allclose(one, other, rtol=0, atol=ROUNDING * float(one.std(correction=0)))


def leading(each: Sequence[Tensor], rank: int | None) -> Tensor:
    """The first so many columns of each matrix (D, k_i) side by side; None: all."""
    return torch.cat([directions[:, :rank] for directions in each], 1)


def directions_of(x: Tensor, y: Tensor) -> Tensor:
    """U: the directions in which the labels of a data set can be told by a linear probe, the strongest first.

    Args:
        x: (N, D) float64 features.
        y: (N,) labels: class numbers if whole, otherwise a target.

    Returns:
        (D, k) float64.

    Raises:
        ValueError: one label, or features that do not vary with it.
    """
    if bool((y == y[0]).all()):
        raise ValueError(ONE_LABEL.format(len(y)))
    centred, columns, gram = x - x.mean(0), scaled_targets(y), covariance(x, "D_H")
    targets = columns - columns.mean(0)
    sizes = (targets if y.is_floating_point() else columns).norm(dim=0)
    means = centred.T @ (targets / sizes) / len(x) ** 0.5  # B; for a target its correlation times σ
    inner = torch.linalg.solve_triangular(root_of(gram, ledoit_wolf(centred, gram)), means, upper=False)
    _, strength, right = svd(inner, full_matrices=False)  # canonical correlations, shrunk
    if not float(strength[0]) > NO_SIGNAL:
        raise ValueError("the features of D_H do not vary with its labels: nothing has to be erased")
    directions = means @ right[strength > NO_SIGNAL * strength[0]].T
    unit: Tensor = directions / directions.norm(dim=0)
    return unit


def erasing_map(
    x_pretrain: Tensor, directions: Tensor, shrinkage: float, *, protected: Tensor | None = None
) -> Erasure:
    """The map that takes directions away and changes D_P least.

    Args:
        x_pretrain: (N, D) float64.
        directions: U (D, k) of :func:`directions_of`, of several data sets side by side; they may depend on each other.
        shrinkage: ρ ≥ 0.
        protected: W (D, C), weights whose outputs stay as they are.

    Raises:
        ValueError: K_P is singular or so close to it that a direction would be left, or nothing or everything would be
            erased.
    """
    mean, size, gram = x_pretrain.mean(0), x_pretrain.shape[1], covariance(x_pretrain, "D_P")
    left, right = taking(root_of(gram, shrinkage), directions, protected)
    rank = left.shape[1]
    if rank >= size:
        raise ValueError(f"all {size} directions would be erased: give a smaller rank")
    taken = left @ right
    matrix = torch.eye(size, dtype=torch.float64) - taken
    matrix = matrix @ matrix  # the same but for rounding, of which half the digits are left
    if protected is None and float((directions.T @ matrix).abs().max()) > LEFT_OVER:
        raise ValueError(f"{SINGULAR}: directions that differ look alike")
    changed = float((gram @ left @ right * taken).sum() / gram.trace())
    return Erasure(matrix, mean @ taken, rank, float(shrinkage), changed)


def taking(lower: Tensor, directions: Tensor, protected: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """M of the map as a product of (D, k) and (k, D).

    Args:
        lower: L of :func:`root_of`.
        directions: U (D, k), which may depend on each other.
        protected: W (D, C).

    Raises:
        ValueError: nothing would be erased.
    """
    inner = torch.linalg.solve_triangular(lower, directions, upper=False)
    inner = inner / inner.norm(dim=0)
    if protected is not None:
        ways, sizes, _ = svd(lower.T @ protected, full_matrices=False)
        needed = ways[:, sizes > NO_SIGNAL**0.5 * sizes[0]]  # columns of labels add up to nothing
        inner = inner - needed @ (needed.T @ inner)
    left, strength, _ = svd(inner, full_matrices=False)
    basis = left[:, strength > NO_SIGNAL**0.5]
    if basis.shape[1] == 0:
        raise ValueError("D_P's classifier needs every direction that the labels of D_H use: nothing can be erased")
    return torch.linalg.solve_triangular(lower.T, basis, upper=True), basis.T @ lower.T


def ridge_weights(x: Tensor, y: Tensor, name: str = "D_H") -> Tensor:
    """Weights (D, C) of a ridge probe of a data set's labels or target (N,), for the features less their mean."""
    centred, columns = x - x.mean(0), target_columns(y)
    gram = covariance(x, name)
    lower = root_of(gram, ledoit_wolf(centred, gram))
    return torch.cholesky_solve(centred.T @ (columns - columns.mean(0)) / len(x), lower)


def covariance(x: Tensor, name: str) -> Tensor:
    """K (D, D) of rows (N, D) of a data set about their mean.

    Raises:
        ValueError: fewer than two rows, or all the same.
    """
    check_varying(x, name)
    centred = x - x.mean(0)
    gram: Tensor = centred.T @ centred / len(centred)
    return gram


def root_of(gram: Tensor, shrinkage: float) -> Tensor:
    """L with LLᵀ = K + ρ·tr(K)/D·I.

    Raises:
        ValueError: that is singular.
    """
    scale = float(gram.trace()) / len(gram)
    root, failed = torch.linalg.cholesky_ex(gram + shrinkage * scale * torch.eye(len(gram)).to(gram))
    floor = len(gram) * torch.finfo(torch.float64).eps * scale
    if int(failed) or not float(root.diagonal().min()) ** 2 > floor:
        raise ValueError(SINGULAR)
    return root  # type: ignore[no-any-return]
