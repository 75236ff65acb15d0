"""Whole runs with a deep net: the record, every method, the paper's configurations, interruption, many processes."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from safetensors.torch import load_file
from torch import nn

from immunize import evaluate, train
from immunize.errors import CheckpointError, UserError
from immunize.features.append import AppendedHead, append_map
from immunize.features.boundary import Trunk
from immunize.features.deep import DeepExtractor
from immunize.features.extract import Features, extract
from immunize.features.weights import save_weights
from immunize.instantiate import NOT_ARGUMENTS, build
from immunize.objective import Objective, Step
from immunize.pipeline.features import Measured, mapped
from immunize.pipeline.fit import TRAINING
from immunize.pipeline.network import NetworkModel
from immunize.records import CHECKPOINT, METRICS, read_record
from immunize.report.summary import groups_of
from immunize.training.callbacks import NetworkMonitor, Progress, Resuming
from immunize.training.callbacks.signatures import SIGNATURES
from tests.commands import ROOT, Command
from tests.composing import (
    DEEP,
    OF_OTHER_IMAGES,
    Run,
    compose_config,
    killed,
    run_tiny_deep,
    same_weights,
    tiny_deep,
)
from tests.data.image_files import break_inside, write_noisy_classes
from tests.tampering import csv_rows

CLOSED_FORM = ["method=closed_form", "method.shrinkage=0.1", "method.budget=10"]  # few images, a map for float32
NUMBERS = ("metrics", "metrics_groups", "verdicts", "pretrain_accuracy", "curves")
COUNTED = ("warnings", "watched", "early_stopping")
LAST_IS_NOT_BEST = ("objective.early_stopping=true", "objective.check_every=1", "objective.patience=20")
LOGGED = ("logger=csv", "log_every=1", "monitor_every=2", "guard=warn")
TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
NO_TRAINING = ("method=none", "objective.max_steps=1")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / CHECKPOINT)


class Seen(Resuming):
    """Says at every checkpoint how many steps were taken, and how many of them lie in the log."""

    told: ClassVar[list[tuple[int, int]]] = []

    def _save(self, trainer: Trainer) -> None:
        super()._save(trainer)
        losses = [row for row in csv_rows(self.path.parent / "metrics.csv") if row["loss"]]
        self.told.append((trainer.global_step, len(losses)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing interrupted, with the log of its training."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("immunize.pipeline.network.Resuming", Seen)
        return folder, run_tiny_deep(folder, *LOGGED)


def theta_0(seed: int = 0) -> dict[str, torch.Tensor]:
    """The weights that the tiny network begins with."""
    found: DeepExtractor = build(tiny_deep().model, leave_out=NOT_ARGUMENTS, n_classes=5, seed=seed)
    return found.full_state_dict()


def test_record_says_how_it_was_trained_and_the_checkpoint_holds_only_what_moved(whole: Run) -> None:
    folder, record = whole
    assert read_record(folder)["status"] == record["status"] == "finished"
    facts = record["training"]["fit"]
    assert facts["balance"]["weights"]["task"] == 1
    assert facts["resumed"] is None
    other_threads = {"config": record["config"] | {"threads": 2}, "config_hash": "another"}
    assert len(groups_of([record, record | other_threads])) == 1
    assert {path.name for path in folder.iterdir()} == {"record.json", CHECKPOINT, "metrics.csv"}
    start, trained = theta_0(), record["network"]["trained"]
    assert all(name.startswith("layer4") for name in trained)
    moved = {name for name, value in weights(folder).items() if not torch.equal(value, start[name])}
    assert moved
    assert moved <= {*trained, "fc.weight", "fc.bias"}


def of_folders(root: Path, harmful: tuple[int, int] = (0, 256)) -> list[str]:
    """A run of two steps on folders of noisy images: 60 + 60 of each of two classes; D_H's gray levels are given."""
    rng = np.random.default_rng(0)
    for role, levels in (("pretrain", (0, 256)), ("harmful", harmful)):
        write_noisy_classes(root / role, {"train": 60, "val": 60}, dict.fromkeys("ab", levels), rng)
    sets = [f"{role}{of}" for role in ("pretrain", "harmful") for of in ("=imagefolder", f".root={root / role}")]
    return [*OF_OTHER_IMAGES, *sets, "objective=resnet_small_digits", "objective.max_steps=2"]


