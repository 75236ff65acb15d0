"""Two arrays of one's own: read, split, standardized, and through the commands; every mistake named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from immunize.data.arrays import Arrays
from immunize.errors import DataError, MissingDataError

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 5)), RNG.standard_normal(40) * 7 + 3


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_rows_are_split_and_targets_standardized_by_the_fitted_ones(tmp_path: Path) -> None:
    splits = Arrays("harmful", saved(tmp_path / "a.npz", x=X, y=Y)).load()
    assert (len(splits.fit), len(splits.held_out)) == (30, 10)
    assert float(splits.fit.y.mean()) == pytest.approx(0, abs=1e-12)
    assert float(splits.fit.y.std()) == pytest.approx(1)
    rows = {tuple(row) for part in (splits.fit, splits.held_out) for row in part.x.tolist()}
    assert rows == {tuple(row) for row in X.tolist()}  # every row once, as it is
    which = [X.tolist().index(row) for row in splits.fit.x.tolist()]
    assert which == sorted(which)
    scale = Y[which].std(ddof=1)
    held = [X.tolist().index(row) for row in splits.held_out.x.tolist()]
    np.testing.assert_allclose(splits.held_out.y.numpy(), (Y[held] - Y[which].mean()) / scale)


def test_split_depends_on_its_seed_and_role_alone(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=X, y=Y)
    first, again, other = (Arrays("harmful", path, split_seed=seed).load().fit.x for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, Arrays("pretrain", path).load().fit.x)


def test_labels_stay_what_they_are(tmp_path: Path) -> None:
    source = Arrays("harmful", saved(tmp_path / "a.npz", x=X.astype("f4"), y=Y > 3))
    assert source.task == "binary"
    assert set(source.load().fit.y.tolist()) == {0.0, 1.0}
    assert Arrays("harmful", saved(tmp_path / "b.npz", x=X, y=Y)).task == "regression"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "no arrays x and y"),
        ({"x": X, "y": Y[:5]}, r"x has the shape \(40, 5\) and y \(5,\)"),
        ({"x": X[:, 0], "y": Y}, r"\(N, D\) and \(N,\)"),
        ({"x": X.astype(str), "y": Y}, "real numbers"),
        ({"x": X, "y": Y.astype(complex)}, "real numbers"),
        ({"x": np.array([[None]] * 40), "y": Y}, "cannot be read"),  # pickled objects are never loaded
        ({"x": X[:5], "y": Y[:5]}, "leave a part without 2 rows"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Arrays("harmful", saved(tmp_path / "a.npz", **arrays)).load()


def test_files_that_are_no_archive_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    (tmp_path / "b.npz").write_bytes(b"x,y\n1,2\n")
    (tmp_path / "c.npz").write_bytes(b"")
    for name, message in (("a.npy", "no arrays"), ("b.npz", "cannot be read"), ("c.npz", "cannot be read")):
        with pytest.raises(DataError, match=message):
            Arrays("harmful", tmp_path / name).load()
    np.savez_compressed(tmp_path / "d.npz", x=X, y=Y)
    broken = bytearray((tmp_path / "d.npz").read_bytes())
    broken[200:260] = bytes(60)  # in the middle of the compressed stream
    (tmp_path / "d.npz").write_bytes(broken)
    with pytest.raises(DataError, match="cannot be read"):
        Arrays("harmful", tmp_path / "d.npz").load()
    with pytest.raises(MissingDataError, match=r"no file .*nowhere\.npz"):
        Arrays("harmful", tmp_path / "nowhere.npz").require()


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"harmful\.file="):
        Arrays("harmful", None)
    with pytest.raises(DataError, match="between 0 and 1"):
        Arrays("harmful", "a.npz", held_out=1.0)
