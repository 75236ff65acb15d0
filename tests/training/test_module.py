"""One method-blind module: its steps against Algorithm 1 written out, its batches, and what it logs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

from tests import reference as ref
from tests.composing import (
    SGD,
    Trajectory,
    data_of,
    fit_module,
    gap,
    module_of,
    run_tiny,
    tiny,
)


def mse_gradients(x: Tensor, y: Tensor, theta: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    """Of mean (Xθω - y)², by hand."""
    residual = 2 * (x @ theta @ head - y[:, None]) / len(y)
    return x.T @ residual @ head.T, (x @ theta).T @ residual


class HandAdam:
    """Kingma & Ba (2015), with C.2's β and ε."""

    def __init__(self, eta: float) -> None:
        self.eta, self.t = eta, 0
        self.m: dict[str, Tensor] = {}
        self.v: dict[str, Tensor] = {}

    def step(self, parameters: dict[str, Tensor], gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        self.t += 1
        out = {}
        for name, g in gradients.items():
            self.m[name] = 0.9 * self.m.get(name, torch.zeros_like(g)) + 0.1 * g
            self.v[name] = 0.999 * self.v.get(name, torch.zeros_like(g)) + 0.001 * g**2
            m_hat, v_hat = self.m[name] / (1 - 0.9**self.t), self.v[name] / (1 - 0.999**self.t)
            out[name] = parameters[name] - self.eta * m_hat / (v_hat.sqrt() + 1e-8)
        return out


def test_full_batch_steps_are_algorithm_1_with_an_explicit_inverse_and_adam() -> None:
    lambda_well, lambda_ill, eta = 0.01, 2e4, 0.01
    cfg = tiny("objective.epochs=8", f"objective.lambda_well={lambda_well}", f"objective.lambda_ill={lambda_ill}")
    data, seen = data_of(cfg), Trajectory()
    module = module_of(cfg, data)
    fit_module(module, data, seen)

    p, h = data.fit.pretrain, data.fit.harmful
    adam = HandAdam(eta)
    at = {"theta": seen.thetas[0], "head": seen.heads[0]}
    for step in range(8):
        task, head = mse_gradients(p.x, p.y, at["theta"], at["head"])
        well = lambda_well * ref.algorithm_1_direction(p.x, at["theta"], ref.r_well_gradient)
        ill = lambda_ill * ref.algorithm_1_direction(h.x, at["theta"], ref.r_ill_gradient)
        if step == 0:  # no term may be too small for this test to see
            norms = torch.stack([task.norm(), well.norm(), ill.norm()])
            assert norms.min() > 1e-3 * norms.max()
        at = adam.step(at, {"theta": task + well + ill, "head": head})
        assert gap(seen.thetas[step + 1], at["theta"]) < 1e-9
        assert gap(seen.heads[step + 1], at["head"]) < 1e-9
    assert len(seen.batches) == 8
    assert gap(seen.thetas[-1], seen.thetas[0]) > 1e-2


def test_mini_batch_step_is_algorithm_1_on_that_batch() -> None:
    cfg = tiny(*SGD, "objective.batch_size=16", "objective.learning_rate=1e-3")
    data, seen = data_of(cfg), Trajectory()
    fit_module(module_of(cfg, data), data, seen)
    for step, batch in enumerate(seen.batches):
        (xp, yp), (xh, _) = batch["pretrain"], batch["harmful"]
        task, _ = mse_gradients(xp, yp, seen.thetas[step], seen.heads[step])
        expected = ref.algorithm_1_step(seen.thetas[step], xp, xh, task, 1e-3, 1.0, 1e5)
        assert gap(seen.thetas[step + 1] - seen.thetas[step], expected - seen.thetas[step]) < 1e-9
    assert len(seen.batches) == 2


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_loss_and_terms_of_every_step_are_logged(tmp_path: Path) -> None:
    run_tiny(tmp_path, "logger=csv", "log_every=1", "objective.epochs=6", "objective.lambda_well=3")
    table = [row for row in csv_rows(tmp_path / "metrics.csv") if row["loss"]]
    assert [int(row["step"]) for row in table] == list(range(6))
    for row in table:
        task, well, ill = (float(row[f"term/{name}"]) for name in ("task", "well", "ill"))
        assert float(row["loss"]) == pytest.approx(task + 3 * well + 1e5 * ill, rel=1e-12)

    cfg = tiny()
    data = data_of(cfg)
    module = module_of(cfg, data)
    theta, head = module.extractor.theta.detach(), module.head.detach()
    p, h = data.fit.pretrain, data.fit.harmful
    first = {name: float(table[0][f"term/{name}"]) for name in ("task", "well", "ill")}
    residual = (p.x @ theta @ head).squeeze(-1) - p.y
    assert first["task"] == pytest.approx(float(residual.square().mean()), rel=1e-9)
    assert first["well"] == pytest.approx(ref.r_well(ref.hessian(p.x, theta)), rel=1e-9)
    assert first["ill"] == pytest.approx(ref.r_ill(ref.hessian(h.x, theta)), rel=1e-9)


def test_log_every_thins_the_rows(tmp_path: Path) -> None:
    run_tiny(tmp_path, "logger=csv", "log_every=4", "objective.epochs=10")
    table = csv_rows(tmp_path / "metrics.csv")
    assert [int(row["step"]) for row in table if row["loss"]] == [0, 4, 8]


class Rates(pl.Callback):
    """The learning rate of every step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        """Lightning's hook."""
        del trainer, pl_module
        self.seen.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(("batch_size", "epochs"), [("null", 1), ("8", 2)])
def test_learning_rate_falls_to_zero_over_the_last_share_of_the_steps(batch_size: str, epochs: int) -> None:
    cfg = tiny("objective.epochs=10", f"objective.batch_size={batch_size}")
    rate = cfg.objective.learning_rate
    data = data_of(cfg)
    for decay in (None, 0.5):
        module, rates = module_of(cfg, data), Rates()
        module.lr_decay = decay
        fit_module(module, data, rates, epochs=epochs)  # a full-batch pass is all 10 steps
        assert len(rates.seen) == 10
        expected = [1.0] * 10 if decay is None else [1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]
        assert rates.seen == pytest.approx([rate * share for share in expected])
