"""Where the frozen part of a network ends: its forward pass cut in two at one tensor, for any torch module.

Nothing is known about the network but which modules it calls, and when: two forward passes, of one image and of two,
tell that, and which sizes grow with N. The boundary is a module B that is called
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

import contextlib
import copy
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

Sizes = tuple[tuple[int, bool], ...]
"""(size, whether it is a multiple of N) for each dimension of a tensor."""


class NoBoundaryError(ValueError):
    """The network cannot be cut in two before its first trainable parameter; the message says why."""


@dataclass
class Call:
    """The `index`-th call of a module; `end` calls had begun when it returned. Shape and dtype of a tensor it gave."""

    module: nn.Module
    index: int
    end: int = 0
    shape: torch.Size | None = None
    dtype: torch.dtype | None = None


@dataclass
class Seen:
    """What a network did.

    Attributes:
        net: the network.
        images: (2, ...), what it was given.
        output: what it returned.
        calls: for one image, in the order in which they began.
        sizes: of each call's output, see `_sizes`; None if that is no tensor.
        path: calls that a boundary may be, each within the one before.
        inputs: what each of them was called with, for both images; by the call's `index`.
    """

    net: nn.Module
    images: Tensor
    output: Tensor
    calls: list[Call]
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
    if [id(call.module) for call in calls] != [id(call.module) for call in again]:
        raise NoBoundaryError("the network calls other modules for another number of images")
    sizes = [_sizes(*pair) for pair in zip(calls, again, strict=True)]
    return Seen(net, images, output, calls, sizes, path, inputs)


def _record(net: nn.Module, x: Tensor, wanted: set[int]) -> tuple[list[Call], Tensor, dict[int, Tensor]]:
    """The calls of a forward pass, its output, and the first argument of those calls whose index is wanted."""
    calls: list[Call] = []
    stack: list[Call] = []
    inputs: dict[int, Tensor] = {}

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        call = Call(module, len(calls))
        if call.index in wanted and args and isinstance(args[0], Tensor):
            inputs[call.index] = args[0].detach().clone()  # the network may write into it
        calls.append(call)
        stack.append(call)

    def leave(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        call = stack.pop()
        call.end = len(calls)
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
    if not isinstance(output, Tensor):
        raise NoBoundaryError("the network does not return one tensor")
    return calls, output, inputs


def _path(net: nn.Module, calls: list[Call], trainable: Collection[nn.Parameter]) -> list[Call]:
    """Calls, each within the one before, that come before or at the first use of a trainable parameter."""
    times = Counter(id(call.module) for call in calls)
    owners = _owners(net, trainable, set(times))
    first = next((call.index for call in calls if id(call.module) in owners), -1)
    around = (call for call in calls[1:] if call.index <= first < call.end)
    return list(takewhile(lambda call: times[id(call.module)] == 1, around))


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


SAME = 1e-5
"""Largest difference between the two parts and the whole, relative to the largest output. It is 0 but for modules that
compute in another way without autograd, as torch's own transformer layers do."""

SAME_ROWS = 1e-4
"""The same for one row computed alone instead of in a batch: other batch sizes round differently."""


@contextlib.contextmanager
def channels_last(network: nn.Module) -> Iterator[None]:
    """Within, frozen convolutions on the CPU have their channels last, with which a forward pass is faster.

    On one core of an AMD EPYC a ResNet18 takes 177 images of 64 px a second in place of 123, of 32 px 857 in place of
    438, a SqueezeNet 122 of 160 px in place of 54. Outputs differ by rounding. Training gains nothing by it.
    """
    frozen = [weight for weight in network.parameters() if weight.ndim == 4 and not weight.requires_grad]
    before = [(weight, weight.data) for weight in frozen if weight.device.type == "cpu"]
    for weight, data in before:
        weight.data = data.contiguous(memory_format=torch.channels_last)
    try:
        yield
    finally:
        for weight, data in before:
            weight.data = data


def takes_channels_last(network: nn.Module, images: Tensor) -> bool:
    """Whether a network's code runs with channels last; `view` is code that may not.

    Args:
        network: nothing in it is trainable, or a trunk's.
        images: (N, ...).
    """
    try:
        with torch.no_grad(), channels_last(network):
            network(images)
    except _Reached:
        return True
    except RuntimeError:
        return False
    return True


class Trunk(nn.Module):
    """The frozen beginning of a network, without autograd.

    Args:
        net: the network, in which the boundary raises what it was called with.
        example: (N, ...) images.
    """

    def __init__(self, net: nn.Module, example: Tensor) -> None:
        super().__init__()
        self.net, self._last = net, takes_channels_last(net, example)

    def forward(self, images: Tensor) -> Tensor:
        """Of images (N, ...), h (N, ...)."""
        with torch.no_grad(), channels_last(self.net) if self._last else contextlib.nullcontext():
            try:
                self.net(images)
            except _Reached as reached:
                return reached.h.contiguous()
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


