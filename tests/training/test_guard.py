"""The theorem guard against bounds from explicit Hessians; λ from gradient norms (C.2), measured independently."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

from immunize.data.pair import PairedData
from immunize.spectrum import ill_step_bound, well_step_bound
from immunize.training.callbacks import GradientBalance, TheoremGuard
from immunize.training.callbacks.guard import COUNTED, _gradient_norm
from tests import reference as ref
from tests.composing import SGD, D, Trajectory, data_of, fit_module, followed, module_of, tiny
from tests.training.moving import I, Recorder


def kappa(x: Tensor, theta: Tensor) -> float:
    """κ(H(θ)) from singular values of Xθ, which have the digits to see a change of 1e-12."""
    sigma = torch.linalg.svdvals(x @ theta)
    return float((sigma[0] / sigma[-1]) ** 2)


def well_bound(x: Tensor, theta: Tensor) -> float:
    return well_step_bound(ref.eigenvalues(ref.hessian(x, theta)), D)


def ill_bound(x: Tensor, theta: Tensor) -> float:
    return ill_step_bound(ref.eigenvalues(ref.hessian(x, theta)))


def counted(seen: Trajectory, data: PairedData, eta: float) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """What the guard has to count, from the trajectory; and steps that break a promise, with where ηλ was."""
    counts, told = Counter(dict.fromkeys(COUNTED, 0)), []
    p, h = data.fit.pretrain.x, data.fit.harmful.x
    for step, (before, after, weights) in enumerate(zip(seen.thetas, seen.thetas[1:], seen.weights, strict=False)):
        met, kept = [], {}
        if "well" in weights:
            met.append(eta * weights["well"] < well_bound(p, before))
            kept["well_kept"] = kappa(p, after) <= kappa(p, before)
        if "ill" in weights:
            met.append(eta * weights["ill"] < ill_bound(h, before))
            kept["ill_kept"] = kappa(h, after) >= kappa(h, before)
        broken = all(met) and not all(kept.values())
        counts.update(kept, steps=1, eta_lambda_within_bounds=all(met), promises_kept=all(kept.values()))
        counts["broken_within_bounds"] += broken
        if not all(kept.values()):
            told.append((str(step), "within" if all(met) else "outside"))
    return counts, told


def watched(*overrides: str) -> tuple[TheoremGuard, Trajectory, PairedData]:
    cfg = tiny(*overrides)
    data, seen, guard = data_of(cfg), Trajectory(), TheoremGuard()
    fit_module(module_of(cfg, data), data, seen, guard)
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
def test_counts_are_those_of_the_trajectory_and_it_is_said_whether_the_bounds_are_conditions_of_the_theorem(
    overrides: tuple[str, ...], exact: bool, caplog: pytest.LogCaptureFixture
) -> None:
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
    x, start = data.fit.pretrain.x, module_of(cfg, data).extractor.theta.detach()
    v = torch.linalg.svd(x @ start).Vh[-1]
    fit_module(module_of(cfg, data, Recorder(start @ (I - torch.outer(v, v)), term="well")), data, seen, guard)
    assert ref.rank(ref.hessian(x, seen.thetas[1]), len(x)) == D - 1
    assert guard.facts(None)["guard"]["promises_kept"] == 0


def expected_weights(data: PairedData, theta: Tensor, head: Tensor) -> dict[str, float]:
    p, h = data.fit.pretrain, data.fit.harmful
    norm = ref.task_gradients(p.x, p.y, theta, head)[0].norm()
    well = ref.algorithm_1_direction(p.x, theta, ref.r_well_gradient)
    ill = ref.algorithm_1_direction(h.x, theta, ref.r_ill_gradient)
    return {"well": float(norm / well.norm()), "ill": float(norm / ill.norm())}


@pytest.mark.parametrize(("multiplier", "ill", "every"), [(1, None, 0), (5, None, 0), (2, 5, 0), (1, None, 3)])
def test_weights_make_the_gradient_norms_a_multiple_of_the_task_loss(
    multiplier: int, ill: int | None, every: int
) -> None:
    balance = GradientBalance(multiplier, every=every, ill=ill)
    data, seen = followed(tiny("objective.lambda_well=123", "objective.epochs=8"), balance)
    for step, weights in enumerate(seen.weights):
        start = step // every * every if every else 0  # once, before the first step, and kept
        expected = expected_weights(data, seen.thetas[start], seen.heads[start])
        assert weights["task"] == 1
        assert weights["well"] == pytest.approx(multiplier * expected["well"], rel=1e-9)
        assert weights["ill"] == pytest.approx((ill or multiplier) * expected["ill"], rel=1e-9)
    assert len({weights["ill"] for weights in seen.weights}) == (3 if every else 1)


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
    ill = float(ref.theta_gradient(data.fit.harmful.x, seen.thetas[0], ref.r_ill_gradient).norm())
    assert seen.weights[0]["ill"] * ill == pytest.approx(3, rel=1e-9)


def test_a_norm_whose_square_is_beyond_single_precision_is_a_norm() -> None:
    parameter = torch.ones(2, requires_grad=True)
    assert _gradient_norm(1e30 * parameter.sum(), [parameter]) == pytest.approx(2**0.5 * 1e30)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("changed", "exact"), [({}, True), ({"gradient_clip_val": 1.0}, False), ({"accumulate_grad_batches": 4}, False)]
)
def test_a_step_that_the_trainer_changes_is_not_the_theorems(changed: dict[str, Any], exact: bool) -> None:
    cfg = tiny(*single("well_only", 1e-3))
    module = module_of(cfg, data_of(cfg))
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1)]
    plain = {"optimizers": optimizers, "accumulate_grad_batches": 1, "gradient_clip_val": None}
    trainer: Any = SimpleNamespace(**plain | changed)
    guard = TheoremGuard()
    guard.on_train_start(trainer, module)
    assert guard.facts(module)["guard"]["theorem_step"] is exact
