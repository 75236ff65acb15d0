"""D_P and D_H side by side: batches, epochs, splits, their order, and several harmful data sets at once.

The order is one of whole passes, the same in any number of processes and workers and after a resume.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from immunize.data.digits import DigitImages
from immunize.data.images import Caltech101
from immunize.data.images.folders import ImageFolder
from immunize.data.images.pair import Draw, ImagePair, StreamSampler, stream_loader
from immunize.data.images.source import SeveralSets, rows_of_sets
from immunize.data.synthetic import Synthetic
from immunize.errors import DataError
from tests.composing import compose_config
from tests.data.image_files import colour, colour_of, truncate, write_classes, write_two_splits


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """D_P with 3 x 12 training images, D_H with 2 x 8; every image 12 x 10."""
    write_two_splits(tmp_path / "p", classes=["a", "b", "c"], count=12)
    write_two_splits(tmp_path / "h", classes=["x", "y"], count=8)
    return tmp_path


def ready(folders: Path, **options: Any) -> ImagePair:
    sources = ImageFolder("pretrain", folders / "p"), ImageFolder("harmful", folders / "h")
    made = ImagePair(*sources, **{"batch_size": 4} | options)
    made.setup()
    return made


def first_pixels(images: Any) -> set[tuple[float, ...]]:
    return {tuple(x[:, 0, 0].tolist()) for x, _ in images}


@pytest.mark.parametrize(
    ("epochs_on", "mode", "steps"),
    [("harmful", "max_size_cycle", 4), ("longest", "max_size_cycle", 9), ("longest", "min_size", 4)],
)
def test_length_of_an_epoch(folders: Path, epochs_on: str, mode: str, steps: int) -> None:
    data = ready(folders, epochs_on=epochs_on, mode=mode)
    loader = data.train_dataloader()
    assert data.steps_per_epoch == len(list(loader)) == steps
    assert loader._mode == mode


def test_a_batch_that_processes_cannot_share_is_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    batch, _, _ = next(iter(ready(folders).train_dataloader()))
    assert {len(x) for x, _ in batch.values()} == {2}
    with pytest.raises(DataError, match=r"batch_size=5 .*choose a multiple of 2"):
        ready(folders, batch_size=5).train_dataloader()


def test_each_split_goes_through_its_transform(folders: Path) -> None:
    data = ready(folders, transform_fit=lambda _: torch.zeros(3, 1, 1), transform_eval=lambda _: torch.ones(3, 1, 1))
    batch, _, _ = next(iter(data.train_dataloader()))
    assert float(batch["harmful"][0].max()) == 0
    assert float(data.splits("harmful").held_out[0][0].min()) == 1
    measured = data.measured("harmful")
    assert float(measured.fit[0][0].min()) == float(measured.held_out[0][0].min()) == 1
    assert torch.equal(measured.fit.labels, data.splits("harmful").fit.labels)


def test_validation_images_are_set_aside_from_the_fit_images(folders: Path) -> None:
    whole, data = ready(folders), ready(folders, validation_fraction=0.25, transform_eval=None)
    for role, n in (("pretrain", 36), ("harmful", 16)):
        aside, stays = data.validation(role), data.splits(role).fit  # type: ignore[arg-type]
        assert (len(aside), len(stays)) == (n // 4, n - n // 4)
        assert first_pixels(aside) | first_pixels(stays) == first_pixels(whole.splits(role).fit)  # type: ignore[arg-type]
    assert whole.validation("harmful") is None
    other = ready(folders, validation_fraction=0.25, seed=1)
    assert other.splits("pretrain").fit.fingerprint != data.splits("pretrain").fit.fingerprint


def test_batches_hold_images_and_labels_of_both_or_cached_features_in_their_place(folders: Path) -> None:
    data = ready(folders)
    batches = [batch for batch, _, _ in iter(data.train_dataloader())]
    assert len(batches) == data.steps_per_epoch == 4  # one pass of D_H
    for batch in batches:
        assert set(batch) == {"pretrain", "harmful"}
        for x, y in batch.values():
            assert (x.shape, x.dtype, y.shape, y.dtype) == ((4, 3, 10, 12), torch.float32, (4,), torch.int64)
    fit = data.splits("harmful").fit
    data.replace_fit("harmful", TensorDataset(torch.arange(16.0)[:, None], fit.labels))
    cached = [batch["harmful"] for batch, _, _ in iter(data.train_dataloader())]
    for (x, y), batch in zip(cached, batches, strict=True):
        rows = x[:, 0].long()
        assert torch.equal(fit.labels[rows], y)
        assert torch.equal(torch.stack([fit[row][0] for row in rows]), batch["harmful"][0])  # the same order
    assert sorted(torch.cat([x for x, _ in cached])[:, 0].tolist()) == list(range(16))
    assert (data.n_classes("pretrain"), data.n_classes("harmful")) == (3, 2)


def test_hash_is_of_the_images_and_nothing_else(folders: Path) -> None:
    data = ready(folders)
    assert data.data_hash == ready(folders, seed=5, batch_size=2).data_hash
    assert len(data.data_hash) == 64
    (folders / "h" / "test" / "x" / "000.png").unlink()
    assert ready(folders).data_hash != data.data_hash


def test_pairs_and_sets_that_cannot_be_are_refused(folders: Path) -> None:
    one, own = {"one": DigitImages("harmful")}, ImageFolder("harmful", folders / "h")
    gone = ImageFolder("harmful", folders / "nowhere")
    broken = folders / "broken"
    write_two_splits(broken, classes=["x", "y"], count=3)
    truncate(broken / "train" / "x" / "000.png", 0.5)
    write_two_splits(folders / "large", classes=["a", "b"], count=80)
    sets = {name: ImageFolder("harmful", folders / name) for name in ("large", "broken")}
    same = SeveralSets(one | {"caltech": Caltech101("harmful", root=folders / "h")})
    for made, message in (
        (lambda: ImagePair(Synthetic("pretrain"), own, batch_size=4), "synthetic has no images"),
        (ImagePair(own, own, batch_size=4).setup, r"D_P and D_H are the same images \(imagefolder\)"),
        (ImagePair(own, same, batch_size=4).setup, r"D_P and D_H are the same images \(caltech\)"),
        (ImagePair(gone, own, batch_size=4).setup, "imagefolder was not found"),
        (lambda: SeveralSets(one), r"harmful/sets=\[cars,caltech101\]"),
        (SeveralSets, "there is none"),  # harmful/sets=[] leaves nothing
        (lambda: SeveralSets(one | one, role="pretrain"), "D_P is one"),
        (SeveralSets(sets).describe, "imagefolder .*1 of 6 images cannot be read"),
        (SeveralSets(one | {"other": gone}).require, r"nowhere.*harmful\.sets\.other\.root"),
    ):
        with pytest.raises(DataError, match=message):
            made()


def sampler(*sets: range, batch_size: int = 4, steps: int = 2, **options: Any) -> StreamSampler:
    return StreamSampler(sets or [range(10)], batch_size, steps, **{"seed": 0, "stream": 0} | options)


def epochs(found: StreamSampler, count: int = 1, first: int = 0) -> list[Draw]:
    draws = []
    for epoch in range(first, first + count):
        found.set_epoch(epoch)
        draws.extend(found)
    assert len(found) == found.steps
    return draws


class Noisy(Dataset[tuple[Tensor, int]]):
    """Item i is i plus what torch, Python and numpy draw, as an augmentation may."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.tensor([row, random.random(), np.random.rand(), float(torch.rand(()))]), row % 3  # noqa: NPY002


