"""What a linear probe can learn of D_H's labels is taken out of the features, in closed form (docs/erasure.md).

For a linear model the map is θ; behind a network it is a layer, of which whoever has the weights can rid himself.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from torch import Tensor

from immunize.objective.base import Labelled, Objective, Step
from immunize.spectrum import erase

__all__ = ["Erase"]


class Erase(Objective):
    """The projection that makes the class means of D_H equal and changes D_P least.

    Args:
        rank: k, the directions that are erased; None: as many as D_P can do without.
        shrinkage: ρ ≥ 0 of K_P, or "auto".
        slack: what a probe of D_P may lose in correlation with its targets on rows set aside.
        protect: leave the outputs of a probe of D_P as they are, whatever that leaves to D_H.
        seed: of the rows set aside.

    Raises:
        ValueError: a value outside its range, or an unknown word.
    """

    has_inverse = False

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
        if rank is not None and rank < 1:
            raise ValueError(f"method.rank has to be at least 1, or null, it is {rank}")
        if isinstance(shrinkage, str) and shrinkage != "auto":
            raise ValueError(f'method.shrinkage is a number, or "auto", not {shrinkage!r}')
        if not isinstance(shrinkage, str) and not 0 <= shrinkage < math.inf:
            raise ValueError(f"method.shrinkage has to be a finite number ≥ 0, it is {shrinkage}")
        if not 0 <= slack < math.inf:
            raise ValueError(f"method.slack has to be a finite number ≥ 0, it is {slack}")
        self.rank, self.shrinkage, self.slack, self.protect, self.seed = rank, shrinkage, slack, protect, seed

    def terms(self, step: Step) -> dict[str, Tensor]:
        """The task loss; θ is not trained on it, see :meth:`solve`."""
        return {"task": step.pretrain_loss()}

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
