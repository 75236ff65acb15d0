"""PyTorch's decompositions of a matrix, on one thread where several would only wake each other.

LAPACK's are thousands of small products. Threads that sleep when idle (:mod:`immunize.threads`) are woken for each of
them: on two cores eigenvalues of 512×512 took 48 ms on two threads and 12 ms on one, singular values of 100×512 12 ms
and 1.4 ms. At 2,048×2,048 two threads take three quarters of the time of one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

LARGE = 1024
"""A matrix whose shorter side is above it is decomposed on all threads."""


def _on_one_thread(decompose: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(decompose)
    def decomposed(*args: P.args, **kwargs: P.kwargs) -> R:
        matrix, threads = args[0], torch.get_num_threads()
        assert isinstance(matrix, Tensor)
        if threads == 1 or min(matrix.shape[-2:]) > LARGE:
            return decompose(*args, **kwargs)
        torch.set_num_threads(1)
        try:
            return decompose(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return decomposed


eigh = _on_one_thread(torch.linalg.eigh)
eigvalsh = _on_one_thread(torch.linalg.eigvalsh)
svd = _on_one_thread(torch.linalg.svd)
svdvals = _on_one_thread(torch.linalg.svdvals)
