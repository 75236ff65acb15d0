"""Released networks: plain weights and weights with an appended map give the features that were released."""

from __future__ import annotations

import pytest
import torch

from immunize.errors import CheckpointError
from immunize.features import DeepExtractor, Released, StageOutputs, append_map, released_features, released_network
from immunize.features.released import MAP_OFF

D = 12


def small(seed: int = 0) -> DeepExtractor:
    return DeepExtractor.from_timm(
        "resnet18", trainable=["layer4"], n_classes=5, image_size=32, kwargs={"channels": [4, 8, 8, D]}, seed=seed
    )


def theta() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    q = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64, generator=generator))[0]
    return q * torch.logspace(0, -2, D, dtype=torch.float64)


@pytest.mark.parametrize("mapped", [False, True])
def test_features_are_those_of_the_network_whose_weights_they_are(mapped: bool) -> None:
    other, x = small(seed=1), torch.rand(3, 3, 32, 32)
    network = append_map(other.network, theta(), torch.linalg.inv(theta())) if mapped else other.network
    with torch.no_grad():
        expected = released_features(network, x)
        template = small()
        released = released_network(template, network.state_dict(), "a file")
        assert (released.map is not None) == mapped
        torch.testing.assert_close(released.mapped(released.net(x)), expected)
        torch.testing.assert_close(released.whole()(x), expected)
        torch.testing.assert_close(released.tail()(released.net.trunk(x)), expected)
    assert torch.equal(template.network.fc.weight, small().network.fc.weight)  # the template is not changed


def test_copies_are_trained_without_changing_what_was_released() -> None:
    released = Released(small(), theta().float())
    before = released.key
    for module, inputs in ((released.whole(), torch.rand(4, 3, 32, 32)), (released.tail(), None)):
        x = released.net.trunk(torch.rand(4, 3, 32, 32)) if inputs is None else inputs
        module.train()
        module(x).sum().backward()
        torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1).step()
    assert released.key == before
    whole = {name for name, p in released.whole().named_parameters() if p.requires_grad}
    assert {"conv1.weight", "fc.weight"} <= whole  # "fc" is where the map stands
    tail = [p for p in released.tail().parameters() if p.requires_grad]
    assert len(tail) == len(released.net.trainable_parameters()) + 1


def test_stages_are_those_of_the_architecture_averaged_over_places() -> None:
    net, x = small(), torch.rand(3, 3, 32, 32)
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
    vit = DeepExtractor.from_timm("vit_tiny_patch16_224", trainable=["blocks.1"], n_classes=5, image_size=32, kwargs={
        "depth": 2, "embed_dim": 24, "num_heads": 2,
    })  # fmt: skip
    stages = StageOutputs(Released(vit, torch.eye(24)), x[:1])
    assert {name: of.stop - of.start for name, of in stages.columns.items()} == dict.fromkeys(
        ("blocks.0", "blocks.1", MAP_OFF), 24
    )
    with torch.no_grad():
        torch.testing.assert_close(stages(x)[:, stages.columns[MAP_OFF]], vit(x))


def test_key_follows_weights_and_map_but_not_the_classifier() -> None:
    released = (Released(small()), Released(small(1)), Released(small(), theta()), Released(small(), -theta()))
    assert len({one.key for one in released}) == 4
    other = small()
    with torch.no_grad():
        other.head.weight += 1
    assert Released(other).key == Released(small()).key


def test_weights_that_do_not_fit_are_refused() -> None:
    state = small().full_state_dict()
    with pytest.raises(CheckpointError, match="does not fit"):
        released_network(small(), {name: value for name, value in state.items() if "layer4" not in name}, "a file")
    with pytest.raises(CheckpointError, match=r"map is \(3, 3\)"):
        released_network(small(), state | {"fc.map.weight": torch.eye(3)}, "a file")
