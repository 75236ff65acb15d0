"""The monitor's numbers against explicit Hessians, and when it looks; progress as lines and as a bar.

Early stopping: on rows that are neither fitted nor reported, and with the best parameters put back.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

from immunize.data import Part
from immunize.data.pair import PairParts
from immunize.spectrum import folds_of
from immunize.training.callbacks import GradientBalance, ImmunityMonitor, Progress, TheoremGuard, ValidationStop
from immunize.training.callbacks.stopping import BestLook
from tests import reference as ref
from tests.composing import (
    SGD,
    D,
    MemoryLogger,
    Trajectory,
    compose_config,
    data_of,
    fit_module,
    followed,
    module_of,
    run_tiny,
    tiny,
)
from tests.training.moving import I, Recorder, scaled


def test_numbers_are_those_of_the_explicit_hessians() -> None:
    cfg = tiny("objective.epochs=7")
    data, seen, logger = data_of(cfg), Trajectory(), MemoryLogger()
    monitor = ImmunityMonitor(data.fit, every=3)
    fit_module(module_of(cfg, data), data, seen, monitor, loggers=[logger])
    assert sorted(step for step in logger.of("RIR") if step is not None) == [3, 6, 7]  # the last step always
    p, h = data.fit.pretrain.x, data.fit.harmful.x
    base_p, base_h = (ref.kappa_spectrum(ref.hessian(x), len(x)) for x in (p, h))
    for step in (3, 6, 7):
        hess_p, hess_h = (ref.hessian(x, seen.thetas[step]) for x in (p, h))
        kappa_p, kappa_h = ref.kappa_spectrum(hess_p, len(p)), ref.kappa_spectrum(hess_h, len(h))
        i, ii, rir = ref.immunization_ratio(kappa_h, kappa_p, base_h, base_p)
        expected = {
            "RIR": rir,
            "ratio_harmful": i,
            "ratio_pretrain": ii,
            "kappa_pretrain": kappa_p,
            "kappa_harmful": kappa_h,
            "R_well": ref.r_well(hess_p),
            "R_ill": ref.r_ill(hess_h),
        }
        for name, value in expected.items():
            assert logger.of(name)[step] == pytest.approx(value, rel=1e-9), name
        for role, x in (("pretrain", p), ("harmful", h)):
            y = data.fit.of(role).y  # type: ignore[arg-type]
            half = torch.empty(len(y), dtype=torch.bool)
            drawn = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
            half[drawn] = folds_of(y[drawn], 2) == 0
            learned = ref.cross_fitted_correlation(x @ seen.thetas[step], y[:, None], half, 1e-2)
            assert logger.of(f"separability_{role}")[step] == pytest.approx(learned, rel=1e-6)
    assert monitor.latest["RIR"] == logger.of("RIR")[7]


def test_of_one_label_nothing_can_be_learned_and_nothing_is_logged() -> None:
    cfg = compose_config("harmful=digits", "objective.epochs=2")
    data, logger = data_of(cfg), MemoryLogger()
    fit_module(module_of(cfg, data), data, ImmunityMonitor(data.fit, every=1), loggers=[logger])
    assert logger.of("RIR")
    assert not logger.of("separability_pretrain")


def test_kappa_is_over_the_rank_of_the_data() -> None:
    """θ pushes the smallest eigenvalue below N·eps, where it would count as zero; the rank of the data stays."""
    n, module = 40, module_of(tiny(), data_of(tiny()))
    p, h = (ref.features_with_eigenvalues([1, 0.5, 0.2, 0.1, 0.05, 1e-13], n, D, seed) for seed in (1, 2))
    theta = scaled(p, 1, 1, 1, 1, 1, 0.03)  # σ_6/σ_1 from 1e-13 to 3e-15; N·eps is 8.9e-15
    with torch.no_grad():
        module.extractor.theta.copy_(theta)
    monitor = ImmunityMonitor(PairParts(Part(p, p[:, 0]), Part(h, h[:, 0])), every=1)
    monitor.on_train_batch_end(cast(Trainer, SimpleNamespace(global_step=1)), module, None, None, 0)
    sigma = torch.linalg.svdvals(p @ theta).square()
    assert D * ref.EPS < float(sigma[5] / sigma[0]) < n * ref.EPS
    assert monitor.latest["kappa_pretrain"] == pytest.approx(float(sigma[0] / sigma[5]), rel=1e-6)
    assert {fact["name"] for fact in monitor.signatures.facts()} == {"sigma_min_floor"}


def test_progress_is_plain_lines_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_tiny(tmp_path, "objective.batch_size=8", "objective.epochs=8", "monitor_every=10")  # 5 steps an epoch
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    steps = [line for line in lines if line.startswith("fit: step ")]
    assert [line.split()[2] for line in steps] == [f"{step}/40" for step in range(4, 41, 4)]
    assert "RIR" not in steps[0]
    assert all("RIR " in line for line in steps[3:])
    assert all(line.endswith(" s left") for line in steps)
    assert steps[-1].endswith(" 0 s left")
    assert "\x1b" not in captured.err + captured.out
    assert captured.out == ""


STOPPING = ("objective.early_stopping=true", "objective.validation_fraction=0.25", "objective.check_every=2")


def log_rir(parts: PairParts, theta: Tensor) -> float:
    def kappa(x: Tensor, t: Tensor) -> float:  # by singular values: κ is 1e7, and eigenvalues of H lose as many digits
        sigma = torch.linalg.svdvals(x @ t)
        return float(sigma[0] / sigma[ref.rank(ref.hessian(x, t), len(x)) - 1]) ** 2

    p, h = parts.pretrain.x, parts.harmful.x
    return math.log(ref.immunization_ratio(*(kappa(x, t) for t in (theta, I) for x in (h, p)))[2])


def test_best_parameters_are_put_back_and_patience_ends_the_training() -> None:
    cfg = tiny(*STOPPING, "objective.epochs=60", "model.init=identity")
    data, seen, logger = data_of(cfg), Trajectory(), MemoryLogger()
    stop = ValidationStop(data.validation, 2, patience=3)
    module = module_of(cfg, data, Recorder(*(I + 0.05 * step * ref.gaussian(D, D, seed=2) for step in range(1, 61))))
    steps = fit_module(module, data, seen, stop, loggers=[logger]).global_step
    theta = module.extractor.theta.detach()
    values = {step: log_rir(data.validation, seen.thetas[step]) for step in range(2, steps + 1, 2)}
    assert logger.of("val/log_rir") == pytest.approx(values, rel=1e-9)
    best = max(values, key=lambda step: values[step])
    assert 2 < best < steps  # an interior peak, or nothing is shown
    assert torch.equal(theta, seen.thetas[best])
    assert not torch.equal(theta, seen.thetas[-1])
    assert steps == best + 3 * 2 < 60  # three looks of two steps without improvement
    facts = stop.facts(module)["early_stopping"]
    # compared in float32
    assert facts == {"best_step": best, "best_val_log_rir": pytest.approx(values[best], rel=2**-23)}


def test_full_batch_steps_are_algorithm_1_with_an_explicit_inverse_and_adam() -> None:
    lambda_well, lambda_ill, eta = 0.01, 2e4, 0.01
    cfg = tiny("objective.epochs=8", f"objective.lambda_well={lambda_well}", f"objective.lambda_ill={lambda_ill}")
    data, seen = data_of(cfg), Trajectory()
    module = module_of(cfg, data)
    fit_module(module, data, seen)

    p, h = data.fit.pretrain, data.fit.harmful
    theta, omega = (torch.nn.Parameter(start.clone()) for start in (seen.thetas[0], seen.heads[0]))
    adam = torch.optim.Adam([theta, omega], lr=eta, betas=(0.9, 0.999), eps=1e-8)  # C.2's
    for step in range(8):
        at = theta.detach()
        task, omega.grad = ref.task_gradients(p.x, p.y, at, omega.detach())
        well = lambda_well * ref.algorithm_1_direction(p.x, at, ref.r_well_gradient)
        ill = lambda_ill * ref.algorithm_1_direction(h.x, at, ref.r_ill_gradient)
        if step == 0:  # no term may be too small for this test to see
            norms = torch.stack([task.norm(), well.norm(), ill.norm()])
            assert norms.min() > 1e-3 * norms.max()
        theta.grad = task + well + ill
        adam.step()
        assert ref.error(seen.thetas[step + 1], theta.detach()) < 1e-9
        assert ref.error(seen.heads[step + 1], omega.detach()) < 1e-9
    assert len(seen.batches) == 8
    assert ref.error(seen.thetas[-1], seen.thetas[0]) > 1e-2


def test_mini_batch_step_is_algorithm_1_on_that_batch() -> None:
    _, seen = followed(tiny(*SGD, "objective.batch_size=16", "objective.learning_rate=1e-3"))
    for step, batch in enumerate(seen.batches):
        (xp, yp), (xh, _) = batch["pretrain"], batch["harmful"]
        before, after = seen.thetas[step : step + 2]
        task, _ = ref.task_gradients(xp, yp, before, seen.heads[step])
        well = ref.algorithm_1_direction(xp, before, ref.r_well_gradient)  # with λ_P = 1
        ill = 1e5 * ref.algorithm_1_direction(xh, before, ref.r_ill_gradient)
        assert ref.error(after - before, -1e-3 * (task + well + ill)) < 1e-9
    assert len(seen.batches) == 2


@pytest.mark.parametrize(("batch_size", "epochs"), [("null", 1), ("8", 2)])
def test_learning_rate_falls_to_zero_over_the_last_share_of_the_steps(batch_size: str, epochs: int) -> None:
    cfg = tiny("objective.epochs=10", f"objective.batch_size={batch_size}")
    rate = cfg.objective.learning_rate
    data = data_of(cfg)
    for decay in (None, 0.5):
        module, rates = module_of(cfg, data), []
        module.lr_decay = decay
        look = LambdaCallback(on_before_optimizer_step=lambda *of, seen=rates: seen.append(of[2].param_groups[0]["lr"]))
        fit_module(module, data, look, epochs=epochs)  # a full-batch pass is all 10 steps
        expected = [1.0] * 10 if decay is None else [1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]
        assert rates == pytest.approx([rate * share for share in expected])


class Counting(BestLook):
    """How often it looks."""

    seen = 0

    def look(self, trainer: Any, module: Any) -> None:
        self.seen += 1


def test_a_training_that_goes_on_is_not_looked_at_again_where_it_stopped() -> None:
    watch, cfg = Counting(2, None), tiny()
    watch.on_train_start(SimpleNamespace(global_step=2), module_of(cfg, data_of(cfg)))  # type: ignore[arg-type]
    for step in (2, 3, 3, 4, 4):
        watch.on_train_batch_end(SimpleNamespace(global_step=step), None, None, None, 0)  # type: ignore[arg-type]
    assert watch.seen == 1


def test_a_step_of_several_batches_is_looked_at_counted_logged_and_balanced_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cfg = tiny("objective.epochs=6", "objective.batch_size=8")
    data, seen, logged = data_of(cfg), Trajectory(), MemoryLogger()
    guard, looks = TheoremGuard(), Counting(2, None)
    callbacks = (GradientBalance(1, every=2), guard, looks, Progress("a training"), seen)
    settings = {"loggers": [logged], "epochs": 2, "accumulate_grad_batches": 2}
    trainer = fit_module(module_of(cfg, data), data, *callbacks, **settings)  # type: ignore[arg-type]
    batches, steps = len(seen.batches), trainer.global_step
    assert steps < batches
    assert looks.seen == math.ceil(steps / 2)
    assert guard.counts["steps"] == steps
    assert len(logged.of("loss")) == len([row for _, row in logged.rows if "loss" in row]) == steps
    weights = [of["ill"] for of in seen.weights]
    assert len(set(weights)) == math.ceil(steps / 2)
    told = [int(step) for step in re.findall(rf"step (\d+)/{steps} ", capsys.readouterr().err)]
    assert told == sorted(set(told))
    assert told[-1] == steps
