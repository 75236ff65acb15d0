"""Decompositions on one thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from immunize.spectrum import decompositions
from immunize.threads import cpu_threads


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many threads each decomposition had, of a process with two."""
    counts: list[int] = []

    def count(matrix: Tensor, **options: Any) -> Tensor:
        counts.append(torch.get_num_threads())
        return torch.linalg.svdvals(matrix, **options)

    monkeypatch.setattr(decompositions, "svdvals", decompositions._on_one_thread(count))
    monkeypatch.setattr(decompositions, "LARGE", 8)
    with cpu_threads(2):
        yield counts


@pytest.mark.parametrize(("shape", "threads"), [((8, 50), 1), ((50, 8), 1), ((9, 9), 2)])
def test_up_to_a_size_one_thread_computes(shape: tuple[int, int], threads: int, seen: list[int]) -> None:
    found = decompositions.svdvals(torch.eye(*shape, dtype=torch.float64))
    assert torch.equal(found, torch.ones(min(shape), dtype=torch.float64))
    assert seen == [threads]
    assert torch.get_num_threads() == 2


def test_all_threads_are_back_after_an_error(seen: list[int]) -> None:
    with pytest.raises(RuntimeError):
        decompositions.svdvals(torch.eye(2, dtype=torch.int64))
    assert seen == [1]
    assert torch.get_num_threads() == 2
