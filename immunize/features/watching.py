"""What a network does when it runs: which modules it calls, and which tensors it makes of which.

Shapes: N images.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

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

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for module in net.modules():
            hooks.enter_context(module.register_forward_pre_hook(enter))
            hooks.enter_context(module.register_forward_hook(leave))
        output = net(x)
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


TOLD = {"item", "tolist", "numpy", "equal", "allclose", "is_nonzero"} | {
    f"__{name}__" for name in ("bool", "int", "float", "index", "array", "contains", "format")
}
"""Functions by which a tensor's values reach Python's code."""

OF_SHAPE = {f"{name}_like" for name in ("zeros", "ones", "full", "empty", "rand", "randn")} | {
    f"new_{name}" for name in ("zeros", "ones", "full", "empty")
}
"""Functions whose result has a tensor's shape and none of its values."""

AS_ANOTHER = {"type_as", "expand_as", "view_as", "reshape_as", "to"}
"""Functions that take of all tensors but the first a shape or a dtype alone."""


class Traced(TorchFunctionMode):
    """What is computed within this context from some tensors, directly or not: it contains those and their results.

    Whatever autograd knows of it: masks and comparisons too. Not what hangs on values by its size alone, such as
    `torch.where(mask)[0]`'s length, nor what a function made by TorchScript does within.

    Args:
        given: the tensors; :meth:`add` names more.

    Attributes:
        told: whether Python's code has asked for a value of one of them.
    """

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.told = False
        self._made = {id(one): one for one in given}  # held, so that no other tensor gets its id

    def __contains__(self, value: Tensor) -> bool:
        return id(value) in self._made

    def add(self, value: Any) -> None:
        """A tensor, or some in a list."""
        self._made |= {id(one): one for one in tree_leaves(value) if isinstance(one, Tensor)}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called by PyTorch instead of every function of tensors."""
        found, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        taken = [] if name in OF_SHAPE else tree_leaves(args[:1] if name in AS_ANOTHER else (args, kwargs))
        taken += [end for one in taken if isinstance(one, slice) for end in (one.start, one.stop, one.step)]
        if any(isinstance(one, Tensor) and one in self for one in taken):
            self.told |= name in TOLD
            self.add(found)
            if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):  # it writes into its first
                self.add([args[0], args[0]._base])  # a view writes into what it is of
        return found
