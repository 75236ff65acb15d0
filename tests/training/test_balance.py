"""λ from gradient norms (C.2), measured independently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from immunize.training.callbacks import GradientBalance
from tests import reference as ref
from tests.composing import Trajectory, data_of, fit_module, module_of, run_tiny, tiny


def task_gradient_norm(x: Tensor, y: Tensor, theta: Tensor, head: Tensor) -> float:
    leaf = theta.clone().requires_grad_()
    loss = ((x @ leaf @ head).squeeze(-1) - y).square().mean()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return float(gradient.norm())


def expected_weights(data: object, theta: Tensor, head: Tensor, multiplier: float) -> dict[str, float]:
    p, h = data.fit.pretrain, data.fit.harmful  # type: ignore[attr-defined]
    norm = task_gradient_norm(p.x, p.y, theta, head)
    return {
        "well": multiplier * norm / float(ref.algorithm_1_direction(p.x, theta, ref.r_well_gradient).norm()),
        "ill": multiplier * norm / float(ref.algorithm_1_direction(h.x, theta, ref.r_ill_gradient).norm()),
    }


@pytest.mark.parametrize("multiplier", [1, 5])
def test_weights_make_the_gradient_norms_a_multiple_of_the_task_loss(multiplier: int) -> None:
    cfg = tiny("objective.lambda_well=123", "objective.epochs=4")
    data, seen = data_of(cfg), Trajectory()
    fit_module(module_of(cfg, data), data, GradientBalance(multiplier), seen)
    expected = expected_weights(data, seen.thetas[0], seen.heads[0], multiplier)
    for weights in seen.weights:  # once, before the first step, and kept
        assert weights["task"] == 1
        assert weights["well"] == pytest.approx(expected["well"], rel=1e-9)
        assert weights["ill"] == pytest.approx(expected["ill"], rel=1e-9)


def test_lambda_ill_may_have_a_multiplier_of_its_own() -> None:
    cfg = tiny("objective.epochs=1")
    data, seen = data_of(cfg), Trajectory()
    fit_module(module_of(cfg, data), data, GradientBalance(2, ill=5), seen)
    for name, multiplier in (("well", 2), ("ill", 5)):
        expected = expected_weights(data, seen.thetas[0], seen.heads[0], multiplier)
        assert seen.weights[0][name] == pytest.approx(expected[name], rel=1e-9)


def test_plain_gradients_are_balanced_as_the_method_uses_them() -> None:
    cfg = tiny("method.precondition=none", "objective.epochs=1")
    data, seen = data_of(cfg), Trajectory()
    fit_module(module_of(cfg, data), data, GradientBalance(2), seen)
    p = data.fit.pretrain
    norm = task_gradient_norm(p.x, p.y, seen.thetas[0], seen.heads[0])
    well = float(ref.theta_gradient(p.x, seen.thetas[0], ref.r_well_gradient).norm())
    assert seen.weights[0]["well"] * well == pytest.approx(2 * norm, rel=1e-9)


def test_balancing_again_every_so_many_steps() -> None:
    cfg = tiny("objective.epochs=8")
    data, seen = data_of(cfg), Trajectory()
    fit_module(module_of(cfg, data), data, GradientBalance(1, every=3), seen)
    for step, weights in enumerate(seen.weights):
        start = step // 3 * 3
        expected = expected_weights(data, seen.thetas[start], seen.heads[start], 1)
        assert weights["well"] == pytest.approx(expected["well"], rel=1e-9)
        assert weights["ill"] == pytest.approx(expected["ill"], rel=1e-9)
    assert len({weights["ill"] for weights in seen.weights}) == 3


class Moved(Callback):
    """Before the fourth step λ_P is far too large and λ_H far too small."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 3:
            pl_module.objective.weights |= {"well": 1e6, "ill": 1e-9}


def test_a_later_balance_may_be_told_to_lower_weights_and_raise_none() -> None:
    cfg = tiny("objective.epochs=4")
    data, seen = data_of(cfg), Trajectory()
    fit_module(module_of(cfg, data), data, Moved(), GradientBalance(1, every=3, lower=True), seen)
    expected = expected_weights(data, seen.thetas[3], seen.heads[3], 1)
    assert seen.weights[3] == {"task": 1, "well": pytest.approx(expected["well"], rel=1e-9), "ill": 1e-9}


def test_without_a_task_term_the_norm_is_the_multiplier() -> None:
    cfg = tiny("method=ill_only", "objective.epochs=1")
    data, seen = data_of(cfg), Trajectory()
    fit_module(module_of(cfg, data), data, GradientBalance(3), seen)
    ill = float(ref.theta_gradient(data.fit.harmful.x, seen.thetas[0], ref.r_ill_gradient).norm())
    assert seen.weights[0]["ill"] * ill == pytest.approx(3, rel=1e-9)


def test_record_names_the_weights(tmp_path: Path) -> None:
    record = run_tiny(tmp_path, "objective.balance=true", "objective.balance_multiplier=2", "objective.epochs=2")
    facts = record["training"]["fit"]["balance"]
    assert (facts["multiplier"], facts["every"]) == (2, 0)
    cfg = tiny()
    data = data_of(cfg)
    module = module_of(cfg, data)
    expected = expected_weights(data, module.extractor.theta.detach(), module.head.detach(), 2)
    assert facts["weights"]["ill"] == pytest.approx(expected["ill"], rel=1e-9)
    assert facts["weights"]["well"] == pytest.approx(expected["well"], rel=1e-9)
