"""Whatever stands on the command line or in a data file: a result, or one message and an exit code, never a traceback.

Random settings and random damage. The other tests of bad input say which message belongs to which mistake; these look
for the mistakes nobody thought of.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from PIL import Image

from immunize import forecast, train
from immunize.data import Housing
from immunize.data.housing_table import COLUMNS
from immunize.data.images import ImageFolder
from immunize.data.mnist import read_idx
from immunize.errors import UserError
from tests.composing import compose_config

LINEAR = [
    *("harmful=synthetic", "harmful.n_features=4", "harmful.n_samples=24", "objective.epochs=2", "probe_steps=10"),
    *("logger=none", "figure=false"),
]
DEEP = [
    *("model=resnet_small", "model.kwargs.channels=[2,2,2,4]", "harmful=digits", "objective.epochs=1"),
    *("objective.max_steps=1", "logger=none", "deep.groups=2", "deep.group_size=8", "deep.replicates=2"),
    *("deep.probe_steps={gd:1,least_squares:null,sgd:null,adam:null}", "deep.pretrain_probe_steps=1"),
]
FORECAST = ["harmful=synthetic", "harmful.n_features=4", "harmful.n_samples=24"]

# Nothing here makes a run long: counts are small, and what is huge is no whole number.
VALUES = (
    *("0", "1", "2", "3", "-1", "0.5", "-0.5", "1e-300", "1e300", "-1e300", "nan", "inf", "-inf"),
    *(
        "null",
        "true",
        "false",
        "''",
        "auto",
        "κ",
        "foo",
        "[]",
        "[0]",
        "[0,0]",
        "[1,2,3]",
        "{}",
        "{a:1}",
        "???",
        "${seed}",
    ),
    *("${nothing}", "nowhere/at/all", "'a b'", "0x10", "1_0", "[[1],[2]]", "[null]"),
)
EXAMPLES = int(os.environ.get("IMMUNIZE_FUZZ", "0"))
"""How many cases a test, drawn anew; 0: a few, the same every time."""


def cases(number: int) -> Any:
    """Settings of a search: `number` cases that never change, or `EXAMPLES` new ones."""
    return settings(
        max_examples=EXAMPLES or number,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def leaves(cfg: DictConfig, *, without: tuple[str, ...] = ()) -> list[str]:
    """The dotted names of all settings, groups of them included."""

    def walk(node: Any, prefix: str) -> Iterator[str]:
        for key, value in node.items():
            name = f"{prefix}{key}"
            if name.startswith(without):
                continue
            yield name
            if isinstance(value, dict):
                yield from walk(value, f"{name}.")

    return sorted(walk(OmegaConf.to_container(cfg, resolve=False), ""))


def ends_well(main: Callable[[], None], arguments: list[str], folder: Path) -> None:
    """`main` returns, or leaves with exit code 1 and a message that is no traceback; any other exception is one."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    err = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["immunize", f"hydra.run.dir={run}", *arguments]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(err),
    ):
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert code in (0, 1), (arguments, code, err.getvalue())
    assert code == 0 or err.getvalue().strip(), arguments
    assert "Traceback" not in err.getvalue(), (arguments, err.getvalue())


def overrides(names: list[str]) -> st.SearchStrategy[list[str]]:
    one = st.builds(
        "{}{}={}".format, st.sampled_from(["", "", "", "+", "++"]), st.sampled_from(names), st.sampled_from(VALUES)
    )
    gone = st.builds("~{}".format, st.sampled_from(names))
    return st.lists(st.one_of(one, one, one, gone), min_size=1, max_size=3)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("IMMUNIZE_DATA", "HYDRA_FULL_ERROR"):
        monkeypatch.delenv(name, raising=False)


# `hydra` is not ours; a trainer may find as many devices as it is told to; threads are this test's own.
NOT_OURS = ("hydra", "trainer.devices", "trainer.num_nodes", "threads")


