"""T4: the last block moves, what comes before it stays and is computed once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from torch import nn

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.fine_tuning import FineTuning
from immunize.evaluation.attacks.network import Inputs, Network

__all__ = ["LastBlock"]


@dataclass(frozen=True, kw_only=True)
class LastBlock(FineTuning):
    """What the immunization itself trained (`model.trainable`), a map that was appended, and a new head.

    Raises:
        UserError: `shift` or `flip`, since the trunk sees every image once.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift or self.flip:
            raise UserError("shift and flip change images, which last_block's trunk sees once: use full_finetune")

    def module(self, network: Network, variant: Hashable, seed: int) -> nn.Module:
        """The part behind the frozen trunk."""
        return network.tail()

    def inputs(self, network: Network) -> tuple[Inputs, Cost]:
        """What the trunk makes of the images."""
        return network.trunk_outputs, network.trunk_cost
