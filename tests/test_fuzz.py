"""Whatever stands on a command line or in a data file: a result, or one message, never a traceback.

Random settings of every command. The other tests of bad input say which message belongs to which mistake; these look
for the mistakes nobody thought of.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from immunize import attack, evaluate, export, forecast, pretrain, train
from immunize.data.arrays import Arrays
from immunize.data.housing import COLUMNS, Housing
from immunize.data.images.folders import ImageFolder
from immunize.data.mnist import read_idx
from immunize.errors import DataError, UserError
from immunize.report import __main__ as report
from tests.attacking import TINY_GRID, TINY_NETWORK_GRID, compose_attack
from tests.composing import compose_config
from tests.data.test_digits import idx_bytes
from tests.fuzzing import Settings, cases, choices, damaged, ends_well, leaves, overrides

SYNTHETIC = ["harmful=synthetic", "harmful.n_features=4", "harmful.n_samples=24"]
LINEAR = [*SYNTHETIC, "objective.epochs=2", "probe_steps=10", "logger=none", "figure=false"]
NET = ["model=resnet_small", "model.kwargs.channels=[2,2,2,4]"]
DEEP = [
    *(*NET, "harmful=digits", "objective.epochs=1"),
    *("objective.max_steps=1", "logger=none", "deep.groups=2", "deep.group_size=8", "deep.replicates=2"),
    *("deep.probe_steps={gd:1,least_squares:null,sgd:null,adam:null}", "deep.pretrain_probe_steps=1"),
]
PRETRAIN = [*NET, "pretrain=digits", "epochs=1", "batch_size=256"]
SHORT = ["objective.epochs=1", "objective.max_steps=1", "probe_steps=2", "logger=none"]
GROUPS = ("method", "model", "harmful", "pretrain", "init", "objective")
GRID = [word for word in TINY_GRID if not word.startswith("seeds=")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("IMMUNIZE_DATA", "HYDRA_FULL_ERROR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def linear(attacked_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of its own: what is tried here may write into it."""
    return Path(shutil.copytree(attacked_run, tmp_path_factory.mktemp("fuzzed") / "linear"))


@pytest.fixture(scope="module")
def network(finished_network: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(finished_network, tmp_path_factory.mktemp("fuzzed") / "network"))


# `hydra` is not ours; a trainer may find as many devices as it is told to; threads are this test's own.
NOT_OURS = ("hydra", "trainer.devices", "trainer.num_nodes", "threads")
OF_FORECAST = ["seed", "top_k", "budget", "rho", "shrinkage", "harmful", "harmful.angle", "harmful.role", "pretrain"]
ATTACKED = overrides(leaves(compose_attack(*GRID), without=(*NOT_OURS, "model", "harmful", "pretrain")))
REPORT = overrides(leaves(compose_config(primary="report/report"), without=NOT_OURS))
EXPERIMENTS = ["table1", "table2", "table3", "fig1", "fig2", "fig3", "sweep_lambda", "table_attacks"]


def settings_of(*words: str, primary: str = "train", without: tuple[str, ...] = ()) -> Settings:
    return overrides(leaves(compose_config(*words, primary=primary), without=(*NOT_OURS, *without)))


# A folder that a command is given is there, LINEAR_RUN or NETWORK_RUN, and others are not; OUT is an empty one.
ON_NETWORK = [
    *("run=NETWORK_RUN", "out=OUT", "cells=NETWORK_RUN/cells", "features=NETWORK_RUN/features", "images=100"),
    *TINY_NETWORK_GRID,
]
COMMANDS: dict[str, tuple[int, Callable[[], None], list[str], Settings]] = {
    "a linear run": (5, train.main, LINEAR, settings_of(*LINEAR)),
    "a run without training": (
        *(3, train.main, [*LINEAR, "method=closed_form"]),
        settings_of(*LINEAR, "method=closed_form", without=("objective", "deep")),
    ),
    "a deep run": (3, train.main, DEEP, settings_of(*DEEP)),
    "choices of groups": (4, train.main, SHORT, choices(*GROUPS)),
    "a forecast": (4, forecast.main, SYNTHETIC, overrides(OF_FORECAST)),
    "a pretraining": (3, pretrain.main, PRETRAIN, settings_of(*PRETRAIN, primary="pretrain_theta")),
    "an attack": (4, attack.main, ["run=LINEAR_RUN", "out=OUT", "seeds=[0]", *GRID], ATTACKED),
    "an attack on a network": (3, attack.main, ON_NETWORK, ATTACKED),
    "evaluate": (2, evaluate.main, ["run=LINEAR_RUN"], overrides(["run", "data_root"])),
    "evaluate of a network": (2, evaluate.main, ["run=NETWORK_RUN"], overrides(["run", "data_root"])),
    "export": (3, export.main, ["run=NETWORK_RUN", "overwrite=true"], overrides(["run", "format", "out", "overwrite"])),
    "card": (3, report.main, ["card", "run=LINEAR_RUN"], overrides(["run", "out"])),
    "html": (3, report.main, ["html", "run=NETWORK_RUN"], overrides(["run", "sweep", "out"])),
    "html of many": (2, report.main, ["html", "sweep=LINEAR_RUN/.."], overrides(["run", "sweep", "out"])),
    "report": (3, report.main, ["runs=LINEAR_RUN/.."], REPORT),
    "report of an experiment": (
        *(3, report.main, ["runs=LINEAR_RUN/.."]),
        st.builds(lambda name, more: [f"experiment={name}", *more], st.sampled_from(EXPERIMENTS), REPORT),
    ),
}
"""How many cases, what is called, with which arguments, and what comes beside these."""


