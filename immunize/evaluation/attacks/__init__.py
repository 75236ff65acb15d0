"""The attack grid: who can learn the harmful task from released features, and at what cost (docs/attacks.md).

Attacks of one family share a file: `gradient_descent` (T0), `first_order` (T1), `least_squares` and `lbfgs` (T2),
`distances` (T3), `prepared` (T3 and T5), `fine_tuning` (T4). `protocol` says what all have in common, `grid` runs them,
`judging` computes the verdict.
"""

from immunize.evaluation.attacks.curves import Cost
from immunize.evaluation.attacks.distances import KernelRidge, NearestNeighbours
from immunize.evaluation.attacks.fine_tuning import FullFinetune, LastBlock, Lora
from immunize.evaluation.attacks.first_order import FirstOrder
from immunize.evaluation.attacks.gradient_descent import GradientDescent, LogisticDescent
from immunize.evaluation.attacks.lbfgs import Lbfgs
from immunize.evaluation.attacks.least_squares import ConjugateGradient, Ridge
from immunize.evaluation.attacks.prepared import ImagesAlone, LinearMap, PublicReference, Repaired, StageProbes
from immunize.evaluation.attacks.protocol import TIERS, Attack, AttackData, Budget, Outcome, Rows

__all__ = [
    "TIERS",
    "Attack",
    "AttackData",
    "Budget",
    "ConjugateGradient",
    "Cost",
    "FirstOrder",
    "FullFinetune",
    "GradientDescent",
    "ImagesAlone",
    "KernelRidge",
    "LastBlock",
    "Lbfgs",
    "LinearMap",
    "LogisticDescent",
    "Lora",
    "NearestNeighbours",
    "Outcome",
    "PublicReference",
    "Repaired",
    "Ridge",
    "Rows",
    "StageProbes",
]
