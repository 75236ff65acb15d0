"""What callbacks see and count, against explicit Hessians: the monitor, early stopping, steps, progress, the guard.

Early stopping: on rows that are neither fitted nor reported, and with the best parameters put back. λ from gradient
norms (C.2), measured independently. Of the theorem guard the bounds are those of explicit Hessians.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

from immunize.data import ROLES, Part
from immunize.data.pair import PairedData
from immunize.pipeline.assemble import new_trainer
from immunize.spectrum.regularizers import ill_step_bound, well_step_bound
from immunize.spectrum.separability import folds_of
from immunize.training.callbacks import GradientBalance, ImmunityMonitor, TheoremGuard, ValidationStop
from immunize.training.callbacks.guard import COUNTED, _gradient_norm
from tests import reference as ref
from tests.composing import SGD, D, MemoryLogger, Trajectory, data_of, fit_module, followed, module_of, run_tiny, tiny
from tests.training.moving import I, Recorder, gradients, kappa, scaled


def test_numbers_are_those_of_the_explicit_hessians() -> None:
    cfg = tiny("objective.epochs=7")
    data, seen, logger = data_of(cfg), Trajectory(), MemoryLogger()
    monitor = ImmunityMonitor(data.fit, every=3)
    fit_module(module_of(cfg, data), data, seen, monitor, loggers=[logger])
    assert sorted(step for step in logger.of("RIR") if step is not None) == [3, 6, 7]  # the last step always
    p, h = data.fit["pretrain"].x, data.fit["harmful"].x
    for step in (3, 6, 7):
        hess_p, hess_h = (ref.hessian(x, seen.thetas[step]) for x in (p, h))
        kappas = [float(torch.linalg.cond(of)) for of in (hess_h, hess_p, ref.hessian(h), ref.hessian(p))]
        names = ("ratio_harmful", "ratio_pretrain", "RIR", "kappa_harmful", "kappa_pretrain", "R_well", "R_ill")
        numbers = (*ref.immunization_ratio(*kappas), *kappas[:2], ref.r_well(hess_p), ref.r_ill(hess_h))
        expected = dict(zip(names, numbers, strict=True))
        for name, value in expected.items():
            assert logger.of(name)[step] == pytest.approx(value, rel=1e-9), name
        for role, x in (("pretrain", p), ("harmful", h)):
            y = data.fit[role].y  # type: ignore[arg-type]
            half = torch.empty(len(y), dtype=torch.bool)
            drawn = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
            half[drawn] = folds_of(y[drawn], 2) == 0
            learned = ref.cross_fitted_correlation(x @ seen.thetas[step], y[:, None], half, 1e-2)
            assert logger.of(f"separability_{role}")[step] == pytest.approx(learned, rel=1e-6)
    assert monitor.latest["RIR"] == logger.of("RIR")[7]


def test_kappa_is_over_the_rank_of_the_data_and_of_one_label_nothing_can_be_learned() -> None:
    """θ pushes the smallest eigenvalue below N·eps, where it would count as zero; the rank of the data stays."""
    n, module = 40, module_of(tiny(), data_of(tiny()))
    p, h = (ref.features_with_eigenvalues([1, 0.5, 0.2, 0.1, 0.05, 1e-13], n, D, seed) for seed in (1, 2))
    theta = scaled(p, 1, 1, 1, 1, 1, 0.03)  # σ_6/σ_1 from 1e-13 to 3e-15; N·eps is 8.9e-15
    with torch.no_grad():
        module.extractor.theta.copy_(theta)
    monitor = ImmunityMonitor({"pretrain": Part(p, torch.ones(n)), "harmful": Part(h, h[:, 0])}, every=1)
    monitor.on_train_batch_end(cast(Trainer, SimpleNamespace(global_step=1)), module, None, None, 0)
    sigma = torch.linalg.svdvals(p @ theta).square()
    assert D * ref.EPS < float(sigma[5] / sigma[0]) < n * ref.EPS
    assert monitor.latest["kappa_pretrain"] == pytest.approx(float(sigma[0] / sigma[5]), rel=1e-6)
    assert {fact["name"] for fact in monitor.signatures.facts()} == {"sigma_min_floor"}
    assert {name for name in monitor.latest if name.startswith("separability")} == {"separability_harmful"}


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


def test_best_parameters_are_put_back_and_patience_ends_the_training() -> None:
    cfg = tiny(*STOPPING, "objective.epochs=60", "model.init=identity")
    data, seen, logger = data_of(cfg), Trajectory(), MemoryLogger()
    stop = ValidationStop(data.validation, 2, patience=3)
    module = module_of(cfg, data, Recorder(*(I + 0.05 * step * ref.gaussian(D, D, seed=2) for step in range(1, 61))))
    steps = fit_module(module, data, seen, stop, loggers=[logger]).global_step
    theta = module.extractor.theta.detach()
    p, h = data.validation["pretrain"].x, data.validation["harmful"].x
    rirs = (kappa(h, at) / kappa(h) * kappa(p) / kappa(p, at) for at in seen.thetas[2::2])
    values = {2 * look: math.log(rir) for look, rir in enumerate(rirs, 1)}
    assert logger.of("val/log_rir") == pytest.approx(values, rel=1e-9)
    best = max(values, key=lambda step: values[step])
    assert 2 < best < steps  # an interior peak, or nothing is shown
    assert torch.equal(theta, seen.thetas[best])
    assert not torch.equal(theta, seen.thetas[-1])
    assert steps == best + 3 * 2 < 60  # three looks of two steps without improvement
    facts = stop.facts(module)["early_stopping"]
    # compared in float32
    assert facts == {"best_step": best, "best_val_log_rir": pytest.approx(values[best], rel=2**-23)}


@pytest.mark.parametrize(
    ("overrides", "optimizer"),
    [
        (("objective.epochs=8",), partial(torch.optim.Adam, lr=0.01, betas=(0.9, 0.999), eps=1e-8)),  # C.2's
        ((*SGD, "objective.batch_size=16", "objective.learning_rate=1e-3"), partial(torch.optim.SGD, lr=1e-3)),
    ],
)
def test_steps_are_algorithm_1_with_an_explicit_inverse(overrides: tuple[str, ...], optimizer: Any) -> None:
    lambdas = {"task": 1.0, "well": 0.1, "ill": 2e3}
    weights = (f"objective.lambda_{name}={lambdas[name]}" for name in ("well", "ill"))
    _, seen = followed(tiny(*overrides, *weights))
    theta, omega = (torch.nn.Parameter(start.clone()) for start in (seen.thetas[0], seen.heads[0]))
    moved = optimizer([theta, omega])
    for step, batch in enumerate(seen.batches):
        terms, omega.grad = gradients(batch, theta.detach(), omega.detach())
        weighted = torch.stack([lambdas[name] * term for name, term in terms.items()])
        if step == 0:  # no term may be too small for this test to see
            norms = torch.linalg.matrix_norm(weighted)
            assert norms.min() > 1e-3 * norms.max()
        theta.grad = weighted.sum(0)
        moved.step()
        assert ref.error(seen.thetas[step + 1], theta.detach()) < 1e-9
        assert ref.error(seen.heads[step + 1], omega.detach()) < 1e-9
    assert len(seen.batches) == (2 if "objective.batch_size=16" in overrides else 8)
    assert ref.error(seen.thetas[-1], seen.thetas[0]) > 1e-2


@pytest.mark.parametrize(("batch_size", "epochs"), [("null", 1), ("8", 2)])  # a full-batch pass is all 10 steps
@pytest.mark.parametrize(("decay", "shares"), [(None, [1.0] * 10), (0.5, [1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])])
def test_learning_rate_falls_to_zero(batch_size: str, epochs: int, decay: float | None, shares: list[float]) -> None:
    """Over the last share of the steps."""
    cfg = tiny("objective.epochs=10", f"objective.batch_size={batch_size}")
    data, rates = data_of(cfg), list[float]()
    module = module_of(cfg, data)
    module.lr_decay = decay
    look = LambdaCallback(on_before_optimizer_step=lambda *of: rates.append(of[2].param_groups[0]["lr"]))
    fit_module(module, data, look, epochs=epochs)
    assert rates == pytest.approx([cfg.objective.learning_rate * share for share in shares])


# The theorem guard, and λ from gradient norms.


def counted(seen: Trajectory, data: PairedData, eta: float) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """What the guard has to count, from the trajectory; and steps that break a promise, with where ηλ was."""
    counts, told = Counter(dict.fromkeys(COUNTED, 0)), []
    p, h = data.fit["pretrain"].x, data.fit["harmful"].x
    for step, (before, after, weights) in enumerate(zip(seen.thetas, seen.thetas[1:], seen.weights, strict=False)):
        met, kept = [], {}
        if "well" in weights:
            met.append(eta * weights["well"] < well_step_bound(ref.eigenvalues(ref.hessian(p, before)), D))
            kept["well_kept"] = kappa(p, after) <= kappa(p, before)
        if "ill" in weights:
            met.append(eta * weights["ill"] < ill_step_bound(ref.eigenvalues(ref.hessian(h, before))))
            kept["ill_kept"] = kappa(h, after) >= kappa(h, before)
        broken = all(met) and not all(kept.values())
        counts.update(kept, steps=1, eta_lambda_within_bounds=all(met), promises_kept=all(kept.values()))
        counts["broken_within_bounds"] += broken
        if not all(kept.values()):
            told.append((str(step), "within" if all(met) else "outside"))
    return counts, told


def watched(*overrides: str, **settings: Any) -> tuple[TheoremGuard, Trajectory, PairedData]:
    cfg = tiny(*overrides)
    data, seen, guard = data_of(cfg), Trajectory(), TheoremGuard()
    fit_module(module_of(cfg, data), data, seen, guard, **settings)
    return guard, seen, data


def single(method: str, eta: float) -> tuple[str, ...]:
    """Plain preconditioned gradient descent on one regularizer with λ = 1: the setting of Theorem 4.3."""
    weights = ("objective.lambda_well=1", "objective.lambda_ill=1")
    return (f"method={method}", "method.precondition=inverse_free", *SGD, *weights, f"objective.learning_rate={eta}")


BROKEN = (*SGD, "objective.lambda_well=1e-6", "objective.lambda_ill=1e-6", "objective.learning_rate=0.1")
"""§4.4, Limitations: the theorem says nothing of both regularizers and the task loss together."""


@pytest.mark.parametrize(
    ("overrides", "exact"),
    [
        (("objective.lambda_ill=1e4", "objective.lambda_well=1e-3", "objective.learning_rate=0.02"), False),
        ((*SGD, "objective.lambda_ill=3e4", "objective.lambda_well=1", "objective.learning_rate=1e-3"), False),
        (("method=ill_only", *SGD, "objective.lambda_ill=1e3", "objective.learning_rate=0.1"), False),
        (("method=well_only", "objective.lambda_well=1", "objective.learning_rate=0.3"), False),
        *((single(method, eta), True) for method in ("well_only", "ill_only") for eta in (1e-9, 1e-3)),
        (single("well_only", 1e-2), True),
        (BROKEN, False),  # two regularizers and the task loss
        (("method=well_only", *SGD, "objective.learning_rate=1e-9"), False),  # not preconditioned
        ((*single("well_only", 1e-3), "method.precondition=dummy"), False),  # with its ε
        ((*single("well_only", 1e-3), "+objective.optimizer.momentum=0.9"), False),
        ((*single("well_only", 1e-3), "+objective.optimizer.weight_decay=0.1"), False),
        (("method=well_only", "method.precondition=inverse_free"), False),  # Adam
    ],
)
def test_counts_are_the_trajectorys(overrides: tuple[str, ...], exact: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It is said, too, whether the bounds are conditions of the theorem."""
    guard, seen, data = watched(*overrides)
    expected, broken = counted(seen, data, tiny(*overrides).objective.learning_rate)
    facts = guard.facts(None)["guard"]
    assert {name: facts[name] for name in expected} == expected
    assert facts["theorem_step"] is exact
    warned = r"guard: step (\d+) moved a condition number the wrong way \(ηλ (\w+) the theorem's bounds(.*)\);"
    found = [re.match(warned, record.message) for record in caplog.records if "wrong way" in record.message]
    cover = "" if exact else ", which do not cover this kind of step"
    assert [match.groups() for match in found] == [(*one, cover) for one in broken[:1]]  # the first alone is told


