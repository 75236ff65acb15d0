"""What stands exactly on a limit, what a default is, every fact that a method leaves behind, and shared batches."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from immunize.features import SpectralView
from immunize.objective import Objective, new_head, ranks, task_loss
from immunize.objective.attacker_cost import (
    ADAM_RATES,
    Cost,
    Course,
    ProbeTask,
    _looks,
    adam,
    baseline,
    cost,
    descent,
    set_aside,
)
from immunize.objective.base import Head, check_weight, ill_term, kappa_term
from immunize.objective.closed_form import ClosedForm
from immunize.objective.deep import DeepSide, DeepStep, preconditioned_features
from immunize.objective.ill_only import IllOnly
from immunize.objective.imma import Imma
from immunize.objective.none import Plain
from immunize.objective.opt_kappa import OptKappa
from immunize.objective.ours import Ours
from immunize.objective.signal import Signal, directions_of, labels_of
from immunize.objective.signal_choice import BUDGETS, GAMMAS, SHARPNESSES, SignalTrial, _chosen, _dearest, choose
from immunize.objective.well_only import WellOnly
from immunize.spectrum import choose_shrinkage, closed_form, default_tolerance, ledoit_wolf, sharpen, signal_map
from tests import reference as ref

D = 5


def rows(seed: int, count: int = 60) -> Tensor:
    scale = torch.logspace(0, -1, D, dtype=torch.float64)
    return ref.gaussian(count, D, seed=seed) * (scale if seed % 2 else scale.flip(0))


def regression(seed: int = 1) -> ProbeTask:
    x, test, w = rows(seed), rows(seed + 2), torch.linspace(1, 3, D, dtype=torch.float64)
    return ProbeTask(x, x @ w, test, test @ w)


def classification(seed: int = 1, dtype: torch.dtype = torch.float64) -> ProbeTask:
    w = ref.gaussian(D, 3, seed=9)
    x, test = rows(seed), rows(seed + 2)
    return ProbeTask(x.to(dtype), (x @ w).argmax(1), test.to(dtype), (test @ w).argmax(1))


# --- what a probe costs -------------------------------------------------------------------------------------------


def test_a_course_reaches_what_it_equals_and_knows_when_it_saw_nothing() -> None:
    course = Course((2, 3), (0.25, 0.5))
    assert (course.steps_to(0.25), course.steps_to(0.5), course.last) == (2, 3, 0.5)
    assert Course((1,), (math.nan,)).best == -math.inf
    assert Cost(4, 9, True, True, 0.0).times(Cost(1, 1, True, True, 0.0)) == 6
    assert Cost(4, 9, True, True, 0.0).times(Cost(2, 2, True, True, 0.0)) == 3


def test_scores_are_looked_at_after_each_early_step_and_rarely_later() -> None:
    assert _looks(1) == {1}
    assert _looks(40) == {*range(1, 38), 38, 39, 40}
    late = sorted(_looks(1000))
    assert late[-1] == 1000
    gaps = [after / before for before, after in pairwise(late) if before >= 100]
    assert max(gaps) < 1.04
    assert min(gaps[:-1]) > 1.02


def test_classes_are_counted_in_both_parts() -> None:
    x = rows(1, 2)
    assert ProbeTask(x, torch.tensor([0, 1]), x, torch.tensor([3, 0])).classes == 4
    assert ProbeTask(x, torch.tensor([0.0, 1.0]), x, torch.tensor([3.0, 0.0])).classes == 0


def test_descent_of_a_regression_is_gradient_descent_with_step_one_over_l() -> None:
    one = regression()
    scale = one.x.square().mean().sqrt()
    x, test = one.x / scale, one.x_test / scale
    rate = 1 / torch.linalg.eigvalsh(x.T @ x / len(x))[-1]
    w, expected = torch.zeros(D, dtype=torch.float64), []
    for _ in range(12):
        w = w - rate * x.T @ (x @ w - one.y) / len(x)
        errors = (test @ w - one.y_test).square().mean()
        expected.append(float(1 - errors / one.y_test.var(unbiased=False)))
    assert descent(one, None, 12).scores == pytest.approx(expected, rel=1e-10)
    assert descent(one, torch.eye(D, dtype=torch.float64), 12).scores == pytest.approx(expected, rel=1e-10)


def test_training_stops_at_the_score_but_not_before_so_many_steps() -> None:
    one = regression()
    whole = descent(one, None, 60)
    goal = whole.scores[9]
    assert descent(one, None, 60, until=goal).steps == whole.steps[:10]
    assert descent(one, None, 60, until=goal, at_least=20).steps == whole.steps[:20]
    assert descent(one, None, 60, until=goal, at_least=20).scores == whole.scores[:20]
    fast = adam(one, None, 60)
    assert adam(one, None, 60, until=fast.scores[4]).steps == fast.steps[:5]


@pytest.mark.parametrize("train", [descent, adam])
def test_single_precision_trains_in_single_precision_to_the_same_scores(train: Any) -> None:
    single, double = (classification(dtype=dtype) for dtype in (torch.float32, torch.float64))
    for theta in (None, ref.extractor(D, seed=3)):
        assert train(single, theta, 20).scores == pytest.approx(train(double, theta, 20).scores, abs=0.04)


def test_adam_of_classes_is_torchs() -> None:
    one = classification()
    scale = one.x.square().mean().sqrt()
    x, test, best = one.x / scale, one.x_test / scale, []
    for rate in ADAM_RATES:
        weight, scores = torch.zeros(D, 3, dtype=torch.float64, requires_grad=True), []
        optimizer = torch.optim.Adam([weight], lr=rate)
        for _ in range(15):
            optimizer.zero_grad()
            nn.functional.cross_entropy(x @ weight, one.y).backward()
            optimizer.step()
            scores.append(float(((test @ weight).argmax(1) == one.y_test).double().mean()))
        best.append(scores)
    assert adam(one, None, 15).scores == pytest.approx([max(of) for of in zip(*best, strict=True)])


def test_the_threshold_is_nine_tenths_of_the_best_and_costs_are_steps_to_it() -> None:
    one, theta = regression(), torch.diag(torch.logspace(0, -1, D, dtype=torch.float64))
    slow, fast = descent(one, None, 300), adam(one, None, 300)
    base = baseline(one, 300, 10)
    assert base.threshold == pytest.approx(0.9 * max(slow.best, fast.best))
    assert base.cost.descent == slow.steps_to(base.threshold)
    assert base.cost.adam == (fast.steps_to(base.threshold) or 300)
    assert base.cost.adam_reached == (fast.steps_to(base.threshold) is not None)
    assert base.cost.score == slow.scores[9]
    dear = cost(one, theta, 0.4, 300, 20)
    slow, fast = descent(one, theta, 300), adam(one, theta, 300)
    assert (dear.descent, dear.adam) == (slow.steps_to(0.4) or 300, fast.steps_to(0.4) or 300)
    assert dear.score == slow.scores[19]
    never = cost(one, theta, 2.0, 30, 40)  # no share of the variance is above 1
    assert (never.descent, never.adam, never.descent_reached, never.adam_reached) == (30, 30, False, False)
    assert never.score == descent(one, theta, 30).last


def test_half_of_a_class_of_one_stays_and_a_share_is_exclusive() -> None:
    y = torch.tensor([0, 0, 1, 1, 1, 1])
    for share, counts in ((0.25, [0, 1]), (0.26, [1, 1]), (0.5, [1, 2]), (0.9, [2, 4])):
        rest, aside = set_aside(y, share, np.random.default_rng(0))
        assert torch.bincount(y[aside], minlength=2).tolist() == counts
        assert len(rest) == 6 - sum(counts)


# --- terms, heads, and steps --------------------------------------------------------------------------------------


def test_a_head_keeps_its_bias_and_loses_its_gradient() -> None:
    weight, bias, x = ref.gaussian(D, 2, seed=1).requires_grad_(), torch.ones(2, dtype=torch.float64), rows(1)
    torch.testing.assert_close(Head(weight, bias)(x), x @ weight + 1)
    torch.testing.assert_close(Head(weight)(x), x @ weight)
    assert not Head(weight, bias).detach()(x).requires_grad
    assert torch.equal(Head(weight, bias).detach()(x), Head(weight, bias)(x))
    assert Head(weight).detach().bias is None


def test_a_new_head_has_the_size_and_precision_asked_for() -> None:
    head = new_head(4, ref.generator(1), 3, torch.float32)
    assert (head.shape, head.dtype) == ((4, 3), torch.float32)
    draw = torch.rand(4, 3, dtype=torch.float64, generator=ref.generator(1))
    torch.testing.assert_close(head.detach(), (draw - 0.5).float())  # U(-1/2, 1/2)
    objective = Imma()
    objective.bind(4, ref.generator(1), 3, torch.float32)
    assert torch.equal(objective.harmful_head, head)
    assert (objective.inner_steps, objective.inner_learning_rate) == (1, 1e-2)


@pytest.mark.parametrize("inner_steps", [1.5, "2"])
def test_inner_steps_are_whole_numbers(inner_steps: Any) -> None:
    with pytest.raises(ValueError, match="whole number"):
        Imma(inner_steps=inner_steps)
    with pytest.raises(ValueError, match="finite"):
        Imma(inner_learning_rate=math.inf)


def test_weights_are_checked_floats_under_their_name() -> None:
    assert isinstance(check_weight("a", 2), float)
    with pytest.raises(ValueError, match=r"^objective\.lambda_well has"):
        Ours(-1, 1)
    with pytest.raises(ValueError, match=r"^objective\.lambda_ill has"):
        Ours(1, -1)
    with pytest.raises(ValueError, match=r"^objective\.lambda_well has"):
        WellOnly(-1)
    with pytest.raises(ValueError, match=r"^objective\.lambda_ill has"):
        IllOnly(-1)


def test_what_is_trained_by_default_and_what_is_solved() -> None:
    assert Ours(1, 1).precondition == "inverse_free"
    assert {WellOnly(1).precondition, IllOnly(1).precondition, OptKappa().precondition} == {"none"}
    x = rows(1)
    for method in (Ours(1, 1), Plain(), Imma()):
        assert method.trains
        assert method.solve(x, x) is None
    assert not ClosedForm().trains
    assert not Signal().trains
    assert ClosedForm().weights == Signal().weights == {"task": 1.0}


def test_methods_without_steps_still_have_the_task_loss_for_a_term() -> None:
    step: Any = SimpleNamespace(pretrain_loss=lambda: torch.tensor(3.0))
    for method in (ClosedForm(), Signal(), Plain()):
        assert {name: float(value) for name, value in method.terms(step).items()} == {"task": 3.0}


def test_losses_by_name_and_smoothing() -> None:
    logits, y = ref.gaussian(4, 3, seed=1), torch.tensor([0, 1, 2, 1])
    plain = nn.functional.cross_entropy(logits, y)
    assert torch.equal(task_loss("ce")(logits, y), plain)
    smooth = task_loss("ce", 0.5)(logits, y)
    even = -logits.log_softmax(1).mean(1).mean()
    torch.testing.assert_close(smooth, 0.5 * plain + 0.5 * even)


class Net(nn.Module):
    """A tail of one layer and a head with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.tail, self.head = nn.Linear(3, 4).double(), nn.Linear(4, 5).double()

    def features(self, h: Tensor, parameters: dict[str, Tensor] | None = None) -> Tensor:
        weight = self.tail.weight if parameters is None else parameters["weight"]
        return torch.tanh(h @ weight.T + self.tail.bias)

    def trainable_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [("weight", self.tail.weight)]


