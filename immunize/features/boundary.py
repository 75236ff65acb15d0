"""Where the frozen part of a network ends: its forward pass cut in two at one tensor, for any network torch.fx follows.

torch.fx records the network's own code as a list of steps, in the order in which they are done. A module is one step,
unless it holds both frozen and trained weights: then its code is followed, and that of everything within likewise. The
boundary is the last step before the first use of a trained weight whose result h is all that later steps use of what
came before; frozen weights aside. Then

    trunk    is the steps up to h, without autograd
    tail     is the steps after h

and what the tail computes, the network computes. That h is one tensor with a row for each image, by which other images
do not count, is shown by computing; so is that both parts together are the network.

Shapes: N images; h (N, ...).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, fx, nn

SAME = 1e-5
"""Largest difference between the two parts and the whole, relative to the largest output. It is 0 but for modules that
keep something from one call to the next."""

SAME_ROWS = 1e-4
"""The same for one row computed alone instead of in a batch: other batch sizes round differently."""

SAME_GRADIENTS = 1e-2
"""The same for gradients, which an accelerator adds up in another order each time, in bfloat16 with three digits. What
they are compared for, code without autograd that torch.fx does not see, makes more of a difference."""


class NoBoundaryError(ValueError):
    """The network cannot be cut in two before its first trainable parameter; the message says why."""


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
    except RuntimeError:
        return False
    return True


class Part(nn.Module):
    """Some of a network's steps, from one tensor to another.

    Args:
        net: the network, whose modules and weights this one uses as they are.
        graph: the steps.
    """

    def __init__(self, net: nn.Module, graph: fx.Graph) -> None:
        super().__init__()
        used = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
        called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
        self.net, self.graph = _with_only(net, used, called), graph

    def forward(self, x: Tensor) -> Tensor:
        """What the last step gives, of what enters the first."""
        steps = fx.Interpreter(self.net, graph=self.graph)
        steps.extra_traceback = False  # errors say what they say in the network itself
        return steps.run(x)  # type: ignore[no-any-return]


class Trunk(nn.Module):
    """The frozen beginning of a network, without autograd.

    Args:
        part: its steps.
        example: (N, ...) images.
    """

    def __init__(self, part: Part, example: Tensor) -> None:
        super().__init__()
        self.part, self._last = part, takes_channels_last(part, example)

    def forward(self, images: Tensor) -> Tensor:
        """Of images (N, ...), h (N, ...)."""
        with torch.no_grad(), channels_last(self.part) if self._last else contextlib.nullcontext():
            h: Tensor = self.part(images)
        return h.contiguous()


def split_network(net: nn.Module, trainable: Collection[nn.Parameter], example: Tensor) -> tuple[Trunk, Part]:
    """Cut a network in two before the first use of a trainable parameter.

    Args:
        net: in eval mode; `requires_grad` is set on the trainable parameters only. It is not changed.
        trainable: at least one of its parameters.
        example: (N, ...) with N ≥ 2, an input.

    Returns:
        trunk and tail, `tail(trunk(x))` being `net(x)`.

    Raises:
        NoBoundaryError: no tensor separates the two, or torch.fx cannot follow the network's code.
    """
    trained, reason = {id(parameter) for parameter in trainable}, ""
    try:
        nodes = list(_Tracer(trained).trace(nn.Sequential(net)).nodes)
    except Exception as error:  # somebody else's code, on values that it did not expect
        reason = f"torch.fx cannot follow its code: {error}"
    _run(net, example[:2])
    if reason:
        raise NoBoundaryError(reason)
    reason = "nothing comes before the first trainable parameter, or what does is used after it as well"
    for at in _boundaries(net, nodes, trained):
        try:
            return _cut(net, nodes, at, example[:2], list(trainable))
        except Exception as error:  # as above: it may need more than one image
            reason = str(error)
        finally:
            _run(net, example[:2])
    raise NoBoundaryError(reason)


def _run(net: nn.Module, images: Tensor) -> None:
    """What modules keep of a forward pass is of images again, and can be copied."""
    with torch.no_grad(), contextlib.suppress(Exception):
        net(images.clone())


class _Tracer(fx.Tracer):
    """Follows the code of modules that hold frozen and trained weights, up to the first module that is all trained."""

    def __init__(self, trained: set[int]) -> None:
        super().__init__()
        self._trained, self._begun = trained, False

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        held = [id(parameter) in self._trained for parameter in m.parameters()]
        mixed = any(held) and not all(held)
        leaf = not mixed or self._begun or super().is_leaf_module(m, module_qualified_name)
        self._begun |= leaf and any(held)
        return leaf


def _boundaries(net: nn.Module, nodes: Sequence[fx.Node], trained: set[int]) -> Iterator[int]:
    """Which of the steps may be the last of the trunk, the latest first: the most that need not be computed again."""

    def trains(node: fx.Node) -> bool:
        if node.op == "get_attr":
            owner, _, name = _name(node).rpartition(".")
            return id(getattr(net.get_submodule(owner), name)) in trained
        return node.op == "call_module" and any(id(p) in trained for p in net.get_submodule(_name(node)).parameters())

    first = next((at for at, node in enumerate(nodes) if trains(node)), 0)
    for at in range(first - 1, 0, -1):
        before = {node for node in nodes[:at] if node.op != "get_attr"}
        if not any(before.intersection(node.all_input_nodes) for node in nodes[at + 1 :]):
            yield at


def _cut(
    net: nn.Module, nodes: Sequence[fx.Node], at: int, images: Tensor, weights: Sequence[nn.Parameter]
) -> tuple[Trunk, Part]:
    """Both parts, shown to be right.

    Raises:
        NoBoundaryError: they are not.
    """
    step = nodes[at]
    trunk, tail = Part(net, _graph(nodes[: at + 1])), Part(net, _graph(nodes[at + 1 :], step))
    with torch.no_grad():
        h, one = (trunk(images[:count].clone()) for count in (len(images), 1))
        if not isinstance(h, Tensor) or (h.shape[:1], one.shape[:1]) != (images.shape[:1], (1,)):
            raise NoBoundaryError(f"what {step.name} gives is no tensor with one row for each image")
        if not close(one, h[:1], SAME_ROWS):
            raise NoBoundaryError("an image's features depend on the other images in its batch")
        kept = h.clone()
        tail(h)
    if not torch.equal(h, kept):
        tail = Part(net, _graph(nodes[at + 1 :], step, writes=True))
    with torch.no_grad():
        trunk(images.flip(0))  # what modules keep of it
    (found, of_tail), (whole, of_net) = (
        _with_gradients(of, x, weights) for of, x in ((tail, kept), (net, images.clone()))
    )
    if not close(found, whole, SAME) or not close(of_tail, of_net, SAME_GRADIENTS):
        raise NoBoundaryError(f"the network gives something else when it goes on from {step.name}")
    return Trunk(trunk, images).eval(), tail.eval()


def _with_gradients(net: nn.Module, x: Tensor, weights: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of its squares' sum by some weights, one after another."""
    output: Tensor = net(x)
    if not output.requires_grad:
        return output, output.new_zeros(sum(weight.numel() for weight in weights))
    found = torch.autograd.grad(output.square().sum(), weights, allow_unused=True, materialize_grads=True)
    return output.detach(), torch.cat([gradient.flatten() for gradient in found])


