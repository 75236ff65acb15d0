"""Features of a data set: order, precision, out of memory, the cache on disk, and a trunk that works once an image."""

from __future__ import annotations

import copy
import logging
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from immunize.errors import UserError
from immunize.features.deep import DeepExtractor
from immunize.features.extract import Once, cached_trunk, extract
from tests.features.test_deep import build, images
from tests.reference import gaussian

N, BATCH = 11, 4
KEY = {"data": "squares", "split": "fit"}


def doubled(x: Tensor) -> Tensor:
    return 2 * x


SQUARES = TensorDataset(torch.stack([torch.arange(float(N)) ** power for power in (1, 2, 0)], 1), -torch.arange(N))
"""Sample i is (i, i², 1), its label -i."""
EXPECTED = 2 * SQUARES.tensors[0]


@pytest.fixture(scope="module")
def extractor() -> DeepExtractor:
    return build()


@pytest.fixture(scope="module")
def pictures() -> TensorDataset:
    return TensorDataset(images(10), torch.arange(10) % 5)


@pytest.mark.parametrize("workers", [0, 1])
def test_everything_in_its_order(workers: int) -> None:
    x, y = extract(doubled, SQUARES, batch_size=BATCH, workers=workers)
    assert torch.equal(x, EXPECTED)
    assert torch.equal(y, -torch.arange(N))
    assert extract(doubled, SQUARES, dtype=torch.float64).x.dtype == torch.float64


