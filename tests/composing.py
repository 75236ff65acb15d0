"""What the tests of training, records and commands share: composed configurations, tiny runs, watched trainings."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file
from torch import Tensor

from immunize import train
from immunize.checkpoints import load_checkpoint
from immunize.config import config_dir, register
from immunize.data.digits import DigitImages, Digits, embedded_digits, five_digits
from immunize.data.images.source import StoredSplits
from immunize.data.images.stored import ArrayImages
from immunize.data.pair import PairedData
from immunize.objective import Objective
from immunize.pipeline.assemble import assemble, new_trainer
from immunize.pipeline.linear import LinearModel
from immunize.records import CHECKPOINT
from immunize.training import LinearModule
from immunize.training.callbacks import Progress

D = 6
TINY = (
    "harmful=synthetic",
    f"harmful.n_features={D}",
    "harmful.n_samples=40",
    "harmful.condition=20",
    "objective.epochs=30",
    "objective.lambda_ill=1e5",
    "probe_steps=200",
    "logger=none",
    "figure=false",  # half of such a run
)
FINISHED = ("figure=true", "logger=csv", "monitor_every=10")
"""Of the run that most tests look at."""
FEW_DIGITS = tuple(f"{role}._target_=tests.composing.FewDigits" for role in ("harmful", "pretrain"))
DEEP = (
    "model=resnet_small",
    "harmful=digits",
    *FEW_DIGITS,
    "model.kwargs.channels=[4,8,8,12]",
    "threads=1",  # as many in the commands, whose environment says so: other numbers round differently
    "objective.epochs=3",
    "objective.learning_rate=3e-3",
    "objective.cache_frozen=false",
    "method/on=[]",  # features blows rounding up by the inverse of the smallest eigenvalue
    "objective.batch_size=64",
    "deep.groups=2",
    "deep.group_size=8",
    "deep.replicates=2",
    "deep.probe_steps={gd:3,least_squares:null,sgd:null,adam:null}",
    "deep.pretrain_probe_steps=2",
    "monitor_every=2",
    "logger=none",
)
SGD = ("objective.optimizer._target_=torch.optim.SGD", "~objective.optimizer.betas", "~objective.optimizer.eps")
OF_OTHER_IMAGES = tuple(line for line in DEEP if not line.startswith(("harmful", "pretrain")))
Run = tuple[Path, dict[str, Any]]
"""The folder of a run, and its record."""
METHODS = ("ours", "ill_only", "well_only", "imma", "opt_kappa", "none")


class FewDigits(Digits):
    """As images, every third of the embedded digits: reading all takes longer than a tiny network takes to train."""

    def images(self) -> DigitImages:
        return _FewImages(self.role)


class _FewImages(DigitImages):
    def _read(self) -> StoredSplits:
        kept = (rows % 3 == 0 for rows, _ in five_digits(self.role, embedded_digits()[1]))
        return StoredSplits(
            *(
                ArrayImages(images.pixels[few], images.labels[few], images.classes)
                for images, few in zip(super()._read(), kept, strict=True)
            )
        )


def compose_config(*overrides: str, primary: str = "train") -> DictConfig:
    """`conf/<primary>.yaml` with overrides, to be changed at will; what the same choices come to is composed once."""
    values = [parsed for parsed in map(_parsed, overrides) if _is_value(parsed)]
    choices = tuple(line for line in overrides if not _is_value(_parsed(line)))
    cfg = copy.deepcopy(_composed(primary, choices))
    for one in values:
        OmegaConf.update(cfg, one.key_or_group, one.value())
    return cfg


@functools.cache
def _composed(primary: str, choices: tuple[str, ...]) -> DictConfig:
    register()
    folder, _, name = f"{config_dir()}/{primary}".rpartition("/")
    with initialize_config_dir(folder, version_base="1.3"):
        return compose(name, list(choices))


@functools.cache
def _parsed(line: str) -> Override:
    return OverridesParser.create().parse_override(line)


def _is_value(override: Override) -> bool:
    """Whether it sets a value, and neither chooses from a group, adds or removes anything, nor speaks to Hydra."""
    key = override.key_or_group
    return (
        override.type is OverrideType.CHANGE and not key.startswith("hydra.") and not Path(config_dir(), key).is_dir()
    )


def tiny(*overrides: str) -> DictConfig:
    """A full-rank synthetic pair, (40, 6) each, trained for 30 full-batch steps in a tenth of a second."""
    return compose_config(*TINY, *overrides)


def tiny_deep(*overrides: str) -> DictConfig:
    """A ResNet of 3,000 parameters on embedded digits: 3 steps a pass."""
    return compose_config(*DEEP, *overrides)


def run_tiny_deep(folder: Path, *overrides: str) -> dict[str, Any]:
    """The record of a tiny run with a deep net."""
    return train.run(tiny_deep(*overrides), folder, quiet=True)


def run_tiny(folder: Path, *overrides: str) -> dict[str, Any]:
    """The record of a tiny run."""
    return train.run(tiny(*overrides), folder)


def theta_of(folder: Path, n_features: int = D) -> Tensor:
    """θ of a run."""
    return load_checkpoint(folder / CHECKPOINT, n_features)["fit"]


def same_weights(a: Path, b: Path) -> bool:
    """Whether two runs of networks have written the same to the last bit."""
    one, two = (load_file(folder / CHECKPOINT) for folder in (a, b))
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def model_of(cfg: DictConfig) -> LinearModel:
    """The linear model of a run, with its data."""
    return assemble(cfg).model


def data_of(cfg: DictConfig) -> PairedData:
    """The pair, set up."""
    return model_of(cfg).pairs["fit"]


def module_of(cfg: DictConfig, data: PairedData, objective: Objective | None = None) -> LinearModule:
    """The module of a run; `objective` replaces the configured method."""
    model = model_of(OmegaConf.merge(cfg, {"log_every": 1}))
    return model.module(data, objective or model.new_method())


def fit_module(
    module: LinearModule,
    data: PairedData,
    *callbacks: pl.Callback,
    loggers: Sequence[Logger] = (),
    epochs: int = 1,
    **settings: Any,
) -> pl.Trainer:
    """Train with the given callbacks alone, in their order."""
    own = {"accelerator": "cpu", "max_epochs": epochs, "log_every_n_steps": 1, "limit_val_batches": 0} | settings
    trainer = new_trainer(pl.Trainer, list(loggers), list(callbacks), **own)
    trainer.fit(module, datamodule=data)
    return trainer


class Trajectory(pl.Callback):
    """θ and ω before the first step and after every step, the batches, and the weights in force in each."""

    def __init__(self) -> None:
        self.thetas: list[Tensor] = []
        self.heads: list[Tensor] = []
        self.batches: list[dict[str, tuple[Tensor, Tensor]]] = []
        self.weights: list[dict[str, float]] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._look(pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._look(pl_module)
        self.batches.append(batch)
        self.weights.append(dict(pl_module.objective.weights))

    def _look(self, module: pl.LightningModule) -> None:
        self.thetas.append(module.extractor.theta.detach().clone())
        self.heads.append(module.head.detach().clone())


def followed(cfg: DictConfig, *callbacks: pl.Callback) -> tuple[PairedData, Trajectory]:
    """The pair of a configuration, and the trajectory of a training on it with these callbacks."""
    data, seen = data_of(cfg), Trajectory()
    fit_module(module_of(cfg, data), data, *callbacks, seen)
    return data, seen


class MemoryLogger(DummyLogger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    def of(self, key: str) -> dict[int | None, float]:
        """Step to value, for the rows that have the key."""
        return {step: row[key] for step, row in self.rows if key in row}


def empty_figure(figure: object, path: Any, **options: Any) -> None:
    """In the place of `Figure.savefig`: to draw a figure takes most of a report's time."""
    path.write("<svg/>") if hasattr(path, "write") else Path(path).touch()


@contextlib.contextmanager
def killed(patched: pytest.MonkeyPatch, throughput: str, after: int) -> Iterator[pytest.ExceptionInfo[SystemExit]]:
    """A training within gets SIGTERM after so many steps, and has to end of it.

    Args:
        patched: undone in the end.
        throughput: the place where the training finds its `Progress`.
        after: how many steps.
    """

    class Killed(Progress):
        def on_train_batch_end(self, trainer: pl.Trainer, *others: Any) -> None:
            super().on_train_batch_end(trainer, *others)
            if trainer.global_step == after:
                os.kill(os.getpid(), signal.SIGTERM)

    with patched.context() as here:
        here.setattr(throughput, Killed)
        with pytest.raises(SystemExit) as ended:
            yield ended
    assert ended.value.code == 128 + signal.SIGTERM
