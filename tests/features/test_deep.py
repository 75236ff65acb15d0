"""Deep extractors: what is trainable and what is not, θ_0, names, transforms, and bad settings."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

from immunize.errors import CheckpointError, UserError
from immunize.features.boundary import NoBoundaryError, Part, Trunk, split_network
from immunize.features.deep import DeepExtractor, features_at, matching_parameters
from immunize.instantiate import NOT_ARGUMENTS
from immunize.instantiate import build as instantiated
from tests.composing import compose_config

KINDS: dict[str, dict[str, Any]] = {
    "resnet18": {"trainable": ["layer4"], "kwargs": {"channels": [8, 8, 16, 16]}},
    "vit_tiny_patch16_224": {
        "trainable": ["blocks.2"],
        "kwargs": {"patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3},
    },
    "convnext_atto": {"trainable": ["stages.3"], "kwargs": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}},
}


def build(name: str = "resnet18", **changes: Any) -> DeepExtractor:
    return DeepExtractor.from_timm(name, **({"n_classes": 5, "image_size": 32} | KINDS[name] | changes))


def settled(extractor: DeepExtractor) -> DeepExtractor:
    """With statistics that are not those of a fresh model."""
    for module in extractor.network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return extractor


def images(n: int = 6) -> torch.Tensor:
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def step(extractor: DeepExtractor, x: torch.Tensor) -> None:
    """One step of gradient descent on extractor and head."""
    parameters = [p for _, p in extractor.trainable_parameters()] + extractor.head_parameters()
    optimizer = torch.optim.SGD(parameters, 0.1)
    extractor.head(extractor(x)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", KINDS)
def test_only_the_named_part_and_the_head_move(name: str) -> None:
    extractor = build(name)
    before, theta_0 = extractor.full_state_dict(), extractor.reference()
    for _ in range(2):
        extractor.train()  # as Lightning does before every epoch
        step(extractor, images())
    after = extractor.full_state_dict()
    names = {p: key for key, p in extractor.network.named_parameters()}
    mine = {key for key in names.values() if key.startswith(KINDS[name]["trainable"][0])}
    assert {key for key, _ in extractor.trainable_parameters()} == mine
    moved = mine | {names[p] for p in extractor.head_parameters()}
    assert len(moved) == len(mine) + 2
    assert {key for p, key in names.items() if p.grad is not None} == moved
    frozen = {key for key in before if torch.equal(before[key], after[key])}  # means, variances, counts among them
    assert frozen == before.keys() - moved
    assert theta_0.moved_weight(after) is None
    assert theta_0.moved_weight(after, tail=False) in mine
    assert theta_0.moved_weight(after | {(one := min(frozen)): after[one] + 1}) == one


CUTS = [
    ("resnet18", "layer4", (16, 2, 2)),
    ("resnet18", "layer4.1", (16, 1, 1)),
    ("resnet18", "layer4.1.conv2", (16, 1, 1)),
    ("vit_tiny_patch16_224", "blocks.2", (17, 24)),
    ("vit_tiny_patch16_224", ["blocks.2.mlp", "norm"], (17, 24)),
    ("convnext_atto", "stages.3", (16, 2, 2)),
]


@pytest.mark.parametrize(("name", "trainable", "shape"), CUTS)
def test_features_logits_and_gradients_are_those_of_timm(name: str, trainable: Any, shape: tuple[int, ...]) -> None:
    extractor = settled(build(name, trainable=trainable)).double()
    plain = copy.deepcopy(extractor.network).eval().requires_grad_(True)
    x = images().double()
    h = extractor.trunk(x)
    assert h.shape[1:] == shape
    assert not h.requires_grad
    features = plain.forward_head(plain.forward_features(x), pre_logits=True)
    torch.testing.assert_close(extractor(x), features, rtol=0, atol=1e-12)
    torch.testing.assert_close(extractor.head(extractor(x)), plain(x), rtol=0, atol=1e-12)
    extractor(x).square().sum().backward()
    features.square().sum().backward()
    own = dict(plain.named_parameters())
    for key, parameter in extractor.trainable_parameters():
        torch.testing.assert_close(parameter.grad, own[key].grad, rtol=1e-9, atol=1e-9)
    assert extractor.n_features == features.shape[1]


def test_reference_is_theta_0_for_good() -> None:
    extractor, x = build(), images()
    start = extractor(x).detach()
    reference = extractor.reference()
    assert not any(p.requires_grad for p in reference.parameters())
    step(extractor, x)  # its own are trainable still
    assert torch.equal(reference(x), start)
    assert not torch.equal(extractor(x), start)
    reference.double()  # the copy's parts share its parameters, and not the original's
    assert reference(x).dtype == torch.float64
    assert extractor(x).dtype == torch.float32


def test_other_values_for_parameters_by_name() -> None:
    extractor = build()
    h = extractor.trunk(images())
    inner = {name: (0.5 * p.detach()).requires_grad_() for name, p in extractor.trainable_parameters()}
    replaced = extractor.features(h, inner)
    replaced.sum().backward()
    assert all(value.grad is not None for value in inner.values())
    assert all(p.grad is None for _, p in extractor.trainable_parameters())
    extractor.load_full_state_dict(extractor.full_state_dict() | inner)
    assert torch.equal(extractor.features(h), replaced)


def test_full_state_dict_has_timms_names_each_once_and_goes_back_in() -> None:
    one, other = build(seed=1), build(seed=2)
    state = one.full_state_dict()
    names = timm.create_model("resnet18", num_classes=5, **KINDS["resnet18"]["kwargs"]).state_dict().keys()
    assert state.keys() == names
    assert one.state_dict().keys() == {f"network.{name}" for name in names}
    assert not torch.equal(one(images()), other(images()))
    other.load_full_state_dict(state)
    assert torch.equal(one(images()), other(images()))
    step(one, images())
    assert torch.equal(state["fc.weight"], other.head.weight)  # copies, which do not move along
    state.pop("fc.bias")
    with pytest.raises(CheckpointError, match=r"lacks fc\.bias"):
        other.load_full_state_dict(state)


PARTS = nn.ModuleDict({"part1": nn.Linear(2, 2), "part10": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))})


def test_names_and_patterns_are_of_modules_and_parameters() -> None:
    for trainable, expected in (
        ("part1", ["part1.weight", "part1.bias"]),  # and of none whose name begins so
        (
            ["part10.?", "part1.bias"],
            ["part1.bias", *(f"part10.{of}" for of in dict(PARTS["part10"].named_parameters()))],
        ),
        ("*0.*.weight", ["part10.0.weight", "part10.1.weight"]),
        ("*", [name for name, _ in PARTS.named_parameters()]),
    ):
        assert matching_parameters(PARTS, trainable, "a network") == expected
    for wrong, words in (
        (["part2"], r"'part2' matches nothing in a network.*part10\.1 .*the classifier is trained anyway"),
        (["part1", "stages.3"], r"'stages\.3' matches nothing"),
        ([], "is empty"),
        (["part1", "part10*"], r"matches every parameter.*\[\"\*\"\]"),
        (3, "has to be names or patterns"),
    ):
        with pytest.raises(UserError, match=words):
            matching_parameters(PARTS, wrong, "a network")  # type: ignore[arg-type]


class Net(nn.Module):
    """Modules by name, and what is made of them and an input."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def test_a_tied_weight_is_trained_by_each_of_its_names_and_once() -> None:
    body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    body[2].weight = body[0].weight
    for patterns, names in ((["2"], ["2.weight", "2.bias"]), (["*"], ["0.weight", "0.bias", "2.bias"])):
        found = DeepExtractor.from_module(body, nn.Linear(4, 3), patterns)
        assert [name for name, _ in found.trainable_parameters()] == names


