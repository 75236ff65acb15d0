"""T4: low-rank updates of every layer (LoRA), over a grid of ranks; the weights themselves stay."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import nn

from immunize.errors import UserError
from immunize.evaluation.attacks.fine_tuning import FineTuning
from immunize.evaluation.attacks.network import Network
from immunize.features import add_lora

__all__ = ["Lora"]


@dataclass(frozen=True, kw_only=True)
class Lora(FineTuning):
    """LoRA on every linear layer and convolution, and a new head; nothing else moves, BatchNorm's statistics included.

    Attributes:
        ranks: the grid; the learning rate is chosen with the one in the middle.
        alpha: an update is worth α/√r.

    Raises:
        UserError: an empty grid, a rank below 1, an α that is not positive, or `batch_statistics`.
    """

    ranks: tuple[int, ...]
    alpha: float = 1.0
    batch_statistics: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ranks or min(self.ranks) < 1 or not self.alpha > 0:
            raise UserError("LoRA needs at least one rank, ranks of 1 or more, and a positive alpha")
        if self.batch_statistics:
            raise UserError("LoRA moves nothing but its updates and the head: batch_statistics has to be false")

    def module(self, network: Network, variant: Hashable, seed: int) -> nn.Module:
        """The network with updates of rank `variant`."""
        module = network.whole()
        add_lora(module, _rank(variant), alpha=self.alpha, seed=seed)
        return module

    def variants(self) -> Sequence[Hashable]:
        """The ranks, in words."""
        return tuple(f"rank {rank}" for rank in sorted(self.ranks))


def _rank(variant: Hashable) -> int:
    return int(str(variant).removeprefix("rank "))
