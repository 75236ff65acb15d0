"""One decomposition a data set, against explicit Hessians and the pseudo-inverse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from immunize.evaluation.immunity import compress, decompose
from tests import reference as ref
from tests.composing import gap

D = 7


def data(n: int, rank: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = ref.features_with_eigenvalues(torch.logspace(2, -1, rank), n, D, seed)
    return x, ref.gaussian(n, seed=seed + 100)


SHAPES = [(50, D), (50, 4), (D, D), (D + 1, D), (5, 5), (5, 3), (2, 1)]
"""(N, rank): tall, rank-deficient, square, one row more, wide, wide and deficient, tiny."""


@pytest.mark.parametrize(("n", "rank"), SHAPES)
@pytest.mark.parametrize("with_theta", [False, True])
def test_spectrum_optimum_and_loss(n: int, rank: int, with_theta: bool) -> None:
    x, y = data(n, rank)
    theta = ref.extractor(D, seed=3) if with_theta else None
    found = decompose(compress(x, y), theta)
    features = x if theta is None else x @ theta

    hess = ref.hessian(x, theta)
    values, vectors = torch.linalg.eigh(hess)
    values, vectors = values.flip(0), vectors.flip(1)
    assert found.spectrum.rank == rank
    assert (found.spectrum.n_samples, found.spectrum.n_features) == (n, D)
    assert gap(found.spectrum.values[:rank], values[:rank]) < 1e-9
    assert ((found.spectrum.values[:rank] / values[:rank]) - 1).abs().max() < 1e-9

    w_star = torch.linalg.lstsq(features, y[:, None], driver="gelsd").solution.squeeze(-1)  # minimum norm
    coordinates = vectors[:, :rank].T @ w_star  # their signs are those of the eigenvectors
    assert gap(found.optimum.abs(), coordinates.abs()) < 1e-9
    assert found.loss * n == pytest.approx(ref.optimal_least_squares_loss(features, y), rel=1e-9, abs=1e-12)
    assert found.energy * n == pytest.approx(float(y.square().sum()), rel=1e-12)


@pytest.mark.parametrize(("n", "rank"), SHAPES)
def test_compression_keeps_gram_matrix_products_and_energy(n: int, rank: int) -> None:
    x, y = data(n, rank, seed=5)
    rows = compress(x, y)
    assert rows.x.shape[0] == rows.spectrum.rank == rank
    assert (rows.spectrum.n_samples, rows.spectrum.n_features) == (n, D)
    assert gap(rows.x.T @ rows.x, x.T @ x) < 1e-12
    assert gap(rows.x.T @ rows.y, x.T @ y) < 1e-12
    assert rows.energy == pytest.approx(float(y.square().sum()), rel=1e-14)


def test_exactly_solvable_targets_have_no_loss() -> None:
    x, _ = data(40, D)
    found = decompose(compress(x, x @ torch.arange(1.0, D + 1, dtype=torch.float64)))
    assert 0 <= found.loss < 1e-12 * found.energy


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(value: float) -> None:
    x, y = data(20, D)
    theta = torch.eye(D, dtype=torch.float64)
    theta[0, 0] = value
    with pytest.raises(ValueError, match="NaN or infinite"):
        decompose(compress(x, y), theta)


@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_kappa_is_over_as_many_singular_values_as_the_raw_data_have(factor: float) -> None:
    """θ pushes an eigenvalue of H across the cut max(N, D)·eps·σ_1, downwards or upwards: k stays that of K."""
    n = 50
    sigma = torch.tensor([1, 0.1, 0.01, 1e-3, 1e-4, 1e-9, 1e-17], dtype=torch.float64)
    x = ref.features_with_eigenvalues(sigma, n, D, 3)
    v = torch.linalg.svd(x, full_matrices=False).Vh.T
    scale = torch.ones(D, dtype=torch.float64)
    scale[5 if factor < 1 else 6] = factor**0.5
    whole = decompose(compress(x, ref.gaussian(n, seed=4)), v @ torch.diag(scale) @ v.T)
    found = whole.spectrum
    assert found.rank == len(whole.optimum) == 6
    assert found.numerical_rank == (5 if factor < 1 else 6)
    sixth = 1e-9 * min(factor, 1.0)
    assert float(found.values[5] / found.values[0]) == pytest.approx(sixth, rel=1e-5)


def test_several_outputs_are_one_problem_each_and_a_probe_sees_them_together() -> None:
    x, _ = data(40, D)
    y = ref.gaussian(40, 3, seed=9)
    together, each = decompose(compress(x, y)), [decompose(compress(x, y[:, c])) for c in range(3)]
    assert together.loss == pytest.approx(sum(one.loss for one in each), rel=1e-12)
    assert together.energy == pytest.approx(sum(one.energy for one in each), rel=1e-12)
    lengths = torch.stack([one.optimum.square() for one in each]).sum(0).sqrt()
    torch.testing.assert_close(together.optimum, lengths)


@pytest.mark.parametrize(("n", "rank"), [(50, D), (50, 4), (5, 5)])
def test_a_map_that_takes_directions_away_leaves_the_others_and_no_rounding(n: int, rank: int) -> None:
    x, y = data(n, rank)
    gone = x[:2].T  # directions that the data have
    theta = (torch.eye(D).double() - gone @ torch.linalg.pinv(gone)) @ ref.extractor(D, seed=3)
    found = decompose(compress(x, y), theta)
    assert found.spectrum.rank == rank - 2
    values = torch.linalg.eigvalsh(ref.hessian(x, theta)).flip(0)[: rank - 2]
    torch.testing.assert_close(found.spectrum.values[: rank - 2], values)
