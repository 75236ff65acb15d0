"""Where the frozen part of a network ends: its forward pass cut in two at one tensor, for any torch module.

Nothing is known about the network but which modules it calls, and when. The boundary is a module B that is called
once, before or at the first use of a trainable parameter. Then

    trunk    is the network's own code, stopped when it calls B; h is what B was called with
    tail     is the network's own code again, in which B gets h, and every module that has finished before B does no
             work: it returns zeros of the right shape, which nobody may use

So no architecture has to be taken apart by hand, and no operation can be forgotten: what the tail computes, the network
computes. Whether somebody uses the zeros after all (a residual connection around B, a skip connection) is not assumed
but proved: autograd finds no path from them to the output. The deepest boundary that passes is taken.

Both parts share the network's modules. Only the containers on the way to a replaced module are copied, and those share
their parameters and buffers, so a parameter or a device that changes in the network changes in both parts.

Shapes: N images, h (N, ...), features (N, D).
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from immunize.features.calls import Call, NoBoundaryError, Seen, Sizes, watch

__all__ = ["NoBoundaryError", "Tail", "Trunk", "replaced", "split_network", "working_modules"]

SAME = 1e-5
"""Largest difference between the two parts and the whole, relative to the largest output. It is 0 but for modules that
compute in another way without autograd, as torch's own transformer layers do."""

SAME_ROWS = 1e-4
"""The same for one row computed alone instead of in a batch: other batch sizes round differently."""


class Trunk(nn.Module):
    """The frozen beginning of a network, without autograd.

    Args:
        net: the network, in which the boundary raises what it was called with.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        """Of images (N, ...), h (N, ...)."""
        with torch.no_grad():
            try:
                self.net(images)
            except _Reached as reached:
                return reached.h
        raise RuntimeError("the network did not come to its boundary; does its forward depend on the input's values?")


class Tail(nn.Module):
    """The rest of the network: from h to what the whole returns, in h's own dtype and on its device.

    Args:
        net: the network with a `_Resume` at the boundary and `_Silent` modules before it.
        start: what those share.
        image_shape: of one input of the whole network.
        writes: whether the network writes into h; it is then copied first.
    """

    def __init__(self, net: nn.Module, start: _Start, image_shape: torch.Size) -> None:
        super().__init__()
        self.net = net
        self.start = start
        self.image_shape = image_shape
        self.writes = False

    def forward(self, h: Tensor) -> Tensor:
        """Output of the whole network where its trunk gives h (N, ...)."""
        self.start.h = h.clone() if self.writes else h
        try:
            output: Tensor = self.net(self.start.zeros((len(h), *self.image_shape)))
        finally:
            self.start.h = None
        return output


def split_network(net: nn.Module, trainable: Collection[nn.Parameter], example: Tensor) -> tuple[Trunk, Tail]:
    """Cut a network in two before the first use of a trainable parameter.

    Args:
        net: in eval mode; `requires_grad` is set on the trainable parameters only. It is not changed.
        trainable: at least one of its parameters.
        example: (N, ...) with N ≥ 2, an input.

    Returns:
        trunk and tail, `tail(trunk(x))` being `net(x)`.

    Raises:
        NoBoundaryError: no module separates the two.
    """
    seen = watch(net, trainable, example[:2])
    reason = ""
    for call in reversed(seen.path):  # the deepest first: the most that need not be computed again
        try:
            return _cut(seen, call)
        except NoBoundaryError as error:
            reason = str(error)
    raise NoBoundaryError(reason)


def replaced(module: nn.Module, swaps: dict[int, nn.Module]) -> nn.Module:
    """The module with some of its submodules replaced; everything else is shared with the original.

    Args:
        module: is not changed.
        swaps: replacements by `id` of what they replace.
    """
    return _replaced(module, swaps, {})


def working_modules(tail: nn.Module) -> dict[str, nn.Module]:
    """The modules that work in a tail, or in a network in one piece, by their names in the network.

    Args:
        tail: of :func:`split_network`, or the network itself.
    """
    found: dict[str, nn.Module] = {}

    def walk(module: nn.Module, prefix: str) -> None:
        for name, there in module._modules.items():
            child = there.module if isinstance(there, _Resume) else there
            if child is not None and not isinstance(child, _Silent):
                found[f"{prefix}{name}"] = child
                walk(child, f"{prefix}{name}.")

    walk(tail.net if isinstance(tail, Tail) else tail, "")
    return found


# --- the two parts --------------------------------------------------------------------------------------------------


class _Reached(Exception):  # noqa: N818 (not an error: how the trunk stops)
    def __init__(self, h: Tensor) -> None:
        self.h = h


class _Stop(nn.Module):
    """At the boundary of a trunk."""

    def forward(self, h: Tensor, *_: Any, **__: Any) -> Tensor:
        raise _Reached(h)


class _Start:
    """What a tail starts from, while it runs; shared by the modules that stand in for others.

    `zeros_used` is a list while the boundary is being proved: then the zeros take part in autograd.
    """

    def __init__(self) -> None:
        self.h: Tensor | None = None
        self.zeros_used: list[Tensor] | None = None

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """Zeros that take no memory, in h's dtype, or in `dtype` where that is no floating-point one."""
        assert self.h is not None
        floating = dtype is None or dtype.is_floating_point
        zero = self.h.new_zeros((), dtype=None if floating else dtype)
        if self.zeros_used is not None and floating:
            self.zeros_used.append(zero.requires_grad_())
        return zero.expand(shape)