def batches(images: Dataset[Any], count: int = 1, workers: int = 0, **options: Any) -> list[tuple[Tensor, Tensor]]:
    loader = stream_loader(images, sampler(range(12), steps=3, **options), workers=workers)
    read = []
    for epoch in range(count):
        loader.sampler.set_epoch(epoch)
        read.extend(loader)
    return read


def test_each_pass_holds_every_image_at_most_once_in_an_order_of_its_own_however_epochs_are_cut() -> None:
    draws = epochs(sampler(steps=6), 5)
    assert [draw.number for draw in draws] == [number // 2 for number in range(30)]
    passes = [one.rows + other.rows for one, other in zip(draws[::2], draws[1::2], strict=True)]
    assert all(len(rows) == len(set(rows)) == 8 for rows in passes)
    assert set().union(*passes) == set(range(10))
    assert len(set(map(tuple, passes))) == 15
    assert epochs(sampler(steps=1), 30) == epochs(sampler(steps=30)) == draws
    assert epochs(sampler(), first=3) == draws[6:8]
    assert list(sampler(seed=1)) != draws[:2] != list(sampler(stream=1))


def test_processes_share_every_set_and_a_resumed_epoch_goes_on() -> None:
    sets = range(8), range(8, 20)
    alone, *shares = (epochs(sampler(*sets, steps=5, place=place), 3) for place in ((0, 1), (0, 2), (1, 2)))
    assert [draw.number for draw in alone] == list(range(15))
    for whole, *parts in zip(alone, *shares, strict=True):
        assert sorted(whole.rows) == sorted(row for part in parts for row in part.rows)
        assert [sorted(row < 8 for row in part.rows) for part in parts] == [[False, False, True, True]] * 2
    resumed = sampler(*sets, steps=5)
    resumed.leave_out(1, 2)
    assert epochs(resumed, 2, first=1) == alone[7:]


def test_data_set_smaller_than_a_batch_is_one_batch_of_equal_shares() -> None:
    assert sorted(next(iter(sampler(range(3)))).rows) == [0, 1, 2]
    assert [len(next(iter(sampler(range(3), place=(rank, 2)))).rows) for rank in (0, 1)] == [1, 1]


def test_augmentation_depends_on_image_and_pass_and_not_on_workers_or_processes() -> None:
    first, again, workers = batches(Noisy(), 2), batches(Noisy(), 2), batches(Noisy(), 2, workers=2)
    for (x, y), *others in zip(first, again, workers, strict=True):
        assert x.shape == (4, 4)
        torch.testing.assert_close(y, x[:, 0].long() % 3)
        assert all(torch.equal(x, other) and torch.equal(y, labels) for other, labels in others)
    rows = torch.cat([x for x, _ in first])
    for column in (1, 2, 3):
        assert len(rows[:, column].unique()) == 24  # 12 images in 2 passes
    shares = [batches(Noisy(), 2, place=(rank, 2)) for rank in (0, 1)]
    together = torch.cat([x for share in shares for x, _ in share])
    assert torch.equal(together[together[:, 1].argsort()], rows[rows[:, 1].argsort()])


def test_reading_leaves_the_random_state_of_the_program_alone() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    batches(Noisy())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # noqa: NPY002


def several(folders: Path) -> SeveralSets:
    return SeveralSets({name: ImageFolder("harmful", root=folders / name) for name in ("p", "h")})


def test_images_come_set_after_set_with_labels_of_their_own(folders: Path) -> None:
    source = several(folders)
    images, stored = source.splits(None, None).fit, source.stored.fit
    assert (source.name, source.n_classes) == ("p+h", 5)
    assert images.labels.tolist() == sorted([0, 1, 2] * 12 + [3, 4] * 8)
    assert stored.classes == ("p/a", "p/b", "p/c", "h/x", "h/y")
    assert [stored.name_of(row) for row in (0, 35, 36)] == ["p: a/000.png", "p: c/011.png", "h: x/000.png"]
    assert several(folders).stored.fit.digest(times=True) == stored.digest(times=True)
    x, label = images[36 + 8 + 2]
    assert (label, colour_of(x)) == (4, colour(1, 2))  # the third of the second class of the second set
    assert [rows.tolist() for rows in rows_of_sets(images.labels.numpy(), [3, 2])] == [[*range(36)], [*range(36, 52)]]


def test_describe_tells_each_set(folders: Path) -> None:
    write_classes(folders / "p" / "train", {"a": 150})
    truncate(folders / "p" / "train" / "a" / "003.png", 0.5)
    facts: Any = several(folders).describe()
    assert facts["skipped"] == {"fit": 1, "held_out": 0}
    assert facts["sets"]["h"]["images"] == {"fit": 16, "held_out": 4}
    assert [of["folder"] for of in facts["sets"].values()] == ["p", "h"]
    assert facts["sets"]["p"]["images"]["fit"] == 150 + 2 * 12 - 1
    assert facts["sets"]["p"]["classes"] == 3
    assert sum(of["images"]["fit"] for of in facts["sets"].values()) == facts["images"]["fit"]


def test_a_batch_holds_as_many_images_of_each_set(folders: Path) -> None:
    pair = ImagePair(DigitImages("pretrain"), several(folders), batch_size=6)
    assert pair.harmful_sets == {"p": 3, "h": 2}
    assert pair.steps_per_epoch == 6  # a pass of the larger one
    seen: set[tuple[int, ...]] = set()
    for batch, _, _ in pair.train_dataloader():
        x, y = batch["harmful"]
        assert len(batch["pretrain"][1]) == 6
        assert [rows.tolist() for rows in rows_of_sets(y.numpy(), [3, 2])] == [[*range(6)], [*range(6, 12)]]
        seen |= {colour_of(image) for image in x[:6]}
    assert len(seen) == 36  # one pass


def test_a_second_folder_is_a_set_of_its_own() -> None:
    two = ("harmful/sets=[imagefolder]", "+harmful@harmful.sets.other=imagefolder")
    assert list(compose_config("model=resnet18", "harmful=multi", *two).harmful.sets) == ["imagefolder", "other"]