def test_promises_are_broken_outside_the_bounds_and_within_them_where_these_are_no_conditions() -> None:
    outside, within = (watched(*words)[0].facts(None)["guard"] for words in (single("well_only", 1e-2), BROKEN))
    assert (outside["eta_lambda_within_bounds"], outside["broken_within_bounds"]) == (0, 0)
    assert outside["promises_kept"] < outside["steps"]
    assert within["eta_lambda_within_bounds"] == within["steps"] == 30
    assert 0 < within["broken_within_bounds"] == 30 - within["promises_kept"]


def test_methods_without_regularizers_are_not_counted() -> None:
    assert watched("method=imma", "objective.epochs=3")[0].counts["steps"] == 0


def test_losing_a_direction_is_not_a_lower_condition_number() -> None:
    """θ' = θ(I - v_k v_kᵀ): σ_k vanishes, and κ of what is left is smaller."""
    cfg = tiny("objective.epochs=1")
    data, seen, guard = data_of(cfg), Trajectory(), TheoremGuard()
    x, start = data.fit["pretrain"].x, module_of(cfg, data).extractor.theta.detach()
    v = torch.linalg.svd(x @ start).Vh[-1]
    fit_module(module_of(cfg, data, Recorder(start @ (I - torch.outer(v, v)), term="well")), data, seen, guard)
    assert ref.rank(ref.hessian(x, seen.thetas[1]), len(x)) == D - 1
    assert guard.facts(None)["guard"]["promises_kept"] == 0