@pytest.mark.parametrize("method", ["ours", "erase"])
def test_a_d_h_whose_images_are_all_the_same_is_refused_before_the_first_step(method: str, tmp_path: Path) -> None:
    words = [*of_folders(tmp_path, harmful=(9, 10)), f"method={method}"]
    with pytest.raises(UserError, match=r"all 12 columns of D_H's features are constant: the .* rows are one and the"):
        train.run(compose_config(*words), tmp_path / "run", quiet=True)


def test_a_cached_trunk_changes_no_number(whole: Run, tmp_path: Path) -> None:
    cached = run_tiny_deep(tmp_path / "cached", "objective.cache_frozen=true", f"deep.cache_dir={tmp_path}/features")
    assert cached["pretrain_accuracy"] == whole[1]["pretrain_accuracy"]
    mine, theirs = weights(tmp_path / "cached"), weights(whole[0])
    for name in mine:  # other batch sizes in the trunk round differently
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-3, atol=1e-5)
    assert list((tmp_path / "features").glob("*.safetensors"))


@pytest.mark.parametrize("settings", [CLOSED_FORM, ["objective.max_steps=1"]], ids=["closed form", "ours"])
def test_theta_0_is_computed_once_for_all(settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = f"deep.cache_dir={tmp_path}/features"
    first = run_tiny_deep(tmp_path / "first", *settings, kept)
    monkeypatch.setattr("immunize.pipeline.network.extract", _counting(passes := []))
    again = run_tiny_deep(tmp_path / "again", *settings, kept)
    assert all(first[key] == again[key] for key in (*NUMBERS, "probe_accuracy"))
    # one a part and role: of the immunized network alone, or none at all where nothing was trained
    assert passes == ([] if settings is CLOSED_FORM else [12] * 4)


def test_what_is_needed_of_theta_0_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    monkeypatch.setattr("immunize.pipeline.network.extract", _counting(widths))
    trunk, images = Trunk.forward, list[int]()
    monkeypatch.setattr(Trunk, "forward", lambda self, x: (images.append(len(x)), trunk(self, x))[1])
    record = run_tiny_deep(tmp_path / "run", "method=censor", "objective.cache_frozen=true", "objective.max_steps=1")
    assert record["status"] == "finished"
    # of `fit` first θ_0, for the method, then the immunized network; of the held-out images both, side by side
    assert widths == [12, 12, 12, 12, 24, 24]
    every = sum(sum(of["images"].values()) for of in record["data"].values())
    # training begins behind the trunk, and so does what is looked at; one image of each shows how much memory it takes
    assert sum(n for n in images if n > 1) == every


def _counting(widths: list[int]) -> Callable[..., Features]:
    def counted(*arguments: Any, **options: Any) -> Features:
        found = extract(*arguments, **options)
        widths.append(found.x.shape[1])
        return found

    return counted


def test_second_derivatives_through_attention(tmp_path: Path) -> None:
    """IMMA on a transformer, whose fused attention has first derivatives only."""
    network = ("model=vit_small", "model.kwargs={patch_size:8,embed_dim:16,depth:2,num_heads:2}")
    others = [line for line in DEEP if not line.startswith("model")]
    of_imma = ("model.trainable=[blocks.1]", "method=imma", "objective.learning_rate=1e-4", "objective.max_steps=2")
    record = train.run(compose_config(*network, *others, *of_imma), tmp_path, quiet=True)
    assert (record["status"], record["training"]["fit"]["steps"]) == ("finished", 2)


@pytest.mark.parametrize("learning_rate", ["1e37", "1e17"], ids=["parameters", "features"])
def test_what_overflows_in_the_last_step_is_a_divergence(learning_rate: str, tmp_path: Path) -> None:
    rate = ("objective.balance=false", f"objective.learning_rate={learning_rate}")
    record = run_tiny_deep(tmp_path, *NO_TRAINING, *rate)
    assert record["status"] == "diverged"
    term = record["training"]["fit"]["diverged"]["term"]
    assert term == "task" if learning_rate == "1e37" else term.startswith("features of")
    assert all(bool(value.isfinite().all()) for value in weights(tmp_path).values())


@pytest.mark.parametrize("rows_left", [0, 1])
def test_features_of_zeros_are_a_divergence(rows_left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, or so many that a group has no spectrum."""
    which, computed = "immunized", NetworkModel._features

    def both(*arguments: Any) -> Measured | None:
        features = computed(*arguments)
        features[which]["held_out"]["harmful"][0][rows_left:] = 0
        return features

    monkeypatch.setattr(NetworkModel, "_features", both)
    record = run_tiny_deep(tmp_path / "run", "objective.max_steps=1")
    assert record["status"] == read_record(tmp_path / "run")["status"] == "diverged"
    assert "metrics" not in record
    diverged = record["training"]["fit"]["diverged"]
    assert (diverged["step"], diverged["value"]) == (1, "0.0")
    assert diverged["term"].startswith("features of ")
    which = "theta_0"
    if rows_left == 0:  # nothing that was trained is to blame
        with pytest.raises(UserError, match="θ_0's features of harmful are all zero"):
            run_tiny_deep(tmp_path / "other", "objective.max_steps=1")


@pytest.mark.parametrize("every", [1, 100])
def test_features_that_die_are_a_divergence(every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees it first: the monitor or the method."""

    @torch.no_grad()
    def die(self: Progress, trainer: Trainer, pl_module: LightningModule, *others: Any) -> None:
        for parameter in pl_module.theta_parameters():
            parameter.zero_()

    monkeypatch.setattr(Progress, "on_train_batch_end", die)
    record = run_tiny_deep(tmp_path, "objective.max_steps=3", f"monitor_every={every}")
    assert record["status"] == "diverged"
    assert record["training"]["fit"]["diverged"] == {"step": 1, "term": "features of pretrain", "value": "0.0"}


def test_what_leads_nowhere_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun = f"model.checkpoint={a_theta_0(tmp_path, 1)}"
    for words, is_told in ((["method=none"], True), (["method=ill_only", begun], False)):
        caplog.clear()
        train.run(tiny_deep("objective.balance=true", "objective.max_steps=1", *words), tmp_path / str(is_told))
        for text in ("objective.balance=true has no effect", "θ_0 has random weights"):
            assert (text in caplog.text) is is_told, text


def in_double(**settings: Any) -> DeepExtractor:
    return DeepExtractor.from_timm(**settings).double()


def test_a_network_of_others_is_taken_in_float32(tmp_path: Path) -> None:
    run_tiny_deep(tmp_path, *NO_TRAINING, "model._target_=tests.test_deep_run.in_double")
    assert {value.dtype for value in weights(tmp_path).values()} == {torch.float32, torch.int64}


# Interruption.


def logged(folder: Path) -> list[str]:
    """The rows of a run's log, in an order of their own."""
    return sorted(map(repr, csv_rows(folder / "metrics.csv")))


def test_resumed_within_an_epoch_is_bit_equal(whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = whole[1]["training"]["fit"]["steps"] // 3
    with killed(monkeypatch, "immunize.pipeline.fit.Progress", epoch + 2):
        run_tiny_deep(tmp_path, *LOGGED, "resume=true")
    interrupted = read_record(tmp_path)
    first = interrupted["training"]["fit"]["seconds"]
    assert interrupted["status"] == "interrupted"
    assert 0 < len([row for row in csv_rows(tmp_path / "metrics.csv") if row["loss"]]) < 3 * epoch
    with monkeypatch.context() as patched:  # again, before the first step
        patched.setattr(NetworkMonitor, "on_train_start", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run_tiny_deep(tmp_path, *LOGGED, "resume=true")["status"] == "interrupted"
    record = run_tiny_deep(tmp_path, *LOGGED, "resume=true")
    facts, alone = record["training"]["fit"], whole[1]["training"]["fit"]
    assert facts["resumed"].items() >= {"epoch": 1, "step": 2}.items()
    assert facts["seconds"] > facts["resumed"]["seconds"] > first / 2
    assert alone["warnings"][0]["step"] == 0
    assert all(facts[name] == alone[name] for name in ("steps", "guard", "warnings"))
    assert same_weights(tmp_path, whole[0])
    assert all(record[key] == whole[1][key] for key in NUMBERS)
    assert logged(tmp_path) == logged(whole[0])


def test_what_a_checkpoint_goes_on_from_lies_in_the_log_before_it(whole: Run) -> None:
    assert Seen.told
    assert all(steps == logged for steps, logged in Seen.told)


class Copied(Resuming):
    """Keeps every checkpoint of a training in the folder above, by the number of its steps."""

    def _save(self, trainer: Trainer) -> None:
        super()._save(trainer)
        shutil.copy(self.path, self.path.parent.parent / f"{trainer.global_step}.ckpt")


class Remembering(Objective):
    """A method with numbers of its own that no step changes, in double precision as spectra are."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__({"task": 1.0, "way": 1.0})

    def bind(self, n_features: int, *others: Any) -> None:
        super().bind(n_features, *others)
        self.register_buffer("mean", torch.zeros(n_features, dtype=torch.float64))
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def terms(self, step: Step) -> dict[str, torch.Tensor]:
        mean = step.spectral_view("harmful", "none").features.mean(0)
        self.mean.lerp_(mean.detach(), 0.1)
        return super().terms(step) | {"way": self.scale * (mean - self.mean).square().sum()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "settings"),
    [
        (3.0, ["method=none", f"method._target_={__name__}.Remembering"]),
        (3.0, ["objective.epochs_on=longest", "deep.workers=1"]),  # with the last epoch
        (3.5, ["method=imma", "+trainer.gradient_clip_val=1"]),  # after the last epoch
        # within the last epoch, λ balanced again
        (2.5, ["objective.balance=true", "objective.balance_every=2", "objective.cache_frozen=true"]),
        (3.0, ["+trainer.precision=64-true"]),
        # what is watched is kept
        (3.0, ["method=censor", "method.depths=[layer4.0]", "method.erased=true", "objective.cache_frozen=true"]),
        (3.0, ["objective.validation_fraction=0.3", *LAST_IS_NOT_BEST]),  # the best look is put back
    ],
)
def test_limit_of_steps_and_resumed_at_the_end_of_any_epoch_is_bit_equal(
    epochs: float, settings: list[str], whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = round(epochs * whole[1]["training"]["fit"]["steps"] / 3)
    overrides = ["resume=true", f"objective.max_steps={limit}", *LOGGED[:-1], *settings]
    with monkeypatch.context() as patched:
        patched.setattr("immunize.pipeline.network.Resuming", Copied)
        alone = run_tiny_deep(tmp_path / "alone", *overrides)
    copies = {int(path.stem): path for path in tmp_path.glob("*.ckpt")}
    assert max(copies) == alone["training"]["fit"]["steps"] <= limit
    assert len(copies) == 3
    for steps in (min(copies), max(copies)):
        folder = tmp_path / f"from_{steps}"
        folder.mkdir()
        copies[steps].rename(folder / TRAINING)
        shutil.copy(tmp_path / "alone" / METRICS, folder)  # with rows that come again
        record = run_tiny_deep(folder, *overrides)
        assert record["training"]["fit"]["resumed"] is not None
        assert record["training"]["fit"]["steps"] == max(copies), f"gone on with from {steps}"
        assert same_weights(folder, tmp_path / "alone"), f"gone on with from {steps}"
        assert all(record[key] == alone[key] for key in NUMBERS)
        assert logged(folder) == logged(tmp_path / "alone"), f"gone on with from {steps}"
        facts, of_alone = (of["training"]["fit"] for of in (record, alone))
        assert all(facts.get(name) == of_alone.get(name) for name in COUNTED), f"gone on with from {steps}"


@pytest.mark.slow
def test_sigterm_to_two_processes_then_resume_is_bit_equal(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "ended")]

    def ended(folder: Path, code: int = 0) -> dict[str, Any]:
        words = (*DEEP, *TWO, *LOGGED, "objective.epochs=6", "resume=true", f"hydra.run.dir={folder}")
        command = Command("immunize.train", *words, cwd=tmp_path)
        while code and command.running and not (folder / TRAINING).exists():
            time.sleep(0.01)
        if code:
            command.terminate()
        done = command.wait()
        assert done.returncode == code, done.stderr[-2000:]
        return read_record(folder)

    whole = ended(folders[0])
    assert ended(folders[1], 128 + signal.SIGTERM)["status"] == "interrupted"
    record = ended(folders[1])
    assert record["training"]["fit"]["resumed"] is not None
    assert record["training"]["fit"]["steps"] == whole["training"]["fit"]["steps"]
    assert same_weights(*folders)
    assert all(record[key] == whole[key] for key in NUMBERS)
    assert logged(folders[0]) == logged(folders[1])


@pytest.mark.slow
def test_processes_that_torchrun_has_started_end_with_the_numbers_of_a_run_that_starts_its_own(tmp_path: Path) -> None:
    settings = (*DEEP, *LOGGED, *TWO, "objective.epochs=2")
    torchrun = ("torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "immunize.train")
    records = []
    for name, words in {"own": ("immunize.train",), "outside": torchrun}.items():
        done = Command(*words, *settings, f"hydra.run.dir={tmp_path / name}", cwd=tmp_path).wait()
        assert done.returncode == 0, done.stderr[-2000:]
        records.append(read_record(tmp_path / name))
    assert same_weights(tmp_path / "own", tmp_path / "outside")
    assert all(records[0][key] == records[1][key] for key in NUMBERS)
    run_tiny_deep(tmp_path / "one", *LOGGED, "objective.max_steps=1")  # of whose whole batch two processes have halves
    one, two = (csv_rows(tmp_path / name / "metrics.csv") for name in ("one", "own"))
    first = [next(row for row in rows if row["term/task"]) for rows in (one, two)]
    for name in ("loss", "term/task", "term/well", "term/ill"):
        assert float(first[1][name]) == pytest.approx(float(first[0][name]), rel=1e-4)


def test_another_configuration_s_training_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with killed(monkeypatch, "immunize.pipeline.fit.Progress", 2):
        run_tiny_deep(tmp_path, "resume=true")
    other = run_tiny_deep(tmp_path, "resume=true", "objective.max_steps=3")["training"]["fit"]
    assert (other["resumed"], other["steps"]) == (None, 3)


# The paper's configurations, on generated images in the real layouts.


def a_theta_0(folder: Path, seed: int) -> Path:
    """Some weights of the tiny network, always in the same file."""
    file = folder / "theta_0.safetensors"
    save_weights(file, theta_0(seed))
    return file


def test_another_theta_0_in_the_same_file_is_another_run(tmp_path: Path) -> None:
    file, folder = a_theta_0(tmp_path, 1), tmp_path / "run"
    options = (f"model.checkpoint={file}", "resume=true")
    first = run_tiny_deep(folder, *options)
    assert run_tiny_deep(folder, *options)["started"] == first["started"]
    assert evaluate.run(folder)[1] == []
    a_theta_0(tmp_path, 2)
    with pytest.raises(CheckpointError, match="θ_0 is not that of the run"):
        evaluate.run(folder)
    with pytest.raises(UserError, match="overwrite=true"):  # a finished record is never lost by itself
        run_tiny_deep(folder, *options)
    again = run_tiny_deep(folder, *options, "overwrite=true")
    assert again["config_hash"] == first["config_hash"]
    assert again["network"]["theta_0_sha256"] != first["network"]["theta_0_sha256"]


@pytest.mark.slow
def test_unreadable_images_are_counted_when_all_have_been_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two processes, here alone Pythons of their own, meets it, and the first writes the record."""
    cfg = compose_config(*of_folders(tmp_path), *TWO)
    break_inside(tmp_path / "harmful" / "val" / "a" / "7.png")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    record = train.run(cfg, tmp_path / "run", quiet=True)
    assert record["training"]["fit"]["processes"] == 2
    assert record["data"]["harmful"]["skipped"] == {"fit": 0, "held_out": 1}
    assert evaluate.run(tmp_path / "run")[1] == []


# The safety net.


def test_early_stopping_ends_with_the_weights_of_the_best_look_and_the_record_has_what_failed(tmp_path: Path) -> None:
    words = (*LAST_IS_NOT_BEST, "objective.patience=2", "objective.learning_rate=0.03")
    record = run_tiny_deep(tmp_path / "stopped", *words)
    fit = record["training"]["fit"]
    best = fit["early_stopping"]["best_step"]
    assert record["status"] == "finished"
    assert 0 < best == fit["steps"] - 2
    run_tiny_deep(tmp_path / "ended", *words, f"objective.max_steps={best}")
    assert same_weights(tmp_path / "stopped", tmp_path / "ended")
    assert record["config"]["objective"]["validation_fraction"] == 0.2  # in force
    assert {one["name"] for one in fit["warnings"]} <= {*SIGNATURES, "pretrain_accuracy_falling"}


# Bad input.


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["objective=linear_digits"], "objective.loss"),
        (["guard=warn", "method=none"], "guard=warn watches R_well and R_ill; method=none has neither"),
        (["init=closed_form"], "init=none"),
        (["method.precondition=inverse_free"], "method.precondition has to be one of features, none"),
        (["objective.augment=true", "objective.cache_frozen=true"], "augment"),
        (["deep.group_size=1000"], "fewer images than a group"),
        (["model._target_=collections.OrderedDict"], "model._target_ has to make a DeepExtractor"),
        (["trainer.accelerator=tpu"], "trainer"),
        (["+trainer.precision=16-true"], "trainer.precision has to be 32-true, 64-true or a mixed one"),
        ([*LAST_IS_NOT_BEST, "method=censor"], "by RIR, at which method=censor does not aim"),
    ],
)
def test_mistakes_are_named(overrides: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        run_tiny_deep(tmp_path, "objective.max_steps=1", *overrides)
    assert not (tmp_path / "record.json").exists()
    assert words.lower() in str(error.value).lower()


@pytest.mark.parametrize("bias", [True, False])
def test_a_classifier_behind_a_map_has_the_bias_of_theta_0(bias: bool) -> None:
    eye = torch.eye(3, dtype=torch.float64)
    network = append_map(nn.Sequential(nn.Identity(), nn.Linear(3, 2, bias=bias)), eye, eye, head="1")
    (appended,) = (module for module in network.modules() if isinstance(module, AppendedHead))
    assert (mapped({"theta_0": {}, "immunized": {}}, appended).bias is not None) == bias


def test_how_many_images_are_measured_changes_no_training_and_is_the_same_behind_a_kept_trunk(tmp_path: Path) -> None:
    cached = ("method=censor", "objective.cache_frozen=true", "objective.max_steps=2")
    run_tiny_deep(tmp_path / "null", *cached)
    record = run_tiny_deep(tmp_path / "30", *cached, "deep.images=30")
    facts = [of["spectrum"]["facts"].values() for of in record["metrics"].values()]
    assert {one["n_samples"] for part in facts for one in part} == {30}
    assert same_weights(tmp_path / "null", tmp_path / "30")