def deep_step(**options: Any) -> DeepStep:
    torch.manual_seed(0)
    y = torch.tensor([0, 0, 1, 2, 2, 3])
    sides = [DeepSide(ref.gaussian(n, 3, seed=n), labels) for n, labels in ((7, torch.arange(7) % 5), (6, y))]
    return DeepStep(Net(), sides[0], sides[1], task_loss("ce"), **options)  # type: ignore[arg-type]


def test_a_deep_step_has_the_networks_head_and_the_batchs_tolerance() -> None:
    step = deep_step()
    assert torch.equal(step.omega.weight, step.net.head.weight.T)
    assert step.omega.bias is step.net.head.bias
    assert list(step.parameters()) == ["weight"]
    assert (step.tolerance("pretrain"), step.tolerance("harmful")) == (default_tolerance(7, 4), default_tolerance(6, 4))
    assert (step.at_features, step.over_sets) == ("none", "sum")
    features = step.features("pretrain")
    assert step.features("pretrain") is features
    assert step.again().features("pretrain") is not features
    assert torch.equal(step.again().features("pretrain"), features)
    doubled = {"weight": 2 * step.net.tail.weight}
    assert not torch.equal(step.features("pretrain", doubled), features)
    expected = nn.functional.cross_entropy(step.net.head(features), step.pretrain.y)
    torch.testing.assert_close(step.pretrain_loss(), expected)
    gradients = [torch.ones(2), torch.zeros(1)]
    assert all(torch.equal(a, b) for a, b in zip(step.averaged(gradients), gradients, strict=True))


