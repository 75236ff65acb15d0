"""`cpu_threads`: torch and every BLAS have that many threads within, and what they had after."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from immunize.threads import cpu_threads


def blas_threads() -> set[int]:
    np.eye(2) @ np.eye(2)
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize("fails", [False, True])
def test_torch_and_blas_have_that_many_threads_within(fails: bool) -> None:
    with cpu_threads(2):
        outside = torch.get_num_threads(), blas_threads()
        try:
            with cpu_threads(1):
                assert (torch.get_num_threads(), blas_threads()) == (1, {1})
                if fails:
                    raise ArithmeticError
        except ArithmeticError:
            pass
        assert (torch.get_num_threads(), blas_threads()) == outside == (2, {2})


def test_none_changes_nothing() -> None:
    with cpu_threads(1), cpu_threads(None):
        assert (torch.get_num_threads(), blas_threads()) == (1, {1})
