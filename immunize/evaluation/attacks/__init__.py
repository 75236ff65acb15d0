"""The attack grid: who can learn the harmful task from released features, and at what cost (docs/attacks.md).

Attacks of one family share a file: `gradient_descent` (T0), `first_order` (T1), `least_squares` and `lbfgs` (T2),
`distances` (T3), `prepared` (T3 and T5), `fine_tuning` (T4). `protocol` says what all have in common, `grid` runs them,
`judging` computes the verdict.
"""

from immunize.evaluation.attacks.curves import RESOURCES, Cost, Curve, Horizon, Point, Trace, best_so_far, horizon_of
from immunize.evaluation.attacks.distances import KernelRidge, NearestNeighbours
from immunize.evaluation.attacks.fine_tuning import FullFinetune, LastBlock, Lora
from immunize.evaluation.attacks.first_order import FirstOrder
from immunize.evaluation.attacks.gradient_descent import GradientDescent, LogisticDescent
from immunize.evaluation.attacks.grid import Entry, Store, attack_all, check_tiers, in_tier, version_of
from immunize.evaluation.attacks.judging import Attacked, Estimate, TierResult, Verdict, compare, judge
from immunize.evaluation.attacks.lbfgs import Lbfgs
from immunize.evaluation.attacks.least_squares import ConjugateGradient, Ridge
from immunize.evaluation.attacks.network import Inputs, Network
from immunize.evaluation.attacks.prepared import ImagesAlone, LinearMap, PublicReference, Repaired, StageProbes
from immunize.evaluation.attacks.protocol import TIERS, Attack, AttackData, Budget, Outcome, Rows

__all__ = [
    "RESOURCES",
    "TIERS",
    "Attack",
    "AttackData",
    "Attacked",
    "Budget",
    "ConjugateGradient",
    "Cost",
    "Curve",
    "Entry",
    "Estimate",
    "FirstOrder",
    "FullFinetune",
    "GradientDescent",
    "Horizon",
    "ImagesAlone",
    "Inputs",
    "KernelRidge",
    "LastBlock",
    "Lbfgs",
    "LinearMap",
    "LogisticDescent",
    "Lora",
    "NearestNeighbours",
    "Network",
    "Outcome",
    "Point",
    "PublicReference",
    "Repaired",
    "Ridge",
    "Rows",
    "StageProbes",
    "Store",
    "TierResult",
    "Trace",
    "Verdict",
    "attack_all",
    "best_so_far",
    "check_tiers",
    "compare",
    "horizon_of",
    "in_tier",
    "judge",
    "version_of",
]
