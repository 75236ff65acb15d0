"""Training in the coordinates of the joint range: same Hessians, same gradients, θ put back into D columns."""

import pytest
import torch
from torch import Tensor

from immunize.spectrum.condition import ZeroMatrixError, spectrum_of
from immunize.spectrum.ranges import (
    compress_rows,
    joint_basis,
    lift_map,
    restrict_map,
    spectrum_of_map,
    spectrum_of_rows,
)
from tests import reference as ref
from tests.spectrum.making import column, diagonal

D, RANK_P, RANK_H, SHARED = 12, 5, 4, 2


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    """Two data sets whose ranges share two directions: the joint range has 5 + 4 - 2 = 7 of 12."""
    directions, start = ref.orthogonal(D, seed=3), RANK_P - SHARED
    p = ref.gaussian(40, RANK_P, seed=4) @ directions[:, :RANK_P].T
    return p, 1e4 * ref.gaussian(30, RANK_H, seed=5) @ directions[:, start : start + RANK_H].T


def test_the_basis_is_orthonormal_spans_all_rows_whatever_their_scale_and_is_in_general_position(pair):
    """No coordinate belongs to a singular vector: every one of them sees both data sets."""
    basis = joint_basis(*pair)
    assert basis.shape == (D, RANK_P + RANK_H - SHARED)
    assert torch.allclose(basis.T @ basis, torch.eye(basis.shape[1], dtype=torch.float64), atol=1e-13)
    for rows in pair:
        assert torch.allclose(rows @ basis @ basis.T, rows, atol=1e-12 * float(rows.abs().max()))
        sizes = (rows @ basis).norm(dim=0)
        assert float(sizes.min()) > 0.05 * float(sizes.max())


def test_the_basis_depends_on_the_data_alone(pair):
    torch.manual_seed(1)
    first = joint_basis.__wrapped__(*pair)
    torch.manual_seed(2)
    assert torch.equal(joint_basis.__wrapped__(*pair), first)


def test_the_spectrum_of_the_lifted_map_is_that_of_the_map(pair):
    basis = joint_basis(*pair)
    theta = ref.gaussian(basis.shape[1], basis.shape[1], seed=0)
    lift = lift_map(theta, basis)
    torch.testing.assert_close(basis.T @ lift @ basis, theta)
    for rows in pair:
        inside = spectrum_of((rows @ basis) @ theta)
        lifted = spectrum_of(rows @ lift)
        k = inside.rank
        assert lifted.rank == k
        assert torch.allclose(lifted.values[:k], inside.values[:k], rtol=1e-9, atol=0)


def test_the_spectrum_of_a_map_is_that_of_all_rows_behind_it_and_has_the_rank_that_it_leaves(pair):
    theta = ref.gaussian(D, D, seed=6)
    for rows in pair:
        small = compress_rows(rows)
        gone = small[0] / small[0].norm()
        for rank, of in ((len(small), theta), (len(small) - 1, theta - torch.outer(gone, gone @ theta))):
            found = spectrum_of_map(small, of, len(rows))
            assert (found.rank, found.n_samples) == (rank, len(rows))
            torch.testing.assert_close(found.values[:rank], spectrum_of(rows @ of).values[:rank], rtol=1e-9, atol=0)
        large = torch.cat([1e6 * small[:1], small[1:]])  # so that the rounding of what is gone stays
        assert spectrum_of_map(large, of, len(rows)).rank == len(small) - 1


def test_the_spectrum_of_compressed_rows_is_that_of_all_rows_and_needs_no_decomposition(pair, monkeypatch):
    known = [spectrum_of(rows) for rows in pair]
    small = [compress_rows(rows) for rows in pair]
    monkeypatch.delattr("immunize.spectrum.condition.svdvals")
    for rows, few, all_rows in zip(pair, small, known, strict=True):
        found = spectrum_of_rows(few, len(rows))
        assert (found.rank, found.n_samples, found.n_features) == (len(few), len(rows), D)
        assert found.tolerance == all_rows.tolerance
        torch.testing.assert_close(found.values, all_rows.values[: len(few)], rtol=1e-9, atol=0)
    tied = spectrum_of_rows(compress_rows(ref.orthogonal(D, seed=8)), D)
    assert torch.equal(tied.values, tied.values.sort(descending=True).values)
    with pytest.raises(ZeroMatrixError, match="a matrix of zeros"):
        spectrum_of_rows(compress_rows(0 * pair[0]), len(pair[0]))


def test_rows_that_span_nothing_are_refused():
    with pytest.raises(ValueError, match="span nothing"):
        joint_basis(torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("rows", [2, 3, 6, 7, 30])
def test_tall_wide_and_small_rows_are_spanned_alike_and_zeros_add_nothing(rows: int) -> None:
    x, zeros = 0.5 * ref.gaussian(rows, 3, seed=2), torch.zeros(4, 3, dtype=torch.float64)
    basis = joint_basis(zeros, x)
    assert basis.shape == (3, min(rows, 3))
    torch.testing.assert_close(x @ basis @ basis.T, x, rtol=0, atol=1e-12)
    assert basis.is_contiguous()
    assert compress_rows(zeros).shape == (0, 3)


def test_a_lifted_map_scales_the_rest_by_the_geometric_mean_and_a_restricted_one_is_triangular() -> None:
    basis = joint_basis(ref.gaussian(2, 4, seed=3))
    torch.testing.assert_close(torch.linalg.svdvals(lift_map(diagonal(8.0, 2.0), basis)), column(8.0, 4.0, 4.0, 2.0))
    sizes = torch.linalg.svdvals(lift_map(diagonal(3.0, 7.0), basis))
    torch.testing.assert_close(sizes[1:3], column(21.0, 21.0).sqrt(), rtol=1e-14, atol=0)
    singular = lift_map(diagonal(0.0, 0.0), basis)
    torch.testing.assert_close(singular, torch.eye(4, dtype=torch.float64) - basis @ basis.T)
    theta = ref.gaussian(4, 4, seed=4)
    lower = restrict_map(theta, basis)
    torch.testing.assert_close(lower @ lower.T, basis.T @ theta @ theta.T @ basis)
    assert float(lower[0, 1]) == 0
    assert lower.is_contiguous()
    huge = lift_map(1e200 * torch.eye(2, dtype=torch.float64), basis)
    assert bool(torch.isfinite(huge).all())