class _Resume(nn.Module):
    """At the boundary of a tail: the module itself, called with h whatever the code before has made."""

    def __init__(self, module: nn.Module, start: _Start) -> None:
        super().__init__()
        self.module = module
        self.start = start

    def forward(self, _: Any, *args: Any, **kwargs: Any) -> Any:
        return self.module(self.start.h, *args, **kwargs)


class _Silent(nn.Module):
    """In a tail, in place of a module that has finished before the boundary; a size is fixed or so much times N."""

    def __init__(self, start: _Start, sizes: Sizes, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.start = start
        self.sizes = sizes
        self.dtype = dtype

    def forward(self, *_: Any, **__: Any) -> Tensor:
        assert self.start.h is not None
        n = len(self.start.h)
        return self.start.zeros(tuple(size * n if batch else size for size, batch in self.sizes), self.dtype)


def _cut(seen: Seen, boundary: Call) -> tuple[Trunk, Tail]:
    """Both parts for one boundary, proved to be right.

    Raises:
        NoBoundaryError: they are not.
    """
    name = type(boundary.module).__name__
    h = seen.inputs.get(boundary.index)
    if h is None or len(h) != len(seen.images):
        raise NoBoundaryError(f"{name} is not called with one row for each image")
    start = _Start()
    swaps = _silenced(seen, seen.calls, boundary, start)
    if not swaps:
        raise NoBoundaryError(f"nothing comes before {name}, where the first trainable parameter is")
    swaps[id(boundary.module)] = _Resume(boundary.module, start)
    tail = Tail(replaced(seen.net, swaps), start, seen.images.shape[1:]).eval()
    trunk = Trunk(replaced(seen.net, {id(boundary.module): _Stop()})).eval()
    kept = h.clone()
    start.zeros_used = []
    try:
        output = tail(h)
        used = torch.autograd.grad(output.sum(), start.zeros_used, allow_unused=True)
    except Exception as error:  # somebody else's code, on tensors that it did not expect
        raise NoBoundaryError(f"the code around {name} does not run without what comes before: {error}") from error
    finally:
        start.zeros_used = None
    if any(gradient is not None for gradient in used):
        raise NoBoundaryError(f"something computed before {name} is used after it as well")
    tail.writes = not torch.equal(h, kept)
    if not _close(output.detach(), seen.output, SAME):
        raise NoBoundaryError(f"the network gives something else when it goes on from {name}")
    if not _close(trunk(seen.images[:1]), kept[:1], SAME_ROWS):
        raise NoBoundaryError("an image's features depend on the other images in its batch")
    return trunk, tail


def _silenced(seen: Seen, node: Call, boundary: Call, start: _Start) -> dict[int, nn.Module]:
    """A `_Silent` for each module within `node` that has done all its work before the boundary, outermost first."""
    swaps: dict[int, nn.Module] = {}
    for call in node.inner:
        if call.index >= boundary.index:
            break
        same = [other for other in seen.every if other.module is call.module]
        sizes = {seen.sizes[other.index] for other in same}
        done = all(other.index < boundary.index for other in same) and not any(c is boundary for c in call.walk())
        if done and len(sizes) == 1 and (size := sizes.pop()) is not None:
            swaps[id(call.module)] = _Silent(start, size, call.dtype)
        else:
            swaps |= _silenced(seen, call, boundary, start)
    return swaps


def _close(value: Tensor, expected: Tensor, tolerance: float) -> bool:
    scale = expected.abs().max()
    return value.shape == expected.shape and bool((value - expected).abs().max() <= tolerance * scale)


def _replaced(module: nn.Module, swaps: dict[int, nn.Module], done: dict[int, nn.Module]) -> nn.Module:
    if id(module) in swaps:
        return swaps[id(module)]
    if id(module) not in done:
        done[id(module)] = module
        if any(id(inner) in swaps for inner in module.modules()):
            twin = done[id(module)] = copy.copy(module)  # shares the dictionaries of parameters and buffers
            twin._modules = {  # this one has to be its own
                name: child if child is None else _replaced(child, swaps, done)
                for name, child in module._modules.items()
            }
    return done[id(module)]
