"""`python -m immunize.forecast`: what it writes, what it prints, what it refuses, and how long it takes."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from time import process_time as seconds
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from rich.console import Console

from immunize import forecast
from immunize.data import ROLES
from immunize.data.pair import PairedData
from immunize.instantiate import build
from immunize.report.forecast import forecast_figure, show_forecast
from tests.commands import fresh, loaded_by, timed
from tests.composing import compose_config

SMALL = ("harmful=synthetic", "harmful.n_features=6", "harmful.n_samples=60", "top_k=3")
PNG = b"\x89PNG"


def composed(*overrides: str) -> DictConfig:
    return compose_config(*overrides, primary="forecast")


START = 4.0
"""Limit of a forecast of digits, in seconds of processor time: what it imports, and hardly anything else."""

TORCH, EIGENVALUES = 1.6, 0.148
"""Seconds of processor time where limits are meant: of `import torch`, and of two `eigh` of 784×784."""


def slowness(folder: Path) -> float:
    """The same processor gives from 1 to 2 seconds for a second's work, by what its neighbours do: which, 1 or more.

    The work is no code of this package, but of the two kinds that a forecast does, which neighbours slow differently.
    """
    symmetric = torch.ones(784, 784, dtype=torch.float64).cumsum(0).tril()
    begun = seconds()
    for _ in range(2):
        torch.linalg.eigh(symmetric)
    spent = seconds() - begun
    return max(1.0, spent / EIGENVALUES, timed(lambda: fresh("-c", "import torch", cwd=folder))[1] / TORCH)


def trained_on(cfg: DictConfig) -> PairedData:
    """The same data, as a training has them."""
    pair = PairedData(build(cfg.pretrain), build(cfg.harmful))
    pair.setup()
    return pair


# What a run leaves.


def test_default_run_ends_with_its_record_and_prints_tables_and_verdict_that_fit_a_screen(tmp_path: Path) -> None:
    slower = slowness(tmp_path)
    done, loaded, spent = loaded_by("immunize.forecast", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 2 * spent / (slower + slowness(tmp_path)) < START
    lines = done.stdout.splitlines()
    path = Path(lines[-1])
    assert path.is_relative_to(tmp_path / "outputs" / "forecast")
    files = {file for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {path, path.parent / "forecast.png"} == {path.parent / f"forecast.{end}" for end in ("json", "png")}
    assert (path.parent / "forecast.png").read_bytes()[:4] == PNG
    record = json.loads(path.read_text())
    assert f"verdict: {record['verdict']['sentence']}" in " ".join(done.stdout.split())
    assert max(map(len, lines[:-1])) <= 100
    assert "\x1b[" not in done.stdout
    assert "…" not in done.stdout
    for word in ("Σ|u·v|", "principal angles", "κ_gen", "RIR*", "N/D", "part. ratio", "only D_H: 3"):
        assert word in done.stdout
    told = done.stderr.splitlines()[:-1]  # the last line is the probe's
    assert told == ["digits against digits: loading", "measuring"]  # and no warning
    assert "torch" in loaded
    assert "lightning" not in loaded


@pytest.mark.usefixtures("undrawn")
def test_record_names_every_number_with_part_and_estimator_and_is_the_same_again(tmp_path: Path) -> None:
    cfg = composed(*SMALL, "shrinkage=0.001")
    record, again = (forecast.run(cfg, tmp_path / name) for name in "ab")
    assert json.loads((tmp_path / "a" / "forecast.json").read_text()) == json.loads(json.dumps(record))
    for key in ("data_sets", "alignment", "bound", "metrics", "verdict", "curves", "data_hash", "config_hash"):
        assert record[key] == again[key]
    assert (record["kind"], record["status"], record["harmful"]) == ("forecast", "finished", "synthetic")
    assert {"config", "git_commit", "versions", "hardware", "seconds", "started"} <= record.keys()
    both = {"ridge", "spectrum"}
    assert {part: {*of} for part, of in record["metrics"].items()} == {"fit": both, "held_out": both}
    assert record["bound"]["rho"] == [0.001, 0.001]
    assert (record["bound"]["estimator"], record["bound"]["part"]) == ("ridge", "fit")
    assert record["data_hash"] == trained_on(cfg).data_hash


def test_report_is_made_from_the_record_alone(tmp_path: Path) -> None:
    forecast.run(composed(*SMALL), tmp_path)
    record = json.loads((tmp_path / "forecast.json").read_text())
    record["bound"]["kappa_gen"] = record["bound"]["rir_star"] = None  # an infinity, as JSON has it
    shown = io.StringIO()
    show_forecast(record, Console(file=shown))
    assert "κ_gen = ∞" in shown.getvalue()
    forecast_figure(record, tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes()[:4] == PNG


@pytest.mark.usefixtures("undrawn")
def test_rows_of_one_file_are_identical_whichever_of_them_each_role_holds_out(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((90, 6))
    np.savez(tmp_path / "both.npz", x=x, y=x[:, 0])
    cfg = composed("harmful=arrays", *(f"{role}.file={tmp_path / 'both.npz'}" for role in ("pretrain", "harmful")))
    assert forecast.run(cfg, tmp_path)["verdict"]["code"] == "identical"


# What is refused.


@pytest.mark.parametrize(
    ("setting", "words"),
    [("shrinkage=much", "has to be .* or one of auto, ledoit_wolf"), ("shrinkage=0", "no sample of D_P has")],
)
def test_bad_input_is_refused_with_one_message(setting: str, words: str, refused: Any) -> None:
    assert re.search(words, refused(forecast.main, setting))


@pytest.mark.usefixtures("undrawn")
def test_forecast_is_kept_unless_overwritten(refused: Any, tmp_path: Path) -> None:
    forecast.run(composed(*SMALL), tmp_path / "run")
    before = (tmp_path / "run" / "forecast.json").read_bytes()
    assert "overwrite=true" in refused(forecast.main, *SMALL)
    assert (tmp_path / "run" / "forecast.json").read_bytes() == before
    forecast.run(composed(*SMALL, "seed=1", "overwrite=true"), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "forecast.json").read_text())["seed"] == 1


# Real data.


@pytest.mark.data
def test_forecast_is_quick(data_root: Path, tmp_path: Path) -> None:
    """Less than ten seconds with what is imported: the default run, a command of its own, has a limit for that."""
    forecast.run(composed(*SMALL), tmp_path / "imported")
    cfg = composed("harmful=mnist", "harmful.pair=[3,8]", f"data_root={data_root}")
    slower, begun = slowness(tmp_path), seconds()
    record = forecast.run(cfg, tmp_path / "mnist")
    took = seconds() - begun
    assert 2 * took / (slower + slowness(tmp_path)) < 10 - START
    assert (record["verdict"]["code"], record["held_out_protocol"]) == ("possible", "split")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.data
def test_house_prices_are_measured_on_the_halves_of_a_training(data_root: Path, tmp_path: Path) -> None:
    cfg = composed("harmful=housing", "shrinkage=0.001", f"data_root={data_root}")
    record = forecast.run(cfg, tmp_path)
    assert (record["verdict"]["code"], record["held_out_protocol"]) == ("few_rows", "cross_fit")
    assert "155 rows for 79 columns" in record["verdict"]["sentence"]
    whole, apart = forecast._load((build(cfg.pretrain), build(cfg.harmful)), 3)
    pair = trained_on(cfg)
    halves = pair.cross_fit_pair(3)
    halves.setup()
    assert record["data_hash"] == pair.data_hash
    for role in ROLES:
        assert whole.splits[role].fit.x.equal(pair.fit[role].x)
        assert apart.splits[role].fit.x.equal(halves.fit[role].x)
        assert apart.splits[role].held_out.x.equal(halves.held_out[role].x)
