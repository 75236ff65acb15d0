"""A trunk that works once an image: `immunize.features.extract`."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from immunize.features.extract import Once


def trunk() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 4).requires_grad_(False)


def images(n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))


def test_outputs_are_the_trunks_in_every_order_and_each_is_computed_once() -> None:
    plain, x = trunk(), images(20)
    once = Once(plain, 20)
    for rows in (range(10), range(5, 15), range(19, -1, -1), [3, 3, 7], range(20)):
        batch = x[list(rows)]
        torch.testing.assert_close(once(batch), plain(batch), rtol=1e-6, atol=1e-6)
    assert once.computed == 20


def test_an_image_twice_in_a_batch_and_one_of_other_bytes() -> None:
    once, x = Once(trunk(), 10), images(2)
    assert torch.equal(*once(torch.stack([x[0], x[0]])))
    other = x[0].clone()
    other[0] = torch.nextafter(other[0], torch.tensor(9.0))  # the next number: another image
    once(torch.stack([x[0], other]))
    assert once.computed == 2
    once(x[:1].double().float())
    assert once.computed == 2


def test_no_more_is_kept_than_the_limit() -> None:
    x = images(8)
    once = Once(trunk(), 8, limit=3 * 4 * 4)  # three rows of four float32
    once(x)
    once(x)
    assert once.computed == 8 + 5


def test_images_that_change_each_time_are_not_kept() -> None:
    once, plain = Once(trunk(), 4), trunk()
    for seed in range(20):
        x = images(4, seed)
        assert torch.equal(once(x), plain(x))
    once(x)
    assert once.computed == 21 * 4
    assert not once._kept


def test_what_is_kept_is_no_part_of_what_was_handed_out() -> None:
    once, x = Once(trunk(), 4), images(4)
    once(x).zero_()
    assert once(x).any()


def test_a_copy_of_a_network_shares_it() -> None:
    once = Once(trunk(), 4)
    assert copy.deepcopy(nn.Sequential(once))[0] is once