def test_a_deep_loss_is_outside_mixed_precision() -> None:
    step = deep_step()
    exact = step.pretrain_loss()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(deep_step().pretrain_loss(), exact)
        w = {"weight": step.net.tail.weight}
        assert torch.equal(step.features("harmful", w), step.features("harmful"))


def test_rows_of_each_harmful_set_are_those_of_its_classes() -> None:
    step = deep_step(harmful_classes=(1, 1, 2))
    whole = step.features("harmful").double()
    for number, chosen in enumerate(([0, 1], [2], [3, 4, 5])):
        view = step.spectral_view(f"harmful:{number}", "none")
        assert torch.equal(view.features, whole[chosen])
        assert view.theta is None
    names: list[str] = []
    step.over_harmful(lambda role: names.append(role) or torch.tensor(1.0))  # type: ignore[func-returns-value]
    assert names == ["harmful:0", "harmful:1", "harmful:2"]
    alone: list[str] = []
    deep_step(harmful_classes=(4,)).over_harmful(lambda role: alone.append(role) or torch.tensor(1.0))  # type: ignore[func-returns-value]
    assert alone == ["harmful"]


def test_the_weakest_set_is_the_largest_value_unless_told_otherwise() -> None:
    step = deep_step(harmful_classes=(1, 1, 2), over_sets="worst")
    values = {"harmful:0": 2.0, "harmful:1": 5.0, "harmful:2": 3.0}
    assert float(step.over_harmful(lambda role: torch.tensor(values[role]))) == 5
    assert float(step.over_harmful(lambda role: torch.tensor(values[role]), weakest=torch.min)) == 2


