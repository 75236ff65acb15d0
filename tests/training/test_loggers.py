"""What each logger stores, read back from its files, or is told. W&B runs offline: no account, no network."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from immunize.errors import UserError
from immunize.pipeline.experiment import flat_curves, flat_metrics, logged_run
from immunize.records import read_record
from immunize.training.loggers import wandb_logger
from tests.composing import SGD, killed, run_tiny, run_tiny_deep
from tests.tampering import csv_rows

WATCHED = (
    *("RIR", "ratio_harmful", "ratio_pretrain", "R_well", "R_ill", "kappa_pretrain", "kappa_harmful"),
    *("separability_pretrain", "separability_harmful"),
)
STEPS = ("objective.epochs=6", "log_every=1", "monitor_every=2", "probe_steps=20")


def test_csv_of_the_run_that_is_there_and_none_that_was_there_before(tmp_path: Path) -> None:
    for words in ((), ("figure=true", "log_every=4", "overwrite=true")):
        run_tiny(tmp_path, *STEPS, "logger=csv", *words)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"record.json", "checkpoint.safetensors", "norm_ratio.png", "metrics.csv"}
    assert [int(row["step"]) for row in csv_rows(tmp_path / "metrics.csv") if row["loss"]] == [0, 4]


def stored(logger: str, folder: Path, told: Sequence[Told]) -> Callable[[str], dict[Any, float]]:
    """What a run's logger holds of a name: step to value."""
    if logger == "csv":
        rows = csv_rows(folder / "metrics.csv")
        return lambda name: {int(row["step"]): float(row[name]) for row in rows if row[name]}
    if logger == "wandb":
        return told[0].of
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    written = events.EventAccumulator(str(next(folder.rglob("events.out.tfevents.*")).parent))
    written.Reload()
    return lambda name: {event.step: event.value for event in written.Scalars(name)}


@pytest.mark.parametrize("logger", ["csv", "tensorboard", "wandb"])
def test_a_logger_has_every_look_and_the_final_numbers(logger: str, tmp_path: Path, told: list[Told]) -> None:
    record = run_tiny(tmp_path, *STEPS, f"logger={logger}")
    of = stored(logger, tmp_path, told)
    assert list(of("loss")) == list(range(6))
    assert all(list(of(name)) == [2, 4, 6] for name in WATCHED)
    digits = {"rel": 2**-23 if logger == "tensorboard" else 1e-9, "abs": 0}  # event files are float32
    for name in ("RIR", "ratio_harmful", "ratio_pretrain"):
        assert of(name)[6] == pytest.approx(record["metrics"]["fit"]["spectrum"][name.lower()], **digits)
    for name, value in flat_metrics(record).items():
        assert list(of(name).values()) == [value if logger != "tensorboard" else pytest.approx(value, **digits)]


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


