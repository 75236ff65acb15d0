"""The appended layer: same logits, mapped features, and what it costs in float32.

Released networks: plain weights and weights with an appended map give the features that were released.
"""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import timm
import torch
from torch import Tensor, nn

from immunize.errors import CheckpointError
from immunize.features.append import (
    MAP_OFF,
    AppendedHead,
    Released,
    StageOutputs,
    append_map,
    released_features,
    released_network,
)
from tests import reference as ref
from tests.features.test_deep import KINDS, Net, build, images, settled


def map_of(size: int, cond: float, seed: int = 3, *, orthogonal_columns: bool = False) -> tuple[Tensor, Tensor]:
    """θ with singular values from 1 to cond, symmetric unless its columns are to be orthogonal; and θ⁻¹."""
    q = torch.linalg.qr(ref.gaussian(size, size, seed=seed)).Q
    sigma = torch.logspace(0, torch.tensor(float(cond)).log10().item(), size, dtype=torch.float64)
    left = torch.eye(size, dtype=torch.float64) if orthogonal_columns else q
    return (q * sigma) @ left.T, (left / sigma) @ q.T


def relative(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).abs().max() / expected.abs().max())


def two_layers(width: int = 5) -> nn.Sequential:
    torch.manual_seed(1)
    layers = {"trunk": nn.Linear(6, width), "relu": nn.ReLU(), "head": nn.Linear(width, 3)}
    return nn.Sequential(OrderedDict(layers)).double()


# --- the logits -----------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
@pytest.mark.parametrize("name", KINDS)
def test_logits_are_the_original_ones_and_features_are_mapped(name: str, dtype: torch.dtype, tolerance: float) -> None:
    model = settled(build(name)).network.to(dtype)
    before = copy.deepcopy(model.state_dict())
    x = images(24).to(dtype)
    theta, inverse = map_of(model.get_classifier().in_features, cond=500)
    released = append_map(model, theta, inverse)
    logits = model(x)
    assert logits.std(0).max() > 1e-3  # not only a bias
    assert relative(released(x), logits) < tolerance
    assert relative(released_features(released, x), released_features(model, x) @ theta.to(dtype)) < tolerance
    assert isinstance(released.get_classifier(), AppendedHead)
    assert not any(isinstance(module, AppendedHead) for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@torch.no_grad()
def test_an_inverse_within_the_tolerance_does_not_limit_float64() -> None:
    model, (theta, inverse), x = two_layers(), map_of(5, 10), ref.gaussian(9, 6, seed=7)
    assert relative(append_map(model, theta, inverse * (1 + 5e-7))(x), model(x)) < 1e-13


# --- arithmetic -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_maps_too_ill_conditioned_for_float32_are_refused_but_for_angles_between_columns_not_cond() -> None:
    model, x = two_layers(192).float(), ref.gaussian(24, 6, seed=8).float()
    assert relative(append_map(model, *map_of(192, 1e8, orthogonal_columns=True))(x), model(x)) < 5e-6
    alike = [map_of(192, 1e4, seed) for seed in (3, 4, 5)]  # by how much they err differs by BLAS
    with pytest.raises(ValueError, match="wider dtype"):
        append_map(model, *alike[0])
    assert max(relative(append_map(model, *one, tolerance=1.0)(x), model(x)) for one in alike) > 5e-5  # rightly so
    assert relative(append_map(model.double(), *map_of(192, 1e6))(x.double()), model(x.double())) < 1e-9


# --- as a module ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trained", [True, False])
def test_dtype_requires_grad_mode_and_the_random_state_are_kept(trained: bool) -> None:
    model = two_layers().bfloat16().requires_grad_(False).train(trained)
    model[2].requires_grad_(trained)
    state = torch.get_rng_state()
    released = append_map(model, *map_of(5, 10), tolerance=1.0)
    assert {p.dtype for p in released.parameters()} == {torch.bfloat16}
    assert torch.equal(torch.get_rng_state(), state)
    assert [p.requires_grad for p in released[2].parameters()] == [trained] * 3  # type: ignore[index]
    assert not released[0].weight.requires_grad  # type: ignore[index,union-attr]
    assert all(module.training is trained for module in released.modules())


@torch.no_grad()
def test_a_second_map_joins_the_first_in_one_layer() -> None:
    model, x = two_layers(), ref.gaussian(9, 6, seed=14)
    first, second = map_of(5, 10), map_of(5, 20, seed=15)
    twice = append_map(append_map(model, *first), *second)
    assert sum(isinstance(module, nn.Linear) for module in twice.modules()) == 3
    assert relative(twice(x), model(x)) < 1e-12
    mapped = released_features(model, x) @ first[0] @ second[0]
    assert relative(released_features(twice, x), mapped) < 1e-13
    by_name = append_map(append_map(model, *first), *second, head="head.head")  # not nested either
    assert relative(released_features(by_name, x), mapped) < 1e-13


@torch.no_grad()
def test_heads_of_plain_modules() -> None:
    maps, x = map_of(5, 10), ref.gaussian(9, 6, seed=16)
    f = ref.gaussian(9, 5, seed=17)
    for linear in (nn.Linear(5, 3), nn.Sequential(nn.Linear(5, 3, bias=False)), timm.layers.Linear(5, 3)):
        assert relative(append_map(linear.double(), *maps)(f), linear(f)) < 1e-13
    numbered = nn.Sequential(*two_layers())
    assert relative(append_map(numbered, *maps, head="2")(x), numbered(x)) < 1e-13


# --- refusals -------------------------------------------------------------------------------------------------------


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.normalize(x), nn.functional.normalize(self.weight))