@pytest.mark.parametrize("command", COMMANDS)
def test_random_settings(command: str, linear: Path, network: Path, tmp_path: Path) -> None:
    number, main, words, more = COMMANDS[command]
    places = {"LINEAR_RUN": linear, "NETWORK_RUN": network, "OUT": tmp_path}
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]

    @cases(number)
    @given(chosen=more)
    def tried(chosen: list[str]) -> None:
        ends_well(main, [*words, *chosen], tmp_path)

    tried()


# Whatever a data file holds: data, or an error that names it.


def table() -> str:
    """House Prices' columns, half of the rows for each role."""
    numbers = np.random.default_rng(0).integers(99, size=(12, len(COLUMNS))).astype(str)
    numbers[:, COLUMNS.index("MSZoning")] = ["RL", "RM"] * 6
    return "\n".join(map(",".join, [COLUMNS, *numbers]))


def house_prices(content: bytes, root: Path) -> None:
    """Both roles of a file with this content."""
    path = root / "house_prices" / "train.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    for role in ("pretrain", "harmful"):
        part = Housing(root, role).load().fit
        assert part.x.shape == (len(part.y), 79)
        assert part.x.isfinite().all()


@cases(40)
@given(content=damaged(table().encode()))
def test_damaged_table(content: bytes, tmp_path: Path) -> None:
    with contextlib.suppress(UserError):
        house_prices(content, tmp_path)


def test_a_row_with_a_field_of_5_mb_too_many_is_refused(tmp_path: Path) -> None:
    content = table().replace("\n", "\n" + "x" * 5_000_000 + ",", 1)
    with pytest.raises(DataError, match="more fields than the header"):
        house_prices(content.encode(), tmp_path)


@cases(40)
@given(content=damaged(idx_bytes(np.arange(20 * 28 * 28).reshape(20, 28, 28) % 251)), packed=st.booleans())
def test_damaged_idx_file(content: bytes, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert read_idx(path).dtype == np.uint8


def test_idx_file_that_announces_more_than_any_memory_holds(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12)
    with pytest.raises(DataError):
        read_idx(tmp_path / "images")


def archive(compressed: bool) -> bytes:
    """Two arrays, as `harmful=arrays` takes them."""
    stream, draws = io.BytesIO(), np.random.default_rng(0)
    save = np.savez_compressed if compressed else np.savez
    save(stream, x=draws.standard_normal((12, 3)), y=draws.standard_normal(12))
    return stream.getvalue()


@cases(40)
@given(content=st.one_of(damaged(archive(False)), damaged(archive(True))))
def test_damaged_arrays(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with contextlib.suppress(UserError):
        part = Arrays("harmful", tmp_path / "a.npz").load().fit
        assert len(part.x) == len(part.y)


def picture(kind: str) -> bytes:
    """A small picture as a file."""
    stream = io.BytesIO()
    Image.fromarray(np.arange(12 * 12 * 3, dtype="u1").reshape(12, 12, 3)).save(stream, kind)
    return stream.getvalue()


def images(root: Path, content: bytes, name: str) -> None:
    """Read a folder of seven images, one of which has this content."""
    shutil.rmtree(root / "images", ignore_errors=True)
    for which in range(2):
        for image in range(3):
            path = root / "images" / f"class{which}" / f"{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture("PNG"))
    (root / "images" / "class0" / name).write_bytes(content)
    splits = ImageFolder("harmful", root=root / "images").splits(None, None)
    for split in (splits.fit, splits.held_out):
        for index in range(len(split)):
            assert split[index][0].shape[0] == 3


@cases(20)
@given(content=st.one_of(damaged(picture("PNG")), damaged(picture("JPEG"))), name=st.sampled_from(["x.png", "x.jpg"]))
def test_damaged_image(content: bytes, name: str, tmp_path: Path) -> None:
    with contextlib.suppress(UserError):  # one of so few is more than 1 %, unless it can be read after all
        images(tmp_path, content, name)


def sized(width: int, height: int) -> bytes:
    """A PNG whose header announces another size than it has, with the right checksum."""
    content = picture("PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + content[24:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


@pytest.mark.parametrize("size", [(30_000, 30_000), (2**31 - 1, 2**31 - 1), (0, 12)])
def test_image_of_an_absurd_size_is_unreadable(size: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 of 5 images cannot be read"):
        images(tmp_path, sized(*size), "x.png")


def test_large_image_is_read(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (3_000, 2_500)).save(stream, "PNG")
    images(tmp_path, stream.getvalue(), "x.png")
