"""Records: what they hold, that they are JSON, that they are written whole, and that equal runs give equal numbers."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console

import immunize
from immunize import records, train
from immunize.checkpoints import load_checkpoint
from immunize.errors import CheckpointError
from immunize.report.naming import pair_label
from immunize.report.one_run import show_record
from immunize.settings import refuse_finished
from tests.composing import FINISHED, compose_config, data_of, run_tiny, tiny
from tests.tampering import strict_json


@pytest.fixture
def record(finished_run: Path) -> dict[str, Any]:
    stored: dict[str, Any] = strict_json(finished_run / records.RECORD)
    return stored


# What a record holds.


def test_digits_of_two_labels_a_side_have_something_to_learn_and_an_accuracy(tmp_path: Path) -> None:
    pair = "harmful.pair=[[0,1],[2,3]]"
    cfg = compose_config("harmful=digits", pair, "objective.epochs=3", "probe_steps=20", "logger=none", "figure=false")
    record = train.run(cfg, tmp_path, quiet=True)
    assert records.plain(record) == records.read_record(tmp_path)
    assert pair_label(record) == "0 vs 1→2 vs 3"
    for part, verdicts in (("fit", record["verdicts"]), ("held_out", record["verdicts"]["held_out"])):
        learned = record["separability"][part]["harmful"]["identity"]["cross_fitted"]
        assert max(learned.values()) > 0.8
        assert verdicts["accuracy_before"] > 95
    console = Console(record=True, width=120)
    show_record(record, console)
    assert "accuracy of a ridge probe" in console.export_text()


def test_provenance(record: dict[str, Any]) -> None:
    assert record["versions"]["torch"] == version("torch")
    assert record["versions"]["immunize"] == immunize.__version__  # a checkout need not be installed
    assert {"python", "lightning", "hydra-core", "numpy", "scipy", "scikit-learn"} <= record["versions"].keys()
    assert all(record["versions"].values())
    accelerators = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    assert record["hardware"]["accelerators"] == accelerators
    assert all(record["hardware"][name] for name in ("cores", "processor", "threads", "memory_gib", "system"))
    assert 0 < record["training"]["fit"]["seconds"] <= record["seconds"] < 60
    assert 0 <= record["seconds_evaluating"] <= record["seconds"]
    assert 50 < record["peak_memory_mib"] < 50_000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record["started"])


@pytest.mark.parametrize(
    ("program", "module", "command"),
    [
        ("/x/immunize/train.py", "immunize.train", "python -m immunize.train a=1"),
        ("/immunize/immunize/train.py", "loky.backend.popen_loky_posix", "python -m immunize.train a=1"),
        ("/x/experiments/bench/__main__.py", "experiments.bench.__main__", "python -m experiments.bench a=1"),
        ("/immunize/experiments/demo.py", "loky.backend.popen_loky_posix", "python -m experiments.demo a=1"),
        ("/x/elsewhere/mine.py", "loky.backend.popen_loky_posix", "mine.py a=1"),
        ("/x/experiments/mine.py", None, "mine.py a=1"),
        ("/x/bin/immunize-train", None, "immunize-train a=1"),
    ],
)
def test_the_command_can_be_given_again(
    program: str, module: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None if module is None else SimpleNamespace(name=module)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    monkeypatch.setattr(sys, "argv", [program, "a=1"])
    assert records.provenance()["command"] == command


def test_the_configuration_of_a_record_is_all_that_was_composed(record: dict[str, Any]) -> None:
    assert records.whole_config(record) == OmegaConf.to_container(tiny(*FINISHED), resolve=True, enum_to_str=True)


# The same run again.


EARLY = ("objective.early_stopping=true", "objective.check_every=5")


@pytest.mark.parametrize(
    ("extra", "guard"), [((), "warn"), (("objective.batch_size=8",), "warn"), (("method=imma",), "off"), (EARLY, "off")]
)
def test_same_seed_same_numbers_however_closely_a_run_is_watched(
    extra: tuple[str, ...], guard: str, tmp_path: Path
) -> None:
    found = []
    for name, watched in (("a", []), ("b", ["log_every=1", "monitor_every=1", f"guard={guard}"])):
        torch.rand(len(found) + 1)  # nothing may depend on the state that a caller leaves
        found.append(run_tiny(tmp_path / name, "objective.epochs=10", *extra, *watched))
    for key in ("metrics", "verdicts", "steps_to_norm_ratio", "curves", "data_hash", "data"):
        assert found[0][key] == found[1][key], key
    one, other = (record["training"]["fit"] for record in found)
    assert one["steps"] == other["steps"]
    assert ("guard" in one, "guard" in other) == (False, guard == "warn")
    assert other.get("guard", other)["steps"] == other["steps"]


def test_data_hash_is_of_the_data(record: dict[str, Any]) -> None:
    data = data_of(tiny())
    digest = hashlib.sha256()
    for role in ("pretrain", "harmful"):
        for name, parts in (("fit", data.fit), ("held_out", data.held_out)):
            part = parts[role]
            digest.update(f"synthetic/{role}/{name}".encode())
            for tensor in (part.x, part.y):
                digest.update(str(tuple(tensor.shape)).encode() + tensor.numpy().tobytes())
    assert record["data_hash"] == digest.hexdigest()


# Reading and writing.


def test_arrays_become_lists_and_infinities_and_nan_null(tmp_path: Path) -> None:
    values = {"a": float("nan"), "b": [1.5, float("inf")], 3: (float("-inf"), True), "c": None, "d": {"e": 1e308}}
    of_others = {"rank": np.int64(3), "kept": torch.tensor([1.0, torch.inf]), "at": (np.eye(1),)}  # their method's
    path = records.write_record(tmp_path, values | of_others)
    assert path == tmp_path / records.RECORD
    plain = {"a": None, "b": [1.5, None], "3": [None, True], "c": None, "d": {"e": 1e308}}
    assert strict_json(path) == plain | {"rank": 3, "kept": [1.0, None], "at": [[[1.0]]]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "holds no record.json"),
        (Path, "cannot be read"),  # a folder in its place
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_what_is_not_a_record_is_refused_and_need_not_be_kept(content: Any, words: str, tmp_path: Path) -> None:
    """What is cut off, no record, or of another version: `report/test_bad_folders.py`."""
    if content is Path:
        (tmp_path / records.RECORD).mkdir()
    elif content is not None:
        (tmp_path / records.RECORD).write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as error:
        records.read_record(tmp_path)
    assert str(tmp_path) in str(error.value)
    refuse_finished(tmp_path, overwrite=False)


@pytest.mark.data
def test_cross_fit_beside_the_fit_is_the_same_to_the_bit(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from immunize.pipeline import experiment

    forked: list[int] = []
    beside = experiment.beside
    monkeypatch.setattr(experiment, "can_fork", lambda count: count == 2)
    monkeypatch.setattr(experiment, "beside", lambda work: forked.append(1) or beside(work))
    overrides = ("harmful=housing", f"data_root={data_root}", "objective.epochs=20", "probe_steps=50", "logger=none")
    found = [train.run(compose_config(*overrides), tmp_path / str(quiet), quiet=quiet) for quiet in (False, True)]
    assert forked == [1]  # a sweep, which is quiet, has its other runs on the cores
    assert found[0]["metrics"] == found[1]["metrics"]
    thetas = [load_checkpoint(tmp_path / str(quiet) / records.CHECKPOINT, 79) for quiet in (False, True)]
    assert thetas[0].keys() == thetas[1].keys() == {"fit", "cross_fit"}
    assert all(torch.equal(theta, thetas[1][name]) for name, theta in thetas[0].items())


def test_commit_is_dirty_by_code_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *own, *arguments], cwd=tmp_path, check=True, capture_output=True)

    code, script, result = (
        tmp_path / name for name in ("package/records.py", "experiments/a.py", "experiments/a/README.md")
    )
    for path in (code, script, result):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1", encoding="utf-8")
    monkeypatch.setattr(records, "__file__", str(code))
    git("init", "-q")
    assert records.provenance()["git_commit"] is None  # the file is not of this repository
    git("add", "-A")
    git("commit", "-qm", "all")
    assert re.fullmatch(r"[0-9a-f]{40}", records.provenance()["git_commit"])
    result.write_text("2", encoding="utf-8")  # what an experiment has written
    assert re.fullmatch(r"[0-9a-f]{40}", records.provenance()["git_commit"])
    script.write_text("2", encoding="utf-8")
    assert re.fullmatch(r"[0-9a-f]{40}-dirty", records.provenance()["git_commit"])


def test_merged_shares_nothing() -> None:
    one: dict[str, Any] = {"a": {"b": [1]}}
    over: dict[str, Any] = {"a": {"c": [2]}}
    result = records.merged(one, over)
    assert result == {"a": {"b": [1], "c": [2]}}
    result["a"]["b"].append(3)
    result["a"]["c"].append(3)
    assert (one, over) == ({"a": {"b": [1]}}, {"a": {"c": [2]}})
