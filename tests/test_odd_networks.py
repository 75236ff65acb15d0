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
from immunize.processes import signals_handled
from tests.features.test_deep import Net
from tests.test_api import CLASSES, D, immunized, layers, loader, one_by_one

PAD = 1
Loader = list[tuple[Tensor, Tensor]]


def masked() -> Net:
    """Which tokens are padding is asked of the tokens, behind the layer that is trained as well."""

    def run(net: Any, tokens: Tensor) -> Tensor:
        pad = tokens == PAD
        x = net.first(net.embed(tokens), src_key_padding_mask=pad)
        x, kept = net.last(x, src_key_padding_mask=pad), (~pad).unsqueeze(-1)
        return (x * kept).sum(1) / kept.sum(1)

    first, last = (nn.TransformerEncoderLayer(D, 2, 16, 0.0, batch_first=True) for _ in range(2))
    return Net(run, embed=nn.Embedding(50, D), first=first, last=last)


def tied() -> Net:
    """A trained weight is used before its module is called."""

    def run(net: Any, x: Tensor) -> Tensor:
        code = functional.linear(net.first(x).tanh(), net.last.weight)
        return net.last(net.between(code.tanh()).tanh())

    return layers(run, between=nn.Linear(D, 16))


def keeping() -> Net:
    def run(net: Any, x: Tensor) -> Tensor:
        net.kept = net.first(x).tanh()
        return net.last(net.kept)

    return layers(run)


def chunked(rows: int) -> Net:
    return layers(lambda net, x: torch.cat([one_by_one(net, part) for part in x.split(rows)]))


def compiled_in_part() -> Net:
    net = layers()
    net.last = torch.compile(net.last, backend="eager")  # type: ignore[assignment]
    return net


def embedded(numbers: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(400, 16), nn.Flatten(), nn.Linear(numbers * 16, D))


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


def run(network: nn.Module, *both: Any, **options: Any) -> immunize.Immunized:
    return immunized((network, nn.Linear(D, CLASSES)), *(both or loaders()), **{"steps": 20} | options)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("new", "draw", "trainable"),
    [
        (layers, numbers, "last"),
        (masked, tokens, "last"),
        (tied, numbers, "last"),
        (lambda: layers(lambda net, x: one_by_one(net, x.mul_(2).sub_(1))), numbers, "last"),  # writes into its inputs
        (keeping, numbers, "last"),
        (lambda: chunked(32), numbers, "last"),
        (compiled_in_part, numbers, "last"),
        (lambda: torch.compile(layers(), backend="eager"), numbers, "last"),
        (lambda: embedded(1), lambda n: torch.randint(400, (n,)), "2"),  # one number a row
        (lambda: embedded(9), tokens, "0"),
    ],
)
def test_ratios_are_those_of_the_whole_network(new: Any, draw: Any, trainable: str) -> None:
    both, network = loaders(draw), new()
    found = run(network, *copy.deepcopy(both), trainable=trainable)
    with torch.no_grad():
        spectra = [
            immunize.spectrum_of(torch.cat([net(x.clone()) for x, _ in rows]).double())
            for net in (found.backbone.eval(), network.eval())
            for rows in both
        ]
    expected, told = immunize.immunization_ratio(*spectra, estimator="ridge"), found.ratios["ridge"].ratio
    assert told.ratio_harmful == pytest.approx(expected.ratio_harmful, rel=1e-5)
    assert told.ratio_pretrain == pytest.approx(expected.ratio_pretrain, rel=1e-5)
    assert told.ratio_harmful != pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("trainable", ["last", ["normed", "last"]])
def test_features_that_depend_on_the_batch_are_those_of_the_same_batch(trainable: Any) -> None:
    normed = nn.BatchNorm1d(16, track_running_stats=False)
    network = layers(lambda net, x: net.last(net.normed(net.first(x)).tanh()), normed=normed)
    both = (loader(seed, shuffle=True) for seed in (1, 2))
    found = run(network, *both, trainable=trainable, method="none", steps=1, learning_rate=1e-9)
    assert found.ratios["spectrum"].ratio.rir == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize(
    ("network", "options", "says"),
    [
        (layers(torch.no_grad()(one_by_one)), {}, "no gradient reaches it"),
        (torch.jit.script(embedded(1)), {"trainable": ["2"]}, "TorchScript"),
    ],
)
def test_what_cannot_be_immunized_is_told(network: nn.Module, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        run(network, **options)


def test_a_loader_that_can_be_read_once_is_told() -> None:
    pretrain, harmful = loaders()
    passes = iter([harmful])

    class Once:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter(next(passes, []))

    with pytest.raises(UserError, match="harmful_loader gave no batch"):
        run(layers(), pretrain, Once())


@pytest.mark.parametrize("method", ["censor", "simulated", "contract"])
def test_a_network_that_collapses_has_diverged(method: str) -> None:
    torch.manual_seed(1)
    network = layers(lambda net, x: net.last(net.first(x)).relu())
    with pytest.raises(DivergedError):
        run(network, method=method, learning_rate=1e4)


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
        run(layers(), pretrain, Pressed(), steps=1000)