def expected_weights(data: PairedData, theta: Tensor, head: Tensor) -> dict[str, float]:
    terms, _ = gradients({role: (data.fit[role].x, data.fit[role].y) for role in ROLES}, theta, head)
    return {name: float(terms["task"].norm() / terms[name].norm()) for name in ("well", "ill")}


@pytest.mark.parametrize(("multiplier", "ill", "every"), [(1, None, 0), (5, None, 0), (2, 5, 0), (1, None, 3)])
def test_weights_make_gradient_norms_a_multiple_of_the_task_loss(multiplier: int, ill: int | None, every: int) -> None:
    balance = GradientBalance(multiplier, every=every, ill=ill)
    data, seen = followed(tiny("objective.lambda_well=123", "objective.epochs=8"), balance)
    for step, weights in enumerate(seen.weights):
        start = step // every * every if every else 0  # once, before the first step, and kept
        expected = expected_weights(data, seen.thetas[start], seen.heads[start])
        assert weights["task"] == 1
        assert weights["well"] == pytest.approx(multiplier * expected["well"], rel=1e-9)
        assert weights["ill"] == pytest.approx((ill or multiplier) * expected["ill"], rel=1e-9)
    assert len({weights["ill"] for weights in seen.weights}) == (3 if every else 1)


def test_weights_that_were_balanced_are_in_a_checkpoint(tmp_path: Path) -> None:
    cfg = tiny("objective.epochs=2")
    data = data_of(cfg)
    first, second = (module_of(cfg, data) for _ in range(2))
    fit_module(first, data, GradientBalance(3)).save_checkpoint(tmp_path / "a.ckpt")
    trainer = new_trainer(Trainer, [], [], accelerator="cpu", max_epochs=2)
    trainer.fit(second, datamodule=data, ckpt_path=tmp_path / "a.ckpt")
    assert second.objective.weights == first.objective.weights != module_of(cfg, data).objective.weights


