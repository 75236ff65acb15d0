"""A method's map behind a network, with the classifier that goes with it: for runs and for `immunize.immunize` alike.

Sees every room; no room sees it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from immunize.errors import UserError
from immunize.features import AppendedHead, append_map
from immunize.features.store import Features
from immunize.objective import Head, Objective
from immunize.objective.refit import distilled

__all__ = ["append_computed"]


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
        bias = None if parameters.bias is None else parameters.bias.detach().cpu()
        refitted = distilled(x, x @ theta, Head(parameters.weight.detach().cpu().T, bias))
        with torch.no_grad():
            parameters.weight.copy_(refitted.weight.T)
            if refitted.bias is not None:
                parameters.bias.copy_(refitted.bias)
    return released, appended, facts
