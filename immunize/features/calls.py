"""What a network does: which modules it calls, in which order, and with tensors of which size.

Shapes: N images. Two forward passes, of one image and of two, tell which sizes grow with N.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Call", "NoBoundaryError", "Seen", "watch"]

Sizes = tuple[tuple[int, bool], ...]
"""(size, whether it is a multiple of N) for each dimension of a tensor."""


class NoBoundaryError(ValueError):
    """The network cannot be cut in two before its first trainable parameter; the message says why."""


@dataclass
class Call:
    """The `index`-th call of a module, with the calls it made; shape and dtype of its output if that is a tensor."""

    module: nn.Module
    index: int
    inner: list[Call] = field(default_factory=list)
    shape: torch.Size | None = None
    dtype: torch.dtype | None = None

    def walk(self) -> Iterator[Call]:
        """This call and all within it, in the order in which they began."""
        yield self
        for call in self.inner:
            yield from call.walk()


@dataclass
class Seen:
    """What a network did.

    Attributes:
        net: the network.
        images: (2, ...), what it was given.
        output: what it returned.
        calls: for one image, as a tree.
        every: the same in a row.
        sizes: of each call's output, see `_sizes`; None if that is no tensor. By the call's `index`.
        path: calls that a boundary may be, each within the one before.
        inputs: what each of them was called with, for both images; by the call's `index`.
    """

    net: nn.Module
    images: Tensor
    output: Tensor
    calls: Call
    every: list[Call]
    sizes: list[Sizes | None]
    path: list[Call]
    inputs: dict[int, Tensor]


def watch(net: nn.Module, trainable: Collection[nn.Parameter], images: Tensor) -> Seen:
    """Run the network on one image and on both.

    Raises:
        NoBoundaryError: it does not do the same for both, or nothing comes before the first trainable parameter.
    """
    try:
        calls, _, _ = _record(net, images[:1], set())
    except NoBoundaryError:
        raise
    except Exception as error:  # somebody else's code, which may need more than one
        raise NoBoundaryError(f"the network does not run on one image: {error}") from error
    path = _path(net, calls, trainable)
    if not path:
        raise NoBoundaryError("a trainable parameter belongs to the network's outermost part, nothing comes before it")
    again, output, inputs = _record(net, images, {call.index for call in path})
    one, two = list(calls.walk()), list(again.walk())
    if [id(call.module) for call in one] != [id(call.module) for call in two]:
        raise NoBoundaryError("the network calls other modules for another number of images")
    sizes = [_sizes(*pair) for pair in zip(one, two, strict=True)]
    return Seen(net, images, output, calls, one, sizes, path, inputs)


def _record(net: nn.Module, x: Tensor, wanted: set[int]) -> tuple[Call, Tensor, dict[int, Tensor]]:
    """The calls of a forward pass, its output, and the first argument of those calls whose index is wanted."""
    top = Call(nn.Identity(), -1)
    stack = [top]
    count = 0
    inputs: dict[int, Tensor] = {}

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        nonlocal count
        if count in wanted and args and isinstance(args[0], Tensor):
            inputs[count] = args[0].detach().clone()  # the network may write into it
        call = Call(module, count)
        count += 1
        stack[-1].inner.append(call)
        stack.append(call)

    def leave(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        call = stack.pop()
        if isinstance(output, Tensor):
            call.shape, call.dtype = output.shape, output.dtype

    handles = []
    try:
        for module in net.modules():
            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
        with torch.no_grad():
            output = net(x)
    finally:
        for handle in handles:
            handle.remove()
    if len(top.inner) != 1 or not isinstance(output, Tensor):
        raise NoBoundaryError("the network does not return one tensor")
    return top.inner[0], output, inputs


def _path(net: nn.Module, calls: Call, trainable: Collection[nn.Parameter]) -> list[Call]:
    """Calls, each within the one before, that come before or at the first use of a trainable parameter."""
    called = [call.module for call in calls.walk()]
    times = {id(module): called.count(module) for module in set(called)}
    owners = _owners(net, trainable, set(times))
    path: list[Call] = []
    node = calls
    while id(node.module) not in owners:
        first = next((call for call in node.inner if any(id(inner.module) in owners for inner in call.walk())), None)
        if first is None or times[id(first.module)] > 1:
            break
        path.append(first)
        node = first
    return path


def _owners(net: nn.Module, trainable: Collection[nn.Parameter], called: set[int]) -> set[int]:
    """The modules that use trainable parameters: those that hold one; where such a one is never called, its parents."""
    wanted = {id(parameter) for parameter in trainable}
    parents: dict[int, list[nn.Module]] = {}
    for module in net.modules():
        for child in module.children():
            parents.setdefault(id(child), []).append(module)
    holding = [m for m in net.modules() if any(id(p) in wanted for p in m.parameters(recurse=False))]
    owners: set[int] = set()
    while holding:
        module = holding.pop()
        if id(module) in called:
            owners.add(id(module))
        else:
            holding += parents.get(id(module), [])
    return owners


def _sizes(one: Call, two: Call) -> Sizes | None:
    """(size, whether it is a multiple of N) for each dimension, from the output for one image and that for two."""
    if one.shape is None or two.shape is None or len(one.shape) != len(two.shape):
        return None
    pairs = list(zip(one.shape, two.shape, strict=True))
    return tuple((a, a != b) for a, b in pairs) if all(b in (a, 2 * a) for a, b in pairs) else None
