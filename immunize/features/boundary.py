"""Where the frozen part of a network ends: its forward pass cut in two at one tensor, for any torch module.

Nothing is known about the network but which modules it calls, and when: two forward passes, of one image and of two,
tell that, and which sizes grow with N. The boundary is a module B that is called
once, before or at the first use of a trainable parameter. Then

    trunk    is the network's own code, stopped when it calls B; h is what B was called with
    tail     is the network's own code again, in which B gets h, and every module that has finished before B does no
             work: it returns zeros of the right shape, which nobody may use

So no architecture has to be taken apart by hand, and no operation can be forgotten: what the tail computes, the network
computes. Whether somebody uses the zeros after all (a residual connection around B, a skip connection) is not assumed
but proved: autograd finds no path from them to the output, nor does a look at what every operation takes, which sees
masks and comparisons too, but no size that hangs on values, nor into a scripted function. The deepest boundary that
passes is taken.

Both parts share the network's modules. Only the containers on the way to a replaced module are copied, and those share
their parameters and buffers, so a parameter or a device that changes in the network changes in both parts.

Shapes: N images, h (N, ...), features (N, D).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from immunize.features.watching import Call, NoBoundaryError, Seen, Sizes, Traced, watch

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
        self.net, self._last, self._shape = net, takes_channels_last(net, example), example.shape[1:]

    def forward(self, images: Tensor) -> Tensor:
        """Of images (N, ...), h (N, ...).

        Raises:
            ValueError: images of another shape than the example's, which the tail would not know of; or a network that
                takes so many in parts.
        """
        if images.shape[1:] != self._shape:
            raise ValueError(
                f"it was cut in two for inputs {tuple(self._shape)}, and the code behind may ask for their size: give "
                "inputs of one size: tokens padded to one length, images resized"
            )
        with torch.no_grad(), channels_last(self.net) if self._last else contextlib.nullcontext():
            try:
                self.net(images)
            except _Reached as reached:
                return _of_as_many(reached.h, images).contiguous()
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
        """Output of the whole network where its trunk gives h (N, ...); see there for errors."""
        self.start.h = h.clone() if self.writes else h
        try:
            output: Tensor = self.net(self.start.zeros((len(h), *self.image_shape)))
        finally:
            self.start.h = None
        return _of_as_many(output, h)


def _of_as_many(found: Tensor, given: Tensor) -> Tensor:
    if len(found) != len(given):
        raise ValueError(
            f"cut in two, it has {len(found)} rows for {len(given)}: does its forward take larger batches in parts? "
            "Give smaller ones"
        )
    return found


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
            # This one has to be its own; as an attribute a compiled module would set it on the module inside.
            twin.__dict__["_modules"] = {
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
        self.traced: Traced | None = None

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
        if self.traced is not None:
            self.traced.add(zero)
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
    kept = h.clone()
    start.zeros_used, start.traced = [], Traced()
    trained = Traced(*(weight for weight in seen.net.parameters() if weight.requires_grad))
    try:
        tail = Tail(replaced(seen.net, swaps), start, seen.images.shape[1:]).eval()
        trunk = Trunk(replaced(seen.net, {id(boundary.module): _Stop(boundary.module)}), seen.images).eval()
        with trained:
            before = trunk(seen.images[:1])
        with start.traced as from_images:
            output = tail(h)
        # By the weights too: a block that computes its activations again in its backward pass finds no h any more.
        weights = [weight for weight in tail.parameters() if weight.requires_grad]
        used = torch.autograd.grad(output.sum(), [*start.zeros_used, *weights], allow_unused=True)
        used = used[: len(start.zeros_used)]
        with torch.no_grad():
            tail(h)  # what modules keep of a forward pass, such as maps of attention, can be copied again
    except Exception as error:  # somebody else's code, on tensors that it did not expect
        raise NoBoundaryError(f"the code around {name} does not run without what comes before: {error}") from error
    finally:
        start.zeros_used = start.traced = None
    if before in trained:
        raise NoBoundaryError(f"what {name} is called with depends on trainable parameters")
    if any(gradient is not None for gradient in used) or output in from_images or from_images.told:
        raise NoBoundaryError(f"something computed before {name} is used after it as well")
    tail.writes = not torch.equal(h, kept)
    if not close(output.detach(), seen.output, SAME):
        raise NoBoundaryError(f"the network gives something else when it goes on from {name}")
    if not close(before, kept[:1], SAME_ROWS):
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


def close(value: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether two outputs are the same but for a share of the largest; of what is not finite they are not."""
    scale = expected.abs().max()
    return value.shape == expected.shape and bool((value - expected).abs().max() <= tolerance * scale)