def test_heads_and_maps_that_cannot_be_folded_are_named() -> None:
    (theta, inverse), nan = map_of(5, 10), torch.full((5, 5), torch.nan, dtype=torch.float64)
    shared, broken = nn.Linear(5, 5), nn.Linear(5, 3)
    nn.init.constant_(broken.weight, torch.nan)
    distilled = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, depth=1, num_classes=3)
    for model, options, message in (
        (two_layers(), {"head": "fc"}, "'fc'; its linear layers are 'trunk', 'head'"),
        (two_layers(), {"head": "relu"}, "'relu' is a ReLU"),
        (nn.Sequential(nn.ReLU()), {}, "no linear head"),
        (timm.create_model("resnet10t", num_classes=0), {}, "no linear head"),
        (distilled, {}, "several linear heads: give head=, one of 'head', 'head_dist'"),
        (nn.ModuleDict({"fc": nn.Linear(5, 3), "head": nn.Linear(5, 3)}), {}, "several"),
        (nn.Sequential(*two_layers()), {}, "give head=, one of '0', '2'"),
        (nn.ModuleDict({"fc": shared, "body": shared}), {}, "several names"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)), {}, "parametrization"),
        (nn.LazyLinear(3), {}, "no values yet"),
        (nn.Linear(5, 3, device="meta"), {}, "no values yet"),
        (broken, {}, "weight .* NaN"),
        (Cosine(5, 3), {}, "does not compute"),
        (two_layers().half(), {"theta": theta * 1e6, "inverse": inverse / 1e6, "tolerance": 1e3}, "cannot be stored"),
        (two_layers(), {"inverse": inverse[:4]}, "inverse has to be 5×5"),
        (two_layers(), {"theta": torch.eye(4, dtype=torch.float64), "inverse": None}, "theta has to be 5×5"),
        (two_layers(), {"theta": nan}, "theta contains NaN"),
        (two_layers(), {"inverse": inverse * (1 + 1e-5)}, "not inverse to each other"),
    ):
        with pytest.raises(ValueError, match=message):
            append_map(model, **{"theta": theta, "inverse": inverse} | options)
    with pytest.raises(TypeError, match="theta has to be float64"):
        append_map(two_layers(), theta.float(), inverse)


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_head_that_is_not_used_once_has_no_released_features(times: int) -> None:
    model, x = Net(lambda net, x: [net.fc(x) for _ in range(times)], fc=nn.Linear(5, 5)), torch.zeros(2, 5)
    if times == 1:
        assert released_features(model, x) is x
    else:
        with pytest.raises(ValueError, match=f"{times} times"):
            released_features(model, x)
    assert not model.fc._forward_pre_hooks


# --- without an inverse, and what is released of networks -------------------------------------------------------------


