"""T4: every weight moves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from torch import nn

from immunize.evaluation.attacks.fine_tuning import FineTuning
from immunize.evaluation.attacks.network import Network

__all__ = ["FullFinetune"]


@dataclass(frozen=True, kw_only=True)
class FullFinetune(FineTuning):
    """All parameters of the network, a map that was appended, and a new head."""

    def module(self, network: Network, variant: Hashable, seed: int) -> nn.Module:
        """The whole network."""
        return network.whole()
