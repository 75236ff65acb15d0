"""D_P and D_H side by side: batches, epochs, splits, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from immunize.data.images.folders import ImageFolder
from immunize.data.images.pair import ImagePair
from immunize.data.synthetic import Synthetic
from immunize.errors import DataError, MissingDataError
from tests.data.image_files import write_two_splits


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """D_P with 3 x 12 training images, D_H with 2 x 8; every image 12 x 10."""
    write_two_splits(tmp_path / "p", classes=["a", "b", "c"], count=12)
    write_two_splits(tmp_path / "h", classes=["x", "y"], count=8)
    return tmp_path


def pair(folders: Path, **options: Any) -> ImagePair:
    sources = ImageFolder("pretrain", folders / "p"), ImageFolder("harmful", folders / "h")
    return ImagePair(*sources, **{"batch_size": 4} | options)


def ready(folders: Path, **options: Any) -> ImagePair:
    made = pair(folders, **options)
    made.setup()
    return made


def first_pixels(images: Any) -> set[tuple[float, ...]]:
    return {tuple(x[:, 0, 0].tolist()) for x, _ in images}


def test_batches_hold_images_and_labels_of_both(folders: Path) -> None:
    data = ready(folders)
    batches = [batch for batch, _, _ in iter(data.train_dataloader())]
    assert len(batches) == data.steps_per_epoch == 4  # one pass of D_H
    for batch in batches:
        assert set(batch) == {"pretrain", "harmful"}
        for x, y in batch.values():
            assert x.shape == (4, 3, 10, 12)
            assert (x.dtype, y.dtype, y.shape) == (torch.float32, torch.int64, (4,))
    seen = torch.cat([batch["harmful"][1] for batch in batches])
    assert seen.bincount().tolist() == [8, 8]
    assert (data.n_classes("pretrain"), data.n_classes("harmful")) == (3, 2)


@pytest.mark.parametrize(
    ("epochs_on", "mode", "steps"),
    [
        ("harmful", "max_size_cycle", 4),
        ("harmful", "min_size", 4),
        ("longest", "max_size_cycle", 9),
        ("longest", "min_size", 4),
    ],
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
    whole = ready(folders)
    data = ready(folders, validation_fraction=0.25, transform_eval=None)
    for role, n in (("pretrain", 36), ("harmful", 16)):
        aside, stays = data.validation(role), data.splits(role).fit  # type: ignore[arg-type]
        assert aside is not None
        assert len(aside) == n // 4
        assert len(stays) == n - n // 4
        assert not first_pixels(aside) & first_pixels(stays)
        assert first_pixels(aside) | first_pixels(stays) == first_pixels(whole.splits(role).fit)  # type: ignore[arg-type]
    assert whole.validation("harmful") is None
    again, other = (ready(folders, validation_fraction=0.25, seed=seed) for seed in (0, 1))
    assert again.splits("pretrain").fit.fingerprint == data.splits("pretrain").fit.fingerprint
    assert other.splits("pretrain").fit.fingerprint != data.splits("pretrain").fit.fingerprint
    with pytest.raises(DataError, match="splits the 16 images of imagefolder \\(harmful, fit\\) into 15 and 1"):
        ready(folders, validation_fraction=0.06)


def test_fit_can_be_replaced_by_cached_features(folders: Path) -> None:
    data = ready(folders)
    before = [batch["harmful"][1].tolist() for batch, _, _ in iter(data.train_dataloader())]
    fit = data.splits("harmful").fit
    data.replace_fit("harmful", TensorDataset(torch.arange(16.0)[:, None], fit.labels))
    batches = [batch for batch, _, _ in iter(data.train_dataloader())]
    assert [batch["harmful"][1].tolist() for batch in batches] == before  # the same order
    assert torch.cat([batch["harmful"][0] for batch in batches]).sort(dim=0).values[:, 0].tolist() == list(range(16))
    assert batches[0]["pretrain"][0].shape == (4, 3, 10, 12)


def test_record_facts(folders: Path) -> None:
    data = ready(folders)
    assert data.data_hash == ready(folders, seed=5, batch_size=2).data_hash
    assert len(data.data_hash) == 64
    assert data.tasks == {"pretrain": "classification", "harmful": "classification"}
    assert data.held_out_protocol == "split"
    (folders / "h" / "test" / "x" / "000.png").unlink()
    assert ready(folders).data_hash != data.data_hash


def test_bad_options_and_pairs_are_refused(folders: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"mode": "max_size"}, "pairing is 'max_size'"),
        ({"epochs_on": "both"}, "epochs_on is 'both'"),
        ({"batch_size": 1}, "at least 2 rows or images"),
        ({"batch_size": None}, "mini-batches only"),
        ({"validation_fraction": 0.95}, "between 0 and 0.9"),
    ):
        with pytest.raises(DataError, match=message):
            pair(folders, **options)
    with pytest.raises(DataError, match=r"batch_size=40 is larger than both data sets \(imagefolder: 36"):
        ready(folders, batch_size=40)
    with pytest.raises(DataError, match="synthetic has no images"):
        ImagePair(Synthetic("pretrain"), ImageFolder("harmful", folders / "h"), batch_size=4)
    same = ImagePair(ImageFolder("pretrain", folders / "h"), ImageFolder("harmful", folders / "h"), batch_size=4)
    with pytest.raises(DataError, match="D_P and D_H are the same images"):
        same.setup()
    with pytest.raises(MissingDataError):
        ImagePair(ImageFolder("pretrain", tmp_path / "no"), ImageFolder("harmful", folders / "h"), batch_size=4).setup()
    with pytest.raises(RuntimeError, match=r"call setup\(\)"):
        pair(folders).splits("harmful")