def test_network_in_one_piece_still_trains_the_named_part_alone() -> None:
    extractor = build("vit_tiny_patch16_224", trainable=["patch_embed", "blocks.2"])
    assert not extractor.split
    assert "nothing comes before" in extractor.no_split_reason
    x = images()
    assert extractor.trunk(x) is x
    extractor(x).sum().backward()
    moved = {name for name, p in extractor.network.named_parameters() if p.grad is not None}
    assert moved == {name for name, _ in extractor.trainable_parameters()}


def test_any_module_and_what_does_not_fit_it() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 4))
    head, x = nn.Linear(4, 3), torch.randn(5, 6)
    extractor = DeepExtractor.from_module(backbone, head, ["3"], example=x)
    assert extractor.split
    assert extractor.head is head
    assert torch.equal(extractor(x), backbone[3](torch.tanh(backbone[0](x))))
    assert [name for name, _ in extractor.trainable_parameters()] == ["3.weight", "3.bias"]
    assert not backbone.training
    assert not DeepExtractor.from_module(backbone, head, ["3"]).split
    with pytest.raises(UserError, match=r"the backbone gives tuple, the head needs \(N, 4\)"):
        DeepExtractor.from_module(nn.GRU(6, 4), head, ["weight_hh_l0"], example=x)
    with pytest.raises(UserError, match="bring a loader"):
        extractor.transform()
    extractor.check_classes(3)
    with pytest.raises(UserError, match="3 outputs, D_P has 7 classes"):
        extractor.check_classes(7)