def _graph(nodes: Sequence[fx.Node], h: fx.Node | None = None, *, writes: bool = False) -> fx.Graph:
    """The steps of a trunk, or of a tail that begins with what a step gives, of which it takes a copy if it writes."""
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    if h is not None:
        made[h] = graph.placeholder("h")
        if writes:
            made[h] = graph.call_method("clone", (made[h],))

    def copied(node: fx.Node) -> fx.Node:
        if node not in made:  # of a tail, a frozen weight that the trunk has asked for too
            made[node] = graph.node_copy(node, copied)
            if node.op in ("call_module", "get_attr"):
                made[node].target = _name(node)
        return made[node]

    for node in nodes:
        copied(node)
    if h is None:
        graph.output(made[nodes[-1]])
    return graph


def _name(node: fx.Node) -> str:
    """Of the module or weight that a step uses, in the network, which was followed as the only part of another one."""
    return str(node.target).removeprefix("0").removeprefix(".")


def _with_only(module: nn.Module, used: Collection[str], called: Collection[str], name: str = "") -> nn.Module:
    """A module without those within that are not used; weights, and what is called as a whole, are shared."""
    if name in called:
        return module
    twin = copy.copy(module)
    children = ((f"{name}.{key}".lstrip("."), key, child) for key, child in module._modules.items())
    twin.__dict__["_modules"] = {
        key: _with_only(child, used, called, path)
        for path, key, child in children
        if child is not None and any(_within(one, path) for one in used)
    }
    return twin


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def working_modules(tail: nn.Module) -> dict[str, nn.Module]:
    """The modules that work in a tail, or in a network in one piece, by their names in the network.

    Args:
        tail: of :func:`split_network`, or the network itself.
    """
    named = dict((tail.net if isinstance(tail, Part) else tail).named_modules(remove_duplicate=False))
    del named[""]
    if not isinstance(tail, Part):
        return named
    called = {str(node.target) for node in tail.graph.nodes if node.op == "call_module"}
    return {name: module for name, module in named.items() if any(_within(name, one) for one in called)}


def close(value: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether two outputs are the same but for a share of the largest; of what is not finite they are not."""
    scale = expected.abs().max()
    return value.shape == expected.shape and bool((value - expected).abs().max() <= tolerance * scale)
