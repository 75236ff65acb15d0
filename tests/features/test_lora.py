"""LoRA: nothing changes at the start, only the updates learn, and merging them changes nothing either."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from immunize.errors import UserError
from immunize.features.lora import LoraLayer, add_lora
from tests.features.test_deep import KINDS, build, images


def learned(network: nn.Module) -> None:
    """Updates as some training may leave them."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, LoraLayer):
                module.b.normal_(0, 0.1, generator=generator)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rank", [1, 64])
def test_network_is_what_it_was_at_the_start(name: str, rank: int) -> None:
    network, x = build(name).network.eval(), images()
    plain = {name: value.clone() for name, value in network.state_dict().items()}
    with torch.no_grad():
        before = network(x)
        names = add_lora(network, rank)
        assert torch.equal(network(x), before)
        learned(network)
        moved = network(x)
        assert (moved - before).abs().max() > 1e-3 * before.abs().max()
    after = {name.replace(".base.", "."): value for name, value in network.state_dict().items()}
    assert all(torch.equal(after[name], value) for name, value in plain.items())
    assert {name.rpartition(".")[0] for name in after.keys() - plain.keys()} == set(names)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 9),
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(3, 5, (1, 3), padding="same", padding_mode="circular"),
        nn.Conv2d(2, 4, 3, dilation=2, bias=False),
    ],
)
def test_update_has_the_rank_it_was_given_and_its_weight_computes_the_same(layer: nn.Module) -> None:
    layer = layer.double()
    x = torch.randn(4, 6).double() if isinstance(layer, nn.Linear) else torch.randn(2, layer.in_channels, 9, 9).double()
    lora = LoraLayer(layer, 2, alpha=3.0)
    learned(nn.Sequential(lora))
    update = (lora.weight - layer.weight).flatten(1)
    assert torch.linalg.matrix_rank(update) == 2
    assert torch.allclose(update, 3 / 2**0.5 * lora.b.flatten(1) @ lora.a.flatten(1))
    plain = copy.deepcopy(layer)
    plain.weight.data = lora.weight.detach()
    torch.testing.assert_close(plain(x), lora(x), rtol=1e-12, atol=1e-12)


def test_rank_is_at_most_the_layers_own() -> None:
    assert LoraLayer(nn.Linear(6, 9), 64, 1.0).a.shape == (6, 6)
    assert LoraLayer(nn.Conv2d(3, 4, 3), 64, 1.0).a.shape == (4, 3, 3, 3)


def test_a_layer_in_two_places_has_one_update_in_both() -> None:
    shared = nn.Linear(3, 3)
    network = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(3, 2))
    assert add_lora(network, 2) == ["0", "2", "3"]
    assert isinstance(network[0], LoraLayer)
    assert network[0] is network[2]


def test_layers_that_compute_something_else_are_left_alone() -> None:
    class Other(nn.Linear):
        pass

    network = nn.Sequential(Other(4, 4), nn.Conv2d(4, 4, 3, groups=4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert add_lora(network, 1) == ["2"]
    with pytest.raises(UserError, match="no linear layer"):
        add_lora(nn.Sequential(nn.ReLU()), 1)
