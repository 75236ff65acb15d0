"""The classifier of D_P behind a map that has no inverse: it repeats θ_0's answers as well as the features allow.

What is repeated are the probabilities of θ_0's own classifier and not the labels, so that D_P is kept and not trained
again: from W = W_0, by L-BFGS,

    min over W, b of  mean_n KL( softmax(f_nW_0 + b_0) ‖ softmax(g_nW + b) )

Shapes: N samples, D features, C classes; f of θ_0, g behind the map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from immunize.objective.base import Head
from immunize.objective.losses import divergence

__all__ = ["distilled"]

STEPS, ROWS = 30, 6000
"""Of L-BFGS, and the most rows it sees; more of either take seconds and keep no more of D_P (ours)."""


def distilled(before: Tensor, after: Tensor, head: Head, *, steps: int = STEPS, seed: int = 0) -> Head:
    """Fit the classifier to the mapped features.

    Args:
        before: (N, D) features of D_P under θ_0.
        after: (N, D) of the same images behind the map.
        head: θ_0's classifier.
        steps: of L-BFGS.
        seed: of the rows, where there are more than `ROWS`.

    Returns:
        the classifier, with the dtype of `head`; a head without bias gets none.
    """
    rows = torch.randperm(len(before), generator=torch.Generator().manual_seed(seed))[:ROWS]
    start = head.detach()
    f, g = (x[rows].to(start.weight.dtype) for x in (before, after))
    wanted = start(f)
    weight = start.weight.contiguous().clone().requires_grad_()
    bias = None
    if start.bias is not None:  # the map leaves out its offset
        bias = (start.bias + (f.mean(0) - g.mean(0)) @ start.weight).requires_grad_()
    free = [weight] if bias is None else [weight, bias]
    optimizer = torch.optim.LBFGS(free, max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = divergence(wanted, Head(weight, bias)(g))
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return Head(weight, bias).detach()
