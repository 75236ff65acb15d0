"""What every stage of a released network puts out, averaged over places: features that lie before those it releases.

Stages are those that timm names (`feature_info`: the blocks of a ViT, the stem and the four layers of a ResNet); of
another module its children. Where a map was appended, the features before it are one more: the map taken off.

Shapes: N images, D_s channels of stage s.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from immunize.features.released import Released

__all__ = ["MAP_OFF", "StageOutputs"]

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
