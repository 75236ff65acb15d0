"""LoRA: low-rank updates of the linear and convolutional layers of any network (Hu et al., 2022, Eq. 3).

    h = W x + (α/r) B A x            A (r, in) as PyTorch draws a layer, B (out, r) at zero

so at the start the network is what it was, and only A and B are trained. A convolution is a linear layer on patches:
its A is a convolution with r outputs and the layer's own kernel, stride and padding, its B one of size 1.

α/√r instead of α/r (rank-stabilized, Kalajdzievski 2023), so that one learning rate serves all ranks.

Shapes: r rank; weights (out, in) or (out, in, height, width).
"""

from __future__ import annotations

import math
from typing import TypeGuard

import torch
from torch import Tensor, nn

from immunize.errors import UserError


class LoraLayer(nn.Module):
    """A layer and its low-rank update; stands where the layer stood.

    Args:
        base: a linear layer, or a convolution in one group; it is frozen and used as it is.
        rank: r; the layer's own sizes where it is larger than one of them.
        alpha: α.
        generator: of A.

    Attributes:
        a: r outputs from the layer's inputs.
        b: the layer's outputs from those, zero at the start.
    """

    def __init__(
        self, base: nn.Linear | nn.Conv2d, rank: int, alpha: float, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        weight = base.weight
        out, fan_in = weight.shape[0], weight[0].numel()
        rank = min(rank, out, fan_in)
        self.base = base.requires_grad_(False)
        self.scale = alpha / math.sqrt(rank)
        bound = 1 / math.sqrt(fan_in)  # what PyTorch's own layers are drawn within
        drawn = torch.empty(rank, *weight.shape[1:]).uniform_(-bound, bound, generator=generator)
        self.a = nn.Parameter(drawn.to(weight))
        self.b = nn.Parameter(torch.zeros(out, rank, *[1] * (weight.ndim - 2)).to(weight))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output and the update's."""
        if isinstance(self.base, nn.Conv2d):
            low = self.base._conv_forward(x, self.a, None)  # the layer's own stride, padding and padding mode
            return self.base(x) + self.scale * nn.functional.conv2d(low, self.b)  # type: ignore[no-any-return]
        low = nn.functional.linear(x, self.a)
        return self.base(x) + self.scale * nn.functional.linear(low, self.b)  # type: ignore[no-any-return]

    @property
    def weight(self) -> Tensor:
        """W + (α/√r) B A, also for networks that read the weight of a layer instead of calling it."""
        update = self.b.flatten(1) @ self.a.flatten(1)
        return self.base.weight + self.scale * update.view(self.base.weight.shape)

    @property
    def bias(self) -> Tensor | None:
        """The layer's own."""
        return self.base.bias


def add_lora(network: nn.Module, rank: int, *, alpha: float = 1.0, seed: int = 0) -> list[str]:
    """Put an update beside every linear layer and every convolution; nothing else is trainable afterwards.

    Left as they are: subclasses with a forward pass of their own, and convolutions in groups. Layers narrower than the
    rank get an update of full rank, see :class:`LoraLayer`.

    Args:
        network: changed in place.
        rank: r, 1 or more.
        alpha: α.
        seed: of every A.

    Returns:
        names of the layers that got one.

    Raises:
        UserError: a network without such a layer.
    """
    network.requires_grad_(False)
    modules = network.named_modules(remove_duplicate=False)  # a layer that has two names is in two places
    layers = {name: module for name, module in modules if name and _takes_lora(module)}
    if not layers:
        raise UserError(f"{type(network).__name__} has no linear layer and no convolution that LoRA could be put on")
    generator = torch.Generator().manual_seed(seed)
    updated = {layer: LoraLayer(layer, rank, alpha, generator) for layer in dict.fromkeys(layers.values())}
    for name, layer in layers.items():
        network.set_submodule(name, updated[layer])
    return list(layers)


def _takes_lora(module: nn.Module) -> TypeGuard[nn.Linear | nn.Conv2d]:
    if type(module) is nn.Conv2d:
        return module.groups == 1
    return type(module) is nn.Linear
