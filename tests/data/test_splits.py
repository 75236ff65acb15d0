"""Parts, roles and the independence of seeded draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from immunize.data import Part
from immunize.data.splits import random_generator, to_part
from immunize.data.synthetic import Synthetic
from immunize.errors import DataError


def test_take_copies_the_rows() -> None:
    part = Part(torch.arange(6, dtype=torch.float64).reshape(3, 2), torch.arange(3, dtype=torch.float64))
    taken = part.take(torch.tensor([2, 0]))
    assert len(taken) == 2
    assert taken.x.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert taken.y.tolist() == [2.0, 0.0]
    taken.x.zero_()
    assert part.x[2].tolist() == [4.0, 5.0]


def test_to_part_owns_its_memory() -> None:
    x = np.ones((2, 3), dtype=np.uint8)
    part = to_part(x, np.array([0, 1]))
    assert part.x.dtype == part.y.dtype == torch.float64
    x[:] = 7
    assert bool((part.x == 1).all())


def test_generators_are_reproducible_distinct_and_leave_the_global_state_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    draws = {args: random_generator(*args).integers(1 << 60) for args in [(0,), (1,), (0, 1), (0, 2), (0, 0, 1)]}
    assert len(set(draws.values())) == len(draws)
    assert random_generator(0, 1).integers(1 << 60) == draws[0, 1]
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("seed", [-1, 1.5, "0", True, None])
def test_seed_has_to_be_a_natural_number(seed: object) -> None:
    with pytest.raises(DataError, match="seed has to be a whole number"):
        random_generator(seed)  # type: ignore[arg-type]


def test_unknown_role_is_refused() -> None:
    with pytest.raises(DataError, match="role is 'benign', but has to be one of pretrain, harmful"):
        Synthetic("benign")


def test_split_source_is_not_cross_fitted() -> None:
    with pytest.raises(DataError, match="synthetic has held-out rows of its own"):
        Synthetic("harmful").cross_fit(0)
