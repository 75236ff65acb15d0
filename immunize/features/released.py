"""A network as it was released: the weights of a run or of any file, with the linear map that was appended, if any.

Shapes: N images (N, 3, height, width), features (N, D).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from immunize.errors import CheckpointError
from immunize.features.deep import DeepExtractor
from immunize.features.weights import state_digest


@dataclass(frozen=True)
class Released:
    """A network and what it releases.

    Attributes:
        net: the network without the map.
        map: (D, D), acts on rows of features after `net`; None where nothing was appended.
    """

    net: DeepExtractor
    map: Tensor | None = None

    @torch.no_grad()
    def mapped(self, features: Tensor) -> Tensor:
        """What is released (N, D) where the network itself gives these features (N, D)."""
        return features if self.map is None else nn.functional.linear(features, self.map.T.to(features))

    @property
    def key(self) -> str:
        """SHA-256 of the weights below the classifier and of the map."""
        state = {"map": torch.empty(0) if self.map is None else self.map}
        return state_digest(state) + str(self.net.cache_facts()["weights"])

    def whole(self) -> nn.Module:
        """A copy: images → released features, of plain layers, in eval mode; every parameter of it may be trained."""
        network = copy.deepcopy(self.net.network)
        network.set_submodule(_head_name(self.net), nn.Identity() if self.map is None else _linear(self.map))
        return network.requires_grad_(True).eval()

    def tail(self) -> nn.Module:
        """A copy: trunk outputs → released features; what `net` may train and the map are trainable."""
        net = copy.deepcopy(self.net)
        trained = {id(parameter) for _, parameter in net.trainable_parameters()}
        tail = net.tail
        for parameter in tail.parameters():
            parameter.requires_grad_(id(parameter) in trained)
        return tail if self.map is None else nn.Sequential(tail, _linear(self.map))


def released_network(net: DeepExtractor, state: Mapping[str, Tensor], source: str) -> Released:
    """The network with other weights of the same architecture, those of a network with a map appended among them.

    Args:
        net: says what the architecture is; it is not changed.
        state: by the names of `DeepExtractor.full_state_dict`, or with ``<head>.map.weight`` and ``<head>.head.*`` in
            place of the head (`append_map`).
        source: of the state, for messages.

    Raises:
        CheckpointError: the weights do not fit.
    """
    head = _head_name(net)
    weight = state.get(f"{head}.map.weight")
    if weight is not None and weight.shape != (net.n_features, net.n_features):
        raise CheckpointError(f"{source}: the appended map is {tuple(weight.shape)}, {net.name} has {net.n_features}")
    inner = f"{head}.head."
    plain = {
        (f"{head}.{name.removeprefix(inner)}" if name.startswith(inner) else name): value
        for name, value in state.items()
        if name != f"{head}.map.weight"
    }
    other = copy.deepcopy(net)
    other.load_full_state_dict(plain if weight is not None else state, source)
    return Released(other, None if weight is None else weight.T.contiguous())


def _head_name(net: DeepExtractor) -> str:
    names: list[str] = [name for name, module in net.network.named_modules() if module is net.head]
    return names[0]


def _linear(theta: Tensor) -> nn.Linear:
    layer = nn.Linear(len(theta), len(theta), bias=False, device="meta")  # no random numbers are drawn
    layer.weight = nn.Parameter(theta.T.clone(memory_format=torch.contiguous_format))
    return layer


MAP_OFF = "the appended map taken off"
"""Name of the stage in front of it."""


class StageOutputs(nn.Module):
    """Images → (N, ΣD_s), the outputs of all stages side by side; a copy of the network, in eval mode.

    Args:
        released: the network.
        example: (N, ...) images, which show how wide each stage is.

    Attributes:
        columns: which of the columns are whose, by the name of the stage, in their order.
    """

    def __init__(self, released: Released, example: Tensor) -> None:
        super().__init__()
        self.network = replace(released, map=None).whole().requires_grad_(False)
        self._map_off = released.map is not None
        self._found: dict[str, Tensor] = {}
        for name, channels in _stages(self.network).items():
            self.network.get_submodule(name).register_forward_hook(partial(self._keep, name, channels))
        widths = {name: output.shape[1] for name, output in self._outputs(example).items()}
        ends = itertools.accumulate(widths.values())
        self.columns = {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}

    def forward(self, images: Tensor) -> Tensor:
        """All of them."""
        return torch.cat(list(self._outputs(images).values()), dim=1)

    def _outputs(self, images: Tensor) -> dict[str, Tensor]:
        self._found.clear()
        with torch.no_grad():
            features = self.network(images)
        found = dict(self._found)
        self._found.clear()
        return found | ({MAP_OFF: features} if self._map_off else {})

    def _keep(self, name: str, channels: int | None, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim >= 2:
            last = output.ndim == 3 or (output.ndim > 3 and channels == output.shape[-1] != output.shape[1])
            pooled = output if output.ndim == 2 else output.movedim(-1, 1) if last else output
            self._found[name] = pooled.flatten(2).mean(2) if pooled.ndim > 2 else pooled


def _stages(network: nn.Module) -> dict[str, int | None]:
    """Names of modules, and how many channels each says that it has."""
    listed = getattr(network, "feature_info", None)
    if isinstance(listed, list):
        return {str(of["module"]): of.get("num_chs") for of in listed}
    return {name: None for name, _ in network.named_children()}
