"""Networks and loaders as others write them: measured as a whole would be, or refused in words."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import immunize
from immunize.errors import DivergedError, UserError
from immunize.features import DeepExtractor
from immunize.features.watching import Traced
from immunize.processes import signals_handled

D, CLASSES, PAD = 12, 3, 1
Loader = list[tuple[Tensor, Tensor]]


def parts() -> tuple[nn.Linear, nn.Linear]:
    return nn.Linear(20, 16), nn.Linear(16, D)


class Net(nn.Module):
    """`last` is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = parts()

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.last(self.first(x).tanh())
        return features


class Masked(nn.Module):
    """Which tokens are padding is asked of the tokens, behind the layer that is trained as well."""

    def __init__(self) -> None:
        super().__init__()
        options: dict[str, Any] = {"batch_first": True, "dropout": 0.0}
        self.embed = nn.Embedding(50, D)
        self.first, self.last = (nn.TransformerEncoderLayer(D, 2, 16, **options) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        pad = tokens == PAD
        x = self.first(self.embed(tokens), src_key_padding_mask=pad)
        x, kept = self.last(x, src_key_padding_mask=pad), (~pad).unsqueeze(-1)
        return (x * kept).sum(1) / kept.sum(1)


class Tied(Net):
    """A trained weight is used before its module is called."""

    def __init__(self) -> None:
        super().__init__()
        self.between = nn.Linear(D, 16)

    def forward(self, x: Tensor) -> Tensor:
        code = functional.linear(self.first(x).tanh(), self.last.weight)
        features: Tensor = self.last(self.between(code.tanh()).tanh())
        return features


class Writing(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2).sub_(1))


class Keeping(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.first(x).tanh()
        features: Tensor = self.last(self.kept)
        return features


class Chunked(Net):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super(Chunked, self).forward(part) for part in x.split(self.rows)])


class Closed(Net):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def compiled() -> nn.Module:
    first, last = parts()
    return nn.Sequential(first, nn.Tanh(), torch.compile(last, backend="eager"))


def numbers(n: int) -> Tensor:
    return torch.randn(n, 20)


def tokens(n: int) -> Tensor:
    found = torch.randint(2, 50, (n, 9))
    found[torch.arange(9) >= torch.randint(3, 10, (n, 1))] = PAD
    found[:8] = found[:8].clamp(min=2)  # the first rows, by which the network is cut, have no padding
    return found


def loaders(draw: Callable[[int], Tensor] = numbers) -> tuple[Loader, Loader]:
    torch.manual_seed(0)
    both = [[(draw(40), torch.randint(CLASSES, (40,))) for _ in range(4)] for _ in range(2)]
    return both[0], both[1]


def run(network: nn.Module, both: tuple[Any, Any] | None = None, **options: Any) -> immunize.Immunized:
    settings: dict[str, Any] = {"trainable": ["last"], "steps": 20, "learning_rate": 3e-3} | options
    return immunize.immunize(network, nn.Linear(D, CLASSES), *(both or loaders()), **settings)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("new", "draw", "trainable"),
    [
        (Masked, tokens, "last"),
        (Tied, numbers, "last"),
        (Writing, numbers, "last"),
        (Keeping, numbers, "last"),
        (compiled, numbers, "2"),
        (lambda: nn.Sequential(nn.Embedding(400, 16), nn.Linear(16, D)), lambda n: torch.randint(400, (n,)), "1"),
    ],
    ids=["masked", "tied", "writing", "keeping", "compiled", "one number a row"],
)
def test_ratios_are_those_of_the_whole_network(
    new: Callable[[], nn.Module], draw: Callable[[int], Tensor], trainable: str
) -> None:
    both = loaders(draw)
    network = new()
    found = run(network, copy.deepcopy(both), trainable=[trainable])
    with torch.no_grad():
        spectra = [
            immunize.spectrum_of(torch.cat([net(x.clone()) for x, _ in rows]).double())
            for net in (found.backbone.eval(), network.eval())
            for rows in both
        ]
    expected, told = immunize.immunization_ratio(*spectra, estimator="ridge"), found.ratios["ridge"].ratio
    assert told.ratio_harmful == pytest.approx(expected.ratio_harmful, rel=1e-5)
    assert told.ratio_pretrain == pytest.approx(expected.ratio_pretrain, rel=1e-5)


def test_a_cut_network_refuses_what_its_second_part_would_not_know_of() -> None:
    net = DeepExtractor.from_module(Masked().eval(), nn.Linear(D, CLASSES), ["first"], example=tokens(8))
    assert not net.split  # the mask is used behind
    net = DeepExtractor.from_module(Net().eval(), nn.Linear(D, CLASSES), ["last"], example=numbers(8))
    with pytest.raises(ValueError, match="inputs of one size"):
        net(torch.randn(8, 2, 20))


def test_what_is_made_of_a_tensor_is_known_however_it_is_used() -> None:
    x, other, mask = torch.randn(5), torch.randn(5), torch.zeros(5, dtype=torch.bool)
    with Traced(x) as traced:
        mask[:].copy_(x > 0)  # by a view
        part = other[: (x > 0).sum()]
        alike = [other.type_as(x), other.expand_as(x), x.new_zeros(5), torch.zeros_like(x)]
    assert all(made in traced for made in (x, mask, part))
    assert not any(made in traced for made in (other, *alike))
    for ask in (lambda: 0.0 in x, lambda: bool((x > 0).any()), x.tolist, lambda: f"{x[0]:.1f}"):
        with Traced(x) as asked:
            ask()
        assert asked.told


def once(rows: Loader) -> Any:
    passes: list[None] = []

    class Once:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            passes.append(None)
            return iter(rows if len(passes) == 1 else [])

    return Once()


@pytest.mark.parametrize(
    ("network", "options", "says"),
    [
        (Closed(), {}, "no gradient reaches it"),
        (Chunked(32), {}, "in parts"),
        (Chunked(4), {}, "in parts"),
        (torch.jit.script(nn.Sequential(*parts())), {"trainable": ["1"]}, "TorchScript"),
        (Net(), {"both": (loaders()[0], once(loaders()[1]))}, "harmful_loader gave no batch"),
    ],
    ids=["without gradients", "in parts", "in small parts", "scripted", "one pass"],
)
def test_what_cannot_be_immunized_is_told(network: nn.Module, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        run(network, **options)


@pytest.mark.parametrize("method", ["censor", "simulated", "contract"])
def test_a_network_that_collapses_has_diverged(method: str) -> None:
    torch.manual_seed(1)
    network = nn.Sequential(*parts(), nn.ReLU())
    with pytest.raises(DivergedError):
        run(network, method=method, trainable=["1"], learning_rate=1e4)


def test_ctrl_c_is_a_keyboard_interrupt() -> None:
    pretrain, harmful = loaders()
    asked = []

    class Pressed:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            for batch in harmful:
                asked.append(batch)
                if len(asked) == 30:
                    os.kill(os.getpid(), signal.SIGINT)
                yield batch

    handled = signals_handled({signal.SIGINT: signal.default_int_handler})  # what starts in the background ignores it
    with handled, pytest.raises(KeyboardInterrupt):
        run(Net(), (pretrain, Pressed()), steps=1000)
