"""What a method looks at before the first step of a network's training: labels, and θ_0's features if it asks for them.

Sees every room; no room sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from immunize.data import Role
from immunize.features import DeepExtractor, Features, extract
from immunize.objective import Objective

__all__ = ["prepare"]

MOST_ROWS = 6000
"""Images of D_P whose features a method that prepares itself gets; more take time and change little (ours)."""


def prepare(
    cfg: DictConfig,
    objective: Objective,
    net: DeepExtractor,
    images: Mapping[Role, Any],
    *,
    classes: Sequence[int],
    device: torch.device,
    cached: bool,
) -> None:
    """Let the method see what it needs of θ_0 and of D_H's labels.

    Args:
        cfg: the composed configuration.
        objective: the method.
        net: θ_0.
        images: of `fit`, by role.
        classes: C of each harmful data set.
        device: where to compute.
        cached: `images` holds trunk outputs.

    Raises:
        UserError: the data do not suit the method.
    """
    harmful = images["harmful"]
    labels = harmful.tensors[1] if isinstance(harmful, TensorDataset) else harmful.labels
    number = torch.bucketize(labels, torch.tensor(classes).cumsum(0), right=True)
    rows = [(number == which).nonzero()[:, 0] for which in range(len(classes))]

    def theta_0() -> list[Features]:
        some = torch.randperm(len(images["pretrain"]), generator=torch.Generator().manual_seed(cfg.seed))[:MOST_ROWS]
        sides: list[tuple[Role, Tensor]] = [("pretrain", some), *(("harmful", own) for own in rows)]
        net.to(device)
        return [
            extract(
                net.features if cached else net,
                Subset(images[role], chosen.tolist()),
                batch_size=cfg.deep.batch_size,
                workers=cfg.deep.workers,
                device=device,
            )
            for role, chosen in sides
        ]

    objective.prepare(net, [labels[own] for own in rows], theta_0)