class Told:
    """What a W&B run is told, in the place of one."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.config = settings, settings["config"]
        self.history: list[dict[str, Any]] = []
        self.exits: list[int] = []
        self.log, self.define_metric = self.history.append, Mock()

    def finish(self, exit_code: int) -> None:
        self.exits.append(exit_code)

    def of(self, key: str, by: str = "trainer/global_step") -> dict[Any, Any]:
        return {row.get(by): row[key] for row in self.history if key in row}


@pytest.fixture
def told(offline: None, monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    """The runs that W&B is asked for, as they come."""
    runs: list[Told] = []
    monkeypatch.setattr("wandb.init", lambda **settings: runs.append(Told(**settings)) or runs[-1])
    return runs


@pytest.mark.usefixtures("offline")
def test_a_real_wandb_run_is_offline_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    folder, summary, finish = tmp_path / "run", dict[str, Any](), wandb.Run.finish

    def finished(run: wandb.Run, **options: Any) -> None:
        summary.update(run.summary)
        finish(run, **options)

    monkeypatch.setattr(wandb.Run, "finish", finished)
    record = run_tiny(folder, *STEPS, "logger=wandb", "figure=true")
    numbers = flat_metrics(record)
    assert {name: summary[name] for name in numbers} == numbers
    assert wandb.run is None  # or the next run of a multirun would continue it
    (path,) = folder.rglob("run-*.wandb")
    assert path.parent.name.startswith("offline-run-")
    (figure,) = (path.parent / "files").rglob("*.png")
    assert figure.read_bytes() == (folder / "norm_ratio.png").read_bytes()


def test_wandb_is_told_everything(tmp_path: Path, told: list[Told]) -> None:
    record = run_tiny(tmp_path / "run", *STEPS, "logger=wandb")
    (run,) = told
    assert run.exits == [0]

    loss = run.of("loss")
    weights = {"task": 1, "well": 1, "ill": 1e5}
    for step, value in loss.items():
        terms = sum(weight * run.of(f"term/{name}")[step] for name, weight in weights.items())
        assert value == pytest.approx(terms, rel=1e-12)
    for name, (steps, values) in flat_curves(record).items():
        assert run.of(name, by="probe_step") == dict(zip(steps, values, strict=True))
    curve = record["curves"]["norm_ratio"]["held_out"]["harmful"]["identity"]
    assert list(run.of("norm_ratio/held_out/harmful/identity", by="probe_step").values()) == curve["ratio"]


def test_runs_of_one_process_are_runs_of_their_own(tmp_path: Path, told: list[Told]) -> None:
    """A multirun is one process. Its runs can be told apart and plotted, one that diverged among them."""
    own = ("logger.group=mine", "logger.tags=[one]")  # the user's words go first
    diverging = (*SGD, "objective.learning_rate=1e200")
    for name, seed, weight, more in (("a", 0, 1e5, ()), ("b", 1, 1e6, diverging), ("c", 0, 1e5, own)):
        words = (f"seed={seed}", f"objective.lambda_ill={weight}", "experiment.name=a_sweep", *more)
        record = run_tiny(tmp_path / name, *STEPS, "logger=wandb", *words)
        run = told[-1]
        assert run.exits == [int(record["status"] == "diverged")] == [seed]
        assert sorted(run.of("loss")) == [*range(1 if seed else 6)]
        assert (run.config["seed"], run.config["objective"]["lambda_ill"]) == (seed, weight)
        assert run.config["method"]["name"] == "ours"
        assert run.config["config_hash"] == record["config_hash"]
        assert run.settings["group"] == ("mine" if more == own else "a_sweep")
        assert set(run.settings["tags"]) == ({"one"} if more == own else {"ours", "linear", "synthetic", "a_sweep"})
        assert f"λ_H={weight:g}" in run.settings["name"]
        assert f"seed={seed}" in run.settings["name"]
    assert told[0].settings["name"] != told[1].settings["name"]


def test_a_run_that_is_refused_leaves_none_open_and_begins_none(tmp_path: Path, told: list[Told]) -> None:
    for setting, words, begun in (
        ("model.columns=some", "columns", 0),
        ("objective.early_stopping=true", "looks at", 1),
    ):
        with pytest.raises(UserError, match=words):
            run_tiny(tmp_path / words, *STEPS, "logger=wandb", setting)
        assert [run.exits for run in told] == [[1]] * begun


def test_a_network_s_numbers_and_fine_tune_curves_have_names(finished_network: Path) -> None:
    record = read_record(finished_network)
    run = logged_run(record, ["digits", "+".join(["digits"] * 10)])
    assert [len(tag) for tag in run["tags"]] == [4, 12, 6, 64]
    assert run["name"].startswith("ours resnet_small digits against digits+digits")
    assert run["config"]["model"]["architecture"] == record["config"]["model"]["architecture"]
    assert "probe_steps" not in run["config"]  # of linear models: not in force
    own = {**record, "config": {**record["config"], "method": {"lambda_ill": [1, 2]}}}  # of a method of one's own
    assert " λ_H=[1, 2] η=0.003 " in logged_run(own, ["a", "b"])["name"]
    numbers, curves = flat_metrics(record), flat_curves(record)
    for kind, of in (("", "metrics"), ("groups/", "metrics_groups")):
        assert numbers[f"held_out/{kind}spectrum/rir"] == record[of]["held_out"]["spectrum"]["rir"]
    assert numbers["pretrain_accuracy/after"] == record["pretrain_accuracy"]["after"]
    learned = record["separability"]["fit"]["harmful"]["immunized"]["cross_fitted"]
    assert numbers["separability/fit/harmful/immunized/cross_fitted/0.01"] == learned["0.01"]
    curve = record["curves"]["probe"]["gd"]["harmful"]["immunized"]
    assert curves["probe/gd/harmful/immunized"] == (curve["steps"], curve["accuracy"])


@pytest.mark.usefixtures("offline")
def test_offline_unless_logged_in_or_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(**variables: str) -> bool:
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            return bool(wandb_logger("p", str(tmp_path))._offline)

    login, own_server = "machine {} login user password " + "0" * 40 + "\n", "https://wandb.example.org:8080"
    netrc, other = Path(os.environ["HOME"]) / ".netrc", tmp_path / "netrc"
    assert offline()
    assert not offline(WANDB_API_KEY="0" * 40)
    netrc.touch(0o600)
    for host, told in (("example.org", True), ("api.wandb.ai", False)):
        netrc.write_text(login.format(host))
        assert offline() is told
    other.write_text(login.format("wandb.example.org"))
    assert offline(WANDB_BASE_URL=own_server)
    assert not offline(WANDB_BASE_URL=own_server, NETRC=str(other))
    assert offline(WANDB_BASE_URL="https://[::1")  # is no address
    assert offline(NETRC=str(tmp_path))  # cannot be read
    netrc.write_text("this is not a netrc file\n")
    assert offline()
    assert not offline(WANDB_MODE="online")
    assert wandb_logger("p", str(tmp_path))._wandb_init["project"] == "p"


def test_wandb_that_refuses_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setattr(wandb, "init", Mock(side_effect=wandb.errors.UsageError("No API key configured")))
    with pytest.raises(UserError, match="No API key configured; log in, or keep the run here with WANDB_MODE=offline"):
        _ = wandb_logger("immunize", str(tmp_path)).experiment


def test_a_training_that_goes_on_goes_on_with_its_wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    with killed(monkeypatch, "immunize.pipeline.fit.Progress", 2):
        run_tiny_deep(tmp_path, "logger=wandb", "resume=true")
    run_tiny_deep(tmp_path, "logger=wandb", "resume=true")
    # offline-run-<time>-<id>, and a number behind it where both began in the same second
    begun = [path.name.split("-")[3] for path in tmp_path.glob("wandb/offline-run-*")]
    assert len(begun) == 2
    assert len(set(begun)) == 1