def test_a_later_balance_may_be_told_to_lower_weights_and_raise_none() -> None:
    def move(trainer: Trainer, module: Any, *_: Any) -> None:
        """Before the fourth step λ_P is far too large and λ_H far too small."""
        if trainer.global_step == 3:
            module.objective.weights |= {"well": 1e6, "ill": 1e-9}

    moved = LambdaCallback(on_train_batch_start=move)
    data, seen = followed(tiny("objective.epochs=4"), moved, GradientBalance(1, every=3, lower=True))
    expected = expected_weights(data, seen.thetas[3], seen.heads[3])
    assert seen.weights[3] == {"task": 1, "well": pytest.approx(expected["well"], rel=1e-9), "ill": 1e-9}


def test_without_a_task_term_the_norm_is_the_multiplier() -> None:
    data, seen = followed(tiny("method=ill_only", "objective.epochs=1"), GradientBalance(3))
    ill = float(ref.theta_gradient(data.fit["harmful"].x, seen.thetas[0], ref.r_ill_gradient).norm())
    assert seen.weights[0]["ill"] * ill == pytest.approx(3, rel=1e-9)


def test_a_norm_whose_square_is_beyond_single_precision_is_a_norm() -> None:
    parameter = torch.ones(2, requires_grad=True)
    assert _gradient_norm(1e30 * parameter.sum(), [parameter]) == pytest.approx(2**0.5 * 1e30)  # type: ignore[list-item]


def test_a_step_that_the_trainer_changes_is_not_the_theorems() -> None:
    guard, _, _ = watched(*single("well_only", 1e-3), "objective.epochs=4", gradient_clip_val=1.0)
    assert guard.facts(None)["guard"]["theorem_step"] is False
