"""What a network computes on its way to the features: the outputs of named modules in its trained part.

Shapes: N samples; an output is a row of numbers for each, flattened, or averaged over places where there are many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from immunize.errors import UserError
from immunize.features.boundary import working_modules
from immunize.features.deep import DeepExtractor

MOST_COLUMNS = 4096
"""Of a flattened output; a larger one is averaged over its places, pixels or tokens (ours)."""


def check_depths(net: DeepExtractor, depths: Sequence[str]) -> None:
    """Check that every name is a module of the trained part.

    Raises:
        UserError: one is not.
    """
    known = working_modules(net.tail)
    for name in depths:
        if name not in known:
            raise UserError(
                f"method.depths: there is no module {name!r} in the trained part of the network (what comes before it "
                f"stays as it is); there are {', '.join(known)}"
            )


def features_at(
    net: DeepExtractor, h: Tensor, depths: Sequence[str], parameters: Mapping[str, Tensor] | None = None
) -> list[Tensor]:
    """The features, and the outputs of modules on the way to them, from one forward pass; gradients flow through all.

    Args:
        net: the network.
        h: what enters its trained part, (N, ...).
        depths: names of modules, by the network's.
        parameters: other values for the trained ones.

    Returns:
        the features (N, D), then a matrix of N rows for each name.

    Raises:
        UserError: an output that is not one tensor with N rows, or a module that was not called once.
    """
    seen: dict[str, list[Tensor]] = {name: [] for name in depths}
    known, handles = working_modules(net.tail) if depths else {}, []
    try:
        for name, outputs in seen.items():
            handles.append(known[name].register_forward_hook(partial(_keep, outputs)))
        features = net.features(h, parameters)
    finally:
        for handle in handles:
            handle.remove()
    return [features, *(_rows(name, outputs, len(h)) for name, outputs in seen.items())]


def _keep(outputs: list[Tensor], _: nn.Module, __: object, output: Tensor) -> None:
    outputs.append(output.clone() if isinstance(output, Tensor) else output)  # what follows may write into it


def _rows(name: str, outputs: list[Tensor], count: int) -> Tensor:
    if len(outputs) != 1 or not isinstance(outputs[0], Tensor) or outputs[0].shape[:1] != (count,):
        raise UserError(f"method.depths: {name!r} does not give one tensor with a row for each image")
    output = outputs[0]
    if output.ndim > 2 and math.prod(output.shape[1:]) > MOST_COLUMNS:
        output = output.mean(1) if output.ndim == 3 else output.flatten(2).mean(2)  # tokens come first, channels too
    return torch.flatten(output, 1)
