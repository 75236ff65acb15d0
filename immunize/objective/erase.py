"""What a linear probe can learn of D_H's labels is taken out of the features, in closed form (docs/erasure.md).

For a linear model the map is θ; behind a network it is a layer, of which whoever has the weights can rid himself.

Such a map has no inverse that a network's classifier of D_P could undo it with: the classifier repeats θ_0's answers as
well as the features allow. What is repeated are the probabilities of θ_0's own classifier and not the labels, so that
D_P is kept and not trained again: from W = W_0, by L-BFGS,

    min over W, b of  mean_n KL( softmax(f_nW_0 + b_0) ‖ softmax(g_nW + b) )

Shapes: N samples, D features, C classes; f of θ_0, g behind the map.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from immunize.objective.base import Head, Labelled, Objective, divergence
from immunize.spectrum.erasing_choice import check_choice, erase


class Erase(Objective):
    """The projection that makes the class means of D_H equal and changes D_P least.

    Args:
        rank: k, the directions that are erased; None: as many as D_P can do without.
        shrinkage: ρ ≥ 0 of K_P, or "auto".
        slack: what a probe of D_P may lose in correlation with its targets on rows set aside.
        protect: leave the outputs of a probe of D_P as they are, whatever that leaves to D_H.
        seed: of the rows set aside.

    Raises:
        TypeError: a rank that is no whole number, or a shrinkage or slack that is none at all.
        ValueError: a value outside its range, or an unknown word.
    """

    has_inverse = aims_at_kappa = False  # what is erased no condition number says

    def __init__(
        self,
        rank: int | None = None,
        shrinkage: float | str = "auto",
        slack: float = 0.02,
        *,
        protect: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__({"task": 1.0})
        check_choice(rank, shrinkage, slack, "method.")
        self.rank, self.shrinkage, self.slack, self.protect, self.seed = rank, shrinkage, slack, protect, seed

    def solve(self, pretrain: Labelled, harmful: Labelled) -> tuple[Tensor, dict[str, Any]]:
        """θ from all rows, and facts about the choice of its rank.

        Args:
            pretrain: D_P; where all labels are the same, nothing is known of what D_P may lose.
            harmful: D_H.

        Raises:
            ValueError: D_H with one label, a rank that is not below D, or D_P and D_H the same data.
        """
        found = erase(
            pretrain.x,
            harmful.x,
            harmful.y,
            y_pretrain=pretrain.y,
            rank=self.rank,
            shrinkage=self.shrinkage,
            slack=self.slack,
            protect=self.protect,
            seed=self.seed,
        )
        return found.matrix, {
            "rank": found.rank,
            "available": found.available,
            "rank_chosen_by": "auto" if self.rank is None else "given",
            "shrinkage": found.shrinkage,
            "shrinkage_chosen_by": found.shrinkage_chosen_by,
            "changed": found.changed,
            "feasible": found.feasible,
            "trials": [asdict(trial) for trial in found.trials],
        }


STEPS, ROWS = 30, 6000
"""Of L-BFGS, and the most rows it sees; more of either take seconds and keep no more of D_P (ours)."""


def distilled(features: Tensor, theta: Tensor, head: Head, *, steps: int = STEPS) -> Head:
    """Fit the classifier to the mapped features.

    Args:
        features: (N, D) of D_P under θ_0.
        theta: (D, D), the map.
        head: θ_0's classifier.
        steps: of L-BFGS.

    Returns:
        the classifier, with the dtype of `head`; a head without bias gets none.
    """
    some = features[torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:ROWS]]
    start = head.detach()
    f, g = (x.to(start.weight.dtype) for x in (some, some @ theta))
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
