"""Several harmful image data sets at once: one data set to whoever reads images, and B images of each in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from immunize.data.digits import DigitImages
from immunize.data.images.folders import ImageFolder
from immunize.data.images.multi import JoinedImages, SeveralSets, set_numbers
from immunize.data.images.pair import ImagePair, JointSampler, StreamSampler
from immunize.errors import DataError, MissingDataError
from immunize.instantiate import build
from tests.composing import compose_config
from tests.data.image_files import colour, colour_of, truncate, write_classes, write_two_splits


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two image folders: 3 classes of 4 images, and 2 of 9; two held-out images a class."""
    write_two_splits(tmp_path / "one")
    write_two_splits(tmp_path / "two", classes=("x", "y"), count=9)
    return tmp_path


def several(folders: Path) -> SeveralSets:
    return SeveralSets({name: ImageFolder("harmful", root=folders / name) for name in ("one", "two")})


def pair_of(folders: Path, **options: Any) -> ImagePair:
    pair = ImagePair(DigitImages("pretrain"), several(folders), batch_size=6, **options)
    pair.setup()
    return pair


def test_images_come_set_after_set_with_labels_of_their_own(folders: Path) -> None:
    source = several(folders)
    images = source.splits(None, None).fit
    assert (source.name, source.n_classes, len(images)) == ("one+two", 5, 12 + 18)
    assert images.labels.tolist() == sorted([0, 1, 2] * 4 + [3, 4] * 9)
    assert images.classes == ["one/a", "one/b", "one/c", "two/x", "two/y"]
    x, label = images[12 + 9 + 2]
    assert (label, colour_of(x)) == (4, colour(1, 2))  # the third of the second class of the second set
    assert set_numbers(images.labels.numpy(), [3, 2]).tolist() == [0] * 12 + [1] * 18


def test_describe_tells_each_set(folders: Path) -> None:
    truncate(folders / "two" / "train" / "x" / "003.png", 0.5)
    write_classes(folders / "one" / "train", {"a": 150})
    facts: Any = several(folders).describe()
    assert facts["skipped"] == {"fit": 1, "held_out": 0}
    assert facts["sets"]["two"]["images"] == {"fit": 17, "held_out": 4}
    assert facts["sets"]["one"]["classes"] == 3
    assert sum(of["images"]["fit"] for of in facts["sets"].values()) == facts["images"]["fit"]


def test_joined_images_are_taken_in_any_order_and_told_apart(folders: Path) -> None:
    stored = several(folders).stored.fit
    assert isinstance(stored, JoinedImages)
    rows = np.array([29, 0, 12])
    taken = stored.take(rows)
    assert taken.labels.tolist() == stored.labels[rows].tolist()
    assert [taken.name_of(i) for i in range(3)] == [stored.name_of(int(row)) for row in rows]
    assert taken.name_of(1) == "one: a/000.png"
    assert taken.digest(times=False) != stored.digest(times=False)
    assert several(folders).stored.fit.digest(times=True) == stored.digest(times=True)


@pytest.mark.parametrize("cached", [False, True])
def test_a_batch_holds_as_many_images_of_each_set(folders: Path, cached: bool) -> None:
    pair = pair_of(folders)
    assert pair.harmful_sets == {"one": 3, "two": 2}
    assert pair.steps_per_epoch == 3  # a pass of the larger one
    if cached:
        images = pair.splits("harmful").fit
        x = torch.arange(len(images), dtype=torch.float32)[:, None]
        pair.replace_fit("harmful", TensorDataset(x, images.labels))
    seen: list[int] = []
    for batch, _, _ in pair.train_dataloader():
        x, y = batch["harmful"]
        assert len(batch["pretrain"][1]) == 6
        assert set_numbers(y.numpy(), [3, 2]).tolist() == [0] * 6 + [1] * 6
        seen += x[6:, 0].tolist() if cached else []
    if cached:
        assert sorted(seen) == list(range(12, 30))  # one pass


def test_processes_share_every_set_and_a_resumed_epoch_goes_on() -> None:
    def draws(rank: int, world: int, epoch: int = 0, done: int = 0) -> list[Any]:
        parts = [StreamSampler(n, 4, 5, seed=3, stream=s, rank=rank, world=world) for s, n in ((1, 8), (2, 12))]
        sampler = JointSampler(parts, [np.arange(8), np.arange(8, 20)])
        sampler.set_epoch(epoch)
        sampler.leave_out(epoch, done)
        return list(sampler)

    alone = draws(0, 1)
    assert [draw.number for draw in alone] == list(range(5))
    for whole, *shares in zip(alone, draws(0, 2), draws(1, 2), strict=True):
        assert sorted(whole.rows) == sorted(row for share in shares for row in share.rows)
        for share in shares:
            assert sorted(row < 8 for row in share.rows) == [False, False, True, True]
    assert draws(0, 1, epoch=1, done=2) == draws(0, 1, epoch=1)[2:]


def test_what_cannot_be_several_is_refused(folders: Path) -> None:
    one = {"one": ImageFolder("harmful", root=folders / "one")}
    with pytest.raises(DataError, match=r"harmful/sets=\[cars,caltech101\]"):
        SeveralSets(one)
    with pytest.raises(DataError, match="D_P is one"):
        SeveralSets(one | one, role="pretrain")
    missing = SeveralSets(one | {"other": ImageFolder("harmful", root=folders / "nowhere")})
    with pytest.raises(MissingDataError, match=r"nowhere.*harmful\.sets\.other\.root"):
        missing.require()
    with pytest.raises(DataError, match=r"the same images \(digits\)"):
        ImagePair(
            ImageFolder("pretrain", root=folders / "one"),
            SeveralSets({"digits": ImageFolder("harmful", root=folders / "one"), "b": DigitImages("harmful")}),
            batch_size=4,
        ).setup()


def test_sets_are_chosen_like_any_group(folders: Path) -> None:
    def composed(*overrides: str) -> Any:
        return compose_config("model=resnet18", "harmful=multi", *overrides, f"data_root={folders}")

    cfg = composed("harmful/sets=[digits,imagefolder]", f"harmful.sets.imagefolder.root={folders}/one")
    source = build(cfg.harmful)
    assert list(source.parts) == ["digits", "imagefolder"]
    assert [part.n_classes for part in source.parts.values()] == [5, 3]
    assert composed().pretrain._target_.endswith("ImageNet")
    assert list(composed().harmful.sets) == ["cars", "caltech101"]
    twice = composed("harmful/sets=[imagefolder]", "+harmful@harmful.sets.other=imagefolder")
    assert list(twice.harmful.sets) == ["imagefolder", "other"]
