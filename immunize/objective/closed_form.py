"""The best linear map, known in closed form (docs/closed_form.md): no training at all.

Also the start of other methods: `init=closed_form` sets θ this way before the first step.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from immunize.objective.base import Labelled, Objective
from immunize.spectrum.shrinkage import closed_form


class ClosedForm(Objective):
    """θ = W·diag(d) on the frontier κ(H_P) ≤ B, from the generalized eigenproblem of (K_H, K_P).

    Args:
        budget: B ≥ 1; "auto": the largest for which (a) and (b) of Definition 3.1 hold on rows set aside; or "middle":
            as far from failing (a) as (b) on all rows.
        shrinkage: ρ ≥ 0, or "auto" (cross-validated), or "ledoit_wolf".
        seed: of the rows set aside for "auto".

    Raises:
        ValueError: a budget below 1, a negative ρ, or an unknown word.
    """

    def __init__(self, budget: float | str = 1.0, shrinkage: float | str = 1e-3, seed: int = 0) -> None:
        super().__init__({"task": 1.0})
        if isinstance(budget, str) and budget not in ("auto", "middle"):
            raise ValueError(f'method.budget has to be a number of at least 1, "auto" or "middle", it is {budget!r}')
        if not isinstance(budget, str) and not 1 <= budget < float("inf"):
            raise ValueError(f"method.budget has to be at least 1, it is {budget}")
        if isinstance(shrinkage, str) and shrinkage not in ("auto", "ledoit_wolf"):
            raise ValueError(f'method.shrinkage is a number, "auto" or "ledoit_wolf", not {shrinkage!r}')
        if not isinstance(shrinkage, str) and not 0 <= shrinkage < float("inf"):
            raise ValueError(f"method.shrinkage cannot be negative, it is {shrinkage}")
        self.budget, self.shrinkage, self.seed = budget, shrinkage, seed

    @property
    def unused(self) -> tuple[str, ...]:
        """The seed, where nothing is chosen on rows set aside."""
        return () if "auto" in (self.budget, self.shrinkage) else ("seed",)

    def solve(self, pretrain: Labelled, harmful: Labelled) -> tuple[Tensor, dict[str, Any]]:
        """θ, and what the theory forecasts.

        Args:
            pretrain: D_P; targets are not looked at.
            harmful: D_H.

        Raises:
            ValueError: fewer rows than features without shrinkage, or too few to set any aside.
        """
        best = closed_form(pretrain.x, harmful.x, budget=self.budget, shrinkage=self.shrinkage, seed=self.seed)
        spent, chosen = best.budget_choice, best.shrinkage_choice
        assert chosen is not None
        return best.theta, {
            "budget": best.budget,
            "shrinkage": list(best.shrinkage),
            "shrinkage_chosen_by": chosen.how,
            "budget_feasible": spent.feasible if spent else None,
            "budget_reason": spent.reason if spent else None,
            "forecast_rir": best.rir,
            "forecast_kappa_pretrain": best.kappa_pretrain,
            "kappa_gen": best.kappa_gen,
            "notes": list(best.notes),
        }