def test_a_map_without_inverse_is_appended_and_leaves_the_head_as_it_is() -> None:
    model, x = two_layers(), ref.gaussian(4, 6, seed=18)
    theta = torch.eye(5, dtype=torch.float64)
    theta[0, 0] = 0
    released = append_map(model, theta, None)
    features = released_features(released, x)
    torch.testing.assert_close(features, released_features(model, x) @ theta)
    torch.testing.assert_close(released(x), model[2](features))
    twice = append_map(released, 2 * theta, None)
    torch.testing.assert_close(released_features(twice, x), 2 * features)


THETA, INVERSE = map_of(16, 1e-2, orthogonal_columns=True)


@pytest.mark.parametrize("mapped", [False, True])
def test_features_are_those_of_the_network_whose_weights_they_are(mapped: bool) -> None:
    other, x = build(seed=1), torch.rand(3, 3, 32, 32)
    network = append_map(other.network, THETA, INVERSE) if mapped else other.network
    with torch.no_grad():
        expected = released_features(network, x)
        template = build()
        released = released_network(template, network.state_dict(), "a file")
        assert (released.map is not None) == (released.appended is not None) == mapped
        if released.appended is not None:
            torch.testing.assert_close(released.appended(released.net(x)), network(x))
        torch.testing.assert_close(released.mapped(released.net(x)), expected)
        torch.testing.assert_close(released.whole()(x), expected)
        torch.testing.assert_close(released.tail()(released.net.trunk(x)), expected)
    assert torch.equal(template.network.fc.weight, build().network.fc.weight)  # the template is not changed


def test_copies_are_trained_without_changing_what_was_released() -> None:
    released = Released(build(), THETA.float())
    before, x = released.key, torch.rand(4, 3, 32, 32)
    for module, given in ((released.whole(), x), (released.tail(), released.net.trunk(x))):
        module.train()
        module(given).sum().backward()
        torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1).step()
    assert released.key == before
    whole = {name for name, p in released.whole().named_parameters() if p.requires_grad}
    assert {"conv1.weight", "fc.weight"} <= whole  # "fc" is where the map stands
    tail = [p for p in released.tail().parameters() if p.requires_grad]
    assert len(tail) == len(released.net.trainable_parameters()) + 1


def test_stages_are_those_of_the_architecture_averaged_over_places() -> None:
    net, x = build(), torch.rand(3, 3, 32, 32)
    before = Released(net).key
    stages = StageOutputs(Released(net), x[:1])
    assert list(stages.columns) == ["act1", "layer1", "layer2", "layer3", "layer4"]
    with torch.no_grad():
        stem = net.network.act1(net.network.bn1(net.network.conv1(x)))
        first = net.network.layer1(net.network.maxpool(stem))
        outputs = stages(x)
        torch.testing.assert_close(outputs[:, stages.columns["act1"]], stem.mean((2, 3)))
        torch.testing.assert_close(outputs[:, stages.columns["layer1"]], first.mean((2, 3)))
        torch.testing.assert_close(outputs[:, stages.columns["layer4"]], net(x))
    assert Released(net).key == before
    vit = build("vit_tiny_patch16_224")
    stages = StageOutputs(Released(vit, torch.eye(24)), x[:1])
    widths = {name: of.stop - of.start for name, of in stages.columns.items()}
    assert widths == {"blocks.0": 24, "blocks.1": 24, "blocks.2": 24, MAP_OFF: 24}
    with torch.no_grad():
        torch.testing.assert_close(stages(x)[:, stages.columns[MAP_OFF]], vit(x))


def test_key_follows_weights_map_and_what_may_be_trained_but_not_the_classifier() -> None:
    released = (Released(build()), Released(build(seed=1)), Released(build(), THETA), Released(build(), -THETA))
    more = Released(build(trainable=["layer3", "layer4"]))
    assert len({one.key for one in (*released, more)}) == 5
    other = build()
    with torch.no_grad():
        other.head.weight += 1
    assert Released(other).key == Released(build()).key


def test_weights_that_do_not_fit_are_refused() -> None:
    state = build().full_state_dict()
    less = {name: value for name, value in state.items() if "layer4" not in name}
    for wrong, words in ((less, "does not fit"), (state | {"fc.map.weight": torch.eye(3)}, r"map is \(3, 3\)")):
        with pytest.raises(CheckpointError, match=words):
            released_network(build(), wrong, "a file")
