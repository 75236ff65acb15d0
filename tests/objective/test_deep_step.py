"""A step of a deep net: features once, float64 spectra, which parameters each term moves, the layer of C.3."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from immunize.features.linear import RIDGE, preconditioned_features
from immunize.objective import DeepSide, DeepStep, ranks, task_loss
from immunize.objective.ill_only import IllOnly
from immunize.objective.opt_kappa import OptKappa
from immunize.objective.ours import Ours
from immunize.spectrum.condition import default_tolerance
from tests import reference as ref
from tests.objective.tiny import CLASSES, D, N, network, step_of


def features_by_hand(step: DeepStep, role: str) -> Tensor:
    inner, last = step.net.network.backbone[2:]  # type: ignore[index,misc]
    h = (step.pretrain if role == "pretrain" else step.harmful).h.to(last.weight.dtype)
    return torch.tanh(h @ inner[0].weight.T + inner[0].bias) @ last.weight.T + last.bias


def test_terms_are_those_of_the_features_by_hand() -> None:
    step = step_of(network())
    terms = {name: term.detach() for name, term in (Ours(1, 1, "none").terms(step) | OptKappa().terms(step)).items()}
    f_p, f_h = (features_by_hand(step, role).detach() for role in ("pretrain", "harmful"))
    h_p, h_h = f_p.T @ f_p, f_h.T @ f_h
    assert float(terms["well"]) == pytest.approx(ref.r_well(h_p), rel=1e-9)
    assert float(terms["ill"]) == pytest.approx(ref.r_ill(h_h, 1e-11), rel=1e-7)
    assert float(terms["kappa_harmful"]) == pytest.approx(math.log(ref.kappa(h_h, 1e-11)), rel=1e-7)
    literal = OptKappa(log=False).terms(step)["kappa_harmful"].detach()
    assert float(literal) == pytest.approx(ref.kappa(h_h, 1e-11), rel=1e-7)
    logits = step.net.head(f_p)
    smoothed = 0.9 * nn.functional.one_hot(step.pretrain.y, CLASSES).double() + 0.1 / CLASSES
    expected = -(smoothed * logits.log_softmax(1)).sum(1).mean()
    assert float(terms["task"]) == pytest.approx(float(expected.detach()), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spectra_are_float64_and_outside_mixed_precision(dtype: torch.dtype) -> None:
    net, same = (network().to(dtype) for _ in range(2))
    plain = step_of(same).spectral_view("harmful", "none").features
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = step_of(net)
        features = mixed.spectral_view("harmful", "none").features
        ill = IllOnly(1).terms(mixed)["ill"]
        logits, loss = mixed.logits("harmful", mixed.omega), mixed.pretrain_loss()
        assert torch.equal(mixed.features("harmful", mixed.parameters()), mixed.features("harmful"))
    assert torch.equal(mixed.again().pretrain_loss(), loss)
    assert logits.dtype == dtype
    assert features.dtype == ill.dtype == torch.float64
    assert (mixed.harmful.h.dtype == torch.bfloat16) == (dtype == torch.float32)  # the trunk alone was rounded
    torch.testing.assert_close(features, plain, rtol=0.1, atol=0.05)
    by_hand = features_by_hand(mixed, "harmful").double()
    torch.testing.assert_close(features, by_hand, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("precondition", ["inverse_free", "dummy", "literal", "newton"])
def test_what_needs_the_linear_models_gram_matrix_is_refused(precondition: str) -> None:
    with pytest.raises(ValueError, match="there are features, none"):
        Ours(1, 1, precondition).terms(step_of(network()))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "smoothing"), [("mse", 0.1), ("ce", 1.0), ("ce", -0.1), ("hinge", 0.0)])
def test_losses_that_there_are_not_are_refused(name: str, smoothing: float) -> None:
    with pytest.raises(ValueError, match="label_smoothing" if smoothing else "mse, bce"):
        task_loss(name, smoothing)


@pytest.mark.parametrize(("n", "d"), [(5, 9), (9, 5)])
def test_the_layer_of_c3_multiplies_by_the_inverse_on_the_feature_side(n: int, d: int) -> None:
    f = ref.gaussian(n, d, seed=5).requires_grad_()
    g = ref.gaussian(n, d, seed=6)
    out = preconditioned_features(f, 1e-3)
    assert torch.equal(out, f)
    (slope,) = torch.autograd.grad(out, f, g)
    expected = g @ torch.linalg.inv(ref.shrunk(f.detach().T @ f.detach(), 1e-3))
    torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("value", "role"), [(math.nan, "pretrain"), (0.0, "harmful")])
def test_features_without_a_spectrum_are_named(value: float, role: str) -> None:
    step = step_of(network())
    assert step.unusable() is None
    with torch.no_grad():
        for parameter in step.parameters().values():
            parameter.fill_(value)
    step.features(role)
    assert step.unusable() == (role, pytest.approx(value, nan_ok=True))


# Several harmful data sets.


def several() -> DeepStep:
    """The same network, with 16 samples of two harmful data sets: labels 0 and 1, and 2 to 4."""
    step = step_of(network(), rows=16)
    y = torch.tensor([0, 1] * 4 + [2, 3, 4, 2] * 2)
    return replace(step, harmful=DeepSide(step.harmful.h, y), harmful_classes=(2, 3))


def test_regularizers_of_several_sets_are_put_together() -> None:
    step = several()
    terms = Ours(1, 1, "none").terms(step) | OptKappa().terms(step)
    parts = features_by_hand(step, "harmful").detach().split(8)
    ill = [ref.r_ill(f.T @ f, 1e-11) for f in parts]
    kappa = [math.log(ref.kappa(f.T @ f, 1e-11)) for f in parts]
    assert ill[0] != pytest.approx(ill[1], rel=1e-3)
    assert float(terms["ill"].detach()) == pytest.approx(sum(ill), rel=1e-7)
    assert float(terms["kappa_harmful"].detach()) == pytest.approx(sum(kappa), rel=1e-7)


def test_labels_are_those_of_the_data_set_that_is_asked_for() -> None:
    step = step_of(network())
    step = replace(step, harmful=replace(step.harmful, y=step.harmful.y.flip(0)))
    for role, side in (("pretrain", step.pretrain), ("harmful", step.harmful)):
        (features,), labels = step.labelled(role, [side.h])
        assert torch.equal(labels, side.y)
        assert torch.equal(features, side.h.double())


def test_a_deep_step_has_the_batchs_tolerance_and_computes_features_of_theta_once() -> None:
    step = step_of(network())
    assert list(step.parameters()) == ["2.0.weight", "2.0.bias", "3.weight", "3.bias"]
    assert step.tolerance("pretrain") == step.tolerance("harmful") == default_tolerance(N, D)
    features = step.features("pretrain")
    assert step.features("pretrain") is features
    assert step.again().features("pretrain") is not features
    assert torch.equal(step.again().features("pretrain"), features)
    doubled = step.parameters() | {"3.weight": 2 * step.parameters()["3.weight"]}
    assert not torch.equal(step.features("pretrain", doubled), features)


def test_rows_of_each_harmful_set_are_those_of_its_classes() -> None:
    step = several()
    whole = step.features("harmful").double()
    for number, chosen in enumerate((step.harmful.y < 2, step.harmful.y >= 2)):
        view = step.spectral_view(f"harmful:{number}", "none")
        assert torch.equal(view.features, whole[chosen])
        assert view.theta is None
    for of, expected in ((step, ["harmful:0", "harmful:1"]), (replace(step, harmful_classes=(5,)), ["harmful"])):
        names: list[str] = []
        of.over_harmful(lambda role, names=names: names.append(role) or torch.tensor(1.0))  # type: ignore[misc]
        assert names == expected


def test_unusable_features_are_found_in_gathered_sets_too() -> None:
    step = several()
    step.spectral_view("harmful:1", "none")
    assert step.unusable() is None
    for value in (0.0, math.nan):
        step._gathered["harmful:1"] = torch.full((1, 4), value)
        assert step.unusable() == ("harmful", pytest.approx(value, nan_ok=True))


def test_the_ridge_of_a_view_is_the_smallest_that_keeps_digits() -> None:
    step = step_of(network())
    view = step.spectral_view("pretrain", "features").features
    (slope,) = torch.autograd.grad(view.sum(), step.features("pretrain"))
    features = step.features("pretrain").detach()
    inverse = torch.linalg.inv(ref.shrunk(features.T @ features, RIDGE))
    torch.testing.assert_close(slope, torch.ones_like(features) @ inverse)


# Processes that share a batch: rows of all, means over all, and their gradients.


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes `torch.distributed` that of rank 1 of three, where the others have made this number."""

    def share(others: float = 0.0, world_size: int = 3, **changes: Any) -> Any:
        def all_gather(parts: list[Tensor], own: Tensor) -> None:
            for index, part in enumerate(parts):
                part.copy_(own if index == 1 else torch.full_like(own, others))

        def all_reduce(value: Tensor, op: str = "sum") -> None:
            made.reduced.append(value.clone())
            value.copy_(value.clamp_max(others) if op == "min" else value + 2 * others)

        facts = {"is_available": True, "is_initialized": True, "get_world_size": world_size, "get_rank": 1} | changes
        made = SimpleNamespace(all_gather=all_gather, all_reduce=all_reduce, reduced=[])
        made.ReduceOp = SimpleNamespace(MIN="min", SUM="sum")
        vars(made).update((name, Mock(return_value=value)) for name, value in facts.items())
        monkeypatch.setattr(ranks, "distributed", made)
        return made

    return share


