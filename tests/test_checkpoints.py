"""Checkpoints: what is written is read, and nothing else is; nothing in a file is ever executed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from immunize.checkpoints import load_checkpoint, save_checkpoint
from immunize.errors import CheckpointError
from tests import reference as ref
from tests.composing import D


def theta(seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return ref.gaussian(D, D, seed=seed).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_single_map_that_others_have_written_is_taken(tmp_path: Path, dtype: torch.dtype) -> None:
    path, value = tmp_path / "theirs.safetensors", theta(3).to(dtype)
    save_file({"map": value}, path)
    assert torch.equal(load_checkpoint(path, D)["fit"], value.double())
    layer, rows = torch.nn.Linear(D, D, bias=False, dtype=dtype), theta(4)
    save_file({"model.weight": layer.weight.data}, path)
    assert torch.allclose(rows @ load_checkpoint(path, D)["fit"], layer.double()(rows), rtol=1e-12)
    with pytest.raises(CheckpointError, match=r"no 'theta\.fit'"):
        load_checkpoint(path, D, config_hash="0")  # a run's own is never anything else


def test_round_trip_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    # a transposed view and numbers at the ends of the range, in the memory order that a user might have
    thetas = {"fit": theta(1).T, "cross_fit": theta(2) * 1e300}
    heads = {"fit": ref.gaussian(D, 1, seed=3), "cross_fit": ref.gaussian(D, 1, seed=4)}
    save_checkpoint(path, {"theta": thetas, "head": heads}, config_hash="abc")
    torch.testing.assert_close(load_checkpoint(path, D), thetas, rtol=0, atol=0)  # of the same type, too
    with safe_open(path, "pt") as file:
        assert file.metadata()["config_hash"] == "abc"
        assert sorted(file.keys()) == ["head.cross_fit", "head.fit", "theta.cross_fit", "theta.fit"]
        assert torch.equal(file.get_tensor("head.fit"), heads["fit"])
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_run_writes_theta_and_head(finished_run: Path) -> None:
    found = load_file(finished_run / "checkpoint.safetensors")
    assert {name: tuple(value.shape) for name, value in found.items()} == {"theta.fit": (D, D), "head.fit": (D, 1)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (Path.mkdir, "cannot be read"),
        (lambda path: path.write_bytes(save({"theta.fit": theta()})[:-20]), "cannot be read"),
        (
            lambda path: save_file({"weight": theta(), "theta.cross_fit": theta()}, path),
            "no 'theta.fit'; it has theta.cross_fit, weight",
        ),
        (lambda path: save_file({}, path), "it has nothing"),
        (lambda path: save_file({"theta.fit": torch.eye(3, dtype=torch.float64)}, path), r"\(3, 3\).*\(6, 6\)"),
        (lambda path: save_file({"theta.fit": theta(dtype=torch.float32)}, path), "float32"),
        (lambda path: save_file({"theta.fit": theta() * torch.nan}, path), "NaN"),
    ],
)
def test_what_is_no_checkpoint_is_refused(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    make(path)
    with pytest.raises(CheckpointError, match=words) as error:
        load_checkpoint(path, D)
    assert str(path) in str(error.value)


class Malicious:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_a_pickle_is_refused_without_being_executed(write: Callable[..., object], tmp_path: Path) -> None:
    path, trap = tmp_path / "checkpoint.safetensors", tmp_path / "executed"
    write({"theta.fit": Malicious(trap)}, path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path, D)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Malicious(trap)))  # the trap works
    assert trap.exists()
