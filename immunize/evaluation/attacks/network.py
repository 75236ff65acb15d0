"""What an attacker has who looks into the network, or moves its weights (T4): it, and the images of a task.

Shapes: N images, B images at once, D features.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from immunize.evaluation.attacks.curves import Cost
from immunize.features.append import StageOutputs

Numbers = npt.NDArray[np.int64]
"""Positions of images in their data set, (B,)."""

IN_MEMORY = 2**31
"""Bytes of images, or of what a trunk makes of them, that are kept in memory; more are computed whenever asked for."""

AT_ONCE = 256
CPU = torch.device("cpu")


class Inputs:
    """What a network is fed, by number: kept in memory where all of it fits.

    Args:
        source: from numbers (B,) to a tensor (B, ...); the same for the same numbers.
        count: N.
    """

    def __init__(self, source: Callable[[Numbers], Tensor], count: int) -> None:
        self.source, self.count = source, count

    @classmethod
    def of_images(cls, images: Any) -> Inputs:
        """Those of a map-style data set of (tensor, label)."""
        return cls(lambda numbers: torch.stack([images[int(i)][0] for i in numbers]), len(images))

    def through(self, trunk: nn.Module) -> Inputs:
        """What the trunk makes of them."""
        device = next((p.device for p in trunk.parameters()), CPU)

        def source(numbers: Numbers) -> Tensor:
            with torch.no_grad():
                return trunk(self.at(numbers).to(device)).cpu()  # type: ignore[no-any-return]

        return Inputs(source, self.count)

    def at(self, numbers: Numbers) -> Tensor:
        """Those with these numbers, (B, ...)."""
        return self.source(numbers) if self._all is None else self._all[torch.from_numpy(numbers)]

    @cached_property
    def _all(self) -> Tensor | None:
        first = self.source(np.zeros(1, dtype=np.int64))
        if self.count * first.numel() * first.element_size() > IN_MEMORY:
            return None
        kept = torch.empty((self.count, *first.shape[1:]), dtype=first.dtype)
        for start in range(0, self.count, AT_ONCE):
            numbers = np.arange(start, min(start + AT_ONCE, self.count))
            kept[numbers[0] : numbers[-1] + 1] = self.source(numbers)
        return kept


@dataclass(frozen=True)
class Network:
    """A released network with the images of one task.

    Attributes:
        whole: makes a copy of it, images → features (N, D), all of whose parameters may be trained.
        tail: makes a copy of what comes after its frozen trunk; the last block's parameters alone require gradients.
        trunk: images → what the tail takes, without gradients.
        images: of the task.
        trunk_outputs: what the trunk makes of them.
        train: numbers of the training rows' images.
        validation: likewise.
        test: likewise.
        key: says which weights and which images.
        device: where to compute.
        stages: images → what every stage puts out, averaged over places.
        stage_outputs: what that is of the task's images.
    """

    whole: Callable[[], nn.Module]
    tail: Callable[[], nn.Module]
    trunk: nn.Module
    images: Inputs
    trunk_outputs: Inputs
    train: Numbers
    validation: Numbers
    test: Numbers
    key: str
    device: torch.device = CPU
    stages: StageOutputs | None = None
    stage_outputs: Inputs | None = None

    @cached_property
    def trunk_cost(self) -> Cost:
        """Of the trunk, which several attacks cut off: measured once."""
        return self.cost_of(self.trunk)

    def cost_of(self, part: nn.Module) -> Cost:
        """Of one pass of all training images through a part of the network; no gradient comes of it: it is no step."""
        n = min(len(self.train), AT_ONCE)
        x = self.images.at(self.train[:n]).to(self.device)  # the first time may decode all images, whoever comes first
        started = time.perf_counter()
        with torch.no_grad():
            flops = flops_of(lambda: part(x))
        share = len(self.train) / n
        return Cost(0, (time.perf_counter() - started) * share, len(self.train), flops * share)


def flops_of(work: Callable[[], Any]) -> float:
    """Multiplications and additions of the matrix products and convolutions within, as PyTorch counts them.

    Attention is done as its two products: the CPU's own kernel for it is counted by none before torch 2.15.
    """
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        work()
    return float(counter.get_total_flops())
