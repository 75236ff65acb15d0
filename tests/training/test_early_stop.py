"""Early stopping: on rows that are neither fitted nor reported, and with the best parameters put back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from immunize.data.pair import PairedData
from immunize.objective import Objective, Step
from immunize.training.callbacks import ValidationStop
from tests import reference as ref
from tests.composing import SGD, D, MemoryLogger, Trajectory, data_of, fit_module, module_of, run_tiny, theta_of, tiny

STOPPING = ("objective.early_stopping=true", "objective.validation_fraction=0.25", "objective.check_every=2")


class Straight(Objective):
    """θ moves along a straight line, whatever the data: with SGD and η = 1, by `direction` a step."""

    def __init__(self, direction: Tensor) -> None:
        super().__init__({"task": 1.0})
        self.direction = direction

    def terms(self, step: Step) -> dict[str, Tensor]:
        return {"task": -(step.extractor.theta * self.direction).sum()}


def log_rir(data: object, theta: Tensor) -> float:
    parts = data.validation  # type: ignore[attr-defined]
    p, h = parts.pretrain.x, parts.harmful.x
    kappas = [ref.kappa_spectrum(ref.hessian(x, t), len(x)) for t in (theta, None) for x in (h, p)]
    return math.log(ref.immunization_ratio(*kappas)[2])


def stop_of(data: PairedData, patience: int) -> ValidationStop:
    assert data.validation is not None
    return ValidationStop(data.validation, 2, patience)


def walk(seed: int, epochs: int, patience: int) -> tuple[ValidationStop, Trajectory, MemoryLogger, object, int, Tensor]:
    cfg = tiny(*STOPPING, *SGD, "objective.learning_rate=1", f"objective.epochs={epochs}", "model.init=identity")
    data, seen, logger = data_of(cfg), Trajectory(), MemoryLogger()
    stop = stop_of(data, patience)
    module = module_of(cfg, data, Straight(0.05 * ref.gaussian(D, D, seed=seed)))
    trainer = fit_module(module, data, seen, stop, loggers=[logger])
    return stop, seen, logger, data, trainer.global_step, module.extractor.theta.detach()


def test_best_parameters_are_put_back_and_patience_ends_the_training() -> None:
    stop, seen, logger, data, steps, theta = walk(seed=2, epochs=60, patience=3)
    values = {step: log_rir(data, seen.thetas[step]) for step in range(2, steps + 1, 2)}
    logged = logger.of("val/log_rir")
    assert logged.keys() == values.keys()
    for step, value in values.items():
        assert logged[step] == pytest.approx(value, rel=1e-9)
    best = max(values, key=lambda step: values[step])
    assert 2 < best < steps  # an interior peak, or nothing is shown
    assert torch.equal(theta, seen.thetas[best])
    assert not torch.equal(theta, seen.thetas[-1])
    assert steps == best + 3 * 2 < 60  # three looks of two steps without improvement
    assert stop.facts(None)["early_stopping"]["best_step"] == best
    # compared in float32
    assert stop.facts(None)["early_stopping"]["best_val_log_rir"] == pytest.approx(values[best], rel=2**-23)


def test_a_training_that_ended_before_its_first_look_has_no_best() -> None:
    stop, *_, steps, _ = walk(seed=2, epochs=1, patience=3)
    assert steps == 1
    assert stop.facts(None)["early_stopping"] == {"best_step": None, "best_val_log_rir": None}


def test_more_patience_takes_more_steps() -> None:
    assert walk(seed=2, epochs=60, patience=1)[4] < walk(seed=2, epochs=60, patience=4)[4] < 60


def test_a_run_stops_early_and_evaluates_what_it_kept(tmp_path: Path) -> None:
    overrides = (*STOPPING, "objective.epochs=200", "objective.patience=2", "objective.learning_rate=0.3")
    record = run_tiny(tmp_path, *overrides)
    facts = record["training"]["fit"]
    best = facts["early_stopping"]["best_step"]
    assert facts["steps"] == best + 4 < 200
    cfg = tiny(*overrides)
    data, seen = data_of(cfg), Trajectory()
    fit_module(module_of(cfg, data), data, seen, stop_of(data, 2))
    theta = theta_of(tmp_path)
    assert torch.equal(theta, seen.thetas[best])
    x = data.fit.harmful.x
    kappa = record["metrics"]["fit"]["spectrum"]["kappa_harmful"]
    assert kappa == pytest.approx(ref.kappa_spectrum(ref.hessian(x, theta), len(x)), rel=1e-9)
    assert record["metrics"]["fit"]["spectrum"]["facts"]["kappa_harmful"]["n_samples"] == 30


def test_a_run_without_early_stopping_fits_every_row(tmp_path: Path) -> None:
    record = run_tiny(tmp_path)
    assert "early_stopping" not in record["training"]["fit"]
    assert record["metrics"]["fit"]["spectrum"]["facts"]["kappa_harmful"]["n_samples"] == 40