def test_transform_is_that_of_the_configuration() -> None:
    extractor = build(data={"crop_pct": 1.0, "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]})
    picture = Image.new("RGB", (40, 40), (255, 0, 51))
    got = extractor.transform()(picture)
    expected = torch.tensor([2.0, -2.0, -1.2])[:, None, None].expand(3, 32, 32)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert "RandomResizedCrop" in repr(extractor.transform(train=True))
    assert "Jitter" not in repr(extractor.transform(train=True))
    with pytest.raises(UserError, match=r"no setting model\.data\.crop"):
        build(data={"crop": 1.0})


def scaled(by: float) -> Net:
    torch.manual_seed(0)
    return Net(lambda net, x: net.out(torch.tanh(by * net.first(x))), first=nn.Linear(3, 4), out=nn.Linear(4, 4))


def test_cache_facts_follow_what_changes_the_array() -> None:
    extractor, same = build(), build().cache_facts()
    features, trunk = extractor.cache_facts(), extractor.cache_facts("trunk")
    step(extractor, images())
    assert extractor.cache_facts() != features == same
    assert extractor.cache_facts("trunk") == trunk  # only the trainable part has moved
    with torch.no_grad():
        extractor.network.get_submodule("layer1.0.bn1").running_mean.add_(1e-3)
    assert extractor.cache_facts("trunk") != trunk
    small, vit = (KINDS[name]["kwargs"] for name in ("resnet18", "vit_tiny_patch16_224"))
    head, example = nn.Linear(4, 2), torch.ones(2, 3)
    others = [
        build(data={"interpolation": "nearest"}),
        build(kwargs=small | {"global_pool": "max"}),  # with the same weights
        *(build("vit_tiny_patch16_224", kwargs=vit | {"num_heads": heads}) for heads in (2, 4)),  # which no shape shows
        *(DeepExtractor.from_module(scaled(by), head, "out", example=example) for by in (1, 1, 5)),  # nor any weight
    ]
    assert len({str(facts) for facts in (features, *(one.cache_facts() for one in others))}) == 7


@pytest.mark.parametrize(
    ("model", "prefix", "size"),
    [
        ("resnet18", "layer4.", 224),  # the last two convolutional blocks
        ("vit", "blocks.11.", 224),
        ("resnet18_64px", "layer4.", 64),
        ("resnet_small", "layer4.", 32),
        ("vit_small", "blocks.3.", 32),
    ],
)
def test_every_yaml_builds_its_model(model: str, prefix: str, size: int) -> None:
    """As an entry point does, with random weights; the ViT with narrower blocks."""
    random = ["model.pretrained=false", "model.checkpoint=null", "objective=resnet18_cars"]
    cfg = compose_config(f"model={model}", *random)
    if model == "vit":
        cfg.model.kwargs = {"embed_dim": 24, "num_heads": 3}
    extractor: DeepExtractor = instantiated(cfg.model, leave_out=NOT_ARGUMENTS, n_classes=5, seed=0)
    assert extractor.split
    names = [name for name, _ in extractor.trainable_parameters()]
    assert all(name.startswith(prefix) for name in names)
    assert extractor.data_config["input_size"] == (3, size, size)
    assert extractor.n_classes == 5
    assert sum(p.numel() for p in extractor.parameters()) < 1e6 or "small" not in model


def cut(net: nn.Module, names: Sequence[str], x: Tensor) -> tuple[Trunk, Part]:
    """Make the parameters below `names` trainable, and the cut."""
    net.eval()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(any(name == start or name.startswith(f"{start}.") for start in names))
    return split_network(net, [p for p in net.parameters() if p.requires_grad], x)


@pytest.mark.parametrize("view", [True, False])
def test_trunk_has_channels_last_where_the_network_takes_them(view: bool) -> None:
    """Code that flattens by `view` does not."""

    def flat(x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1) if view else x.flatten(1)

    torch.manual_seed(0)
    parts = {"conv": nn.Conv2d(3, 4, 3), "one": nn.Linear(144, 5), "two": nn.Linear(5, 2)}
    net = Net(lambda net, x: net.two(net.one(flat(net.conv(x)))), **parts).double()
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    weight, place = net.conv.weight, net.conv.weight.data_ptr()
    expected = net(x)
    trunk, tail = cut(net, ["two"], x[:2])
    strides: list[int] = []
    net.conv.register_forward_hook(
        lambda module, _, output: strides.extend((module.weight.stride(1), output.stride(1)))
    )
    h = trunk(x)
    assert [stride == 1 for stride in strides] == [not view, not view]
    torch.testing.assert_close(tail(h), expected, rtol=0, atol=1e-12)
    assert weight.is_contiguous()  # and in its place, also where the network's code has failed
    assert weight.data_ptr() == place


def run_residual(net: Any, x: Tensor) -> Tensor:
    x = net.act(net.stem(x)) + net.shift
    for block in net.blocks:
        x = block(x)
    return net.act(x.clamp(min=-3))  # type: ignore[no-any-return]


def odd_networks() -> dict[str, tuple[Any, list[str]]]:
    """What is hard to cut, and what of each is trained; all take (N, 6)."""
    torch.manual_seed(0)
    act = nn.Tanh()
    blocks = [Net(lambda net, x: x + net.act(net.inner(x)), inner=nn.Linear(8, 8), act=act) for _ in range(4)]
    residual = Net(run_residual, stem=nn.Linear(6, 8), act=act, blocks=nn.ModuleList(blocks))
    residual.register_buffer("shift", torch.arange(8.0))
    asking = Net(lambda net, x: net.last(net.stem(x)) @ net.stem.weight, stem=nn.Linear(6, 4), last=nn.Linear(4, 4))
    attention = Net(
        lambda net, x: net.own(*[net.stem(x)[None]] * 3)[0][0], stem=nn.Linear(6, 8), own=nn.MultiheadAttention(8, 2)
    )
    writing = Net(lambda net, x: x.relu_() + net.inner(x), inner=nn.Linear(8, 8))
    return {
        "residuals, and a module on both sides": (residual, ["blocks.2", "blocks.3"]),
        "a frozen weight is asked for behind": (asking, ["last"]),
        "out_proj has a weight and is not called": (nn.Sequential(nn.Linear(6, 6), attention), ["1"]),
        "it writes into its input": (nn.Sequential(nn.Linear(6, 8), writing), ["1"]),
    }


@pytest.mark.parametrize("kind", odd_networks())
def test_cut_in_two_it_is_the_same_network_and_leaves_the_cache_alone(kind: str) -> None:
    (net, names), x = odd_networks()[kind], torch.randn(5, 6)
    trunk, tail = cut(net, names, x[:2])
    h = trunk(x)
    kept, first = h.clone(), tail(h)
    assert bool((h < 0).any())  # which `relu_` would change
    assert torch.equal(h, kept)
    assert torch.equal(first, tail(h))
    torch.testing.assert_close(first, net(x), rtol=0, atol=1e-6)
    first.sum().backward()
    trained = {id(parameter) for parameter in net.parameters() if parameter.requires_grad}
    assert {id(parameter) for parameter in net.parameters() if parameter.grad is not None} == trained
    assert {id(parameter) for parameter in tail.parameters() if parameter.requires_grad} == trained
    copied = copy.deepcopy(tail).double()  # a frozen weight goes where the copy goes
    torch.testing.assert_close(copied(h.double()), first.double(), rtol=0, atol=1e-6)


def test_tail_computes_nothing_of_the_trunk() -> None:
    net, x = build().network.requires_grad_(True), images()
    trunk, tail = cut(net, ["layer4"], x)
    called: list[str] = []
    for name, module in net.named_modules():
        if not list(module.children()):
            module.register_forward_pre_hook(lambda *_, name=name: called.append(name))
    h = trunk(x)
    assert called.count("conv1") == 1
    assert all(called.count(name) == 1 for name in called if "act" not in name)
    called.clear()
    tail(h)
    assert {name.partition(".")[0] for name in called} <= {"layer4", "global_pool", "fc"}


def test_what_cannot_be_cut_is_refused() -> None:
    parts = {"stem": nn.Linear(6, 8), "side": nn.Linear(6, 8), "last": nn.Linear(8, 8)}
    sides = [Net(lambda net, x, by=by: net.last(net.stem(x)) + by * net.side(x), **parts) for by in (1.0, 0.0)]
    before: list[Tensor] = []

    def unseen(net: Any, x: Tensor) -> Tensor:
        h = net.stem(x)
        return net.last(h) + torch.no_grad()(nn.Linear.forward)(net.last, h)  # type: ignore[no-any-return]

    def keep(net: Any, x: Tensor) -> Tensor:
        before[:] = [net.stem(x)]
        return before[0]

    behind = Net(lambda net, h: net.last(h) + before[0], last=parts["last"])
    for net, name, words in (
        *((side, "last", "used after it") for side in sides),  # a branch is there even where it adds zero today
        (Net(unseen, **parts), "last", "something else"),  # of which torch.fx sees nothing
        (nn.Sequential(Net(keep, stem=parts["stem"]), behind), "1", "something else"),  # nor of what they share
        (Net(lambda net, x: net.last(net.stem(x[: len(x)])), **parts), "last", "cannot follow"),
        (Net(lambda net, x: net.last(net.stem(x[None]))[0], **parts), "last", "one row for each image"),
        (Net(lambda net, x: net.last(net.stem(x - x.mean(0))), **parts), "last", "depend on the other images"),
    ):
        with pytest.raises(NoBoundaryError, match=words):
            cut(net, [name], torch.randn(4, 6))


def test_what_a_network_keeps_of_a_call_is_of_images_and_can_be_copied() -> None:
    def keep(net: Any, x: Tensor) -> Tensor:
        net.kept = net.last(net.stem(x))
        return net.kept  # type: ignore[no-any-return]

    for trained in ("stem", "last"):
        net = Net(keep, stem=nn.Linear(6, 8), last=nn.Linear(8, 8))
        with pytest.raises(NoBoundaryError) if trained == "stem" else contextlib.nullcontext():
            cut(net, [trained], torch.randn(4, 6))
        assert copy.deepcopy(net).kept.shape == (2, 8)


def test_maps_are_averaged_over_places_whichever_axis_their_channels_are() -> None:
    """As those of a Swin transformer, whose channels come last."""
    options = {"img_size": 64, "window_size": 2, "embed_dim": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}
    net = DeepExtractor.from_timm("swin_tiny_patch4_window7_224", trainable=["layers.3"], n_classes=3, kwargs=options)
    h = net.trunk(torch.randn(2, 3, 64, 64))
    with mock.patch("immunize.features.deep.MOST_COLUMNS", 8):
        _, output = features_at(net, h, ["layers.3"])
    whole = net.network.layers[:4](net.network.patch_embed(torch.zeros(2, 3, 64, 64)))
    assert whole.shape[-1] == output.shape[1] == 96


def test_what_a_module_gives_is_kept_from_what_comes_after() -> None:
    body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU(inplace=True))
    net = DeepExtractor.from_module(body, nn.Linear(4, 3), ["1"])
    _, output = features_at(net, torch.randn(30, 4), ["1"])
    assert float(output.detach().min()) < 0
