"""`immunize.pretrain`: a θ_0 of one's own: it learns, goes on after an interruption, `model.checkpoint=` takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback
from omegaconf import DictConfig
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from immunize import attack, evaluate, export, pretrain
from immunize.data.digits import DigitImages
from immunize.data.images.image_set import ImageSet
from immunize.data.images.pair import ImagePair, stream_loader
from immunize.data.splits import ROLES
from immunize.errors import UserError
from immunize.features.weights import load_weights
from immunize.files import held
from immunize.objective import task_loss
from immunize.pipeline.assemble import new_trainer
from immunize.pipeline.fit import TRAINING
from immunize.records import CHECKPOINT, read_record
from immunize.training.module import SupervisedModule
from tests.composing import Run, compose_config, killed, run_tiny_deep, same_weights

SMALL = ("model.kwargs.channels=[8,8,16,16]", "augment=false", "epochs=6", "batch_size=64")
FEW = (*SMALL, "pretrain._target_=tests.composing.FewDigits", "batch_size=32")


def composed(*overrides: str) -> DictConfig:
    return compose_config(*overrides, primary="pretrain_theta")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pretrain")
    return folder, pretrain.run(composed(*SMALL), folder, quiet=True)


def test_it_learns_and_a_run_that_takes_the_checkpoint_finds_the_same_accuracy(trained: Run, tmp_path: Path) -> None:
    folder, record = trained
    assert read_record(folder)["accuracy"] == record["accuracy"] > 80  # of five classes
    assert record["steps"] == 6 * (record["data"]["images"]["fit"] // 64)
    of_run = (SMALL[0], "objective.max_steps=1", "pretrain._target_=immunize.data.digits.Digits")
    run = run_tiny_deep(tmp_path, *of_run, f"model.checkpoint={folder / CHECKPOINT}")
    assert run["pretrain_accuracy"]["before"] == pytest.approx(record["accuracy"], abs=1e-9)


def test_a_folder_belongs_to_one_training_at_a_time(tmp_path: Path) -> None:
    told = pytest.raises(UserError, match=r"another run is at work in .*hydra\.run\.dir")
    with held(tmp_path, AssertionError()), told:
        pretrain.run(composed(*FEW, "epochs=1"), tmp_path, quiet=True)


def test_a_fresh_head_is_put_on_the_weights_that_are_there(trained: Run, tmp_path: Path) -> None:
    folder, _ = trained
    more = ("epochs=1", "learning_rate=1e-12", f"model.checkpoint={folder / CHECKPOINT}", "model.fresh_head=true")
    pretrain.run(composed(*SMALL, *more), tmp_path, quiet=True)
    before, after = load_weights(folder / CHECKPOINT), load_weights(tmp_path / CHECKPOINT)
    weights = [name for name in before if name.endswith("weight")]
    assert {name for name in weights if not torch.allclose(before[name], after[name], atol=1e-6)} == {"fc.weight"}


DROPPING = ("epochs=3", "+model.kwargs.drop_rate=0.3", "augment=true")  # all that is drawn at random


@pytest.fixture(scope="module")
def dropped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("alone")
    return folder, pretrain.run(composed(*FEW, *DROPPING), folder, quiet=True)


@pytest.mark.parametrize(("at", "workers"), [({"epoch": 1, "step": 0}, 0), ({"epoch": 1, "step": 2}, 1)])
def test_sigterm_then_resume_is_bit_equal_whatever_processes_read_the_images(
    at: dict[str, int], workers: int, dropped: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, alone = dropped
    after = at["epoch"] * alone["steps"] // 3 + at["step"]
    with killed(monkeypatch, "immunize.training.callbacks.Progress", after):
        pretrain.run(composed(*FEW, *DROPPING), tmp_path, quiet=True)
    assert read_record(tmp_path)["status"] == "interrupted"
    assert not (tmp_path / CHECKPOINT).exists()  # half a θ_0 is none that `model.checkpoint=` takes
    resumed = pretrain.run(composed(*FEW, *DROPPING, "resume=true", f"workers={workers}"), tmp_path, quiet=True)
    assert resumed["training"]["resumed"].items() >= at.items()
    assert all(resumed[name] == alone[name] for name in ("steps", "accuracy"))
    assert same_weights(folder, tmp_path)
    assert not (tmp_path / TRAINING).exists()


def test_the_learning_rate_falls_to_its_end() -> None:
    module, rates = SupervisedModule(nn.Linear(4, 3), task_loss("ce"), learning_rate=1.0, weight_decay=0.0), []
    look = LambdaCallback(on_before_optimizer_step=lambda *of: rates.append(of[2].param_groups[0]["lr"]))
    loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.arange(24) % 3), batch_size=4)
    trainer = new_trainer(Trainer, [], [look], accelerator="cpu", max_epochs=2)
    trainer.fit(module, loader)
    assert len(rates) == module.steps == 12
    assert rates[-1] < 1e-4 * rates[0]


def test_weights_come_back_in_the_precision_they_were_kept_in() -> None:
    """Lightning converts the module to the trainer's after it has loaded them."""
    module = SupervisedModule(nn.Linear(4, 3), task_loss("ce"), learning_rate=1.0, weight_decay=0.0)
    kept = {name: value.double() for name, value in module.state_dict().items()}
    module.on_load_checkpoint({"state_dict": kept, "torch_random_state": torch.get_rng_state()})
    assert next(module.parameters()).dtype == torch.float64


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_the_accuracy_is_taken_in_the_trainers_precision(precision: str, tmp_path: Path) -> None:
    record = pretrain.run(composed(*FEW, "epochs=1", f"+trainer.precision={precision}"), tmp_path, quiet=True)
    assert 0 <= record["accuracy"] <= 100
    kept = load_file(tmp_path / CHECKPOINT)["fc.weight"].dtype
    assert kept == {"64-true": torch.float64, "bf16-true": torch.bfloat16}[precision]