@pytest.mark.parametrize("missing", [None, "is_available", "is_initialized"])
def test_one_process_shares_with_nobody(missing: str | None, shared: Callable[..., Any]) -> None:
    if missing is not None:
        shared(**{missing: False})
    x = torch.ones(2, 3)
    assert ranks.world_size() == 1
    assert ranks.gather_rows(x) is x
    (mean,) = ranks.mean_over_ranks([x])
    assert mean is x
    assert ranks.all_finite(torch.tensor(1.0))
    assert not ranks.all_finite(torch.tensor(math.nan))


def test_rows_of_all_processes_in_order_and_a_gradient_times_their_number(shared: Callable[..., Any]) -> None:
    shared(7.0)
    assert ranks.world_size() == 3
    x = ref.gaussian(2, 3, seed=1).requires_grad_()
    whole = ranks.gather_rows(x)
    assert torch.equal(whole, torch.cat([torch.full((2, 3), 7.0).double(), x, torch.full((2, 3), 7.0).double()]))
    weights = ref.gaussian(6, 3, seed=2)
    (slope,) = torch.autograd.grad((whole * weights).sum(), x)
    assert torch.equal(slope, 3 * weights[2:4])


@pytest.mark.parametrize("size", [2, 3])
def test_every_process_has_every_so_manieth_sample_of_the_batch(size: int, shared: Callable[..., Any]) -> None:
    shared(world_size=size)
    assert ranks.own_of(torch.tensor([1, 2, 7, 9])).tolist() == {2: [0, 3, 4], 3: [0, 2]}[size]


def test_a_mean_over_processes_and_its_derivatives_are_means(shared: Callable[..., Any]) -> None:
    three = shared(4.0)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (mean,) = ranks.mean_over_ranks([x])
    assert mean.tolist() == pytest.approx([3.0, 10 / 3])
    (slope,) = torch.autograd.grad((mean**2).sum(), x, create_graph=True)
    assert slope.tolist() == pytest.approx([(6 + 8) / 3, (20 / 3 + 8) / 3])
    (second,) = torch.autograd.grad(slope[0], x)
    assert second.tolist() == pytest.approx([14 / 3, 40 / 9])
    assert len(three.reduced) >= 3


@pytest.mark.parametrize(("others", "value", "finite"), [(1, 2.0, True), (0, 2.0, False), (1, math.nan, False)])
def test_a_value_is_finite_where_it_is_in_all(others: int, value: float, finite: bool, shared: Any) -> None:
    shared(others)
    assert ranks.all_finite(torch.tensor(value, requires_grad=True)) is finite
