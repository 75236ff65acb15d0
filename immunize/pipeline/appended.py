"""The map that a method computes, behind a network: for runs and for `immunize.immunize` alike.

Sees every room; no room sees it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from immunize.errors import UserError
from immunize.features import AppendedHead, append_map
from immunize.features.extract import Features
from immunize.objective import Head, Objective
from immunize.objective.erase import distilled
from immunize.pipeline.features import Measured, head_of
from immunize.spectrum.condition import check_varying


def append_computed(
    objective: Objective,
    network: nn.Module,
    pretrain: Features,
    harmful: Features,
    *,
    head: str | None = None,
) -> tuple[nn.Module, AppendedHead, dict[str, Any]]:
    """Append the map that a method computes from features.

    A map with an inverse changes no logit. Behind one without, the classifier is fitted again to repeat θ_0's answers
    on D_P.

    Args:
        objective: the method.
        network: θ_0; it is not changed.
        pretrain: θ_0's features of D_P.
        harmful: of D_H.
        head: of the network, as `append_map` takes it.

    Returns:
        the released network, its map and classifier, and facts.

    Raises:
        UserError: a method for linear models alone, or features that do not allow the map.
    """
    x = pretrain.x.double()
    try:
        check_varying(x, "D_P")
        check_varying(harmful.x, "D_H")
        solved = objective.solve(Features(x, pretrain.y), Features(harmful.x.double(), harmful.y))
        if solved is None:
            raise UserError("this method is made for linear models; for a network choose another, such as closed_form")
        theta, facts = solved
        inverse = torch.linalg.inv(theta) if objective.has_inverse else None
        released = append_map(network, theta, inverse, head=head)
    except (ValueError, RuntimeError) as error:  # LAPACK's errors are runtime errors
        raise UserError(str(error)) from None
    (appended,) = (module for module in released.modules() if isinstance(module, AppendedHead))
    if inverse is None:
        parameters = appended.head
        refitted = distilled(x, theta, head_of(parameters))
        with torch.no_grad():
            parameters.weight.copy_(refitted.weight.T)
            if refitted.bias is not None:
                parameters.bias.copy_(refitted.bias)
    return released, appended, facts


def mapped(features: Measured, appended: AppendedHead) -> Head:
    """Put θ_0's features behind an appended map in the place of the immunized network's.

    Returns:
        the classifier behind the map.
    """
    with torch.no_grad():
        for part, roles in features["theta_0"].items():
            for role, (x, y) in roles.items():
                features["immunized"][part][role] = Features(appended.map(x), y)
    return head_of(appended.head)
