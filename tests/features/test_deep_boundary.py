"""A network cut in two gives what it gave in one piece, and is not cut where that would be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from immunize.features.boundary import NoBoundaryError, Tail, Trunk, replaced, split_network


class Block(nn.Module):
    """A residual block that uses an activation which belongs to others as well."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(8, 8), act

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.inner(x))


class Arbitrary(nn.Module):
    """Residuals, a module called on both sides of the boundary, operations that are no modules, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.act = nn.Linear(6, 8), nn.Tanh()
        self.blocks = nn.ModuleList(Block(self.act) for _ in range(4))
        self.register_buffer("shift", torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x)) + self.shift
        for block in self.blocks:
            x = block(x)
        return self.act(x.clamp(min=-3))


class Skipping(nn.Module):
    """What the stem gives is used again at the end, so nothing separates the two."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.stem, self.side, self.last = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 8)
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.stem(x)) + self.weight * self.side(x)


def cut(net: nn.Module, names: Sequence[str], x: Tensor) -> tuple[Trunk, Tail]:
    """Make the parameters below `names` trainable, and the cut."""
    net.eval()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(any(name == start or name.startswith(f"{start}.") for start in names))
    return split_network(net, [p for p in net.parameters() if p.requires_grad], x)


def network(name: str, **kwargs: Any) -> nn.Module:
    """A timm model with random weights, whose classifier is the identity."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **kwargs)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that are not those of a fresh model
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model


RESNET = {"channels": [8, 8, 16, 16]}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3}
CONVNEXT = {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}
CASES = [
    ("resnet18", RESNET, ["layer4"], (8 * 2, 2, 2)),
    ("resnet18", RESNET, ["layer4.1"], (16, 1, 1)),
    ("resnet18", RESNET, ["layer4.1.conv2"], (16, 1, 1)),
    ("vit_tiny_patch16_224", VIT, ["blocks.2"], (17, 24)),
    ("vit_tiny_patch16_224", VIT, ["blocks.2.mlp", "norm"], (17, 24)),
    ("convnext_atto", CONVNEXT, ["stages.3"], (16, 2, 2)),
]


@pytest.mark.parametrize(("name", "kwargs", "names", "shape"), CASES)
def test_parts_are_the_timm_model(name: str, kwargs: Any, names: list[str], shape: tuple[int, ...]) -> None:
    net = network(name, **kwargs)
    x = torch.randn(5, 3, 32, 32)
    trunk, tail = cut(net, names, x[:2])
    h = trunk(x)
    assert tuple(h.shape) == (5, *shape)
    assert not h.requires_grad
    torch.testing.assert_close(tail(h), net(x), rtol=0, atol=1e-6)
    torch.testing.assert_close(tail(h), net.forward_head(net.forward_features(x), pre_logits=True), rtol=0, atol=1e-6)


def test_parts_are_an_arbitrary_module() -> None:
    torch.manual_seed(0)
    net, x = Arbitrary(), torch.randn(5, 6)
    trunk, tail = cut(net, ["blocks.2", "blocks.3"], x[:2])
    torch.testing.assert_close(tail(trunk(x)), net(x), rtol=0, atol=1e-6)


def test_residual_around_a_block_is_not_lost() -> None:
    class Around(Arbitrary):
        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for block in self.blocks:
                x = x + block.inner(x)
            return x

    with pytest.raises(NoBoundaryError, match="used after it"):
        cut(Around(), ["blocks.3"], torch.randn(2, 6))


def test_tail_computes_nothing_of_the_trunk() -> None:
    net = network("resnet18", **RESNET)
    x = torch.randn(4, 3, 32, 32)
    trunk, tail = cut(net, ["layer4"], x)
    called: list[str] = []
    for name, module in net.named_modules():
        if not list(module.children()):
            module.register_forward_pre_hook(lambda *_, name=name: called.append(name))
    tail(trunk(x))
    in_trunk = [name for name in called if not name.startswith("layer4") and name not in ("global_pool.pool", "fc")]
    assert in_trunk.count("conv1") == 1
    assert all(in_trunk.count(name) == 1 for name in in_trunk if "act" not in name)
    called.clear()
    tail(trunk(x[:1]))
    start = next(i for i, name in enumerate(called) if name.startswith("layer4"))
    assert not any(name.startswith(("conv1", "bn1", "maxpool", "layer1", "layer3")) for name in called[start:])


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_skip_connection_is_found_even_where_it_adds_zero(weight: float) -> None:
    """A branch that starts at zero gives the right values today; it is refused because it is there."""
    with pytest.raises(NoBoundaryError, match="used after it"):
        cut(Skipping(weight), ["last"], torch.randn(2, 6))


def test_parameter_used_without_calling_its_module() -> None:
    """`nn.MultiheadAttention` reads `out_proj.weight` and never calls `out_proj`."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.attention, self.last = nn.Linear(6, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)[None]
            return self.last(self.attention(x, x, x)[0])[0]

    torch.manual_seed(0)
    net, x = Attending(), torch.randn(3, 6)
    net.eval()
    with pytest.raises(NoBoundaryError):  # attention's input has its rows in the second place
        cut(net, ["attention.out_proj"], x)
    trunk, tail = cut(nn.Sequential(nn.Linear(6, 6), net), ["1"], x)
    tail(trunk(x)).sum().backward()
    assert net.attention.out_proj.weight.grad is not None


def test_network_that_writes_into_its_input_leaves_the_cache_alone() -> None:
    class Writing(Block):
        def forward(self, x: Tensor) -> Tensor:
            x.relu_()
            return x + self.inner(x)

    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 8), Writing(nn.Identity())), torch.randn(5, 6)
    trunk, tail = cut(net, ["1"], x)
    h = trunk(x)
    assert bool((h < 0).any())
    kept = h.clone()
    first = tail(h)
    assert torch.equal(h, kept)
    assert torch.equal(first, tail(h))
    assert torch.equal(first, net(x))


def test_rows_that_depend_on_each_other_cannot_be_cached() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 4))
    with pytest.raises(NoBoundaryError):
        cut(net, ["2"], torch.randn(4, 6))


def test_replaced_shares_parameters_and_leaves_the_original_alone() -> None:
    net = Arbitrary()
    twin = replaced(net, {id(net.blocks[3]): nn.Identity()})
    assert isinstance(net.blocks[3], Block)
    assert isinstance(twin.blocks[3], nn.Identity)
    assert twin.blocks[2] is net.blocks[2]
    net.double()
    assert twin.shift.dtype == torch.float64
