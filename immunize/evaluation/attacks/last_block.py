"""T4: the last block moves, what comes before it stays and is computed once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from torch import nn

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.fine_tuning import FineTuning
from immunize.evaluation.attacks.network import Inputs, Network
from immunize.features import NoBoundaryError, matching_parameters, split_network

__all__ = ["LastBlock"]


@dataclass(frozen=True, kw_only=True)
class LastBlock(FineTuning):
    """What the immunization itself trained (`model.trainable`), a map that was appended, and a new head.

    Attributes:
        modules: names or patterns of modules or parameters that move instead, such as ("layer4",): networks that were
            immunized at different depths then meet the same attacker. An appended map stands at the classifier's place.

    Raises:
        UserError: `shift` or `flip`, since the trunk sees every image once; modules that the network has not, or before
            which it cannot be cut.
    """

    modules: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift or self.flip:
            raise UserError("shift and flip change images, which last_block's trunk sees once: use full_finetune")

    def module(self, network: Network, variant: Hashable, seed: int) -> nn.Module:
        """The part behind the frozen trunk."""
        return network.tail() if self.modules is None else self._cut(network, self.modules)[1]

    def inputs(self, network: Network) -> tuple[Inputs, Cost]:
        """What the trunk makes of the images."""
        if self.modules is None:
            return network.trunk_outputs, network.trunk_cost
        trunk, _ = self._cut(network, self.modules)
        return network.images.through(trunk), network.cost_of(trunk)

    def _cut(self, network: Network, modules: tuple[str, ...]) -> tuple[nn.Module, nn.Module]:
        whole = network.whole().to(network.device)
        names = {*matching_parameters(whole, modules, "the network", "modules")}
        for name, parameter in whole.named_parameters():
            parameter.requires_grad_(name in names)
        moved = [parameter for parameter in whole.parameters() if parameter.requires_grad]
        try:
            return split_network(whole, moved, network.images.at(np.arange(2)).to(network.device))
        except NoBoundaryError as error:
            raise UserError(f"modules={[*modules]}: {error}") from error
