"""What a pair of digits may be, and the balancing draw."""

from __future__ import annotations

import numpy as np
import pytest
from omegaconf import OmegaConf

from immunize.data.digit_pairs import balanced_rows, parse_pair
from immunize.errors import DataError


def test_pair_may_come_from_a_configuration() -> None:
    assert parse_pair(OmegaConf.create([3, 8]), "mnist") == (3, 8)
    assert parse_pair((9, 0), "mnist") == (9, 0)
    assert parse_pair(OmegaConf.create([[0, 1], [2, 3]]), "mnist") == ((0, 1), (2, 3))
    assert parse_pair([[0, "rest"], [1, "rest"]], "mnist") == ((0, "rest"), (1, "rest"))
    assert parse_pair([4, [4, 9]], "mnist") == (4, (4, 9))


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ([4, 4], "names the digit 4 twice"),
        ([0, 10], "there is no digit 10"),
        ([0], "is not two whole numbers"),
        (["0", "1"], "is not two whole numbers"),
        ([True, False], "is not two whole numbers"),
        (None, "is not two whole numbers"),
        ([[0, 1, 2], 3], "is not two whole numbers, nor two sides"),
        (["rest", 3], "is not two whole numbers, nor two sides"),
        ([[0, "all"], 3], "is not two whole numbers, nor two sides"),
        ([[5, 5], 3], "names 5 twice"),
        ([[0, 1], [1, 0]], "names the digit 0 twice"),
    ],
)
def test_other_pairs_are_refused_with_an_example(pair: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        parse_pair(pair, "mnist")
    assert "harmful=mnist harmful.pair=[0,1]" in str(caught.value)


def test_balanced_rows_are_as_many_as_the_rarer_digit_has() -> None:
    labels = np.array([0] * 7 + [1] * 3 + [2] * 5)

    def rows(digit: int, seed: int) -> list[int]:
        return balanced_rows(labels, (0, 1), [digit], seed=seed, stream=0, name="mnist").tolist()

    assert rows(1, 0) == [7, 8, 9]
    chosen = [rows(0, seed) for seed in range(20)]
    assert all(len(set(some)) == 3 and set(some) <= set(range(7)) and some == sorted(some) for some in chosen)
    assert chosen[0] == rows(0, 0)
    assert {row for some in chosen for row in some} == set(range(7))  # a draw, not the first ones


def test_digit_without_images_is_named() -> None:
    with pytest.raises(DataError, match="no image of the digit 5"):
        balanced_rows(np.array([0, 0, 1]), (0, 5), [0], seed=0, stream=0, name="mnist")
    with pytest.raises(DataError, match="no image of the digit 2"):  # nor of any other that is the rest
        balanced_rows(np.array([0, 0, 1]), (0, 1), [2, 3], seed=0, stream=0, name="mnist")
