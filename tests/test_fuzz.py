"""Whatever stands on a command line or in a data file: a result, or one message, never a traceback.

Random settings of every command. The other tests of bad input say which message belongs to which mistake; these look
for the mistakes nobody thought of.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from immunize import attack, evaluate, export, forecast, pretrain, train
from immunize.data.arrays import Arrays
from immunize.data.housing import Housing
from immunize.data.images.folders import ImageFolder
from immunize.data.mnist import read_idx
from immunize.errors import DataError, UserError
from immunize.report import __main__ as report
from tests.attacking import TINY_GRID, TINY_NETWORK_GRID, compose_attack
from tests.commands import Called
from tests.composing import compose_config
from tests.data.image_files import write_classes
from tests.data.test_digits import idx_bytes
from tests.data.test_housing import fake_table
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
    monkeypatch.delenv("IMMUNIZE_DATA", raising=False)


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
def test_random_settings(command: str, linear: Path, network: Path, called: Called, tmp_path: Path) -> None:
    number, main, words, more = COMMANDS[command]
    places = {"LINEAR_RUN": linear, "NETWORK_RUN": network, "OUT": tmp_path}
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]

    @cases(number)
    @given(chosen=more)
    def tried(chosen: list[str]) -> None:
        ends_well(called, main, [*words, *chosen], tmp_path)

    tried()


# Whatever a data file holds: data, or an error that names it.


def house_prices(content: bytes, root: Path) -> None:
    """Both roles of a file with this content."""
    path = root / "house_prices" / "train.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    for role in ("pretrain", "harmful"):
        part = Housing(root, role).load().fit
        assert part.x.shape == (len(part.y), 79)
        assert part.x.isfinite().all()


def idx_file(content: bytes, root: Path, name: str = "images") -> None:
    (root / name).write_bytes(content)
    assert read_idx(root / name).dtype == np.uint8


def archive(save: Callable[..., None]) -> bytes:
    """Two arrays, as `harmful=arrays` takes them."""
    stream, draws = io.BytesIO(), np.random.default_rng(0)
    save(stream, x=draws.standard_normal((12, 3)), y=draws.standard_normal(12))
    return stream.getvalue()


def arrays(content: bytes, root: Path) -> None:
    (root / "a.npz").write_bytes(content)
    part = Arrays("harmful", root / "a.npz").load().fit
    assert len(part.x) == len(part.y)


def picture(kind: str = "PNG", size: tuple[int, int] = (12, 12)) -> bytes:
    """A picture as a file."""
    stream = io.BytesIO()
    Image.fromarray(np.resize(np.arange(251, dtype="u1"), (*size, 3))).save(stream, kind)
    return stream.getvalue()


def images(content: bytes, root: Path, name: str = "x.png") -> None:
    """Read a folder of seven images, one of which has this content."""
    shutil.rmtree(root / "images", ignore_errors=True)
    write_classes(root / "images", {"class0": 3, "class1": 3})
    (root / "images" / "class0" / name).write_bytes(content)
    splits = ImageFolder("harmful", root=root / "images").splits(None, None)
    for split in (splits.fit, splits.held_out):
        for index in range(len(split)):
            assert split[index][0].shape[0] == 3


TABLE = fake_table().to_csv(index=False, na_rep="NA")
PIXELS = idx_bytes(np.arange(20 * 28 * 28).reshape(20, 28, 28) % 251)
FILES: dict[str, tuple[int, list[bytes], list[Callable[[bytes, Path], None]]]] = {
    "table": (40, [TABLE.encode()], [house_prices]),
    "idx": (40, [PIXELS, gzip.compress(PIXELS, mtime=0)], [idx_file, functools.partial(idx_file, name="images.gz")]),
    "arrays": (40, [archive(np.savez), archive(np.savez_compressed)], [arrays]),
    "image": (20, [picture("PNG"), picture("JPEG")], [images, functools.partial(images, name="x.jpg")]),
}
"""How many cases, what is damaged, and what reads it."""


@pytest.mark.parametrize("kind", FILES)
def test_damaged_file(kind: str, tmp_path: Path) -> None:
    number, whole, readers = FILES[kind]

    @cases(number)
    @given(content=st.one_of(*map(damaged, whole)), read=st.sampled_from(readers))
    def tried(content: bytes, read: Callable[[bytes, Path], None]) -> None:
        with contextlib.suppress(UserError):  # one image of so few is more than 1 %, unless it can be read after all
            read(content, tmp_path)

    tried()


def test_a_table_with_a_field_of_5_mb_too_many_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more fields than the header"):
        house_prices(TABLE.replace("\n", "\n" + "x" * 5_000_000 + ",", 1).encode(), tmp_path)


def test_large_image_is_read(tmp_path: Path) -> None:
    images(picture(size=(3_000, 2_500)), tmp_path)