def test_unusable_features_are_found_in_gathered_sets_too() -> None:
    step = deep_step(harmful_classes=(1, 1, 2))
    assert step.unusable() is None
    step.spectral_view("harmful:1", "none")
    assert step.unusable() is None
    step._gathered["harmful:1"] = torch.zeros(1, 4)
    assert step.unusable() == ("harmful", 0.0)
    step._gathered["harmful:1"] = torch.full((1, 4), math.inf)
    role, value = step.unusable() or ("", 0.0)
    assert (role, math.isnan(value)) == ("harmful", True)


def test_the_smallest_ridge_of_the_preconditioner_is_positive() -> None:
    f = rows(1).requires_grad_()
    assert preconditioned_features(f, 1e-300) is not f
    step = deep_step(at_features="features", ridge=0.5)
    view = step.spectral_view("pretrain", "none").features
    (slope,) = torch.autograd.grad(view.sum(), step.features("pretrain"))
    features = step.features("pretrain").detach()
    h = features.T @ features
    expected = torch.ones_like(features) @ torch.linalg.inv(h + 0.5 * h.trace() / 4 * torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(slope, expected)


# --- processes that share a batch ---------------------------------------------------------------------------------


class Group:
    """`torch.distributed` of rank 1 of 3, where the others have made zeros."""

    ReduceOp = SimpleNamespace(MIN="min", SUM="sum")

    def __init__(self, others: float = 0.0) -> None:
        self.others, self.reduced = others, []

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return 3

    def get_rank(self) -> int:
        return 1

    def all_gather(self, parts: list[Tensor], own: Tensor) -> None:
        for index, part in enumerate(parts):
            part.copy_(own if index == 1 else torch.full_like(own, self.others))

    def all_reduce(self, value: Tensor, op: str = "sum") -> None:
        self.reduced.append(value.clone())
        if op == "min":
            value.copy_(torch.minimum(value, torch.full_like(value, self.others)))
        else:
            value.add_(2 * self.others)


def test_one_process_shares_with_nobody() -> None:
    x = torch.ones(2, 3)
    assert ranks.world_size() == 1
    assert ranks.gather_rows(x) is x
    (mean,) = ranks.mean_over_ranks([x])
    assert mean is x
    assert ranks.all_finite(torch.tensor(1.0))
    assert not ranks.all_finite(torch.tensor(math.nan))


def test_rows_of_all_processes_in_order_and_a_gradient_times_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "distributed", Group(7.0))
    assert ranks.world_size() == 3
    x = ref.gaussian(2, 3, seed=1).requires_grad_()
    whole = ranks.gather_rows(x)
    assert torch.equal(whole, torch.cat([torch.full((2, 3), 7.0).double(), x, torch.full((2, 3), 7.0).double()]))
    weights = ref.gaussian(6, 3, seed=2)
    (slope,) = torch.autograd.grad((whole * weights).sum(), x)
    assert torch.equal(slope, 3 * weights[2:4])