def replaced(module: nn.Module, swaps: dict[int, nn.Module], done: dict[int, nn.Module] | None = None) -> nn.Module:
    """The module with some of its submodules replaced; everything else is shared with the original.

    Args:
        module: is not changed.
        swaps: replacements by `id` of what they replace.
        done: what other modules were replaced by already, likewise.
    """
    done = {} if done is None else done
    if id(module) in swaps:
        return swaps[id(module)]
    if id(module) not in done:
        done[id(module)] = module
        if any(id(inner) in swaps for inner in module.modules()):
            twin = done[id(module)] = copy.copy(module)  # shares the dictionaries of parameters and buffers
            twin._modules = {  # this one has to be its own
                name: child if child is None else replaced(child, swaps, done)
                for name, child in module._modules.items()
            }
    return done[id(module)]


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


class _Other:
    """A module that something else stands for: copies of that share it, as they do not use it but ask what it is."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __deepcopy__(self, memo: object) -> _Other:
        return self


class _StandIn(nn.Module):
    """What stands where another module was, with its attributes: code around it may ask for a width or a dtype.

    Args:
        module: the other one.
        start: of a tail, whose copies may be moved: weights are told as they are where the tail is.
    """

    def __init__(self, module: nn.Module, start: _Start | None = None) -> None:
        super().__init__()
        self._instead_of = _Other(module)  # whose parameters are none of this one's
        self._start = start

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "_instead_of" not in self.__dict__:
                raise
        value = getattr(self._instead_of.module, name)
        if self._start is None:
            return value
        if isinstance(value, nn.Module):
            return _StandIn(value, self._start)
        return self._start.moved(value) if isinstance(value, Tensor) else value


class _Stop(_StandIn):
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

    def moved(self, weight: Tensor) -> Tensor:
        """A frozen weight on h's device, in its dtype."""
        here = weight.detach()
        return here if self.h is None else here.to(self.h.device, self.h.dtype if here.is_floating_point() else None)

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
        self._start = start

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or name == "module":
                raise
            return getattr(self.module, name)

    def forward(self, _: Any, *args: Any, **kwargs: Any) -> Any:
        return self.module(self._start.h, *args, **kwargs)


class _Silent(_StandIn):
    """In a tail, in place of a module that has finished before the boundary; a size is fixed or so much times N."""

    def __init__(self, module: nn.Module, start: _Start, sizes: Sizes, dtype: torch.dtype | None) -> None:
        super().__init__(module, start)
        self._sizes = sizes
        self._of = dtype

    def forward(self, *_: Any, **__: Any) -> Tensor:
        assert self._start is not None
        assert self._start.h is not None
        n = len(self._start.h)
        return self._start.zeros(tuple(size * n if batch else size for size, batch in self._sizes), self._of)


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
    swaps = _silenced(seen, boundary, start)
    if not swaps:
        raise NoBoundaryError(f"nothing comes before {name}, where the first trainable parameter is")
    swaps[id(boundary.module)] = _Resume(boundary.module, start)
    tail = Tail(replaced(seen.net, swaps), start, seen.images.shape[1:]).eval()
    kept = h.clone()
    start.zeros_used = []
    try:
        trunk = Trunk(replaced(seen.net, {id(boundary.module): _Stop(boundary.module)}), seen.images).eval()
        before = trunk(seen.images[:1])
        output = tail(h)
        # By the weights too: a block that computes its activations again in its backward pass finds no h any more.
        weights = [weight for weight in tail.parameters() if weight.requires_grad]
        used = torch.autograd.grad(output.sum(), [*start.zeros_used, *weights], allow_unused=True)
        used = used[: len(start.zeros_used)]
    except Exception as error:  # somebody else's code, on tensors that it did not expect
        raise NoBoundaryError(f"the code around {name} does not run without what comes before: {error}") from error
    finally:
        start.zeros_used = None
    if any(gradient is not None for gradient in used):
        raise NoBoundaryError(f"something computed before {name} is used after it as well")
    tail.writes = not torch.equal(h, kept)
    if not _close(output.detach(), seen.output, SAME):
        raise NoBoundaryError(f"the network gives something else when it goes on from {name}")
    if not _close(before, kept[:1], SAME_ROWS):
        raise NoBoundaryError("an image's features depend on the other images in its batch")
    return trunk, tail


def _silenced(seen: Seen, boundary: Call, start: _Start) -> dict[int, nn.Module]:
    """A `_Silent` for each module that has done all its work before the boundary and is not within another one."""
    swaps: dict[int, nn.Module] = {}
    silent_until = 0
    for call in seen.calls[1 : boundary.index]:
        same = [other for other in seen.calls if other.module is call.module]
        sizes = {seen.sizes[other.index] for other in same}
        done = all(other.end <= boundary.index for other in same)
        if call.index >= silent_until and done and len(sizes) == 1 and (size := sizes.pop()) is not None:
            swaps[id(call.module)] = _Silent(call.module, start, size, call.dtype)
            silent_until = call.end
    return swaps


def _close(value: Tensor, expected: Tensor, tolerance: float) -> bool:
    scale = expected.abs().max()
    return value.shape == expected.shape and bool((value - expected).abs().max() <= tolerance * scale)
