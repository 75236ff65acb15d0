"""T4: the head that fine-tuning starts from, a linear probe of the features (Kumar et al., ICLR 2022: LP-FT).

From a head at zero, a few hundred steps on many classes end below the probe that T2 has for one product of matrices,
and the race between learning rates is decided by chance. So the probe is solved first, and is part of the cost.

Shapes: N images, D features, C classes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.protocol import AttackData
from immunize.evaluation.attacks.ridge import Ridge

__all__ = ["probed_head"]

_SHARPNESS = tuple(float(2**power) for power in range(-2, 15))
"""What the outputs of ridge regression, which lie between 0 and 1, may be multiplied with; ours."""


def probed_head(data: AttackData, probe: Ridge, scale: float) -> tuple[nn.Linear, Cost]:
    """The probe as logits of features over `scale`; its cost is one step.

    The classes of ridge regression are kept; the multiple of its outputs is the one with the smallest cross-entropy on
    the validation rows.

    Args:
        data: a classification task.
        probe: has the grid of penalties.
        scale: of the features, positive.
    """
    weight, bias, cost = probe.fitted(data)
    outputs = torch.from_numpy(data.validation.x @ weight + bias)
    labels = torch.from_numpy(data.validation.y.astype(np.int64))
    losses = [float(nn.functional.cross_entropy(sharp * outputs, labels)) for sharp in _SHARPNESS]
    sharp = _SHARPNESS[int(np.nanargmin(losses))]
    head = nn.utils.skip_init(nn.Linear, *weight.shape)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(sharp * scale * weight).T)
        head.bias.copy_(torch.from_numpy(sharp * bias))
    return head, cost