@cases(40)
@given(chosen=overrides(leaves(compose_config(*LINEAR), without=NOT_OURS)))
def test_random_settings_of_a_linear_run(chosen: list[str], tmp_path: Path) -> None:
    ends_well(train.main, [*LINEAR, *chosen], tmp_path)


@cases(40)
@given(
    chosen=overrides(leaves(compose_config(*LINEAR, "method=closed_form"), without=(*NOT_OURS, "objective", "deep")))
)
def test_random_settings_of_a_run_without_training(chosen: list[str], tmp_path: Path) -> None:
    ends_well(train.main, [*LINEAR, "method=closed_form", *chosen], tmp_path)


@cases(12)
@given(chosen=overrides(leaves(compose_config(*DEEP), without=NOT_OURS)))
def test_random_settings_of_a_deep_run(chosen: list[str], tmp_path: Path) -> None:
    ends_well(train.main, [*DEEP, *chosen], tmp_path)


@cases(40)
@given(
    chosen=overrides(
        ["seed", "top_k", "budget", "rho", "shrinkage", "harmful", "harmful.angle", "harmful.role", "pretrain"]
    )
)
def test_random_settings_of_a_forecast(chosen: list[str], tmp_path: Path) -> None:
    ends_well(forecast.main, [*FORECAST, *chosen], tmp_path)


# Files of data.


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Cut short, with bytes replaced, with bytes put in, or something else altogether."""
    where = st.integers(0, len(content) - 1)
    some = st.binary(min_size=1, max_size=40)
    return st.one_of(
        where.map(lambda end: content[:end]),
        st.builds(lambda at, new: content[:at] + new + content[at + len(new) :], where, some),
        st.builds(lambda at, new: content[:at] + new + content[at:], where, some),
        st.binary(max_size=200),
    )


def table() -> bytes:
    """12 rows of House Prices' columns, 6 a role."""
    numbers = np.random.default_rng(0).integers(99, size=(12, len(COLUMNS))).astype(str)
    numbers[:, COLUMNS.index("MSZoning")] = ["RL", "RM"] * 6
    return "\n".join(map(",".join, [COLUMNS, *numbers])).encode()


@cases(40)
@given(content=damaged(table()))
def test_damaged_table(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "house_prices" / "train.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        for role in ("pretrain", "harmful"):
            part = Housing(tmp_path, role).load().fit
            assert part.x.shape == (len(part.y), 79)


def idx(array: np.ndarray) -> bytes:
    """An unsigned-byte array as an IDX file."""
    return (
        bytes([0, 0, 8, array.ndim])
        + b"".join(n.to_bytes(4, "big") for n in array.shape)
        + array.astype("u1").tobytes()
    )


@cases(40)
@given(content=damaged(idx(np.arange(20 * 28 * 28).reshape(20, 28, 28) % 251)), packed=st.booleans())
def test_damaged_idx_file(content: bytes, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert read_idx(path).dtype == np.uint8


def picture(kind: str) -> bytes:
    """A small picture as a file."""
    stream = io.BytesIO()
    Image.fromarray(np.arange(12 * 12 * 3, dtype="u1").reshape(12, 12, 3)).save(stream, kind)
    return stream.getvalue()


@cases(40)
@given(content=st.one_of(damaged(picture("PNG")), damaged(picture("JPEG"))), name=st.sampled_from(["x.png", "x.jpg"]))
def test_damaged_image(content: bytes, name: str, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "images", ignore_errors=True)
    for which in range(2):
        for image in range(3):
            path = tmp_path / "images" / f"class{which}" / f"{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture("PNG"))
    (tmp_path / "images" / "class0" / name).write_bytes(content)
    with contextlib.suppress(UserError):  # one of so few is more than 1 %, unless it can be read after all
        source = ImageFolder("harmful", root=tmp_path / "images")
        splits = source.splits(None, None)
        for split in (splits.fit, splits.held_out):
            for index in range(len(split)):
                assert split[index][0].shape[0] == 3
