"""What each logger stores, read back from its files. W&B runs offline: no account, no network."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from immunize.spectrum import ESTIMATORS
from immunize.training.loggers import wandb_logger
from tests.composing import SGD, killed, run_tiny, run_tiny_deep
from tests.tampering import csv_rows

WATCHED = (
    *("RIR", "ratio_harmful", "ratio_pretrain", "R_well", "R_ill", "kappa_pretrain", "kappa_harmful"),
    *("separability_pretrain", "separability_harmful"),
)
STEPS = ("objective.epochs=6", "log_every=1", "monitor_every=2", "probe_steps=20")


def metric_names(record: dict[str, Any]) -> dict[str, float]:
    """The final numbers by the names that loggers get."""
    return {
        f"{part}/{estimator}/{name}": record["metrics"][part][estimator][name]
        for part in ("fit", "held_out")
        for estimator in ESTIMATORS
        for name in ("rir", "ratio_harmful", "ratio_pretrain", "kappa_pretrain", "kappa_harmful")
    }


def test_csv(tmp_path: Path) -> None:
    record = run_tiny(tmp_path, *STEPS, "logger=csv", "figure=true")
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"record.json", "checkpoint.safetensors", "norm_ratio.png", "metrics.csv"}
    rows = csv_rows(tmp_path / "metrics.csv")
    assert [int(row["step"]) for row in rows if row["loss"]] == list(range(6))
    assert [int(row["step"]) for row in rows if row["RIR"]] == [2, 4, 6]
    for name in WATCHED:
        assert sum(bool(row[name]) for row in rows) == 3, name
    final = [row for row in rows if row["RIR"]][-1]
    numbers = record["metrics"]["fit"]["spectrum"]
    assert float(final["RIR"]) == pytest.approx(numbers["rir"], rel=1e-9)
    assert float(final["ratio_harmful"]) == pytest.approx(numbers["ratio_harmful"], rel=1e-9)
    assert float(final["ratio_pretrain"]) == pytest.approx(numbers["ratio_pretrain"], rel=1e-9)
    last = rows[-1]
    for name, value in metric_names(record).items():
        assert float(last[name]) == value


def test_csv_of_an_overwritten_run_starts_anew(tmp_path: Path) -> None:
    run_tiny(tmp_path, *STEPS, "logger=csv")
    run_tiny(tmp_path, *STEPS, "logger=csv", "overwrite=true", "objective.epochs=3")
    assert [int(row["step"]) for row in csv_rows(tmp_path / "metrics.csv") if row["loss"]] == [0, 1, 2]


def test_csv_of_a_training_that_goes_on_keeps_the_rows_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("logger=csv", "log_every=1", "monitor_every=2", "resume=true")
    run_tiny_deep(tmp_path / "whole", *settings)
    with killed(monkeypatch, "immunize.pipeline.fit.Progress", 5):
        run_tiny_deep(tmp_path / "ended", *settings)
    begun = csv_rows(tmp_path / "ended" / "metrics.csv")
    record = run_tiny_deep(tmp_path / "ended", *settings)
    assert record["training"]["fit"]["resumed"] is not None
    assert 0 < len([row for row in begun if row["loss"]]) < record["training"]["fit"]["steps"]
    whole, ended = (csv_rows(tmp_path / name / "metrics.csv") for name in ("whole", "ended"))
    assert sorted(map(repr, ended)) == sorted(map(repr, whole))


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = run_tiny(tmp_path, *STEPS, "logger=tensorboard")
    written = EventAccumulator(str(next(tmp_path.rglob("events.out.tfevents.*")).parent))
    written.Reload()
    assert [event.step for event in written.Scalars("loss")] == list(range(6))
    assert [event.step for event in written.Scalars("RIR")] == [2, 4, 6]
    for name, value in metric_names(record).items():  # event files are float32
        assert [event.value for event in written.Scalars(name)] == [pytest.approx(value, rel=2**-23)]


# Weights & Biases.


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without account, and a network that is not to be touched."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "NETRC"):
        monkeypatch.setenv(name, "")  # recorded first, so that what Lightning sets meanwhile is undone as well
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("WANDB_SILENT", "true")
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"connection to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)


def stored(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format behind seven bytes of W&B's own."""
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    assert content[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # a block's last bytes are too few for another head
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


class StoredRun:
    """One offline run: what it is called, its configuration, history rows, summary, exit code and files."""

    def __init__(self, folder: Path) -> None:
        (self.path,) = folder.rglob("run-*.wandb")
        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.exits: list[int] = []
        self.config: dict[str, Any] = {}
        self.name = self.group = ""
        self.tags: list[str] = []
        for record in stored(self.path):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                self.history.append({self._key(item): json.loads(item.value_json) for item in record.history.item})
            elif kind == "summary":
                self.summary |= {self._key(item): json.loads(item.value_json) for item in record.summary.update}
            elif kind == "run":
                self.name, self.group = record.run.display_name, record.run.run_group
                self.tags = list(record.run.tags)
                self.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "exit":
                self.exits.append(record.exit.exit_code)

    @staticmethod
    def _key(item: Any) -> str:
        return item.key or ".".join(item.nested_key)

    def of(self, key: str, by: str = "trainer/global_step") -> dict[int, Any]:
        return {row[by]: row[key] for row in self.history if key in row}


def closed_run(folder: Path) -> StoredRun:
    """The run in this folder; W&B's service writes the last entry after the run has ended."""
    for _ in range(100):
        if (run := StoredRun(folder)).exits:
            break
        time.sleep(0.2)
    return run


def assert_has_curve(run: StoredRun, record: dict[str, Any], what: str, *names: str, values: str) -> None:
    curve = record["curves"][what]
    for name in names:
        curve = curve[name]
    found = run.of("/".join((what, *names)), by="probe_step")
    assert found == dict(zip(curve["steps"], curve[values], strict=True))


@pytest.mark.usefixtures("offline")
def test_offline_wandb_run_stores_everything(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record = run_tiny(folder, *STEPS, "logger=wandb", "figure=true")
    run = closed_run(folder)
    assert run.path.parent.name.startswith("offline-run-")
    assert run.exits == [0]

    loss = run.of("loss")
    assert sorted(loss) == list(range(6))
    for name in ("task", "well", "ill"):
        assert sorted(run.of(f"term/{name}")) == list(range(6))
    weights = {"task": 1, "well": 1, "ill": 1e5}
    for step, value in loss.items():
        terms = sum(weight * run.of(f"term/{name}")[step] for name, weight in weights.items())
        assert value == pytest.approx(terms, rel=1e-12)
    for name in WATCHED:
        assert sorted(run.of(name)) == [2, 4, 6], name
    numbers = record["metrics"]["fit"]["spectrum"]
    for name, key in (("RIR", "rir"), ("ratio_harmful",) * 2, ("ratio_pretrain",) * 2):
        assert run.of(name)[6] == pytest.approx(numbers[key], rel=1e-9)

    for part in ("fit", "held_out"):
        for name in ("pretrain", "harmful"):
            for which in ("immunized", "identity"):
                assert_has_curve(run, record, "norm_ratio", part, name, which, values="ratio")

    final = run.history[-1]
    for name, value in metric_names(record).items():
        assert final[name] == value
        assert run.summary[name] == value
    assert final["results._type"] == "table-file"
    table = json.loads((run.path.parent / "files" / final["results.path"]).read_text())
    assert table["columns"][:2] == ["part", "estimator"]
    assert [row[:2] for row in table["data"]] == [[p, e] for p in ("fit", "held_out") for e in ESTIMATORS]
    rir = table["columns"].index("RIR ↑")
    assert [row[rir] for row in table["data"]] == [
        record["metrics"][p][e]["rir"] for p in ("fit", "held_out") for e in ESTIMATORS
    ]
    assert final["figure._type"] == "image-file"
    assert (run.path.parent / "files" / final["figure.path"]).read_bytes() == (folder / "norm_ratio.png").read_bytes()


@pytest.mark.usefixtures("offline")
def test_runs_of_one_process_are_runs_of_their_own(tmp_path: Path) -> None:
    """A multirun is one process, and W&B continues a run that was left open. Its runs can be told apart and plotted."""
    names = set()
    for name, seed, weight in (("a", 0, 1e5), ("b", 1, 1e5), ("c", 1, 1e6)):
        words = (f"seed={seed}", f"objective.lambda_ill={weight}")
        record = run_tiny(tmp_path / name, *STEPS, "logger=wandb", *words, "experiment.name=a_sweep")
        run = closed_run(tmp_path / name)
        assert run.exits == [0]
        rir = record["metrics"]["fit"]["spectrum"]["rir"]
        assert [row["fit/spectrum/rir"] for row in run.history if "fit/spectrum/rir" in row] == [rir]
        assert sorted(run.of("loss")) == list(range(6))
        assert (run.config["seed"], run.config["objective"]["lambda_ill"]) == (seed, weight)
        assert run.config["method"]["name"] == "ours"
        assert run.config["config_hash"] == record["config_hash"]
        assert run.group == "a_sweep"
        assert set(run.tags) == {"ours", "linear", "synthetic", "a_sweep"}
        assert f"λ_H={weight:g}" in run.name
        assert f"seed={seed}" in run.name
        names.add(run.name)
    assert len(names) == 3


@pytest.mark.usefixtures("offline")
def test_a_network_s_run_stores_the_paper_s_numbers_and_the_fine_tune_curves(tmp_path: Path) -> None:
    own = ("logger=wandb", "logger.group=mine", "logger.tags=[one]", "deep.probe_steps={gd:3,sgd:3}")
    record = run_tiny_deep(tmp_path, *own)
    run = closed_run(tmp_path)
    assert run.exits == [0]
    assert (run.group, run.tags) == ("mine", ["one"])  # the user's words go first
    assert run.name.startswith("ours resnet_small digits against digits ")
    assert run.config["model"]["architecture"] == record["config"]["model"]["architecture"]
    assert "probe_steps" not in run.config  # of linear models: not in force
    final = run.history[-1]
    for part in ("fit", "held_out"):
        for kind, of in (("", "metrics"), ("groups/", "metrics_groups")):
            for name in ("rir", "ratio_harmful", "ratio_pretrain", "kappa_harmful"):
                assert final[f"{part}/{kind}spectrum/{name}"] == record[of][part]["spectrum"][name]
    for which in ("before", "after"):
        assert final[f"pretrain_accuracy/{which}"] == record["pretrain_accuracy"][which]
    for optimizer in ("gd", "sgd"):
        for role in ("pretrain", "harmful"):
            for which in ("immunized", "theta_0"):
                assert_has_curve(run, record, "probe", optimizer, role, which, values="accuracy")
    table = json.loads((run.path.parent / "files" / final["results.path"]).read_text())
    assert {row[0] for row in table["data"]} == {"fit", "held_out", "fit, groups", "held_out, groups"}
    steps = record["training"]["fit"]["steps"]
    for name in ("RIR", "ratio_harmful", "kappa_pretrain", "accuracy_pretrain", "separability_harmful"):
        assert sorted(run.of(name)) == sorted({*range(2, steps + 1, 2), steps}), name


@pytest.mark.usefixtures("offline")
def test_diverged_wandb_run_is_closed_as_failed(tmp_path: Path) -> None:
    record = run_tiny(tmp_path / "run", "logger=wandb", "log_every=1", *SGD, "objective.learning_rate=1e200")
    assert record["status"] == "diverged"
    run = closed_run(tmp_path / "run")
    assert run.exits == [1]
    assert 0 in run.of("loss")


@pytest.mark.usefixtures("offline")
def test_offline_unless_logged_in_or_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline() -> bool:
        return bool(wandb_logger("p", str(tmp_path))._offline)

    assert offline()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert not offline()
    monkeypatch.delenv("WANDB_API_KEY")
    netrc = Path(os.environ["HOME"]) / ".netrc"
    netrc.write_text("machine example.org login a password b\n")
    netrc.chmod(0o600)
    assert offline()
    netrc.write_text("machine api.wandb.ai login user password " + "0" * 40 + "\n")
    assert not offline()
    netrc.write_text("this is not a netrc file\n")
    assert offline()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert wandb_logger("p", str(tmp_path))._wandb_init["project"] == "p"