def test_a_mean_over_processes_and_its_derivatives_are_means(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(4.0)
    monkeypatch.setattr(ranks, "distributed", group)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (mean,) = ranks.mean_over_ranks([x])
    assert mean.tolist() == pytest.approx([3.0, 10 / 3])
    (slope,) = torch.autograd.grad((mean**2).sum(), x, create_graph=True)
    assert slope.tolist() == pytest.approx([(6 + 8) / 3, (20 / 3 + 8) / 3])
    (second,) = torch.autograd.grad(slope[0], x)
    assert second.tolist() == pytest.approx([14 / 3, 40 / 9])
    assert len(group.reduced) >= 3


@pytest.mark.parametrize(("others", "value", "finite"), [(1, 2.0, True), (0, 2.0, False), (1, math.nan, False)])
def test_a_value_is_finite_where_it_is_in_every_process(
    others: int, value: float, finite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "distributed", Group(others))
    assert ranks.all_finite(torch.tensor(value, requires_grad=True)) is finite


@pytest.mark.parametrize("missing", ["is_available", "is_initialized"])
def test_without_a_process_group_there_is_one_process(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    monkeypatch.setattr(group, missing, lambda: False)
    monkeypatch.setattr(ranks, "distributed", group)
    assert ranks.world_size() == 1


# --- methods that are solved --------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
def test_closed_form_leaves_the_facts_of_its_map(several: bool) -> None:
    x_p, x_h = rows(1), rows(2)
    sets: Any = [x_h, rows(4)] if several else x_h
    options: dict[str, Any] = {"budget": "auto", "shrinkage": "auto", "seed": 3}
    theta, facts = ClosedForm(**options).solve(x_p, sets)
    best = closed_form(x_p, sets, **options)
    assert torch.equal(theta, best.theta)
    choice = best.budget_choice
    assert choice is not None
    assert facts == {
        "budget": best.budget,
        "shrinkage": list(best.shrinkage),
        "shrinkage_chosen_by": "auto",
        "budget_feasible": choice.feasible,
        "budget_reason": choice.reason,
        "forecast_rir": best.rir,
        "forecast_kappa_pretrain": best.kappa_pretrain,
        "kappa_gen": best.worst.kappa_gen,
        "notes": list(best.notes),
    }


def test_closed_forms_defaults_and_the_edges_of_its_options() -> None:
    method = ClosedForm()
    assert (method.budget, method.shrinkage, method.seed) == (1.0, 1e-3, 0)
    _, facts = method.solve(rows(1), rows(2))
    assert (facts["shrinkage_chosen_by"], facts["budget_feasible"], facts["budget_reason"]) == ("given", None, None)
    assert ClosedForm(budget=1, shrinkage=0).shrinkage == 0
    assert ClosedForm(shrinkage="ledoit_wolf").solve(rows(1), rows(2))[1]["shrinkage_chosen_by"] == "ledoit_wolf"
    for bad in ({"budget": math.inf}, {"shrinkage": math.inf}, {"shrinkage": "ledoit wolf"}, {"budget": 1 - 1e-9}):
        with pytest.raises(ValueError, match="method"):
            ClosedForm(**bad)  # type: ignore[arg-type]


def part(seed: int, y: Tensor | None = None) -> Any:
    x = rows(seed)
    return SimpleNamespace(x=x, y=x @ ref.gaussian(D, seed=seed + 50) if y is None else y)


def test_signal_with_given_settings_is_the_map_of_its_directions() -> None:
    p, h = part(1), part(2, (rows(2)[:, 0] > 0).double())
    theta, facts = Signal(gamma=0.25, budget=8, sharpness=2, shrinkage=0.02, floor=0.1).solve_labelled(p, h)
    directions = directions_of((p.x, p.y), (h.x, labels_of(h.y)), (0.02, 0.02), 0.1)
    best = signal_map(sharpen(directions, 2.0), 8.0, 0.25)
    assert torch.equal(theta, best.theta)
    assert facts == {
        "shrinkage": [0.02, 0.02],
        "shrinkage_chosen_by": "given",
        "gamma": 0.25,
        "budget": 8.0,
        "sharpness": 2.0,
        "forecast_kappa_pretrain": best.kappa_pretrain,
        "forecast_rir": best.ratio_harmful / best.ratio_pretrain,
    }


def test_signal_chooses_on_rows_set_aside_and_refits_on_all() -> None:
    p, h = part(1), part(2, (rows(2) @ ref.gaussian(D, 3, seed=8)).argmax(1))
    method = Signal(gamma="auto", budget=8, sharpness=1, shrinkage=0.02, slack=0.5, validation_fraction=0.4, seed=5)
    theta, facts = method.solve_labelled(p, h)
    tasks, rest = [], []
    for stream, (x, y) in enumerate(((p.x, p.y), (h.x, h.y))):
        train, test = set_aside(y, 0.4, np.random.default_rng([5, stream]))
        tasks.append(ProbeTask(x[train], y[train], x[test], y[test]))
        rest.append((x[train], y[train]))
    found = choose(
        directions_of(rest[0], rest[1], (0.02, 0.02), method.floor),
        tasks[1],
        {"D_P": tasks[0]},
        gammas=GAMMAS,
        budgets=(8.0,),
        sharpnesses=(1.0,),
        slack=0.5,
    )
    assert [facts[name] for name in ("gamma", "budget", "sharpness", "feasible", "reason")] == [
        *(found.gamma, found.budget, found.sharpness, found.feasible, found.reason)
    ]
    assert facts["threshold"] == found.harmful.threshold
    assert facts["raw_cost"]["descent"] == found.harmful.cost.descent
    assert [trial["gamma"] for trial in facts["trials"]] == list(GAMMAS)
    directions = directions_of((p.x, p.y), (h.x, h.y), (0.02, 0.02), method.floor)
    assert torch.equal(theta, signal_map(sharpen(directions, 1.0), 8.0, found.gamma).theta)


def test_signals_defaults_and_the_edges_of_its_options() -> None:
    method = Signal()
    assert (method.gammas, method.budgets, method.sharpnesses) == (GAMMAS, BUDGETS, SHARPNESSES)
    assert (method.shrinkage, method.floor, method.slack) == ("auto", 0.01, 0.02)
    assert (method.validation_fraction, method.seed) == (0.25, 0)
    edge = Signal(0, 1, 1, shrinkage=1e-9, floor=1e-9, slack=0, validation_fraction=0.9)
    assert (edge.gammas, edge.budgets, edge.sharpnesses, edge.slack) == ((0.0,), (1.0,), (1.0,), 0)
    for name in ("gamma", "budget", "sharpness", "shrinkage", "floor", "slack"):
        with pytest.raises(ValueError, match=f"method.{name}"):
            Signal(**{name: math.inf})
    for bad in ({"validation_fraction": 0.0}, {"validation_fraction": 0.91}, {"budget": "1"}, {"sharpness": 0.99}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Signal(**bad)  # type: ignore[arg-type]


def test_signal_shrinks_as_the_closed_form_does() -> None:
    p, h = part(1), part(2)
    given: dict[str, Any] = {"gamma": 0, "budget": 1, "sharpness": 1, "seed": 4}
    chosen = choose_shrinkage(p.x, [h.x], seed=4)
    _, facts = Signal(**given).solve_labelled(p, h)
    assert (facts["shrinkage"], facts["shrinkage_chosen_by"]) == ([chosen.pretrain, chosen.harmful[0]], "auto")
    _, facts = Signal(**given, shrinkage="ledoit_wolf").solve_labelled(p, h)
    assert facts["shrinkage"] == [ledoit_wolf(p.x), ledoit_wolf(h.x)]
    assert facts["shrinkage_chosen_by"] == "ledoit_wolf"


def test_directions_have_the_shrinkage_of_their_side_in_any_precision() -> None:
    sides = [(rows(seed), rows(seed) @ ref.gaussian(D, seed=seed)) for seed in (1, 2)]
    of = directions_of(sides[0], sides[1], (0.1, 0.3), 1e-2)
    for (x, _), rho, value in zip(sides, (0.1, 0.3), (of.kappa_pretrain, of.kappa_harmful), strict=True):
        k = x.T @ x
        shrunk = k + rho * k.trace() / D * torch.eye(D, dtype=torch.float64)
        assert value == pytest.approx(ref.kappa(shrunk))
    single = directions_of(*((x.float(), y) for x, y in sides), (0.1, 0.3), 1e-2)  # type: ignore[misc]
    torch.testing.assert_close(single.ratios, of.ratios, rtol=1e-4, atol=0)
    assert labels_of(torch.tensor([1.0, 1.0])).dtype == torch.int64
    assert labels_of(torch.tensor([0.5, 1.0])).is_floating_point()


# --- the choice of a signal map -----------------------------------------------------------------------------------


def trial(times: float, feasible: bool = True, **changes: Any) -> SignalTrial:
    values = {"gamma": 0.0, "budget": 1.0, "sharpness": 1.0, "ratio_pretrain": 0.5, "spared": {"D_P": -0.1}} | changes
    return SignalTrial(**values, ratio_harmful=1.0, harmful=Cost(1, 1, True, True, 1.0), times=times, feasible=feasible)


def test_among_equals_the_smallest_settings_win() -> None:
    for name in ("gamma", "budget", "sharpness"):
        pair = [trial(3.0, **{name: value}) for value in (4.0, 2.0)]
        assert _dearest(pair) is pair[1]
        assert _dearest(pair[::-1]) is pair[1]
    assert _dearest([trial(3.0), trial(4.0, gamma=0.5)]).gamma == 0.5  # type: ignore[union-attr]
    assert _dearest([]) is None


def test_a_choice_names_the_best_without_labels_and_the_closed_form() -> None:
    base = baseline(regression(), 20, 10)
    trials = (
        trial(2.0, budget=10.0),
        trial(5.0, budget=10.0, sharpness=4.0),
        trial(9.0, gamma=0.5, budget=100.0),
        trial(99.0, feasible=False),
    )
    found = _chosen(trials, base, 1.0)
    assert (found.gamma, found.budget, found.sharpness, found.feasible) == (0.5, 100.0, 1.0, True)
    assert (found.closed_form, found.without_labels) == (trials[0], trials[1])
    assert (found.trials, found.harmful) == (trials, base)
    assert found.reason == (
        "γ = 0.5, B = 100, q = 1: D_H takes 9 times the raw features' steps on validation rows, "
        "without labels 5 times; the closed form within the same constraints 2 times (B = 10)"
    )
    sharp = _chosen(trials[:2], base, 1.0)
    assert sharp.reason.endswith(
        "the labels buy nothing here; the closed form within the same constraints 2 times (B = 10)"
    )
    only = _chosen((trials[2],), base, 1.0)
    assert (only.closed_form, only.without_labels) == (None, None)
    assert only.reason.endswith("steps on validation rows")


def test_the_nearest_is_the_one_that_harms_the_other_tasks_least() -> None:
    base = baseline(regression(), 20, 10)
    worse, better = trial(9.0, False, spared={"D_P": -0.3, "b": 0.0}), trial(2.0, False, spared={"D_P": -0.1, "b": 0.0})
    found = _chosen((worse, better, trial(99.0, False, ratio_pretrain=3.0, spared={"D_P": 0.0})), base, 3.0 - 1e-9)
    assert "scores change by D_P -0.100, b +0.000" in found.reason
    assert "(ii) = 0.5" in found.reason
    assert "change by none" in _chosen((trial(1.0, False, spared={}),), base, 1.0).reason
    at_limit = trial(1.0, False, ratio_pretrain=1.0, spared={"D_P": 0.0})
    assert "(ii) = 1," in _chosen((worse, at_limit), base, 1.0).reason


def test_a_trial_has_the_facts_of_its_map() -> None:
    harmful, pretrain = classification(2), regression()
    directions = directions_of((pretrain.x, pretrain.y), (harmful.x, harmful.y), (1e-2, 1e-2), 1e-2)
    found = choose(
        *(directions, harmful, {"D_P": pretrain}),
        gammas=(0.5,),
        budgets=(4,),
        sharpnesses=(2,),
        limit=40,
        score_steps=15,
    )
    (one,) = found.trials
    best = signal_map(sharpen(directions, 2.0), 4.0, 0.5)
    assert (one.gamma, one.budget, one.sharpness) == (0.5, 4.0, 2.0)
    assert (one.ratio_pretrain, one.ratio_harmful) == (best.ratio_pretrain, best.ratio_harmful)
    raw = baseline(harmful, 40, 15)
    assert found.harmful == raw
    assert one.harmful == cost(harmful, best.theta, raw.threshold, 40, 15)
    assert one.times == one.harmful.times(raw.cost)
    assert one.spared == {"D_P": descent(pretrain, best.theta, 15).last - descent(pretrain, None, 15).last}
    limits = (one.ratio_pretrain, -one.spared["D_P"])
    for ease, slack, fine in ((limits[0], 9.0, True), (limits[0] - 1e-9, 9.0, False), (9.0, limits[1] - 1e-9, False)):
        options: dict[str, Any] = {"gammas": (0.5,), "budgets": (4,), "sharpnesses": (2,), "limit": 40}
        again = choose(directions, harmful, {"D_P": pretrain}, score_steps=15, ease_limit=ease, slack=slack, **options)
        assert again.trials[0].feasible is fine
    for empty in ("gammas", "budgets", "sharpnesses"):
        with pytest.raises(ValueError, match="at least one"):
            choose(directions, harmful, {}, **{empty: ()})  # type: ignore[arg-type]


def test_a_term_has_the_rank_cut_of_its_step() -> None:
    features = torch.diag(torch.tensor([2.0, 1.0, 1e-3], dtype=torch.float64))
    for tolerance, expected in ((1e-3, 4.0), (1e-9, 4e6)):
        step: Any = SimpleNamespace(
            spectral_view=lambda role, precondition: SpectralView(features, None),
            tolerance=lambda role, value=tolerance: value,
            over_harmful=lambda term: term("harmful"),
        )
        assert float(kappa_term(step, "harmful", "none")) == pytest.approx(expected)
        kept = features.diagonal()[: 2 if expected == 4 else 3] ** 2
        f = float(kept.square().sum() / len(kept) - kept[-1] ** 2) / 2  # Eq. 12
        assert float(ill_term(step, "none")) == pytest.approx(1 / f)


def test_every_method_is_an_objective_with_finite_weights() -> None:
    for method in (Ours(1, 2), WellOnly(3), IllOnly(4), OptKappa(), Plain(), Imma(), ClosedForm(), Signal()):
        assert isinstance(method, Objective)
        assert all(math.isfinite(weight) for weight in method.weights.values())