def test_a_theta_0_is_no_run_to_be_measured_or_attacked(dropped: Run) -> None:
    grid = compose_config(f"run={dropped[0]}", primary="attack")
    for ask in (lambda: evaluate.run(dropped[0]), lambda: attack.run(grid), lambda: export.run(dropped[0])):
        with pytest.raises(UserError, match="holds no run of immunize"):
            ask()


def test_a_finished_training_is_not_done_again_but_another_is(dropped: Run) -> None:
    folder, record = dropped
    again = (*FEW, *DROPPING, "resume=true")
    assert record["training"]["resumed"] is None
    assert pretrain.run(composed(*again, "workers=1"), folder, quiet=True) == record
    with pytest.raises(UserError, match="overwrite=true"):
        pretrain.run(composed(*again, "epochs=2"), folder, quiet=True)


def test_it_does_not_train_on_images_that_judge_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained_on: list[set[int]] = []

    def noting(images: ImageSet, *rest: Any, **options: Any) -> Any:
        trained_on.append(set(images.rows.tolist()))
        return stream_loader(images, *rest, **options)

    monkeypatch.setattr("immunize.data.images.pair.stream_loader", noting)
    for fraction in (0.0, 0.2):
        settings = ("epochs=1", "seed=3", f"validation_fraction={fraction}")
        pretrain.run(composed(*SMALL, *settings), tmp_path / str(fraction), quiet=True)
    pair = ImagePair(*map(DigitImages, ROLES), batch_size=8, validation_fraction=0.2, seed=3)
    pair.setup()
    aside, stays = (set(of.rows.tolist()) for of in (pair.validation("pretrain"), pair.splits("pretrain").fit))
    assert not stays & aside
    assert trained_on == [stays | aside, stays]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model=linear", "no network"),
        ("validation_fraction=0.001", "into 601 and 1"),
        ("pretrain=housing", "no images"),
        ("pretrain._target_=collections.OrderedDict", "pretrain._target_ has to make a SourceBase"),
        ("trainer.devices=2", "one process"),
    ],
)
def test_mistakes_are_named(override: str, words: str, tmp_path: Path) -> None:
    cfg = composed(override) if override.startswith(("model", "pretrain")) else composed(*SMALL, override)
    with pytest.raises(UserError, match=words):
        pretrain.run(cfg, tmp_path, quiet=True)