def test_nothing_is_differentiated_and_no_random_number_is_used(extractor: DeepExtractor, pictures: Any) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    x, _ = extract(extractor, pictures, batch_size=BATCH)
    assert torch.equal(torch.rand(1), expected)
    assert not x.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(x, extractor(pictures.tensors[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fitting", "error"),
    [
        (1, RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried")),
        (3, torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")),
        (5, MemoryError()),
    ],
)
def test_out_of_memory_halves_the_batch(fitting: int, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    sizes = []

    def limited(x: Tensor) -> Tensor:
        sizes.append(len(x))
        if len(x) > fitting:
            raise error
        return 2 * x

    with caplog.at_level(logging.WARNING):
        x, y = extract(limited, SQUARES, batch_size=8)
    assert torch.equal(x, EXPECTED)
    assert torch.equal(y, -torch.arange(N))
    failed = sum(size > fitting for size in sizes)
    assert 1 <= failed <= 3  # halved for good: 8, 4, 2, and not anew for the next batch
    assert caplog.text.count("out of memory") == failed


@pytest.mark.parametrize(
    ("error", "told"), [("CUDA out of memory", "one sample alone does not fit"), ("size mismatch", "size mismatch")]
)
def test_one_sample_that_does_not_fit_and_other_errors(error: str, told: str) -> None:
    with pytest.raises(RuntimeError, match=told):
        extract(Mock(side_effect=RuntimeError(error)), SQUARES, batch_size=4)


def test_no_images_at_all(extractor: DeepExtractor) -> None:
    empty = TensorDataset(torch.zeros(0, 3, 32, 32), torch.zeros(0))
    with pytest.raises(UserError, match="no images"):
        extract(doubled, empty)
    with pytest.raises(UserError, match="no images"):
        cached_trunk(extractor, empty)


# --- on disk --------------------------------------------------------------------------------------------------------


def test_a_file_is_used_for_the_same_array_alone_and_a_broken_one_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, other = Mock(side_effect=doubled), {"key": KEY | {"split": "other"}}
    settings: dict[str, Any] = {"batch_size": BATCH, "cache_dir": tmp_path, "key": KEY}

    def computed(**changes: Any) -> bool:
        network.reset_mock()
        assert torch.equal(extract(network, SQUARES, **settings | changes).x.float(), EXPECTED)
        return network.called

    assert computed()
    (path,) = tmp_path.iterdir()
    extract(lambda x: 3 * x, SQUARES, **settings | other)
    (foreign,) = set(tmp_path.iterdir()) - {path}
    foreign.rename(path)  # what a collision of hashes would be
    for changes in ({}, other, {"dtype": torch.float16}, {"batch_size": 5}):
        assert computed(**changes)
        assert not computed(**changes)
    path.write_bytes(path.read_bytes()[:50])
    assert computed()
    assert "made anew" in caplog.text
    assert not computed()


def test_cache_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    found = extract(doubled, SQUARES, cache_dir=tmp_path / "file" / "cache", key=KEY)
    assert torch.equal(found.x, EXPECTED)
    assert "could not be kept" in caplog.text


def test_cache_needs_a_key_of_plain_values(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a key"):
        extract(doubled, SQUARES, cache_dir=tmp_path)
    with pytest.raises(TypeError):
        extract(doubled, SQUARES, cache_dir=tmp_path, key={"data": object()})


# --- trunk outputs --------------------------------------------------------------------------------------------------


def test_stored_trunk_outputs_are_the_trunks(extractor: DeepExtractor, pictures: Any) -> None:
    stored = cached_trunk(extractor, pictures, batch_size=10)
    h, y = stored.tensors
    assert torch.equal(y, pictures.tensors[1])
    assert torch.equal(h, extractor.trunk(pictures.tensors[0]))
    torch.testing.assert_close(extractor.features(h.half()), extractor.features(h), rtol=1e-2, atol=1e-2)


def test_network_in_one_piece_is_refused(pictures: Any) -> None:
    with pytest.raises(UserError, match=r"cannot be cut off \(.*\); set it to false"):
        cached_trunk(build(trainable=["*"]), pictures)


def test_more_than_the_memory_is_refused(
    extractor: DeepExtractor, pictures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[extract.__module__]
    needed = 10 * 16 * 2 * 2 * 4
    monkeypatch.setattr(module, "available_memory", lambda: needed / module.MEMORY_SHARE)
    assert len(cached_trunk(extractor, pictures)) == 10
    monkeypatch.setattr(module, "available_memory", lambda: (needed - 1) / module.MEMORY_SHARE)
    with pytest.raises(UserError, match=r"model\.image_size.*cache_frozen=false"):
        cached_trunk(extractor, pictures)


def trunk() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 4).requires_grad_(False)


def rows(n: int, seed: int = 1) -> Tensor:
    return gaussian(n, 6, seed=seed).float()


def test_outputs_are_the_trunks_in_every_order_and_each_is_computed_once() -> None:
    plain, x = trunk(), rows(20)
    once = Once(plain, 20)
    for chosen in (range(10), range(5, 15), range(19, -1, -1), [3, 3, 7], range(20)):
        batch = x[list(chosen)]
        torch.testing.assert_close(once(batch), plain(batch), rtol=1e-6, atol=1e-6)
    assert once.computed == 20


def test_an_image_twice_in_a_batch_and_one_of_other_bytes() -> None:
    once, x = Once(trunk(), 10), rows(2)
    assert torch.equal(*once(torch.stack([x[0], x[0]])))
    other = x[0].clone()
    other[0] = torch.nextafter(other[0], torch.tensor(9.0))  # the next number: another image
    once(torch.stack([x[0], other]))
    assert once.computed == 2


def test_no_more_is_kept_than_the_limit() -> None:
    x = rows(8)
    once = Once(trunk(), 8, limit=3 * 4 * 4)  # three rows of four float32
    for _ in range(8):
        once(x)
    assert once.computed == 8 + 7 * 5


def test_images_that_change_each_time_are_not_kept() -> None:
    once, plain = Once(trunk(), 4), trunk()
    for seed in range(20):
        x = rows(4, seed)
        assert torch.equal(once(x), plain(x))
    once(x)
    assert once.computed == 21 * 4
    assert not once._kept


def test_what_is_kept_is_no_part_of_what_was_handed_out_and_the_same_for_a_copy_of_the_network() -> None:
    once, x = Once(trunk(), 4), rows(4)
    once(x).zero_()
    assert once(x).any()
    assert copy.deepcopy(nn.Sequential(once))[0] is once
